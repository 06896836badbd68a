"""LeRobotDataset, versions 2 and 3: Parquet tables of frames, described by meta/info.json.

    data/**.parquet      a row a frame: action, observation.<name>, next.{reward, done, success,
                         truncated}, episode_index, frame_index, index
    meta/info.json       codebase_version, features and the names of their numbers, fps, counts
    meta/stats.json      of each feature min and max, which stand for limits of the actions
    meta/episodes/**     version 3: length and first row of each episode

`huggingface/lerobot:src/lerobot/datasets/{utils,dataset_writer}.py`. A file may hold many episodes
or a part of one. `next.done` says terminated or truncated alike (`rl/gym_manipulator.py`): a done
frame terminates where next.success says so, else where it is rewarded, and is truncated otherwise.
Videos are not read; pictures in the tables are.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from offline_rl.data.containers.parquet import Table
from offline_rl.data.containers.raw import Raw
from offline_rl.data.dataset import NO_REWARDS, as_columns
from offline_rl.data.formats.common import (
    Bounds,
    Columns,
    Found,
    ReadOptions,
    choose,
    counted,
    flag,
    joined,
    metadata_in,
    same_lengths,
)
from offline_rl.utils.errors import UserError

NAME = "LeRobot"
TAKES = ("observation_keys", "subset")
OBSERVED = "observation."
INDICES = ("index", "episode_index", "frame_index")
ENDS = ("next.reward", "next.done", "next.success", "next.truncated")


def missed(raw: Raw) -> str | None:
    """Why `raw` is not of this layout; None where it is."""
    return None if raw.kind == "Parquet" else "no folder with meta/info.json"


def gather(raw: Raw, options: ReadOptions, complain: Callable[[str], None]) -> Found:
    """All episodes, or those of the split `subset`, in the order of `index`."""
    info = metadata_in(raw.folder / "meta" / "info.json")
    features = info.get("features", {})
    version = str(info.get("codebase_version", "unknown"))
    if not version.startswith(("v2.", "v3.")):
        raise UserError(f"{raw.where}: codebase_version is {version}; v2 and v3 are read.")
    shapes, videos = _observable(raw, features)
    for key in options.observation_keys or ():
        if key in videos:
            raise UserError(
                f"{raw.where}: {key} is a video; store pictures in the tables (dtype image) to "
                f"observe them, or name other observation_keys."
            )
    keys, notes = choose(raw.where, shapes, options)
    if videos:
        notes.append(f"videos are not read: {', '.join(videos)}")
    present = [key for key in ENDS if key in raw.keys]
    arrays = {key: raw.get(key) for key in (*INDICES, *keys, "action", *present)}
    rows = len(arrays["index"])
    same_lengths(raw.where, arrays, rows)
    counted(raw.where, "frames", rows, info.get("total_frames"))
    order = np.argsort(arrays["index"].reshape(rows), kind="stable")
    arrays = {key: array[order] for key, array in arrays.items()}
    arrays |= {key: arrays[key].reshape(rows) for key in INDICES}
    lengths = _episodes(raw, arrays)
    counted(raw.where, "episodes", len(lengths), info.get("total_episodes"))
    if options.subset is not None:
        kept = _split(raw.where, info.get("splits", {}), options.subset, arrays["episode_index"])
        arrays = {key: array[kept] for key, array in arrays.items()}
    if "next.reward" not in present:
        notes.append(NO_REWARDS)
    columns = _columns(raw.where, arrays, keys)
    return Found(
        f"LeRobot {version}",
        as_columns(columns),
        {"observations": " + ".join(keys), "actions": "action", "rewards": "next.reward"},
        notes=[*notes, f"observed: {', '.join(keys)}"],
        action_extremes=_extremes(raw),
        observation_names=_names(features, keys),
        action_names=_names(features, ["action"]),
        rate_hz=_rate(raw.where, info.get("fps")),
    )


def _names(features: Mapping[str, Any], keys: Sequence[str]) -> tuple[str, ...]:
    """Of the features' numbers one after the other; empty where any has none.

    LeRobot writes a list, or, in its first versions, {"motors": [...]}.
    """
    found = list[str]()
    for key in keys:
        feature: Mapping[str, Any] = features.get(key) or {}
        names: Any = feature.get("names")
        if isinstance(names, dict) and len(names) == 1:
            (names,) = names.values()
        whole = isinstance(names, list) and len(names) == prod(feature["shape"])
        if not whole or not all(isinstance(name, str) for name in names):
            return ()
        found += names
    return tuple(found)


def _extremes(raw: Raw) -> Bounds | None:
    """The least and the greatest of each action; one that never moves is 1 from both."""
    path = raw.folder / "meta" / "stats.json"
    if not path.is_file():
        return None
    told: Any = metadata_in(path).get("action")
    try:
        low, high = (np.asarray(told[end], np.float64).reshape(-1) for end in ("min", "max"))
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{path}: min and max of the actions are no lists of numbers.") from None
    still = high - low < 1e-4
    return low - still, high + still


def _rate(where: str, fps: Any) -> float | None:
    if fps is None:
        return None
    if type(fps) not in (int, float) or not 0 < fps < np.inf:
        raise UserError(f"{where}: fps in meta/info.json is {fps!r}; frames a second are expected.")
    return float(fps)


def _columns(where: str, arrays: Columns, keys: Sequence[str]) -> Columns:
    """The arrays in our words; every episode ends with its last frame, and at each done one."""
    episode = arrays["episode_index"]
    rows = len(episode)
    none, last = np.zeros(rows, bool), np.append(np.diff(episode) != 0, True)
    done, success, cut = (
        flag(where, key, arrays[key]) if key in arrays else none
        for key in ("next.done", "next.success", "next.truncated")
    )
    rewards = arrays.get("next.reward", np.zeros(rows, np.float32))
    if "next.success" in arrays:
        over = (done | last) & success
    elif "next.truncated" in arrays:
        over = done
    else:
        over = done & (rewards.reshape(rows, -1)[:, 0] > 0)
    over = over & ~cut
    return {
        "observations": joined([arrays[key] for key in keys]),
        "actions": arrays["action"].reshape(rows, -1),
        "rewards": rewards,
        "terminated": over,
        "truncated": (done | last | cut) & ~over,
    }


def _observable(raw: Raw, features: Mapping[str, Any]) -> tuple[dict[str, list[int]], list[str]]:
    """Shapes of what the tables hold of an observation, and the videos outside them."""
    observed = {key: f for key, f in sorted(features.items()) if key.startswith(OBSERVED)}
    try:
        kinds = {key: (str(f["dtype"]), list(f["shape"])) for key, f in observed.items()}
    except (TypeError, KeyError):
        raise UserError(
            f"{raw.where}: meta/info.json has features without dtype and shape. Copy it again."
        ) from None
    videos = [key for key, (kind, _) in kinds.items() if kind == "video"]
    shapes = {
        key: shape
        for key, (kind, shape) in kinds.items()
        if key in raw.keys and kind not in ("video", "string")
    }
    return shapes, videos


def _episodes(raw: Raw, arrays: Columns) -> np.ndarray:
    """[E] lengths. Raises UserError where frames are missing or not those that meta/ lists."""
    starts = np.flatnonzero(np.append(True, np.diff(arrays["episode_index"]) != 0))
    lengths = np.diff(np.append(starts, len(arrays["index"])))
    frame = np.arange(len(arrays["index"])) - np.repeat(starts, lengths)
    if (odd := arrays["frame_index"] != frame).any() or len(
        np.unique(arrays["episode_index"])
    ) != len(starts):
        row = int(odd.argmax())
        raise UserError(
            f"{raw.where}: frame_index is {arrays['frame_index'][row]} in row {row:,} where "
            f"{frame[row]} is expected: frames are missing or out of order. Copy it again."
        )
    files = sorted((raw.folder / "meta" / "episodes").glob("**/*.parquet"))
    if files:
        try:
            listed = Table(raw.where, files).get("length")
        except (OSError, ValueError, KeyError) as error:
            raise UserError(
                f"{files[0].parent}: the table of episodes cannot be read ({error})."
            ) from None
        if not np.array_equal(listed, lengths):
            raise UserError(
                f"{raw.where}: meta/episodes lists {len(listed):,} episodes of {listed.sum():,} "
                f"frames, data holds {len(lengths):,} of {lengths.sum():,}. Copy it again."
            )
    return lengths


def _split(where: str, splits: Mapping[str, str], name: str, episode: np.ndarray) -> np.ndarray:
    """[N] bool: the frames of a split, which is written as "first:last" of its episodes."""
    if name not in splits:
        raise UserError(f"{where}: no subset {name!r}; it names {', '.join(splits) or 'none'}.")
    first, _, after = str(splits[name]).partition(":")
    if not (first.isdigit() and after.isdigit()):
        raise UserError(f"{where}: split {name} is {splits[name]!r}; first:last is expected.")
    return (episode >= int(first)) & (episode < int(after))
