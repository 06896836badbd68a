"""LeRobotDataset, versions 2 and 3: Parquet tables of frames, described by meta/info.json.

    data/**.parquet      a row a frame: action, observation.<name>, next.{reward, done, success,
                         truncated}, episode_index, frame_index, index
    meta/info.json       codebase_version, features and the names of their numbers, fps, counts
    meta/stats.json      of each feature min and max, which stand for limits of the actions
    meta/episodes/**     version 3: length and first row of each episode

`huggingface/lerobot:src/lerobot/datasets/{utils,dataset_writer}.py`. A file may hold many episodes
or a part of one. `next.done` says terminated or truncated alike (`rl/gym_manipulator.py`): a done
frame terminates where next.success says so, else where it is rewarded, and is truncated otherwise.
Pictures lie in the tables, or as videos beside them: videos/<key>/chunk-<c>/file-<f>.mp4 in version
3, where meta/episodes says which and from when on, a file of its own for each episode in version 2.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from offline_rl.data.checks import ROUNDING
from offline_rl.data.containers.parquet import Table
from offline_rl.data.containers.raw import Raw
from offline_rl.data.containers.video import decode_frames
from offline_rl.data.dataset import NO_REWARDS, as_columns
from offline_rl.data.formats.common import (
    Bounds,
    Columns,
    ParsedFile,
    ReadOptions,
    called,
    choose,
    counted,
    flag,
    metadata_in,
    observed,
    same_lengths,
)
from offline_rl.utils.errors import UserError

NAME = "LeRobot"
TAKES = ("observation_keys", "subset")
OBSERVED = "observation."
VIDEO_2 = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
VIDEO_3 = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
INDICES = ("index", "episode_index", "frame_index")
TIMES = (*INDICES, "timestamp", "task_index")
ACTIONS = ("action", "actions")  # the second is of converters outside LeRobot
NOT_OBSERVED = ("action", "next.")
STATED_WITHIN = 1e-4  # of its range, or of 1: how closely statistics must match the data
ENDS = ("next.reward", "next.done", "next.success", "next.truncated")


def missed(raw: Raw) -> str | None:
    """Why `raw` is not of this layout; None where it is."""
    return None if raw.kind == "Parquet" else "no folder with meta/info.json"


def parse(raw: Raw, options: ReadOptions, complain: Callable[[str], None]) -> ParsedFile:
    """All episodes, or those of the split `subset`, in the order of `index`."""
    info = metadata_in(raw.folder / "meta" / "info.json")
    features = info.get("features", {})
    version = str(info.get("codebase_version", "unknown"))
    if not version.startswith(("v2.", "v3.")):
        raise UserError(f"{raw.where}: codebase_version is {version}; v2 and v3 are read.")
    action = _action(raw)
    shapes, videos, default = _observable(raw, features, options.observation_keys)
    keys, notes = choose(raw.where, shapes, options, default)
    filmed = [key for key in keys if key in videos]
    present = [key for key in ENDS if key in raw.keys]
    stored = [key for key in keys if key not in videos]
    arrays = {key: raw.get(key) for key in (*INDICES, *stored, action, *present)}
    rows = len(arrays["index"])
    same_lengths(raw.where, arrays, rows)
    counted(raw.where, "frames", rows, info.get("total_frames"))
    order = np.argsort(arrays["index"].reshape(rows), kind="stable")
    arrays = {key: array[order] for key, array in arrays.items()}
    arrays |= {key: arrays[key].reshape(rows) for key in INDICES}
    numbers, lengths = _episodes(raw, arrays)
    counted(raw.where, "episodes", len(lengths), info.get("total_episodes"))
    kept = np.ones(rows, bool)
    if options.subset is not None:
        kept = _split(raw.where, info.get("splits", {}), options.subset, arrays["episode_index"])
        arrays = {key: array[kept] for key, array in arrays.items()}
    files = list[Path]()
    for key in filmed:
        arrays[key], own = _filmed(raw, info, key, numbers, lengths, kept)
        files += own
    for key in keys:
        _of_size(raw.where, key, arrays[key].shape[1:], shapes[key])
    if "next.reward" not in present:
        notes.append(NO_REWARDS)
    arrays["action"] = arrays[action].reshape(len(arrays["index"]), -1)
    extremes, outdated = _extremes(raw, action, arrays["action"], options)
    notes += outdated
    columns = _columns(raw.where, arrays, keys)
    return ParsedFile(
        f"LeRobot {version}",
        as_columns(columns),
        called("observations", columns, {_channel(key): key for key in keys})
        | {"actions": action, "rewards": "next.reward"},
        notes=[*notes, f"observed: {', '.join(keys)}"],
        action_extremes=extremes,
        observation_names=_names(features, keys),
        action_names=_names(features, [action]),
        rate_hz=_rate(raw.where, info.get("fps")),
        files=tuple(files),
    )


def _channel(key: str) -> str:
    """observation.images.top -> top; observation.state -> state."""
    return key.removeprefix(OBSERVED).removeprefix("images.")


def _filmed(
    raw: Raw,
    info: Mapping[str, Any],
    key: str,
    numbers: np.ndarray,
    lengths: np.ndarray,
    kept: np.ndarray,
) -> tuple[np.ndarray, list[Path]]:
    """The pictures [N, H, W, C] of the frames `kept`, out of all episodes', and their files.

    numbers, lengths: [E], the episode_index and the frames of each episode.
    """
    fps = _rate(raw.where, info.get("fps"))
    if fps is None:
        raise UserError(f"{raw.where}: no fps in meta/info.json, by which {key} is to be read.")
    at = np.cumsum(lengths) - lengths
    template = info.get("video_path") or (VIDEO_3 if _whole_files(info) else VIDEO_2)
    if _whole_files(info):
        table = Table(raw.where, sorted((raw.folder / "meta" / "episodes").glob("**/*.parquet")))
        with _listed(raw.folder / "meta" / "episodes"):
            names = ("chunk_index", "file_index", "from_timestamp")
            chunk, file, start = (table.get(f"videos/{key}/{name}") for name in names)
        first = np.rint(start * fps).astype(int)
        places = [
            {"chunk_index": c, "file_index": f}
            for c, f in zip(chunk.tolist(), file.tolist(), strict=True)
        ]
    else:
        first, size = np.zeros(len(lengths), int), int(info.get("chunks_size", 1000))
        places = [{"episode_chunk": n // size, "episode_index": n} for n in numbers.tolist()]
    try:
        paths = [str(template).format(video_key=key, **place) for place in places]
    except (LookupError, ValueError):
        raise UserError(
            f"{raw.where}: video_path in meta/info.json is {template!r}, which names no file."
        ) from None
    wanted: dict[str, list[np.ndarray]] = {}
    for episode, path in enumerate(paths):
        if kept[at[episode]]:
            frames = first[episode] + np.arange(lengths[episode])
            wanted.setdefault(path, []).append(frames)
    parts = [
        decode_frames(raw.folder / path, np.concatenate(frames), fps)
        for path, frames in wanted.items()
    ]
    for part in parts:
        _of_size(raw.where, key, part.shape[1:], parts[0].shape[1:])
    return np.concatenate(parts), [raw.folder / path for path in wanted]


def _whole_files(info: Mapping[str, Any]) -> bool:
    """Whether files hold many episodes, as version 3 has it."""
    return str(info.get("codebase_version")).startswith("v3")


def _of_size(where: str, key: str, found: Sequence[int], said: Sequence[int]) -> None:
    """Raises UserError where pictures are not of the size they should be."""
    if len(found) == 3 and list(said) not in (list(found), [found[2], *found[:2]]):
        raise UserError(
            f"{where}: {key} holds pictures of {list(found)} where {list(said)} is said. Was it "
            f"copied or made anew in part?"
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


def _extremes(
    raw: Raw, action: str, actions: np.ndarray, options: ReadOptions
) -> tuple[Bounds | None, list[str]]:
    """Minimum and maximum of each action by meta/stats.json, and a note if the data's differ.

    An action that never changes is 1 from both. Raises UserError where actions in other units than
    [-1, 1] go beyond them, unless an option says what -1 and 1 stand for.
    """
    path = raw.folder / "meta" / "stats.json"
    if not path.is_file():
        return None, []
    told: Any = metadata_in(path).get(action)
    if told is None:
        return None, []
    try:
        low, high = (np.asarray(told[end], np.float64).reshape(-1) for end in ("min", "max"))
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{path}: min and max of the actions are no lists of numbers.") from None
    still = high - low < 1e-4
    bounds = low - still, high + still
    if len(low) != actions.shape[1] or not actions.size:
        return bounds, []
    least, most = actions.min(0).astype(np.float64), actions.max(0).astype(np.float64)
    slack = STATED_WITHIN * np.maximum(high - low, 1)
    beyond = (least < low - slack) | (most > high + slack)
    short = (least > low + slack) | (most < high - slack)
    if not beyond.any() and (options.subset is not None or not short.any()):
        return bounds, []
    worst = int((beyond if beyond.any() else short).argmax())
    sentence = (
        f"meta/stats.json was not computed from these data: {action} {worst} spans "
        f"[{low[worst]:.4g}, {high[worst]:.4g}] there and [{least[worst]:.4g}, {most[worst]:.4g}] "
        "in the data"
    )
    stated = options.action_scale is not None or options.action_range is not None
    if stated or not (np.abs(actions) > 1 + ROUNDING).any():
        return bounds, [sentence]  # these statistics set no range
    remedy = "Recompute the statistics, or set action_range=[low,high]"
    if beyond.any():
        raise UserError(f"{raw.where}: {sentence}. {remedy}.")
    used = f"The range [{low[worst]:.4g}, {high[worst]:.4g}] is used"
    return bounds, [f"{sentence}. {used}. {remedy}"]


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
    return observed("observations", {_channel(key): arrays[key] for key in keys}) | {
        "actions": arrays["action"],
        "rewards": rewards,
        "terminated": over,
        "truncated": (done | last | cut) & ~over,
    }


def _action(raw: Raw) -> str:
    """Return the name of the actions' column. Raises UserError that lists the columns."""
    for key in ACTIONS:
        if key in raw.keys:
            return key
    near = [key for key in raw.keys if key.startswith("action")]
    remedy = "Rename the action column to 'action'."
    if near:
        remedy = "Join these columns into one, 'action'." if near[1:] else "Rename it to 'action'."
    raise UserError(
        f"{raw.where}: no array 'action' in the tables, which hold {', '.join(near or raw.keys)}. "
        f"{remedy}"
    )


