"""A suite: the runs that a page of results rests on, in order of worth, and what they will cost.

    seeds: [0, 1, 2, 3, 4]                 # of every cell, stacked in one program
    keys: {eval_episodes: 100}             # of `train`, for every cell that says nothing else
    cells:                                 # lists of algorithms, tasks and data sets are crossed
      - {algorithm: [td3_bc, iql], task: [neorl2/DMSD, neorl2/Simglucose], num_updates: 300000}
      - {algorithm: wsrl, from: iql/default, task: neorl2/DMSD, num_env_steps: 30000}

A cell with `from` is fine-tuned from an earlier cell, of this algorithm and name and the same task;
or distilled from it, or it corrects that cell's first seed, as its own algorithm does.
All of it is checked before anything runs. What a cell costs is told by earlier runs of the same
algorithm in the same folder; where there is none yet, the counted work of an update, roughly.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from itertools import groupby, product
from pathlib import Path
from statistics import median
from typing import Any

from offline_rl.algorithms.common.registry import algorithm_class, label
from offline_rl.reporting import compact
from offline_rl.reporting.records import run_of
from offline_rl.training.plan import (
    CHANGING,
    READING,
    complete_settings,
    has_dataset,
    load_dataset,
    reads_data,
    resolved_config,
)
from offline_rl.training.resolve import Resolved, main_updates, resolve
from offline_rl.training.run_folder import (
    BUNDLE,
    CHECKSUMS,
    SeedFolder,
    named_task,
    option_name,
    run_folder,
    values_agree,
)
from offline_rl.training.train import expected_seconds
from offline_rl.utils.errors import MissingData, UserError
from offline_rl.utils.files import parse_yaml, read_json, read_json_object, write_json
from offline_rl.utils.options import build, coerce, format_value, unknown
from offline_rl.utils.paths import share
from offline_rl.utils.trees import flatten, to_json_values

VERSION = 1  # of plan.json
MOVING = (*CHANGING, "num_updates", "num_env_steps")  # may be others in the same run
SAME_DATA = (*READING, "episodes")  # options that make two data sets of one file
FILLED = ("utd", "batch_size")  # which earlier versions wrote down where they were not given
CROSSED = ("algorithm", "task", "dataset")


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A file of configs/suite."""

    cells: list  # of dicts of train's keys
    seeds: int | list[int] = 5
    keys: dict = field(default_factory=dict)  # of all cells


