"""Data sets of tasks, cards, paths and other libraries: find the file and load it."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from envs.paths import share
from offline_rl.data.cache import load_cached, load_shards
from offline_rl.data.dataset import Dataset
from offline_rl.data.formats import ogbench
from offline_rl.data.read import read
from offline_rl.utils.errors import MissingData, UserError
from offline_rl.utils.files import checksum, read_yaml
from offline_rl.utils.words import unknown
from policies import channels

if TYPE_CHECKING:
    from envs.cards import Card, File
    from envs.tasks import Task


def load(
    source: "str | Path | Card | Task",
    data_dir: str | Path | None = None,
    *,
    split: str = "train",
    reward_task: str | None = None,
    costs_from: str | None = None,
    **options: Any,
) -> Dataset:
    """Load the data set of a task, a card, or a file.

    source: a task or card, or the name of one; a path or `file:<path>`; or `minari:<id>` or
    `lerobot:<repository>`, data sets that these libraries have stored on this machine.
    split: which file of a card to load, train or val.
    reward_task: a single task of OGBench, such as `ogbench/scene-singletask-task2-v0`. Rewards
    and terminations of a file in OGBench's layout are computed for it; other files ignore it.
    Default: the task of the card.
    costs_from: an environment, such as `safe/HopperVelocity`. Its costs are computed from the
    transitions and replace those of the file. Default: that of the card.
    options: options of `read`.
    If a benchmark uses only some episodes of a file, only these are loaded. Raises UserError.
    """
    card = source if not isinstance(source, str | Path) else _resolve_source(source)
    if isinstance(card, Path):
        return _with_costs(_labeled(_cached, card, reward_task, options), costs_from)
    if hasattr(card, "card"):  # a task
        if card.card is None:
            raise UserError(f"task {card.name} has no data set. Give a file with dataset=<path>.")
        card = card.card
    file = card_file(card, split)
    paths = [find_file(card, data_dir, split=split, shard=shard) for shard in file.shards]
    options = {"max_episode_steps": card.max_episode_steps, "name": card.name, **options}
    if card.layout == "ogbench":
        reward_task = reward_task or card.env
    path = paths[0]
    open_file = _cached if len(paths) == 1 else partial(_joined, paths)
    data = _with_costs(
        _labeled(open_file, path, reward_task, options), costs_from or card.costs_from
    )
    data = _observed(data, card.observed_columns)
    skipped, count = file.skip_episodes, file.first_episodes
    if count is None and not skipped:
        return data
    last = max(data.num_episodes, skipped + 1) if count is None else skipped + count
    if data.num_episodes < last:
        raise UserError(
            f"{path} holds {data.num_episodes} episodes, but {card.name} needs the first {last}."
        )
    return data.select(range(skipped, last))


def load_dataset(source: str | Path, data_dir: str | Path | None = None, **options: Any) -> Dataset:
    """Load a file or folder of any supported layout, or the data of a card or task.

    source: a path, a name such as `gym/hopper-medium-replay`, `minari:<id>` or
    `lerobot:<repository>`.
    data_dir: folder of downloaded and generated data.
    options: options of `offline_rl.data.read.read`, such as `action_range` or `observation_keys`;
    split="val" loads a card's validation file.
    Raises UserError.
    """
    names = {"split", "reward_task", "costs_from", *signature(read).parameters} - {"path"}
    for name in options:
        if name not in names:
            raise UserError(unknown("option", name, names))
    return load(source, data_dir, **options)


def load_minari(dataset: Any) -> Dataset:
    """Load a Minari data set that is on this machine.

    dataset: an id, or a `minari.MinariDataset`. If it was filtered, only the remaining episodes
    are loaded. Raises UserError.
    """
    if isinstance(dataset, str):
        return load(f"minari:{dataset}")
    data = load(Path(dataset.storage.data_path).parent)
    return data.select(dataset.episode_indices)


Dataset.load = staticmethod(load_dataset)
Dataset.from_minari = staticmethod(load_minari)


def find_file(
    card: "Card",
    data_dir: str | Path | None = None,
    *,
    split: str = "train",
    shard: "File | None" = None,
) -> Path:
    """Return the path of the card's file, in the data folder or among the embedded data sets.

    shard: one of several files of the split; default: the first. Raises UserError if the file is
    missing, or does not have the card's checksum.
    """
    file = shard or card_file(card, split).shards[0]
    if path := find_stored(card, data_dir, file):
        return path
    folders = ", nor ".join(str(path.parent) for path in _candidate_paths(file, data_dir))
    option = f" data_dir={data_dir}" if data_dir else ""
    remedy = f"offline-rl data download {card.name}{option}, or " if file.urls else ""
    if recipe := None if file.urls else recipe_of(card):
        target = f" out={data_dir}/{Path(file.path).parts[0]}" if data_dir else ""
        remedy += f"make it with offline-rl generate {recipe}{target}, or "
    raise MissingData(
        f"{card.name}: {file.name} is not in {folders}. Remedy: {remedy}name another folder with "
        f"data_dir=<folder>, or a file with dataset=<path>."
    )


def recipe_of(card: "Card") -> str | None:
    """Return the arguments of `offline-rl generate` for the card's file; None without a recipe."""
    file = Path(
        card_file(card, "train").path
    )  # of a card with `data_of`, in another suite's folder
    folder, name = file.parts[0], file.stem
    for path in sorted((share("configs") / "recipe").glob("*.yaml")):
        recipe = read_yaml(path)
        quality = name.removeprefix(f"{recipe.get('family')}-")
        has_set = quality != name or name in recipe.get("sets", ())
        if folder == recipe.get("suite", "gym") and has_set:
            return f"recipe={path.stem} 'qualities=[{quality}]'"
    return None


