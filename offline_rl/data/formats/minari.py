"""Minari's HDF5 files: one group an episode, with one observation more than steps.

    main_data.hdf5   episode_<n>/{observations [T+1], actions, rewards, terminations, truncations
                     [T]}, infos/... [T+1] with the reset's first; a group for a Dict or Tuple
    metadata.json    beside it: the spaces, the counts, whether pictures are JPEG

`Farama-Foundation/Minari:minari/dataset/_storages/hdf5_storage.py`; format of versions 0.4 to 0.5.
An episode may end with no flag (the recording stopped) and is truncated then; with both it
terminated. A Dict observation is flattened in the order of its keys, as
`gymnasium.spaces.flatten` does.
"""

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from offline_rl.data.containers.raw import Raw
from offline_rl.data.dataset import as_columns
from offline_rl.data.formats.common import (
    Bounds,
    Columns,
    ParsedFile,
    ReadOptions,
    below,
    called,
    choose,
    counted,
    flag,
    metadata_in,
    numbered,
    observed,
    same_lengths,
    stacked,
)
from offline_rl.utils.errors import UserError

NAME = "Minari"
TAKES = ("observation_keys", "infos")
SCALARS = ("rewards", "terminations", "truncations")
PICTURE_SIDE = 32  # smaller uint8 arrays are not stored as JPEG


def missed(raw: Raw) -> str | None:
    """Why `raw` is not of this layout; None where it is."""
    if raw.kind != "HDF5":
        return f"no HDF5 file, but {raw.kind}"
    episodes = numbered(raw, "episode_").values()
    if not episodes:
        return "no group episode_<number>"
    ends = {f"{episode}/{flag}" for episode in episodes for flag in SCALARS[1:]}
    if ends & {*raw.keys} or (raw.folder / "metadata.json").is_file():
        return None
    return "no array 'terminations' in the groups episode_<number>"


def parse(raw: Raw, options: ReadOptions, complain: Callable[[str], None]) -> ParsedFile:
    """All episodes, by number. Limits of the actions are those of the action space."""
    beside = raw.folder / "metadata.json"
    metadata = metadata_in(beside) if beside.is_file() else {}
    space = _space(raw, metadata, "action_space")
    if space is not None and space["type"] != "Box":
        raise UserError(f"{raw.where}: actions are {space['type']}; continuous ones are expected.")
    episodes = list(numbered(raw, "episode_").values())
    counted(raw.where, "episodes", len(episodes), metadata.get("total_episodes"))
    first = episodes[0]
    paths = below(raw, f"{first}/observations") or ("",)
    encoded = _encoded(_space(raw, metadata, "observation_space"), metadata)
    shapes = {path: _shape(raw, first, path, encoded) for path in paths}
    keys, notes = choose(raw.where, shapes, options)
    infos = [path for path in below(raw, f"{first}/infos") if path == "cost" or options.infos]
    columns = stacked(raw.where, (_episode(raw, e, keys, encoded, infos) for e in episodes))
    counted(raw.where, "steps", len(columns["rewards"]), metadata.get("total_steps"))
    extras = {path: columns.pop(path) for path in list(columns) if path.startswith("infos/")}
    if "infos/cost" in extras:
        columns["costs"] = extras.pop("infos/cost")
    return ParsedFile(
        "Minari",
        as_columns(columns),
        {
            **called("observations", columns, {k: f"observations/{k}".rstrip("/") for k in keys}),
            "terminated": "terminations",
            "truncated": "truncations",
            "costs": "infos/cost",
        },
        extras={path: array for path, array in extras.items() if array.dtype.kind in "fiub"},
        notes=notes,
        action_range=_limits(space),
        files=(beside,) if metadata else (),
    )


