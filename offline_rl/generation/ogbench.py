"""Data sets in OGBench's layout, collected with the policies of envs/experts/ogbench.py.

A recipe (configs/recipe/<name>.yaml) with a `collector` lists sets. A set is a file of training
trajectories, `<set>.npz`, a file of validation trajectories, `<set>-val.npz`, and a card. Every
trajectory has its own seed. The bytes therefore depend neither on the number of processes nor on
interruptions, and a smaller set contains the first trajectories of a larger one.

During collection, finished trajectories are stored in the folder `.<set>.parts`.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Literal, NamedTuple

import mujoco
import numpy as np

from envs.experts.ogbench import Collector, collector_class
from offline_rl.data.load import data_folder
from offline_rl.data.writers.ogbench import DTYPES, write_ogbench
from offline_rl.generation.options import GenerateOptions
from offline_rl.utils import hardware, seeds
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import (
    checksum,
    lock_folder,
    make_folder,
    read_json_object,
    write_atomically,
    write_json,
)
from offline_rl.utils.options import Checked, Count, NonNegative, Share, build
from offline_rl.utils.words import unknown

PART = 10  # trajectories in one file of `.<set>.parts`
VERSION = "-v0"  # suffix of the names of OGBench's sets
SPLITS = {"train": "", "val": "-val"}  # split -> suffix of its file's name
Columns = dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class OGBenchSet(Checked):
    """Size and noise of one set."""

    episodes: Count = 1000  # training trajectories
    val_episodes: Count | None = None  # validation trajectories; default: a tenth of `episodes`
    steps: Count = 1000  # transitions of a trajectory, which has steps + 1 rows in the file
    noise: NonNegative = 0.1  # standard deviation of the action noise; for `noisy`, its maximum
    p_random: Share = 0.0  # probability of a uniform action

    def count(self, split: str) -> int:
        """Return the number of trajectories of a split."""
        return self.episodes if split == "train" else self.val_episodes or self.episodes // 10 or 1


@dataclass(frozen=True, kw_only=True)
class Collection:
    """A recipe that collects sets of OGBench."""

    collector: Literal["ogbench"]
    suite: str
    sets: dict  # name of a set, <environment>-<type>-v0 -> fields of OGBenchSet that differ


class Part(NamedTuple):
    """Consecutive trajectories of a split, which are collected and stored together."""

    split: str
    first: int  # index of the first trajectory in the split
    seeds: tuple[int, ...]  # of the trajectories

    @property
    def file(self) -> str:
        """The name of the part's file."""
        return f"{self.split}-{self.first:06d}.npz"


def load_sets(plan: Collection, where: str = "") -> dict[str, OGBenchSet]:
    """Return the sets of a recipe. Raises UserError that begins with `where`."""
    for name, values in plan.sets.items():
        if not isinstance(values, Mapping):
            raise UserError(f"{where}sets.{name}={values!r}: expected a mapping {{…}}")
    return {name: build(OGBenchSet, v, f"{where}sets.{name}.") for name, v in plan.sets.items()}


def select_sets(plan: Collection, options: GenerateOptions) -> dict[str, OGBenchSet]:
    """Return the sets that the options select, with the sizes they set. Raises UserError."""
    if options.task is not None and options.qualities is not None:
        raise UserError("task= and qualities= both select sets. Remove one of them.")
    names = options.qualities if options.task is None else [find_set(plan, options)]
    if names is None:
        tasks = ", ".join(dict.fromkeys(split_name(name)[0] for name in plan.sets))
        raise UserError(f"recipe={options.recipe} needs a task. Add task=, one of {tasks}.")
    if options.type is not None and options.task is None:
        raise UserError(f"type={options.type} needs a task. Add task=.")
    for name in names:
        try:
            collector_class(*split_name(name))
        except ValueError as error:  # the package is missing, or the recipe has an unknown set
            raise UserError(error) from None
    sets = load_sets(plan)
    return {name: resize(name, sets[name], options) for name in names}


def find_set(plan: Collection, options: GenerateOptions) -> str:
    """Return the name of the set for task= and type= (default: the first). Raises UserError."""
    types: dict[str, list[str]] = {}
    for name in plan.sets:
        environment, kind = split_name(name)
        types.setdefault(environment, []).append(kind)
    task = str(options.task)
    if task not in types:
        raise UserError(unknown("task", task, types))
    kind = options.type or types[task][0]
    if kind not in types[task]:
        choices = " or ".join(types[task])
        raise UserError(f"There is no set of type {kind} for task={task}. Use type={choices}.")
    return f"{task}-{kind}{VERSION}"


