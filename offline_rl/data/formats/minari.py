"""Minari's HDF5 files: one group per episode, with T + 1 observations for T steps.

    main_data.hdf5   episode_<n>/{observations [T+1], actions, rewards, terminations, truncations
                     [T]}, infos/... [T+1]. Row 0 of observations and infos is from the reset. A
                     Dict or Tuple space is a group
    metadata.json    in the same folder: spaces, counts, and whether images are JPEG

`Farama-Foundation/Minari:minari/dataset/_storages/hdf5_storage.py`; format of versions 0.4 to 0.5.
An episode that ends without a flag is truncated, because the recording stopped. An episode with
both flags is terminated. A Dict observation is flattened in the order of its keys, as in
`gymnasium.spaces.flatten`.
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
    check_count,
    check_lengths,
    choose_observations,
    concatenate_episodes,
    file_names,
    keys_below,
    numbered_groups,
    observation_columns,
    read_metadata,
    to_flag,
)
from offline_rl.utils.errors import UserError

NAME = "Minari"
SUPPORTED_OPTIONS = ("observation_keys", "infos")
SCALARS = ("rewards", "terminations", "truncations")
IMAGE_SIDE = 32  # smaller uint8 arrays are not stored as JPEG


def mismatch(raw: Raw) -> str | None:
    """Return the reason why `raw` does not have this layout; None if it has."""
    if raw.kind != "HDF5":
        return f"{raw.kind}, not HDF5"
    episodes = numbered_groups(raw, "episode_").values()
    if not episodes:
        return "no group episode_<number>"
    ends = {f"{episode}/{flag}" for episode in episodes for flag in SCALARS[1:]}
    if ends & {*raw.keys} or (raw.folder / "metadata.json").is_file():
        return None
    return "no array 'terminations' in the groups episode_<number>"


def parse(raw: Raw, options: ReadOptions, report: Callable[[str], None]) -> ParsedFile:
    """Read all episodes, sorted by number. The action space gives the limits of the actions."""
    metadata_file = raw.folder / "metadata.json"
    metadata = read_metadata(metadata_file) if metadata_file.is_file() else {}
    space = _read_space(raw, metadata, "action_space")
    if space is not None and space["type"] != "Box":
        raise UserError(
            f"{raw.where}: the action space is {space['type']}. Only continuous actions (Box) are "
            "supported."
        )
    episodes = list(numbered_groups(raw, "episode_").values())
    check_count(raw.where, "episodes", len(episodes), metadata.get("total_episodes"))
    first = episodes[0]
    paths = keys_below(raw, f"{first}/observations") or ("",)
    encoded = _encoded_paths(_read_space(raw, metadata, "observation_space"), metadata)
    shapes = {path: _observation_shape(raw, first, path, encoded) for path in paths}
    keys, notes = choose_observations(raw.where, shapes, options)
    infos = [path for path in keys_below(raw, f"{first}/infos") if path == "cost" or options.infos]
    columns = concatenate_episodes(
        raw.where, (_read_episode(raw, e, keys, encoded, infos) for e in episodes)
    )
    check_count(raw.where, "steps", len(columns["rewards"]), metadata.get("total_steps"))
    extras = {path: columns.pop(path) for path in list(columns) if path.startswith("infos/")}
    if "infos/cost" in extras:
        columns["costs"] = extras.pop("infos/cost")
    return ParsedFile(
        "Minari",
        as_columns(columns),
        {
            **file_names(
                "observations", columns, {k: f"observations/{k}".rstrip("/") for k in keys}
            ),
            "terminated": "terminations",
            "truncated": "truncations",
            "costs": "infos/cost",
        },
        extras={path: array for path, array in extras.items() if array.dtype.kind in "fiub"},
        notes=notes,
        action_range=_action_limits(space),
        files=(metadata_file,) if metadata else (),
    )


def _read_episode(
    raw: Raw, episode: str, keys: list[str], encoded: Mapping[str, bool], infos: list[str]
) -> Columns:
    """Read one episode, with observation and next observation of each step."""
    scalars = {key: raw.get(f"{episode}/{key}") for key in SCALARS}
    steps = scalars["rewards"].shape[0] if scalars["rewards"].ndim else 0
    parts = {key: _read_observations(raw, episode, key, encoded) for key in keys}
    arrays = scalars | {"actions": raw.get(f"{episode}/actions")}
    check_lengths(f"{raw.where}: {episode}", arrays, steps)
    with_reset = {f"observations/{key}".rstrip("/"): part for key, part in parts.items()}
    with_reset |= {f"infos/{path}": raw.get(f"{episode}/infos/{path}") for path in infos}
    check_lengths(f"{raw.where}: {episode}", with_reset, steps + 1)
    if not steps:
        raise UserError(f"{raw.where}: {episode} has no steps. Leave it out of the data set.")
    observations = observation_columns("", parts)
    where = f"{raw.where}: {episode}"
    is_terminated, is_truncated = (to_flag(where, key, scalars[key]) for key in SCALARS[1:])
    is_truncated[-1] = True
    return {
        **{f"observations{name}": values[:-1] for name, values in observations.items()},
        "actions": arrays["actions"],
        "rewards": scalars["rewards"],
        "terminated": is_terminated,
        "truncated": is_truncated & ~is_terminated,
        **{f"next_observations{name}": values[1:] for name, values in observations.items()},
        **{f"infos/{path}": with_reset[f"infos/{path}"][1:] for path in infos},
    }


def _read_space(raw: Raw, metadata: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Read a space, in the format of `minari/serialization.py`; None if it is not stored.

    It is in metadata.json; in version 0.4 it is an attribute of the HDF5 file.
    """
    text = metadata.get(name) or raw.attribute("/", name)
    if not text:
        return None
    with contextlib.suppress(ValueError, TypeError, KeyError):
        space: dict[str, Any] = json.loads(text)
        if space["type"] != "Box" or space.keys() >= {"low", "high"}:
            return space
    raise UserError(f"{raw.where}: {name} in the metadata is not a valid space: {text!r:.80}.")


