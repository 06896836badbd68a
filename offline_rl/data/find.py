"""Where the files of the cards lie, and the data set of a task, a card or a path."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_rl.data.dataset import Dataset
from offline_rl.data.raw import checksum
from offline_rl.data.read import read
from offline_rl.errors import UserError

if TYPE_CHECKING:
    from envs.cards import Card, File
    from envs.tasks import Task


def load(
    source: "str | Path | Card | Task",
    data_dir: str | Path | None = None,
    *,
    split: str = "train",
    **options: Any,
) -> Dataset:
    """The data set of a task or card (or its name), or the one in a file (path or `file:<path>`).

    split: which of the card's files, train or val.  options: of `read`.
    A card's file is cut to the episodes its benchmark uses. Raises UserError.
    """
    card = source if not isinstance(source, str | Path) else _named(source)
    if isinstance(card, Path):
        return read(card, **options)
    if hasattr(card, "card"):  # a task
        if card.card is None:
            raise UserError(f"task {card.name} brings no data: give a file with dataset=<path>.")
        card = card.card
    path = find(card, data_dir, split=split)
    data = read(path, **{"max_episode_steps": card.max_episode_steps, "name": card.name, **options})
    count = card.files[split].first_episodes
    if count is None:
        return data
    if data.num_episodes < count:
        raise UserError(
            f"{path}: {data.num_episodes} episodes, where {card.name} needs the first {count}."
        )
    return data.select(range(count))


def find(card: "Card", data_dir: str | Path | None = None, *, split: str = "train") -> Path:
    """The card's file: in the data folder, else in the embedded set.

    A file counts only with the card's checksum, where the card has one. Raises UserError.
    """
    if split not in card.files:
        raise UserError(f"{card.name} has no {split!r} file; it has {', '.join(card.files)}.")
    file = card.files[split]
    places = [data_folder(data_dir) / file.path, *_embedded(file)]
    for path in places:
        if path.is_file():
            _verify(path, file, card.name)
            return path
    looked = ", nor ".join(str(path.parent) for path in places)
    fetch = f"download it from {' or '.join(file.urls)}, " if file.urls else ""
    raise UserError(
        f"{card.name}: {file.name} is not in {looked}. Remedy: {fetch}name another folder with "
        f"data_dir=<folder>, or a file with dataset=<path>."
    )


def data_folder(data_dir: str | Path | None = None) -> Path:
    """`data_dir`, else OFFLINE_RL_DATA, else the user's cache folder."""
    given = data_dir or os.environ.get("OFFLINE_RL_DATA")
    if given:
        return Path(given).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "offline_rl"


def _named(source: str | Path) -> "Path | Task":
    """A file that is there or called one, else the task of that name."""
    text = str(source)
    if text.startswith("file:"):
        return Path(text.removeprefix("file:")).expanduser()
    path = Path(source).expanduser()
    if isinstance(source, Path) or path.exists() or path.suffix in (".hdf5", ".h5", ".npz"):
        return path
    from envs import UnknownName, task

    try:
        return task(text)
    except UnknownName as error:
        raise UserError(f"no such file, and {error}") from None


def _embedded(file: "File") -> list[Path]:
    from envs.paths import share

    try:
        return [share("datasets") / "embedded" / file.name]
    except FileNotFoundError:
        return []


def _verify(path: Path, file: "File", name: str) -> None:
    for kind, expected in (("sha256", file.sha256), ("md5", file.md5)):
        if expected and (found := checksum(path, kind)) != expected:
            raise UserError(
                f"{path}: not the published file of {name}: its {kind.upper()} is {found}, the "
                f"card's {expected}. Download it again, or use it as it is with dataset={path}."
            )


def locate(source: str | Path, data_dir: str | Path | None = None) -> Path:
    """The file of a path, a card or a task's name."""
    found = _named(source)
    if isinstance(found, Path):
        return found
    if found.card is None:
        raise UserError(f"task {found.name} brings no data: give a file.")
    return find(found.card, data_dir)