def resize(name: str, values: OGBenchSet, options: GenerateOptions) -> OGBenchSet:
    """Return a set with the size that the options set.

    Raises UserError if rows= is not a number of complete trajectories.
    """
    if options.rows is not None and options.episodes is not None:
        raise UserError("rows= and episodes= both set the size. Remove one of them.")
    episodes = options.episodes or values.episodes
    if options.rows is not None:
        if options.rows % values.steps:
            raise UserError(
                f"rows={options.rows} is not a multiple of {values.steps}, the transitions of a "
                f"trajectory of {name}. Use a multiple, or set episodes=."
            )
        episodes = options.rows // values.steps
    val_episodes = options.val_episodes or values.val_episodes
    return replace(values, episodes=episodes, val_episodes=val_episodes)


def split_name(name: str) -> tuple[str, str]:
    """Return the environment and the type of a set: cube-single and play of cube-single-play-v0."""
    environment, _, kind = name.removesuffix(VERSION).rpartition("-")
    return environment, kind


def generate_collection(plan: Collection, recipe: str, options: GenerateOptions, show: bool) -> str:
    """Collect the selected sets of a recipe and return their folder. Raises UserError."""
    if options.format != "d4rl" or options.video:
        raise UserError(f"recipe={recipe} writes OGBench's layout. Remove format= and video=.")
    sets = select_sets(plan, options)
    folder = Path(options.out) if options.out else data_folder() / plan.suite
    make_folder(folder)
    for name, values in sets.items():
        block = len(SPLITS) * list(plan.sets).index(name)  # each split has a block of seeds
        card = {
            "set": name,
            "recipe": {"name": recipe, "collector": plan.collector, "suite": plan.suite},
            **asdict(replace(values, val_episodes=values.count("val"))),
        }
        make_set(name, values, block, card, folder, options.processes, show)
    return str(folder)


def make_set(
    name: str,
    values: OGBenchSet,
    block: int,
    card: Mapping[str, Any],
    folder: Path,
    processes: int,
    show: bool,
) -> None:
    """Collect one set and write its files and its card. Raises UserError.

    block: the set's first block of seeds.
    """
    parts_folder, card_file = folder / f".{name}.parts", folder / f"{name}.json"
    paths = {split: folder / f"{name}{end}.npz" for split, end in SPLITS.items()}
    if not parts_folder.exists() and is_complete(card_file, paths, card):
        if show:
            print(f"{paths['train']} already exists")
        return
    parts = list_parts(values, block)
    versions = {"mujoco": mujoco.__version__, "ogbench": version("ogbench")}
    with lock_folder(parts_folder):
        check_parts(parts_folder, {**card, **versions})
        missing = [part for part in parts if not (parts_folder / part.file).is_file()]
        meter = Meter(name, values.steps, missing) if show else None
        for part, columns in collect(name, values, missing, processes):
            save_part(columns, parts_folder / part.file)
            if meter:
                meter.advance(part)
        facts: dict[str, Any] = {}
        for split, path in paths.items():
            files = [parts_folder / part.file for part in parts if part.split == split]
            facts[split] = join_parts(files, path)
        machine = {**hardware.describe_machine(), **versions}
        facts = {**facts["train"], "validation": facts["val"], "made_with": machine}
        write_json(card_file, {**card, **facts})
    shutil.rmtree(parts_folder)
    if show:
        for split, path in paths.items():
            count = values.count(split)
            print(f"{path}: {values.steps * count:,} transitions in {count:,} trajectories")


def is_complete(card_file: Path, paths: Mapping[str, Path], card: Mapping[str, Any]) -> bool:
    """True if both files of a set are complete and were collected as in `card`.

    Raises UserError if the files are damaged, or were collected differently.
    """
    if not any(path.exists() for path in (card_file, *paths.values())):
        return False
    stored = read_json_object(card_file) if card_file.is_file() else {}
    facts = {"train": stored, "val": stored.get("validation", {})}
    sizes = {split: facts[split].get("size_bytes") for split in SPLITS}
    same = all(stored.get(name) == value for name, value in card.items())
    if not same or any(not p.is_file() or p.stat().st_size != sizes[s] for s, p in paths.items()):
        raise UserError(
            f"{paths['train']} already exists, but is damaged or was generated differently. Choose "
            "another folder with out=, or remove the file, its -val file and its card."
        )
    return True


