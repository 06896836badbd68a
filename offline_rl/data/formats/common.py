"""Arguments and result of the layouts' `parse` functions, and helpers that several layouts use."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from offline_rl.data.checks import Bounds as Bounds
from offline_rl.data.containers.raw import Raw
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_json
from offline_rl.utils.options import ActionRange, FileFormat
from policies import channels

Columns = dict[str, np.ndarray]


class NoArraysToChoose(UserError):
    """Error for `observation_keys` if the file's observations are a single array."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Options of reading a file, except for its layout."""

    max_episode_steps: int | None = None  # truncate episodes after this many steps if no time-outs
    d4rl_compatible: bool = False  # read exactly the transitions of D4RL's qlearning_dataset
    terminate_on_end: bool = False  # qlearning_dataset's option; needs d4rl_compatible
    action_scale: float | None = None  # divide actions by this number, which becomes 1
    action_range: ActionRange | None = (
        None  # [low, high]: actions that become -1 and 1; data: minimum and maximum in the data
    )
    observation_keys: list[str] | None = None  # arrays that make up an observation, in this order
    subset: str | None = None  # a split that the file defines, such as train
    infos: bool = False  # also read other per-step arrays, as `extras`


@dataclass(frozen=True, kw_only=True)
class ReadOptions(Reading):
    """Options of reading a file."""

    format: FileFormat | None = None  # layout of the file; default: recognized by the content
    stream: Literal["auto", "always", "never"] = (
        "auto"  # decode images of videos when they are used; auto: if all need more than 1 GiB
    )
    states: bool = False  # OGBench: also read the simulator states, from which rewards are computed


@dataclass(frozen=True)
class ParsedFile:
    """The arrays of a file by the argument names of `Dataset.from_arrays`, and its metadata."""

    layout: str
    columns: Columns  # arrays by the argument names of `Dataset.from_arrays`
    keys: Mapping[str, str]  # column -> the file's name of it
    extras: Columns = field(default_factory=dict)  # [N, ...] each
    notes: Sequence[str] = ()  # sentences about what was left out or assumed
    action_range: Bounds | None = None  # limits of the actions in the file's units, if stated
    action_extremes: Bounds | None = None  # minimum and maximum of the actions, if stated
    observation_names: tuple[str, ...] = ()  # names of an observation's components, if stated
    observation_units: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()
    action_units: tuple[str, ...] = ()
    rate_hz: float | None = None  # steps per second, if stated
    action_offset: float | None = None  # steps until an action is reached, if stated
    unknown_next: np.ndarray | None = None  # [N] bool: rows before a gap inside an episode
    files: tuple[Path, ...] = ()  # further files that were read, such as metadata and videos
    finish: Callable[[Columns], Columns] = lambda columns: columns  # last step, after the checks
    limits_episodes: bool = True  # False: recordings may be longer than the task's time limit
    qlearning_rows: Callable[[np.ndarray], np.ndarray] | None = None  # terminals -> mask, [N] bool


def read_metadata(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file. Raises UserError if it holds anything else."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path} holds {str(value)[:40]}, but a JSON object is expected.")
    return value


def numbered_groups(raw: Raw, prefix: str) -> dict[int, str]:
    """Return the groups `<prefix><number>` of a file, {number: group}, sorted by number."""
    pattern = re.compile(rf"{re.escape(prefix)}(\d+)/")
    groups = {int(m[1]): m[0].rstrip("/") for key in raw.keys if (m := pattern.match(key))}
    return dict(sorted(groups.items()))


def keys_below(raw: Raw, group: str) -> tuple[str, ...]:
    """Return the arrays in a group of the file by their paths, sorted as Gymnasium sorts a Dict.

    The parts of a Tuple, `_index_<number>` in Minari, are sorted by number.
    """
    start = f"{group}/"
    inside = (key.removeprefix(start) for key in raw.keys if key.startswith(start))
    return tuple(sorted(inside, key=_sort_key))


def _sort_key(path: str) -> list[str]:
    return re.sub(r"_index_(\d+)", lambda m: f"_index_{int(m[1]):09d}", path).split("/")


