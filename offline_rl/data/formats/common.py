"""What every layout gives and takes, and the pieces that several of them share."""

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
    """`observation_keys` was given for a file whose observations are one array."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a file is to be read, but for its layout."""

    max_episode_steps: int | None = None  # where a file has no time-outs, episodes end after these
    d4rl_compatible: bool = False  # exactly the transitions of D4RL's qlearning_dataset
    terminate_on_end: bool = False  # the same, called with this option
    action_scale: float | None = None  # actions are divided by it; the size that 1 stands for
    action_range: ActionRange | None = (
        None  # [low, high]: what -1, 1 stand for; data: its own range
    )
    observation_keys: list[str] | None = None  # which arrays make an observation, in this order
    subset: str | None = None  # a split that the file names, e.g. train
    infos: bool = False  # keep what a step has besides, in `extras`


@dataclass(frozen=True, kw_only=True)
class ReadOptions(Reading):
    """How a file is to be read."""

    format: FileFormat | None = None  # layout of the file; default: recognized by its content


@dataclass(frozen=True)
class ParsedFile:
    """What a layout makes of a file."""

    layout: str
    columns: Columns  # our words -> arrays, as `Dataset.from_arrays` takes them
    keys: Mapping[str, str]  # our words -> what the file calls them
    extras: Columns = field(default_factory=dict)  # [N, ...] each
    notes: Sequence[str] = ()  # sentences on what was left out or had to be assumed
    action_range: Bounds | None = None  # the actions' limits in the file's units, where it has them
    action_extremes: Bounds | None = None  # what they reach, where it says that: stands for limits
    observation_names: tuple[str, ...] = ()  # of each number, where it names them
    observation_units: tuple[str, ...] = ()  # and measures them in
    action_names: tuple[str, ...] = ()
    action_units: tuple[str, ...] = ()
    rate_hz: float | None = None  # steps a second, where it says so
    action_offset: float | None = None  # steps to when an action is reached, where it says so
    unknown_next: np.ndarray | None = None  # [N] bool: rows before a gap inside an episode
    files: tuple[Path, ...] = ()  # read besides the raw ones
    finish: Callable[[Columns], Columns] = lambda columns: columns  # once they are known as sound
    qlearning_rows: Callable[[np.ndarray], np.ndarray] | None = None  # [N] terminals -> [N] kept