def find_stored(card: "Card", data_dir: str | Path | None, file: "File") -> Path | None:
    """Return the path of a file of the card if it is on this machine, else None.

    Raises UserError if a file of that name has another checksum.
    """
    for path in _candidate_paths(file, data_dir):
        if path.is_file():
            if sentence := checksum_mismatch(path, file):
                raise UserError(
                    f"{path} is not the published file of {card.name}: {sentence}. Delete it and "
                    f"run offline-rl data download {card.name}, or use it as it is with "
                    f"dataset={path}."
                )
            return path
    return None


def card_file(card: "Card", split: str) -> "File":
    """Return the card's entry for a split. Raises UserError if it has no such split."""
    if split not in card.files:
        raise UserError(f"{card.name} has no {split!r} file; it has {', '.join(card.files)}.")
    return card.files[split]


def checksum_mismatch(path: Path, file: "File") -> str | None:
    """Describe how the checksum of the file differs from the card's; None if they are equal."""
    for kind, expected in (("sha256", file.sha256), ("md5", file.md5)):
        if expected and (actual := checksum(path, kind)) != expected:
            return f"its {kind.upper()} is {actual}, and the card states {expected}"
    return None


def data_folder(data_dir: str | Path | None = None) -> Path:
    """Return the folder of data: `data_dir`, or else OFFLINE_RL_DATA, or else the cache folder."""
    folder = data_dir or os.environ.get("OFFLINE_RL_DATA")
    if folder:
        return Path(folder).expanduser()
    return user_cache()


def user_cache() -> Path:
    """Return this package's folder in the user's cache, the default folder of data."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "offline_rl"


def _labeled(
    open_file: Callable[..., Dataset], path: Path, task: str | None, options: Mapping[str, Any]
) -> Dataset:
    """Return the data at `path`; a file in OGBench's layout gets the rewards of `task`."""
    if task is None:
        return open_file(path, **options)
    data = open_file(path, **{**options, "states": True})
    if ogbench.NEVER_TERMINATES not in data.notes:  # another layout, with its own rewards
        return data
    from envs.suites.ogbench import goal_of

    try:
        goal = goal_of(task)
    except ValueError as error:
        raise UserError(str(error)) from None
    return ogbench.relabel(data, goal, keep_states=options.get("infos", False))