def list_parts(values: OGBenchSet, block: int) -> list[Part]:
    """Return the parts of both splits, in order."""
    parts = []
    for k, split in enumerate(SPLITS):
        count = values.count(split)
        for first in range(0, count, PART):
            indices = range(first, min(first + PART, count))
            numbers = [seeds.episode_seed("scripted sets", block + k, i) for i in indices]
            parts.append(Part(split, first, tuple(numbers)))
    return parts


def check_parts(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings and versions of the parts.

    Raises UserError if the folder contains parts with other settings or versions.
    """
    path = folder / "settings.json"
    if path.is_file() and read_json_object(path) != settings:
        raise UserError(
            f"{folder} contains an interrupted set with other settings or versions. Repeat its "
            "command to continue it, or remove the folder."
        )
    write_json(path, settings)


def collect(
    name: str, values: OGBenchSet, parts: Sequence[Part], processes: int
) -> Iterator[tuple[Part, Columns]]:
    """Yield the parts with their columns, in order."""
    if processes == 1 or len(parts) < 2:
        with closing(make_collector(name, values)) as collector:
            for part in parts:
                yield part, collect_part(collector, part)
        return
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    pool = ProcessPoolExecutor(
        min(processes, len(parts)),
        context,
        initializer=start_worker,
        initargs=(name, values, stop),
    )
    try:
        yield from zip(parts, pool.map(collect_in_worker, parts), strict=True)
    except BrokenProcessPool:
        raise UserError(
            f"{name}: a process was killed, perhaps because memory ran out. Repeat the command to "
            "continue, with fewer processes."
        ) from None
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def make_collector(name: str, values: OGBenchSet) -> Collector:
    """Return the collector of a set."""
    environment, kind = split_name(name)
    return collector_class(environment, kind)(
        environment, kind, steps=values.steps, noise=values.noise, p_random=values.p_random
    )


def collect_part(
    collector: Collector, part: Part, is_stopped: Callable[[], bool] = lambda: False
) -> Columns:
    """Return the columns of a part. Raises KeyboardInterrupt when `is_stopped()`."""
    trajectories = []
    for seed in part.seeds:
        if is_stopped():
            raise KeyboardInterrupt
        trajectories.append(collector.collect(seed))
    return {
        key: np.concatenate([t[key] for t in trajectories]).astype(DTYPES[key], copy=False)
        for key in trajectories[0]
    }


_worker: dict[str, Any] = {}  # the collector of a worker process, and the event that stops it


def start_worker(name: str, values: OGBenchSet, stop: Event) -> None:
    """Prepare a worker process. It exits with its parent, and ignores Ctrl-C."""

    def follow() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=follow, daemon=True).start()
    _worker.update(collector=make_collector(name, values), stop=stop)


def collect_in_worker(part: Part) -> Columns:
    """Return the columns of a part, in a worker process."""
    return collect_part(_worker["collector"], part, _worker["stop"].is_set)


def save_part(columns: Columns, path: Path) -> None:
    """Write a part atomically, without compression."""

    def save(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez(file, **columns)  # type: ignore[arg-type]

    write_atomically(path, save)


def join_parts(files: Sequence[Path], path: Path) -> dict[str, Any]:
    """Write the parts of a split as one file, and return the entries that describe it in a card."""

    def read(file: Path, key: str) -> np.ndarray:
        with np.load(file) as part:
            return part[key]

    with np.load(files[0]) as part:
        keys = part.files
    columns = {key: np.concatenate([read(file, key) for file in files]) for key in keys}
    write_ogbench(columns, path)
    episodes = int(columns["terminals"].sum())
    return {
        "file": path.name,
        "sha256": checksum(path),
        "size_bytes": path.stat().st_size,
        "rows": len(columns["terminals"]) - episodes,  # transitions, without the final states
        "episodes": episodes,
    }


class Meter:
    """Meter that prints progress and speed after each tenth of the work."""

    def __init__(self, name: str, steps: int, parts: Sequence[Part]) -> None:
        self.name, self.done, self.tenths, self.start = name, 0, 0, time.monotonic()
        self.steps, self.total = steps, steps * sum(len(part.seeds) for part in parts)

    def advance(self, part: Part) -> None:
        """Count a finished part."""
        self.done += self.steps * len(part.seeds)
        if 10 * self.done // self.total > self.tenths:
            self.tenths = 10 * self.done // self.total
            speed = self.done / (time.monotonic() - self.start)
            text = f"{self.done:,} of {self.total:,} transitions, {speed:,.0f} per second"
            print(f"{self.name}: {text}", flush=True)
