"""LeRobotDataset, versions 2 and 3: Parquet tables of frames, described by meta/info.json.

    data/**.parquet      one row per frame: action, observation.<name>, next.{reward, done, success,
                         truncated}, episode_index, frame_index, index
    meta/info.json       codebase_version, features and their component names, fps, counts
    meta/stats.json      min and max of each feature; for actions they are the limits
    meta/episodes/**     version 3: length and first row of each episode

`huggingface/lerobot:src/lerobot/datasets/{utils,dataset_writer}.py`. A file may hold many episodes
or a part of one. `next.done` means terminated or truncated (`rl/gym_manipulator.py`). A frame with
next.truncated set is truncated. Which of the other frames terminate depends on the features:

    with next.success           done frames, and last frames of episodes, with success set
    with next.truncated only    all done frames
    with neither                done frames with a positive reward

All other done frames, and all other last frames, are truncated. Images are in the tables or in
videos. Version 2 has one video per episode. In version 3, videos/<key>/chunk-<c>/file-<f>.mp4 holds
several episodes, and meta/episodes states the file and the start time of each episode. The images
of videos are decoded while the data set is read or, if they need more than `DECODED_BYTES`, when
they are used.
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
from offline_rl.data.containers.video import Video, VideoFrames, rows_by_video
from offline_rl.data.dataset import NO_REWARDS, as_columns
from offline_rl.data.formats.common import (
    Bounds,
    Columns,
    ParsedFile,
    ReadOptions,
    check_count,
    check_lengths,
    choose_observations,
    file_names,
    observation_columns,
    read_metadata,
    to_flag,
)
from offline_rl.utils.errors import UserError

NAME = "LeRobot"
SUPPORTED_OPTIONS = ("observation_keys", "subset")
OBSERVED = "observation."
VIDEO_2 = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
VIDEO_3 = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
INDICES = ("index", "episode_index", "frame_index")
TIMES = (*INDICES, "timestamp", "task_index")
ACTIONS = ("action", "actions")  # some converters outside LeRobot write "actions"
NOT_OBSERVED = ("action", "next.")  # prefixes of features that are not observations
STATED_WITHIN = 1e-4  # tolerance of stated minima and maxima, relative to max(range, 1)
DECODED_BYTES = 1 << 30  # size of all decoded images of videos, above which they are streamed
SLOW = 10  # mean number of decoded frames per image from which on a note is given
ENDS = ("next.reward", "next.done", "next.success", "next.truncated")


def mismatch(raw: Raw) -> str | None:
    """Return the reason why `raw` does not have this layout; None if it has."""
    return None if raw.kind == "Parquet" else "no folder with meta/info.json"


def parse(raw: Raw, options: ReadOptions, report: Callable[[str], None]) -> ParsedFile:
    """Read all episodes, or those of the split `subset`, in the order of `index`."""
    info = read_metadata(raw.folder / "meta" / "info.json")
    features = info.get("features", {})
    version = str(info.get("codebase_version", "unknown"))
    if not version.startswith(("v2.", "v3.")):
        raise UserError(
            f"{raw.where}: codebase_version is {version}, which is not supported. Convert the data "
            "to v2 or v3."
        )
    action = _action_key(raw)
    shapes, in_videos, default = _find_observable(raw, features, options.observation_keys)
    keys, notes = choose_observations(raw.where, shapes, options, default)
    video_keys = [key for key in keys if key in in_videos]
    present = [key for key in ENDS if key in raw.keys]
    stored = [key for key in keys if key not in in_videos]
    arrays: dict[str, Any] = {key: raw.get(key) for key in (*INDICES, *stored, action, *present)}
    rows = len(arrays["index"])
    check_lengths(raw.where, arrays, rows)
    check_count(raw.where, "frames", rows, info.get("total_frames"))
    order = np.argsort(arrays["index"].reshape(rows), kind="stable")
    arrays = {key: array[order] for key, array in arrays.items()}
    arrays |= {key: arrays[key].reshape(rows) for key in INDICES}
    numbers, lengths = _read_episodes(raw, arrays)
    check_count(raw.where, "episodes", len(lengths), info.get("total_episodes"))
    selected = np.ones(rows, bool)
    if options.subset is not None:
        splits = info.get("splits", {})
        selected = _select_split(raw.where, splits, options.subset, arrays["episode_index"])
        arrays = {key: array[selected] for key, array in arrays.items()}
    files, videos = list[Path](), dict[str, VideoFrames]()
    for key in video_keys:
        videos[key], video_files = _open_videos(raw, info, key, numbers, lengths, selected)
        files += video_files
    arrays |= videos
    for key in keys:
        _check_image_size(raw.where, key, arrays[key].shape[1:], shapes[key])
    if needs_streaming(list(videos.values()), options.stream):
        notes += _describe_streaming(videos)
    else:
        arrays |= {key: np.asarray(frames) for key, frames in videos.items()}
    if "next.reward" not in present:
        notes.append(NO_REWARDS)
    arrays["action"] = arrays[action].reshape(len(arrays["index"]), -1)
    extremes, outdated = _stated_extremes(raw, action, arrays["action"], options)
    notes += outdated
    columns = _build_columns(raw.where, arrays, keys)
    return ParsedFile(
        f"LeRobot {version}",
        as_columns(columns),
        file_names("observations", columns, {_channel(key): key for key in keys})
        | {"actions": action, "rewards": "next.reward"},
        notes=[*notes, f"observed: {', '.join(keys)}"],
        action_extremes=extremes,
        observation_names=_feature_names(features, keys),
        action_names=_feature_names(features, [action]),
        rate_hz=_read_rate(raw.where, info.get("fps")),
        files=tuple(files),
    )


def _channel(key: str) -> str:
    """Return the channel name of a feature: top for observation.images.top."""
    return key.removeprefix(OBSERVED).removeprefix("images.")


def _open_videos(
    raw: Raw,
    info: Mapping[str, Any],
    key: str,
    numbers: np.ndarray,
    lengths: np.ndarray,
    selected: np.ndarray,
) -> tuple[VideoFrames, list[Path]]:
    """Return the images [N, H, W, C] of the selected frames of all episodes, and the video files.

    numbers, lengths: [E], episode_index and number of frames of each episode.
    """
    fps = _read_rate(raw.where, info.get("fps"))
    if fps is None:
        raise UserError(f"{raw.where}: meta/info.json has no fps, which is needed to read {key}.")
    at = np.cumsum(lengths) - lengths
    template = info.get("video_path") or (VIDEO_3 if _has_shared_files(info) else VIDEO_2)
    if _has_shared_files(info):
        table = Table(raw.where, sorted((raw.folder / "meta" / "episodes").glob("**/*.parquet")))
        with _explain_errors(raw.folder / "meta" / "episodes"):
            names = ("chunk_index", "file_index", "from_timestamp")
            chunk, file, start = (table.get(f"videos/{key}/{name}") for name in names)
        first = np.rint(start * fps).astype(int)
        file_fields = [
            {"chunk_index": c, "file_index": f}
            for c, f in zip(chunk.tolist(), file.tolist(), strict=True)
        ]
    else:
        first, size = np.zeros(len(lengths), int), int(info.get("chunks_size", 1000))
        file_fields = [{"episode_chunk": n // size, "episode_index": n} for n in numbers.tolist()]
    try:
        paths = [str(template).format(video_key=key, **fields) for fields in file_fields]
    except (LookupError, ValueError):
        raise UserError(
            f"{raw.where}: video_path in meta/info.json is {template!r}, which is no valid path "
            f"template such as {VIDEO_3!r}."
        ) from None
    frames = np.arange(len(selected)) + np.repeat(first - at, lengths)
    used = dict.fromkeys(path for path, row in zip(paths, at, strict=True) if selected[row])
    videos = [Video(raw.folder / name, fps) for name in used]
    for video in videos:
        _check_image_size(raw.where, key, video.shape, videos[0].shape)
    number = {name: n for n, name in enumerate(used)}
    of_row = np.repeat([number.get(path, -1) for path in paths], lengths)[selected]
    frames, places = frames[selected], np.empty(len(of_row), np.int32)
    for n, rows in rows_by_video(of_row):
        places[rows] = videos[n].places(frames[rows])
    return VideoFrames(videos, of_row, places), [raw.folder / name for name in used]


def needs_streaming(videos: Sequence[VideoFrames], stream: str) -> bool:
    """Return True if the images of videos are decoded when they are used."""
    return stream == "always" or (
        stream == "auto" and sum(v.nbytes for v in videos) > DECODED_BYTES
    )


def _describe_streaming(videos: Mapping[str, VideoFrames]) -> list[str]:
    """Return notes on videos whose images are decoded when they are used."""
    if not videos:
        return []
    size = sum(frames.nbytes for frames in videos.values()) / 2**30
    notes = [f"images of videos are decoded when they are used ({size:.3g} GiB in all)"]
    slow = {key: count for key, v in videos.items() if (count := v.frames_per_image()) > SLOW}
    for key, count in slow.items():
        notes.append(
            f"{key}: reading an image at random decodes {count:.0f} frames on average, because "
            "key frames are rare. Encode the videos with a key frame every 2 frames (ffmpeg -g 2)"
        )
    return notes


def _has_shared_files(info: Mapping[str, Any]) -> bool:
    """Return True if a file may hold several episodes, as in version 3."""
    return str(info.get("codebase_version")).startswith("v3")


def _check_image_size(where: str, key: str, shape: Sequence[int], stated: Sequence[int]) -> None:
    """Raise UserError if images do not have the stated shape."""
    if len(shape) == 3 and list(stated) not in (list(shape), [shape[2], *shape[:2]]):
        raise UserError(
            f"{where}: {key} holds images of shape {list(shape)}, but {list(stated)} is stated. "
            f"Check whether only a part was copied or recorded again."
        )


def _feature_names(features: Mapping[str, Any], keys: Sequence[str]) -> tuple[str, ...]:
    """Return the component names of all features, in order; () if a feature has none.

    LeRobot writes a list, or, in its first versions, {"motors": [...]}.
    """
    all_names = list[str]()
    for key in keys:
        feature: Mapping[str, Any] = features.get(key) or {}
        names: Any = feature.get("names")
        if isinstance(names, dict) and len(names) == 1:
            (names,) = names.values()
        complete = isinstance(names, list) and len(names) == prod(feature["shape"])
        if not complete or not all(isinstance(name, str) for name in names):
            return ()
        all_names += names
    return tuple(all_names)


def _stated_extremes(
    raw: Raw, action: str, actions: np.ndarray, options: ReadOptions
) -> tuple[Bounds | None, list[str]]:
    """Return the minimum and maximum of each action that meta/stats.json states, and notes.

    For an action that never changes, they are its value minus and plus 1. A note says if minimum
    and maximum of the data differ from the stated ones. Raises UserError if actions exceed the
    stated ones, some are outside [-1, 1], and no option states the range.
    """
    path = raw.folder / "meta" / "stats.json"
    if not path.is_file():
        return None, []
    stats: Any = read_metadata(path).get(action)
    if stats is None:
        return None, []
    try:
        low, high = (np.asarray(stats[end], np.float64).reshape(-1) for end in ("min", "max"))
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise UserError(
            f"{path}: min and max of the actions are not lists of finite numbers with min <= max. "
            "Recompute the statistics."
        ) from None
    constant = high - low < 1e-4
    bounds = low - constant, high + constant
    if len(low) != actions.shape[1] or not actions.size:
        return bounds, []
    data_min, data_max = actions.min(0).astype(np.float64), actions.max(0).astype(np.float64)
    slack = STATED_WITHIN * np.maximum(high - low, 1)
    beyond = (data_min < low - slack) | (data_max > high + slack)
    within = (data_min > low + slack) | (data_max < high - slack)
    if not beyond.any() and (options.subset is not None or not within.any()):
        return bounds, []
    worst = int((beyond if beyond.any() else within).argmax())
    sentence = (
        f"meta/stats.json was not computed from these data: {action} {worst} spans "
        f"[{low[worst]:.4g}, {high[worst]:.4g}] in this file and "
        f"[{data_min[worst]:.4g}, {data_max[worst]:.4g}] in the data"
    )
    range_given = options.action_scale is not None or options.action_range is not None
    if range_given or not (np.abs(actions) > 1 + ROUNDING).any():
        return bounds, [sentence]  # the range does not depend on the statistics
    remedy = "Recompute the statistics, or set action_range=[low,high]"
    if beyond.any():
        raise UserError(f"{raw.where}: {sentence}. {remedy}.")
    used = f"The range [{low[worst]:.4g}, {high[worst]:.4g}] is used"
    return bounds, [f"{sentence}. {used}. {remedy}"]


def _read_rate(where: str, fps: Any) -> float | None:
    if fps is None:
        return None
    if type(fps) not in (int, float) or not 0 < fps < np.inf:
        raise UserError(f"{where}: fps in meta/info.json is {fps!r}; a positive number is needed.")
    return float(fps)


def _build_columns(where: str, arrays: Columns, keys: Sequence[str]) -> Columns:
    """Return the columns. An episode ends at its last frame and at each done frame."""
    episode = arrays["episode_index"]
    rows = len(episode)
    none, last = np.zeros(rows, bool), np.append(np.diff(episode) != 0, True)
    done, success, truncated = (
        to_flag(where, key, arrays[key]) if key in arrays else none
        for key in ("next.done", "next.success", "next.truncated")
    )
    rewards = arrays.get("next.reward", np.zeros(rows, np.float32))
    if "next.success" in arrays:
        terminated = (done | last) & success
    elif "next.truncated" in arrays:
        terminated = done
    else:
        terminated = done & (rewards.reshape(rows, -1)[:, 0] > 0)
    terminated = terminated & ~truncated
    return observation_columns("observations", {_channel(key): arrays[key] for key in keys}) | {
        "actions": arrays["action"],
        "rewards": rewards,
        "terminated": terminated,
        "truncated": (done | last | truncated) & ~terminated,
    }


def _action_key(raw: Raw) -> str:
    """Return the name of the column of actions. Raises UserError if it is missing."""
    for key in ACTIONS:
        if key in raw.keys:
            return key
    similar = [key for key in raw.keys if key.startswith("action")]
    remedy = "Rename the action column to 'action'."
    if similar:
        one = "Rename it to 'action'."
        remedy = "Join these columns into one, 'action'." if similar[1:] else one
    raise UserError(
        f"{raw.where}: the tables have no column 'action'. They hold "
        f"{', '.join(similar or raw.keys)}. {remedy}"
    )


def _find_observable(
    raw: Raw, features: Mapping[str, Any], requested: Sequence[str] | None
) -> tuple[dict[str, list[int]], list[str], list[str] | None]:
    """Return {feature: shape} of possible observations, those that are videos, and the default.

    By default, the features that begin with `observation.` are observed. Other features are
    possible if no such feature exists, or if one of the others is requested.
    """
    prefixed = [key for key in features if key.startswith(OBSERVED)]
    others = [
        key
        for key in features
        if key not in prefixed and not key.startswith(NOT_OBSERVED) and key not in TIMES
    ]
    needs_others = not prefixed or {*(requested or ())} - {*prefixed}
    default: list[str] | None = None if prefixed else []
    choices = {key: features[key] for key in sorted([*prefixed, *(others if needs_others else ())])}
    try:
        kinds = {key: (str(f["dtype"]), list(f["shape"])) for key, f in choices.items()}
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


def _read_episodes(raw: Raw, arrays: Columns) -> tuple[np.ndarray, np.ndarray]:
    """Return episode_index and length of each episode, [E] each.

    Raises UserError if frames are missing or differ from those that meta/ lists.
    """
    starts = np.flatnonzero(np.append(True, np.diff(arrays["episode_index"]) != 0))
    lengths = np.diff(np.append(starts, len(arrays["index"])))
    numbers = arrays["episode_index"][starts]
    frame = np.arange(len(arrays["index"])) - np.repeat(starts, lengths)
    if (unexpected := arrays["frame_index"] != frame).any() or len(
        np.unique(arrays["episode_index"])
    ) != len(starts):
        row = int(unexpected.argmax())
        raise UserError(
            f"{raw.where}: frame_index is {arrays['frame_index'][row]} in row {row:,}, but "
            f"{frame[row]} is expected: frames are missing or out of order. Copy the data again."
        )
    files = sorted((raw.folder / "meta" / "episodes").glob("**/*.parquet"))
    if files:
        table = Table(raw.where, files)
        with _explain_errors(files[0].parent):
            listed = table.get("length")
            columns = table.keys()
            named = table.get("episode_index") if "episode_index" in columns else numbers
        if not np.array_equal(listed, lengths):
            raise UserError(
                f"{raw.where}: meta/episodes lists {len(listed):,} episodes of {listed.sum():,} "
                f"frames, but data/ holds {len(lengths):,} of {lengths.sum():,}. Copy both again."
            )
        if not np.array_equal(named, numbers):
            row = int((named != numbers).argmax())
            raise UserError(
                f"{raw.where}: episode_index is {named[row]} in meta/episodes, but {numbers[row]} "
                f"in data/. Copy both again."
            )
    return numbers, lengths


@contextmanager
def _explain_errors(folder: Path) -> Iterator[None]:
    """Raise UserError if the table of episodes cannot be read."""
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{folder}: the table of episodes cannot be read ({error}). Copy it again."
        ) from None


def _select_split(
    where: str, splits: Mapping[str, str], name: str, episode: np.ndarray
) -> np.ndarray:
    """Return the mask of the frames of a split, [N] bool; a split is "first:stop" of episodes."""
    if name not in splits:
        raise UserError(f"{where}: no subset {name!r}. Subsets: {', '.join(splits) or 'none'}.")
    first, _, after = str(splits[name]).partition(":")
    if not (first.isdigit() and after.isdigit()):
        raise UserError(f"{where}: split {name} is {splits[name]!r}; first:stop is expected.")
    return (episode >= int(first)) & (episode < int(after))