def metadata_in(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises UserError where it is none."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise UserError(f"{path}: a JSON object is expected; found {str(found)[:40]}.")
    return found


def numbered(raw: Raw, prefix: str) -> dict[int, str]:
    """The groups `<prefix><number>` of a file in the order of their numbers."""
    pattern = re.compile(rf"{re.escape(prefix)}(\d+)/")
    found = {int(m[1]): m[0].rstrip("/") for key in raw.keys if (m := pattern.match(key))}
    return dict(sorted(found.items()))


def below(raw: Raw, group: str) -> tuple[str, ...]:
    """The arrays in a group of the file, by their paths in it, sorted as Gymnasium sorts a Dict.

    The parts of a Tuple, which Minari calls _index_<number>, are sorted by number.
    """
    start = f"{group}/"
    inside = (key.removeprefix(start) for key in raw.keys if key.startswith(start))
    return tuple(sorted(inside, key=_place))


def _place(path: str) -> list[str]:
    return re.sub(r"_index_(\d+)", lambda m: f"_index_{int(m[1]):09d}", path).split("/")


def is_picture(shape: Sequence[int]) -> bool:
    """Whether arrays [N, *shape] are pictures, [N, H, W, C] if they are as they should be."""
    return channels.is_image(shape)


def choose(
    where: str,
    shapes: Mapping[str, Sequence[int]],
    options: ReadOptions,
    default: Sequence[str] | None = None,
) -> tuple[list[str], list[str]]:
    """Which arrays make an observation, and notes on those left out.

    shapes: of one step, for each array there is.  default: what is observed where the user does
    not say; None: every array that is no picture. If there is but one array, it is that.
    """
    asked = options.observation_keys
    if asked is None:
        flat = [key for key in shapes if not is_picture(shapes[key])]
        asked = list(shapes if len(shapes) == 1 else flat if default is None else default)
    if not shapes:
        raise UserError(f"{where}: it holds no array of numbers to observe.")
    unknown = [key for key in asked if key not in shapes]
    if unknown or not asked:
        what = f"no {', '.join(unknown)} to observe" if unknown else "what is observed is not said"
        alone = len(shapes) == 1 and len(unknown) == len(asked) > 0
        raise (NoArraysToChoose if alone else UserError)(
            f"{where}: {what}. Choose among {', '.join(shapes)} with observation_keys=[...]."
        )
    left = [key for key in shapes if key not in asked]
    return asked, [f"not observed: {', '.join(left)}"] if left else []


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """[N, O]: the parts [N, ...] side by side, each flattened; a picture alone stays as it is."""
    if len(parts) == 1 and is_picture(parts[0].shape[1:]):
        return as_bytes(parts[0])
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def observed(word: str, parts: Mapping[str, np.ndarray]) -> Columns:
    """Columns of what is seen, [N, ...] by name: vectors side by side as one.

    Where there is a picture each part is a channel, `<word>/<name>`; one without a name stays.
    """
    if "" in parts or not any(is_picture(part.shape[1:]) for part in parts.values()):
        return {word: joined(list(parts.values()))}
    return {
        f"{word}/{channel(name)}": as_bytes(part)
        if is_picture(part.shape[1:])
        else part.reshape(len(part), -1)
        for name, part in parts.items()
    }


def called(word: str, columns: Columns, names: Mapping[str, str]) -> dict[str, str]:
    """What the file calls the columns that `observed` made; names: of its parts."""
    if word in columns:
        return {word: " + ".join(names.values())}
    return {f"{word}/{channel(name)}": own for name, own in names.items()}


def channel(name: str) -> str:
    """What the array `name` is called as a channel."""
    return name.replace("/", ".")


def as_bytes(picture: np.ndarray) -> np.ndarray:
    """Pictures of whole numbers from 0 to 255 as uint8; others as they are."""
    if picture.dtype.kind != "f" or not len(picture):
        return picture
    with np.errstate(invalid="ignore"):  # of NaN, which then differs
        small = picture.astype(np.uint8)
    return small if (small == picture).all() else picture


def stacked(where: str, episodes: Iterable[Columns]) -> Columns:
    """One array per word, episode after episode. Raises UserError where their shapes differ."""
    every = list(episodes)
    columns = {}
    for word in every[0]:
        shapes = {episode[word].shape[1:] for episode in every}
        if len(shapes) > 1:
            found = " and ".join(str(list(shape)) for shape in sorted(shapes)[:2])
            raise UserError(f"{where}: {word} have {found} numbers a step in different episodes.")
        columns[word] = np.concatenate([episode[word] for episode in every])
    return columns


def same_lengths(where: str, arrays: Columns, expected: int) -> None:
    """Raises UserError naming the arrays that do not have `expected` rows."""
    rows = {key: array.shape[0] if array.ndim else 0 for key, array in arrays.items()}
    odd = [
        f"{key} has {found:,} rows where {expected:,} are expected"
        for key, found in rows.items()
        if found != expected
    ]
    if odd:
        raise UserError(f"{where}: {', '.join(odd)}. Was the recording saved completely?")


def flag(where: str, name: str, array: np.ndarray) -> np.ndarray:
    """[N] bool of an array [N] or [N, 1]. Raises UserError where a number is neither 0 nor 1."""
    numbers = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    if numbers.ndim != 1 or numbers.dtype.kind not in "fiub":
        raise UserError(
            f"{where}: {name} has shape {list(array.shape)} and type {array.dtype}; one flag a "
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


def counted(where: str, what: str, found: int, stated: Any) -> None:
    """Raises UserError where a file holds another number of things than it states."""
    if stated is not None and not np.array_equal(found, stated):
        raise UserError(
            f"{where}: {found:,} {what} where its metadata state {stated}. Was it copied "
            f"or saved completely?"
        )
