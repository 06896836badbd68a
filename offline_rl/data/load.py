"""Where the files of the cards lie, and the data set of a task, a card or a path."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.paths import share
from offline_rl.data.cache import cached
from offline_rl.data.dataset import Dataset
from offline_rl.data.read import read
from offline_rl.utils.errors import MissingData, UserError
from offline_rl.utils.files import checksum, read_yaml

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

    `minari:<id>` and `lerobot:<repository>` are what those libraries keep on this machine.
    split: which of the card's files, train or val.  options: of `read`.
    A card's file is cut to the episodes its benchmark uses. Raises UserError.
    """
    card = source if not isinstance(source, str | Path) else _named(source)
    if isinstance(card, Path):
        return _cached(card, **options)
    if hasattr(card, "card"):  # a task
        if card.card is None:
            raise UserError(f"task {card.name} brings no data: give a file with dataset=<path>.")
        card = card.card
    path = find(card, data_dir, split=split)
    known = {"max_episode_steps": card.max_episode_steps, "name": card.name}
    data = _cached(path, **{**known, **options})
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
    file = file_of(card, split)
    if path := stored(card, data_dir, split=split):
        return path
    looked = ", nor ".join(str(path.parent) for path in _places(file, data_dir))
    there = f" data_dir={data_dir}" if data_dir else ""
    had = f"offline-rl data download {card.name}{there}, or " if file.urls else ""
    if recipe := recipe_of(card):
        place = f" out={data_dir}/{card.suite}" if data_dir else ""
        had = f"make it with offline-rl generate {recipe}{place}, or "
    raise MissingData(
        f"{card.name}: {file.name} is not in {looked}. Remedy: {had}name another folder with "
        f"data_dir=<folder>, or a file with dataset=<path>."
    )


def recipe_of(card: "Card") -> str | None:
    """What `generate` makes the card's file from; None where no recipe of ours does."""
    for path in sorted((share("configs") / "recipe").glob("*.yaml")):
        recipe = read_yaml(path)
        suite = recipe.get("suite", "gym")
        name = card.name.removeprefix(f"{suite}/")
        quality = name.removeprefix(f"{recipe.get('family')}-")
        if card.suite == suite and (quality != name or name in recipe.get("sets", ())):
            return f"recipe={path.stem} 'qualities=[{quality}]'"
    return None


def stored(
    card: "Card", data_dir: str | Path | None = None, *, split: str = "train"
) -> Path | None:
    """The card's file where it lies, else None. Raises UserError where another has its name."""
    file = file_of(card, split)
    for path in _places(file, data_dir):
        if path.is_file():
            if sentence := impostor(path, file):
                raise UserError(
                    f"{path}: not the published file of {card.name}: {sentence}. Delete it and "
                    f"run offline-rl data download {card.name}, or use it as it is with "
                    f"dataset={path}."
                )
            return path
    return None


def file_of(card: "Card", split: str) -> "File":
    """Raises UserError where the card has no such split."""
    if split not in card.files:
        raise UserError(f"{card.name} has no {split!r} file; it has {', '.join(card.files)}.")
    return card.files[split]


def impostor(path: Path, file: "File") -> str | None:
    """How the file at `path` differs from what the card publishes, by checksum."""
    for kind, expected in (("sha256", file.sha256), ("md5", file.md5)):
        if expected and (found := checksum(path, kind)) != expected:
            return f"its {kind.upper()} is {found}, the card's {expected}"
    return None


def data_folder(data_dir: str | Path | None = None) -> Path:
    """`data_dir`, else OFFLINE_RL_DATA, else the user's cache folder."""
    given = data_dir or os.environ.get("OFFLINE_RL_DATA")
    if given:
        return Path(given).expanduser()
    return user_cache()


def user_cache() -> Path:
    """Where data is kept that is not told to lie elsewhere."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "offline_rl"


def _cached(path: Path, **options: Any) -> Dataset:
    return cached(path, options, lambda: read(path, **options), user_cache())


def minari_folder(dataset_id: str) -> Path:
    """Where Minari keeps a data set. Raises UserError where it is not there."""
    home = os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets"
    return _there([Path(home) / dataset_id], f"minari download {dataset_id}")


def lerobot_folder(repository: str) -> Path:
    """Where LeRobot keeps a data set, recorded or downloaded. Raises UserError likewise."""
    cache = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    home = Path(os.environ.get("HF_LEROBOT_HOME") or Path(cache) / "lerobot")
    hub = home / "hub" / f"datasets--{repository.replace('/', '--')}"
    main = hub / "refs" / "main"
    snapshots = [hub / "snapshots" / main.read_text().strip()] if main.is_file() else []
    place = home / repository
    download = f"hf download --repo-type dataset {repository} --local-dir {place}"
    return _there([place, *snapshots], download)


LIBRARIES = {"minari": minari_folder, "lerobot": lerobot_folder}


def _there(places: list[Path], remedy: str) -> Path:
    for place in places:
        if place.is_dir():
            return place
    looked = ", nor ".join(map(str, places))
    raise MissingData(f"no data set in {looked}. Remedy: {remedy}")


def _named(source: str | Path) -> "Path | Task":
    """A file that is there or called one, one of a library's, else the task of that name."""
    text = str(source)
    library, _, name = text.partition(":")
    if library in LIBRARIES and name:
        return LIBRARIES[library](name)
    if text.startswith("file:"):
        return Path(text.removeprefix("file:")).expanduser()
    path = Path(source).expanduser()
    if isinstance(source, Path) or path.exists() or path.suffix in (".hdf5", ".h5", ".npz"):
        return path
    from envs import UnknownName, task

    known_cards()
    try:
        return task(text)
    except UnknownName as error:
        raise MissingData(f"no such file, and {error}") from None


def _places(file: "File", data_dir: str | Path | None) -> list[Path]:
    from envs.paths import share

    places = [data_folder(data_dir) / file.path]
    try:
        return [*places, share("datasets") / "embedded" / file.name]
    except FileNotFoundError:
        return places


def known_cards() -> "dict[str, Card]":
    """All cards by name. Raises UserError where one is damaged."""
    from envs.cards import CardError, cards

    try:
        return cards()
    except CardError as error:
        raise UserError(str(error)) from None


def locate(source: str | Path, data_dir: str | Path | None = None) -> Path:
    """The file of a path, a card or a task's name."""
    found = _named(source)
    if isinstance(found, Path):
        return found
    if found.card is None:
        raise UserError(f"task {found.name} brings no data: give a file.")
    return find(found.card, data_dir)