def _episode(
    raw: Raw, episode: str, keys: list[str], encoded: Mapping[str, bool], infos: list[str]
) -> Columns:
    """One episode with an observation and the one after it for each step."""
    scalars = {key: raw.get(f"{episode}/{key}") for key in SCALARS}
    steps = scalars["rewards"].shape[0] if scalars["rewards"].ndim else 0
    parts = {key: _observed(raw, episode, key, encoded) for key in keys}
    arrays = scalars | {"actions": raw.get(f"{episode}/actions")}
    same_lengths(f"{raw.where}: {episode}", arrays, steps)
    more = {f"observations/{key}".rstrip("/"): part for key, part in parts.items()}
    more |= {f"infos/{path}": raw.get(f"{episode}/infos/{path}") for path in infos}
    same_lengths(f"{raw.where}: {episode}", more, steps + 1)
    if not steps:
        raise UserError(f"{raw.where}: {episode} has no steps. Leave it out of the data set.")
    seen = observed("", parts)
    where = f"{raw.where}: {episode}"
    ended, cut = (flag(where, key, scalars[key]) for key in SCALARS[1:])
    cut[-1] = True
    return {
        **{f"observations{name}": values[:-1] for name, values in seen.items()},
        "actions": arrays["actions"],
        "rewards": scalars["rewards"],
        "terminated": ended,
        "truncated": cut & ~ended,
        **{f"next_observations{name}": values[1:] for name, values in seen.items()},
        **{f"infos/{path}": more[f"infos/{path}"][1:] for path in infos},
    }


def _space(raw: Raw, metadata: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """A space as `minari/serialization.py` writes it; files of version 0.4 hold it themselves."""
    text = metadata.get(name) or raw.attribute("/", name)
    if not text:
        return None
    with contextlib.suppress(ValueError, TypeError, KeyError):
        space: dict[str, Any] = json.loads(text)
        if space["type"] != "Box" or space.keys() >= {"low", "high"}:
            return space
    raise UserError(f"{raw.where}: {name} in its metadata is no space: {text!r:.80}.")


def _encoded(space: Mapping[str, Any] | None, metadata: Mapping[str, Any]) -> dict[str, bool]:
    """The paths of those observations that are stored as JPEG."""
    if space is None or not metadata.get("jpeg_encoding", True):
        return {}
    if space["type"] in ("Dict", "Tuple"):
        inner = space["subspaces"]
        if isinstance(inner, list):
            inner = {f"_index_{i}": part for i, part in enumerate(inner)}
        return {
            f"{name}/{path}".rstrip("/"): True
            for name, part in inner.items()
            for path in _encoded(part, metadata)
        }
    shape = space.get("shape", ())
    bounds = np.unique([np.min(space.get("low", 0)), np.max(space.get("high", 0))]).tolist()
    picture = (
        space.get("dtype") == "uint8"
        and len(shape) in (2, 3)
        and min(shape[:2]) >= PICTURE_SIDE
        and bounds == [0, 255]
    )
    return {"": True} if picture else {}


def _observed(raw: Raw, episode: str, path: str, encoded: Mapping[str, bool]) -> np.ndarray:
    key = f"{episode}/observations/{path}".rstrip("/")
    stored = raw.get(key)
    if path not in encoded or stored.ndim > 2:
        return stored
    import imageio.v3

    try:
        return np.stack([imageio.v3.imread(row.tobytes(), extension=".jpeg") for row in stored])
    except (OSError, ValueError) as error:
        raise UserError(f"{raw.where}: {key} is no row of JPEG pictures ({error}).") from None


def _shape(raw: Raw, episode: str, path: str, encoded: Mapping[str, bool]) -> tuple[int, ...]:
    if path in encoded:
        return _observed(raw, episode, path, encoded).shape[1:]
    return raw.shape(f"{episode}/observations/{path}".rstrip("/"))[1:]


def _limits(space: Mapping[str, Any] | None) -> Bounds | None:
    """The action space's, where all are finite."""
    if space is None:
        return None
    low, high = np.array(space["low"], np.float64), np.array(space["high"], np.float64)
    return (low, high) if np.isfinite(low).all() and np.isfinite(high).all() else None