@dataclass(frozen=True)
class Cell:
    """One run: all seeds of one algorithm on one task."""

    keys: dict[str, Any]  # of `train`; of `finetune` where there is a `run`
    seconds: float | None = None  # what it is expected to take, where that is known
    unknown: str = ""  # why not, where it is not; no part of a plan

    @property
    def folders(self) -> list[SeedFolder]:
        """Of its seeds."""
        k = self.keys
        run = run_folder(k["out"], named_task(k), label(k["algorithm"]), k.get("name", "default"))
        return [SeedFolder(run, seed) for seed in _seeds(k["seeds"])]

    @property
    def run(self) -> str:
        """The folder above them."""
        return str(self.folders[0].path.parent)

    @property
    def label(self) -> str:
        """For people."""
        name = self.keys.get("name", "default")
        end = "" if name == "default" else f" ({name})"
        return f"{self.keys['algorithm']} on {named_task(self.keys)}{end}"

    @property
    def id(self) -> str:
        """The same for the same keys."""
        text = json.dumps(self.keys, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def total(self) -> int:
        """Updates offline and environment steps, preliminary phases left out."""
        return self.updates + int(self.keys.get("num_env_steps", 0))

    @property
    def updates(self) -> int:
        """Of the main phase, offline."""
        return main_updates(self.keys)

    @property
    def finished(self) -> bool:
        """Whether all seeds are, with as many updates and environment steps as it has now."""
        return all(f.finished and self.reached(f.outcome()) for f in self.folders)

    def reached(self, outcome: Mapping[str, Any]) -> bool:
        """Whether a result is of as many updates of the main phase and environment steps."""
        steps = int(self.keys.get("num_env_steps", 0))
        done = outcome.get("num_updates", 0), outcome.get("num_env_steps", 0)
        enough = int(done[0]) >= self.updates if self.updates else not int(done[0])
        return enough and int(done[1]) >= steps

    def begun_otherwise(self) -> dict[str, tuple[Any, Any]]:
        """Settings that its run was begun with and that are others now: key -> then and now.

        Of a run that goes on from another what is said here: the rest it has from there. Data is
        known by its checksum, which is asked for when it is read.
        """
        return self.differs([read_json_object(f.config) for f in self.folders if f.config.is_file()])

    def differs(self, begun: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Any, Any]]:
        """The same of seeds with these configurations."""
        if not begun:
            return {}
        run = self.keys.get("run")
        resolved = resolve({k: v for k, v in self.keys.items() if k != "run"})
        wanted = resolved_config(resolved, next(iter(resolved.settings)))
        now = {k: v for k, v in flatten(to_json_values(wanted), ".").items() if k not in MOVING}
        if run is not None:
            given = {key.replace("__", ".") for key in self.keys}
            now = {k: v for k, v in now.items() if option_name(k) in given} | {"start.run": _end(run)}
        found: dict[str, tuple[Any, Any]] = {}
        for config in begun:
            then = flatten(config, ".")
            if "start.run" in then:
                then["start.run"] = _end(then["start.run"])
            online = {k for k in then if k.startswith("online.") and run is None}
            if "algorithm" in now and values_agree("algorithm", then, now):
                then["algorithm"] = now["algorithm"]  # a file of one's own, by another path
            for key in now.keys() | online:
                every = f"hyper.{key.removeprefix('online.')}"  # what holds online if not said
                one, two = (flat.get(key, flat.get(every, MISSING)) for flat in (then, now))
                filled = two is None and key.startswith("hyper.")  # by what the data say
                if one is not MISSING and two is not MISSING and one != two and not filled:
                    found[option_name(key)] = one, two
        return found

    @property
    def before(self) -> str | None:
        """The run that has to be finished first, if any."""
        return str(self.needed[0].path.parent) if self.needed else None

    @property
    def needed(self) -> list[SeedFolder]:
        """The seeds that have to be finished first."""
        base, run = Path(self.keys.get("base", "")), self.keys.get("run")
        number = base.parent.name.removeprefix("seed_")
        if base.name == BUNDLE and number.isdecimal():
            return [SeedFolder(base.parents[1], int(number))]
        return [SeedFolder(Path(run), f.seed) for f in self.folders] if run else []

    @property
    def ready(self) -> bool:
        """Whether what it goes on from, if anything, is finished."""
        if "base" in self.keys:
            return all(f.bundle.is_file() and not f.extending for f in self.needed)
        return all(f.finished for f in self.needed)

    @property
    def seconds_left(self) -> float | None:
        """Of its expected cost, what is not done; None where that is unknown."""
        if self.seconds is None:
            return None
        return self.seconds * (1 - self.done() / max(self.total, 1))

    def done(self) -> int:
        """How much of `total` its seeds have done, on average: they may learn one after another."""
        done = []
        for folder in self.folders:
            last = (folder.rows("metrics") or [{"updates": 0, "env_steps": 0}])[-1]
            own = max(last["updates"] - folder.start_updates, 0)
            done.append(min(own, self.updates) + last["env_steps"])
        return min(sum(done) // len(done), self.total)


def read_suite(name: str) -> Suite:
    """configs/suite/<name>.yaml, or a file of one's own. Raises UserError."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    files = {path.stem: path for path in (share("configs") / "suite").glob("*.yaml")}
    path = Path(name) if name.endswith((".yaml", ".yml")) else files.get(name)
    if path is None:
        raise UserError(unknown("suite", name, files))
    if not path.is_file():
        raise UserError(f"suite={name}: there is no such file")
    values: Any = parse_yaml(path)
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected cells: and what belongs to them, found {values!r}")
    try:
        values = OmegaConf.to_container(OmegaConf.create(values), resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from None
    suite = build(Suite, values, f"{path.name}: ")
    if not suite.cells:
        raise UserError(f"{path}: no cells, so there is nothing to run")
    return suite


def _end(run: str) -> tuple[str, ...]:
    """What a run is called in whatever folder: task, algorithm and name."""
    return Path(run).parts[-3:]


def cells(suite: Suite, out: str, seeds: int | list[int] | None = None) -> list[Cell]:
    """Its cells, each checked. Raises UserError naming the cell."""
    made = list[Cell]()
    firsts: dict[str, SeedFolder] = {}  # a run -> its first seed, whichever of them are to run now
    for number, own in enumerate(suite.cells, 1):
        if not isinstance(own, dict):
            raise UserError(f"cell {number}: expected keys of train, found {own!r}")
        keys = {"seeds": suite.seeds, "out": out, **suite.keys, **own}
        before = keys.pop("from", None)
        choices = [_list(keys[name]) for name in CROSSED if name in keys]
        for values in product(*choices):
            chosen = dict(zip([n for n in CROSSED if n in keys], values, strict=True))
            try:
                declared = coerce(keys["seeds"], int | list[int], "seeds")
                made_of = keys | chosen | {"seeds": declared if seeds is None else seeds}
                cell = Cell(begun(before, made_of, firsts) if before else made_of)
                check(cell.keys)
            except UserError as error:
                raise UserError(f"cell {number} ({chosen}): {error}") from None
            if cell.run in firsts:
                raise UserError(f"cell {number} ({chosen}) has the folder of another: give a name=")
            made.append(cell)
            firsts[cell.run] = SeedFolder(Path(cell.run), next(iter(_seeds(declared)), 0))
    return made


def select(plan: Sequence[Cell], algorithms: Sequence[str], tasks: Sequence[str]) -> list[Cell]:
    """Those of these algorithms and tasks; of all where none is named. Raises UserError."""
    for kind, wanted in (("algorithm", algorithms), ("task", tasks)):
        known = {cell.keys[kind] for cell in plan}
        for name in wanted:
            if name not in known:
                raise UserError(unknown(f"{kind} of this suite", name, known))
    chosen = [
        cell
        for cell in plan
        if (not algorithms or cell.keys["algorithm"] in algorithms)
        and (not tasks or cell.keys["task"] in tasks)
    ]
    made = {f.path for cell in chosen for f in cell.folders}
    for cell in chosen:
        lacking = [f for f in cell.needed if f.path not in made]
        if not cell.ready and lacking:
            remedy = f"finish that one before, with seeds=[{lacking[0].seed}]"
            raise UserError(f"{cell.label} goes on from {lacking[0].path}: {remedy}")
    return chosen


def check_runs(wanted: Iterable[Cell]) -> None:
    """That what was begun has the settings of now. Raises UserError naming the cell."""
    for cell in wanted:
        if found := cell.begun_otherwise():
            remedy = f"give the cell another name, or move {cell.run} away"
            raise UserError(f"{cell.label} was begun with {_changes(found)}: {remedy}")


def check_data(wanted: Iterable[Cell]) -> list[str]:
    """That data which are there allow what is to be learned; -> what is not there, in sentences.

    What goes on from a run learns from that run's data. Raises UserError naming the cell.
    """
    chosen = [(c, resolve(c.keys)) for c in wanted if not c.finished and "run" not in c.keys]
    chosen = [(c, r) for c, r in chosen if reads_data(r) and has_dataset(r)]

    def source(entry: tuple[Cell, Resolved]) -> str:
        o = entry[1].options
        return repr([o.dataset or o.task, *(getattr(o, k) for k in ("data_dir", *SAME_DATA))])

    missing = dict[str, None]()
    for _, entries in groupby(sorted(chosen, key=source), source):
        dataset = None
        for cell, resolved in entries:
            try:
                dataset = dataset or load_dataset(resolved)
                complete_settings(resolved, dataset)
            except MissingData as error:
                missing[str(error)] = None
                break  # the others' is the same
            except UserError as error:
                raise UserError(f"{cell.label}: {error}") from None
    return [*missing]


def kept(wanted: Iterable[Cell], study: str) -> dict[str, set[int]]:
    """A cell's id -> its seeds that a study's compact files hold, with as many updates as now.

    Their data are not read, and so not compared, nor is the code of our algorithms. Raises
    UserError naming one whose settings are others now, and files that are damaged or none.
    """
    if not (Path(study) / compact.RUNS).is_file():
        raise UserError(f"kept={study} holds no {compact.RUNS}: name a study's folder")
    records, found = {record.key: record for record in compact.read(study)}, {}
    for cell in wanted:
        run = run_of({"name": "default", **cell.keys})
        own = {f.seed: records[run, f.seed] for f in cell.folders if (run, f.seed) in records}
        others = cell.differs([record.config for record in own.values()])
        others.pop("algorithm", None)  # a file of one's own may lie elsewhere now
        others = {k: v for k, v in others.items() if k not in FILLED or v[1] is not None}
        if others:
            remedy = "give the cell another name, or leave kept= out"
            raise UserError(f"{cell.label} is in {study} with {_changes(others)}: {remedy}")
        found[cell.id] = {s for s, r in own.items() if r.result and cell.reached(r.result)}
    return found


def _changes(found: Mapping[str, tuple[Any, Any]]) -> str:
    told = {k: f"{k}={_said(a)}, now {_said(b)}" for k, (a, b) in found.items()}
    return ", ".join(CHECKSUMS.get(k, sentence) for k, sentence in told.items())


def _said(value: Any) -> str:
    return "/".join(value) if isinstance(value, tuple) else format_value(value) or "null"


def begun(before: str, keys: dict[str, Any], firsts: Mapping[str, SeedFolder]) -> dict[str, Any]:
    """Keys of a cell that goes on from another's run, of which `firsts` has the first seeds.

    Raises UserError where there is none.
    """
    algorithm, _, name = before.partition("/")
    method = label(algorithm)
    run = str(run_folder(keys["out"], named_task(keys), method, name or "default"))
    if run not in firsts:
        raise UserError(f"from={before}: no cell before it is {algorithm} of that name and task")
    keys, kind = {"name": f"from-{method}", **keys}, algorithm_class(keys["algorithm"])
    if kind.distills_from:
        return {**keys, "run": run}
    if kind.is_residual:
        return {**keys, "base": str(firsts[run].bundle), "num_updates": 0}
    return {**keys, "run": run, "num_updates": 0}


def _seeds(value: int | list[int]) -> Sequence[int]:
    return value if isinstance(value, list) else range(value)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def check(keys: Mapping[str, Any]) -> None:
    """What `train` would refuse without having read its data. Raises UserError."""
    if len(resolve({k: v for k, v in keys.items() if k != "run"}).settings) > 1:
        raise UserError("one cell is one run: give a cell for each value of a hyper-parameter")


def priced(wanted: Iterable[Cell], out: str) -> list[Cell]:
    """The cells with their cost, from the finished runs below `out`; the same task's first.

    Where there is none of the algorithm yet, as the last plan there had it, else by counted work:
    of its first cell, which stands for the others. Raises UserError naming a damaged result.
    """
    before = costs_of(Path(out) / "plan.json")
    speeds: dict[tuple[str, str | None], list[float]] = {}
    for file in Path(out).glob("*/*/*/seed_*/result.json"):
        result = read_json_object(file)
        try:
            work, all_seeds = result["num_updates"] + result["num_env_steps"], result["seconds"]
            if work and all_seeds:
                one = all_seeds / work / result["seeds_stacked"]  # seconds of one seed's update
                for key in ((result["algorithm"], result["task"]), (result["algorithm"], None)):
                    speeds.setdefault(key, []).append(one)
        except (ArithmeticError, KeyError, TypeError) as error:
            remedy = "remove it, and its run's command makes it again"
            raise UserError(f"{file} is damaged ({error!r}); {remedy}") from None
    priced = []
    for cell in wanted:
        k = cell.keys
        name, size = label(k["algorithm"]), cell.total * len(cell.folders)
        found = speeds.get((name, k["task"])) or speeds.get((name, None))
        unknown = ""
        if not found:
            known = before.get(cell.id)
            seconds, unknown = (known, "") if known is not None else counted(cell)
            if seconds is not None and size:
                found = speeds[name, None] = [seconds / size]
        priced.append(Cell(k, median(found) * size if found else None, unknown))
    return priced


def costs_of(plan: Path) -> dict[str, float | None]:
    """A cell's id -> its cost in a plan, if there is one. Raises UserError as `read_plan`."""
    return {cell.id: cell.seconds for cell in read_plan(plan)} if plan.is_file() else {}


def counted(cell: Cell) -> tuple[float | None, str]:
    """What its updates should take in seconds, or why that is not known before it begins."""
    if not cell.total or cell.finished:
        return None, ""
    if "run" in cell.keys:
        return None, "a run that goes on from another: none of this method is finished yet"
    try:
        return expected_seconds(cell.keys), ""
    except MissingData:  # which `check_data` names; it may be there when the cell's turn comes
        return None, "its data is not there yet"
    except UserError as error:
        return None, str(error)


def write_plan(path: Path, suite: str, wanted: Sequence[Cell]) -> None:
    """plan.json: a list of entries that any worker may take."""
    entries = [{"id": c.id, "keys": c.keys, "seconds": c.seconds} for c in wanted]
    write_json(path, {"version": VERSION, "suite": suite, "entries": entries})


def read_plan(path: Path) -> list[Cell]:
    """The inverse of `write_plan`, each cell checked.

    Raises UserError, also for a plan of another version.
    """
    plan, remedy = read_json(path), "remove it, and give the suite"
    if not isinstance(plan, dict) or plan.get("version") != VERSION:
        raise UserError(f"{path} is no plan of version {VERSION}: {remedy}")
    try:
        if not isinstance(plan["entries"], list) or not plan["entries"]:
            raise UserError("no entries")
        found = [Cell(entry["keys"], entry["seconds"]) for entry in plan["entries"]]
        for cell in found:
            check(cell.keys)
    except (AttributeError, KeyError, TypeError, UserError) as error:
        what = error if isinstance(error, UserError) else "keys or seconds are missing"
        raise UserError(f"{path}: a cell that cannot run ({what}): {remedy}") from None
    return found
