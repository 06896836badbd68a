"""The input and output of every layout's `parse`, and helpers that several layouts share."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from offline_rl.data.checks import Bounds as Bounds
from offline_rl.data.containers.raw import Raw
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_json
from offline_rl.utils.options import ActionRange, FileFormat
from policies import channels

Columns = dict[str, np.ndarray]


class NoArraysToChoose(UserError):
    """Raised for `observation_keys` if the file's observations are a single array."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Options of reading a file, except for its layout."""

    max_episode_steps: int | None = None  # end episodes after so many steps if no time-outs exist
    d4rl_compatible: bool = False  # exactly the transitions of D4RL's qlearning_dataset
    terminate_on_end: bool = False  # qlearning_dataset with this option; needs d4rl_compatible
    action_scale: float | None = None  # actions are divided by this number, so that it becomes 1
    action_range: ActionRange | None = (
        None  # [low, high]: the actions that become -1 and 1; data: their minimum and maximum
    )
    observation_keys: list[str] | None = None  # arrays that make up an observation, in this order
    subset: str | None = None  # a split that the file defines, such as train
    infos: bool = False  # keep other per-step arrays in `extras`


@dataclass(frozen=True, kw_only=True)
class ReadOptions(Reading):
    """Options of reading a file."""

    format: FileFormat | None = None  # layout of the file; default: recognized by its content


@dataclass(frozen=True)
class ParsedFile:
    """The arrays of a file by our names, and what else the file states."""

    layout: str
    columns: Columns  # arrays by our names, the arguments of `Dataset.from_arrays`
    keys: Mapping[str, str]  # our names -> the file's names
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
    files: tuple[Path, ...] = ()  # further files that were read
    finish: Callable[[Columns], Columns] = lambda columns: columns  # called on checked columns
    qlearning_rows: Callable[[np.ndarray], np.ndarray] | None = None  # [N] terminals -> [N] bool


def read_metadata(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file. Raises UserError if it holds anything else."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path}: a JSON object is expected; found {str(value)[:40]}.")
    return value


def numbered_groups(raw: Raw, prefix: str) -> dict[int, str]:
    """Return the groups `<prefix><number>` of a file, sorted by number."""
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
    """Return the arrays that make up an observation, and notes about those left out.

    shapes: the shape of one step of each array.
    default: the arrays without `observation_keys`; None: all that are not images. A single array
    is always used.
    """
    keys = options.observation_keys
    if keys is None:
        flat = [key for key in shapes if not channels.is_image(shapes[key])]
        keys = list(shapes if len(shapes) == 1 else flat if default is None else default)
    if not shapes:
        raise UserError(f"{where}: it holds no array of numbers to observe.")
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
    """Flatten and concatenate the parts [N, ...] to [N, O]; a single image part stays as it is."""
    if len(parts) == 1 and channels.is_image(parts[0].shape[1:]):
        return to_uint8(parts[0])
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def observation_columns(word: str, parts: Mapping[str, np.ndarray]) -> Columns:
    """Build the observation columns from the parts [N, ...] by name.

    Vectors alone are concatenated to one column `word`. If a part is an image, each part is a
    channel `<word>/<name>`; a part without a name is the column `word`.
    """
    if "" in parts or not any(channels.is_image(part.shape[1:]) for part in parts.values()):
        return {word: concatenate_parts(list(parts.values()))}
    return {
        f"{word}/{channel(name)}": to_uint8(part)
        if channels.is_image(part.shape[1:])
        else part.reshape(len(part), -1)
        for name, part in parts.items()
    }


def file_names(word: str, columns: Columns, names: Mapping[str, str]) -> dict[str, str]:
    """Return the file's names of the columns from `observed`; names: those of the parts."""
    if word in columns:
        return {word: " + ".join(names.values())}
    return {f"{word}/{channel(name)}": key for name, key in names.items()}


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
    for word in all_episodes[0]:
        shapes = {episode[word].shape[1:] for episode in all_episodes}
        if len(shapes) > 1:
            both = " and ".join(str(list(shape)) for shape in sorted(shapes)[:2])
            raise UserError(f"{where}: {word} have shapes {both} per step in different episodes.")
        columns[word] = np.concatenate([episode[word] for episode in all_episodes])
    return columns


def check_lengths(where: str, arrays: Columns, expected: int) -> None:
    """Raise UserError that names the arrays which do not have `expected` rows."""
    rows = {key: array.shape[0] if array.ndim else 0 for key, array in arrays.items()}
    problems = [
        f"{key} has {count:,} rows where {expected:,} are expected"
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
    odd = (numbers != 0) & (numbers != 1)
    if odd.any():
        row = int(odd.argmax())
        raise UserError(
            f"{where}: {name} is {numbers[row]} in row {row:,} ({odd.sum():,} such rows); a flag "
            f"must be 0 or 1."
        )
    return numbers.astype(bool)


def check_count(where: str, what: str, count: int, stated: Any) -> None:
    """Raise UserError if a count in a file is not the one that its metadata state."""
    if stated is not None and not np.array_equal(count, stated):
        raise UserError(
            f"{where}: {count:,} {what} where its metadata state {stated}. Was it copied "
            f"or saved completely?"
        )