def _encoded_paths(space: Mapping[str, Any] | None, metadata: Mapping[str, Any]) -> dict[str, bool]:
    """Return {path: True} for the observations that are stored as JPEG."""
    if space is None or not metadata.get("jpeg_encoding", True):
        return {}
    if space["type"] in ("Dict", "Tuple"):
        inner = space["subspaces"]
        if isinstance(inner, list):
            inner = {f"_index_{i}": part for i, part in enumerate(inner)}
        return {
            f"{name}/{path}".rstrip("/"): True
            for name, part in inner.items()
            for path in _encoded_paths(part, metadata)
        }
    shape = space.get("shape", ())
    bounds = np.unique([np.min(space.get("low", 0)), np.max(space.get("high", 0))]).tolist()
    is_image = (
        space.get("dtype") == "uint8"
        and len(shape) in (2, 3)
        and min(shape[:2]) >= IMAGE_SIDE
        and bounds == [0, 255]
    )
    return {"": True} if is_image else {}


def _read_observations(
    raw: Raw, episode: str, path: str, encoded: Mapping[str, bool]
) -> np.ndarray:
    key = f"{episode}/observations/{path}".rstrip("/")
    stored = raw.get(key)
    if path not in encoded or stored.ndim > 2:
        return stored
    import imageio.v3

    try:
        return np.stack([imageio.v3.imread(row.tobytes(), extension=".jpeg") for row in stored])
    except (OSError, ValueError) as error:
        raise UserError(f"{raw.where}: {key} does not hold JPEG images ({error}).") from None


def _observation_shape(
    raw: Raw, episode: str, path: str, encoded: Mapping[str, bool]
) -> tuple[int, ...]:
    if path in encoded:
        return _read_observations(raw, episode, path, encoded).shape[1:]
    return raw.shape(f"{episode}/observations/{path}".rstrip("/"))[1:]


def _action_limits(space: Mapping[str, Any] | None) -> Bounds | None:
    """Return the limits of the action space if all are finite, else None."""
    if space is None:
        return None
    low, high = np.array(space["low"], np.float64), np.array(space["high"], np.float64)
    return (low, high) if np.isfinite(low).all() and np.isfinite(high).all() else None