def _observable(
    raw: Raw, features: Mapping[str, Any], asked: Sequence[str] | None
) -> tuple[dict[str, list[int]], list[str], list[str] | None]:
    """Shapes of what can be observed, the videos among it, and what is observed by default.

    By default LeRobot's names, which begin with observation., are observed. All others are offered
    where none has such a name, or another is asked for.
    """
    own = [key for key in features if key.startswith(OBSERVED)]
    others = [
        key
        for key in features
        if key not in own and not key.startswith(NOT_OBSERVED) and key not in TIMES
    ]
    offered = [*own, *others] if not own or {*(asked or ())} - {*own} else own
    default: list[str] | None = None if own else []
    observed = {key: features[key] for key in sorted(offered)}
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
        if kind == "video" or (key in raw.keys and kind != "string")
    }
    return shapes, videos, default


def _episodes(raw: Raw, arrays: Columns) -> tuple[np.ndarray, np.ndarray]:
    """[E] episode_index and length of each episode.

    Raises UserError where frames are missing or not those that meta/ lists.
    """
    starts = np.flatnonzero(np.append(True, np.diff(arrays["episode_index"]) != 0))
    lengths = np.diff(np.append(starts, len(arrays["index"])))
    numbers = arrays["episode_index"][starts]
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
        table = Table(raw.where, files)
        with _listed(files[0].parent):
            listed = table.get("length")
            columns = table.keys()
            named = table.get("episode_index") if "episode_index" in columns else numbers
        if not np.array_equal(listed, lengths):
            raise UserError(
                f"{raw.where}: meta/episodes lists {len(listed):,} episodes of {listed.sum():,} "
                f"frames, data holds {len(lengths):,} of {lengths.sum():,}. Copy it again."
            )
        if not np.array_equal(named, numbers):
            row = int((named != numbers).argmax())
            raise UserError(
                f"{raw.where}: episode_index is {named[row]} in meta/episodes where data has "
                f"{numbers[row]}. Copy it again."
            )
    return numbers, lengths


@contextmanager
def _listed(folder: Path) -> Iterator[None]:
    """Makes one sentence of a table of episodes that cannot be read."""
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder}: the table of episodes cannot be read ({error}).") from None


def _split(where: str, splits: Mapping[str, str], name: str, episode: np.ndarray) -> np.ndarray:
    """[N] bool: the frames of a split, which is written as "first:last" of its episodes."""
    if name not in splits:
        raise UserError(f"{where}: no subset {name!r}; it names {', '.join(splits) or 'none'}.")
    first, _, after = str(splits[name]).partition(":")
    if not (first.isdigit() and after.isdigit()):
        raise UserError(f"{where}: split {name} is {splits[name]!r}; first:last is expected.")
    return (episode >= int(first)) & (episode < int(after))