def _with_costs(data: Dataset, environment: str | None) -> Dataset:
    """Return the data with costs from the transitions, by the rule of an environment.

    None: return the data unchanged. Raises UserError if no rule is known.
    """
    if environment is None:
        return data
    from envs.tasks import COSTS

    if environment not in COSTS:
        raise UserError(unknown("environment in costs_from", environment, COSTS))
    rows = np.arange(data.num_rows)
    after = np.where(data.usable, data.next_index, rows)  # a row's own observation if unknown
    s, s2 = (channels.take(data.observations, index) for index in (rows, after))
    costs = COSTS[environment](s, data.actions, data.rewards, s2)
    return replace(data, extras={**data.extras, "costs": costs.astype(np.float32)})


def _observed(data: Dataset, count: int | None) -> Dataset:
    """Return the data with the first `count` columns of its observations; None: with all."""
    if count is None:
        return data
    assert data.spec is not None
    (channel,) = data.spec.channels
    names, units = channel.names[:count], channel.units[:count]
    channel = replace(channel, shape=(count,), names=names, units=units)
    observations = np.ascontiguousarray(data.observations[:, :count])
    return replace(data, observations=observations, spec=replace(data.spec, channels=(channel,)))


def _joined(paths: Sequence[Path], path: Path, **options: Any) -> Dataset:
    """Return the rows of all `paths` as one data set. path: the first of them."""
    return load_shards(paths, options, lambda shard: read(shard, **options), user_cache())


def _cached(path: Path, **options: Any) -> Dataset:
    return load_cached(path, options, lambda: read(path, **options), user_cache())


def minari_folder(dataset_id: str) -> Path:
    """Return the folder of a Minari data set. Raises UserError if there is none."""
    home = os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets"
    return _first_folder([Path(home) / dataset_id], f"offline-rl data download minari:{dataset_id}")


def lerobot_folder(repository: str) -> Path:
    """Return the folder of a LeRobot data set, recorded or downloaded.

    Raises UserError if there is none.
    """
    home = lerobot_home()
    hub = home / "hub" / f"datasets--{repository.replace('/', '--')}"
    main = hub / "refs" / "main"
    snapshots = [hub / "snapshots" / main.read_text().strip()] if main.is_file() else []
    folder = home / repository
    return _first_folder([folder, *snapshots], f"offline-rl data download lerobot:{repository}")


def lerobot_home() -> Path:
    """Return the folder of LeRobot's data sets."""
    cache = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    return Path(os.environ.get("HF_LEROBOT_HOME") or Path(cache) / "lerobot")


LIBRARIES = {"minari": minari_folder, "lerobot": lerobot_folder}


def _first_folder(candidates: list[Path], remedy: str) -> Path:
    for folder in candidates:
        if folder.is_dir():
            return folder
    folders = ", nor ".join(map(str, candidates))
    raise MissingData(f"no data set in {folders}. Remedy: {remedy}")


def _resolve_source(source: str | Path) -> "Path | Task":
    """Return the path or the task that `source` names.

    It names a path if it is a library's data set, an existing file, or has the extension of a data
    file.
    """
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

    known_cards()  # raises UserError if a card is damaged
    try:
        return task(text)
    except UnknownName as error:
        raise MissingData(f"no such file, and {error}") from None


def _candidate_paths(file: "File", data_dir: str | Path | None) -> list[Path]:
    paths = [data_folder(data_dir) / file.path]
    try:
        return [*paths, share("datasets") / "embedded" / file.name]
    except FileNotFoundError:
        return paths


def known_cards() -> "dict[str, Card]":
    """Return all cards by name. Raises UserError if one is damaged."""
    from envs.cards import CardError, cards

    try:
        return cards()
    except CardError as error:
        raise UserError(str(error)) from None


def locate(source: str | Path, data_dir: str | Path | None = None) -> Path:
    """Return the path of the data that `source` names: a path, a card or a task."""
    target = _resolve_source(source)
    if isinstance(target, Path):
        return target
    if target.card is None:
        raise UserError(f"task {target.name} has no data set. Give a file.")
    return find_file(target.card, data_dir)