def choose_observations(
    where: str,
    shapes: Mapping[str, Sequence[int]],
    options: ReadOptions,
    default: Sequence[str] | None = None,
) -> tuple[list[str], list[str]]:
    """Return the arrays that make up an observation, and notes about arrays left out.

    shapes: {array: shape of one step}.
    default: the arrays to use without `observation_keys`; None: all that are not images. If there
    is a single array, it is used.
    """
    keys = options.observation_keys
    if keys is None:
        flat = [key for key in shapes if not channels.is_image(shapes[key])]
        keys = list(shapes if len(shapes) == 1 else flat if default is None else default)
    if not shapes:
        raise UserError(f"{where}: no array of numbers can be an observation.")
    unknown = [key for key in keys if key not in shapes]
    if unknown or not keys:
        what = f"no {', '.join(unknown)} to observe" if unknown else "the observation is not stated"
        single = len(shapes) == 1 and len(unknown) == len(keys) > 0
        raise (NoArraysToChoose if single else UserError)(
            f"{where}: {what}. Choose among {', '.join(shapes)} with observation_keys=[...]."
        )
    unused = [key for key in shapes if key not in keys]
    return keys, [f"not observed: {', '.join(unused)}"] if unused else []


def concatenate_parts(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Flatten and concatenate the parts [N, ...] to [N, O]. A single image is not flattened."""
    if len(parts) == 1 and channels.is_image(parts[0].shape[1:]):
        return to_uint8(parts[0])
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def observation_columns(column: str, parts: Mapping[str, np.ndarray]) -> Columns:
    """Build the columns of an observation from its parts, {name: [N, ...]}.

    If no part is an image, the parts are concatenated to one column `column`. Otherwise each part
    is a channel `<column>/<name>`. A part with an empty name is the only one, and is the column.
    """
    if "" in parts or not any(channels.is_image(part.shape[1:]) for part in parts.values()):
        return {column: concatenate_parts(list(parts.values()))}
    return {
        f"{column}/{channel(name)}": to_uint8(part)
        if channels.is_image(part.shape[1:])
        else part.reshape(len(part), -1)
        for name, part in parts.items()
    }


def file_names(column: str, columns: Columns, names: Mapping[str, str]) -> dict[str, str]:
    """Return {column: the file's name of it} for the result of `observation_columns`.

    names: part -> the file's name of it.
    """
    if column in columns:
        return {column: " + ".join(names.values())}
    return {f"{column}/{channel(name)}": key for name, key in names.items()}


def channel(name: str) -> str:
    """Return the channel name of the array `name`."""
    return name.replace("/", ".")


def to_uint8(image: np.ndarray) -> np.ndarray:
    """Convert images of whole numbers from 0 to 255 to uint8; return others unchanged."""
    if image.dtype.kind != "f" or not len(image):
        return image
    with np.errstate(invalid="ignore"):  # NaN becomes a different number, so it is not converted
        converted = image.astype(np.uint8)
    return converted if (converted == image).all() else image


def concatenate_episodes(where: str, episodes: Iterable[Columns]) -> Columns:
    """Concatenate the columns of episodes. Raises UserError if their shapes differ."""
    all_episodes = list(episodes)
    columns = {}
    for column in all_episodes[0]:
        shapes = {episode[column].shape[1:] for episode in all_episodes}
        if len(shapes) > 1:
            both = " and ".join(str(list(shape)) for shape in sorted(shapes)[:2])
            raise UserError(f"{where}: {column} have shapes {both} per step in different episodes.")
        columns[column] = np.concatenate([episode[column] for episode in all_episodes])
    return columns


def check_lengths(where: str, arrays: Columns, expected: int) -> None:
    """Raise UserError that names the arrays without `expected` rows, if there are any."""
    rows = {key: array.shape[0] if array.ndim else 0 for key, array in arrays.items()}
    problems = [
        f"{key} has {count:,} rows, but {expected:,} are expected"
        for key, count in rows.items()
        if count != expected
    ]
    if problems:
        raise UserError(f"{where}: {', '.join(problems)}. Was the recording saved completely?")


def to_flag(where: str, name: str, array: np.ndarray) -> np.ndarray:
    """Convert an array [N] or [N, 1] to [N] bool. Raises UserError for values except 0 and 1."""
    numbers = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    if numbers.ndim != 1 or numbers.dtype.kind not in "fiub":
        raise UserError(
            f"{where}: {name} has shape {list(array.shape)} and type {array.dtype}; one flag per "
            f"step, 0 or 1, is expected."
        )
    invalid = (numbers != 0) & (numbers != 1)
    if invalid.any():
        row = int(invalid.argmax())
        raise UserError(
            f"{where}: {name} is {numbers[row]} in row {row:,} ({invalid.sum():,} such rows); a "
            f"flag must be 0 or 1."
        )
    return numbers.astype(bool)


def check_count(where: str, what: str, count: int, stated: Any) -> None:
    """Raise UserError if a count in the file differs from the one stated in the metadata."""
    if stated is not None and not np.array_equal(count, stated):
        raise UserError(
            f"{where}: {count:,} {what}, but the metadata state {stated}. Was it copied or saved "
            f"completely?"
        )
