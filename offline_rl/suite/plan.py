"""Suites: the runs behind a page of results, in order of importance, and their estimated cost.

    seeds: [0, 1, 2, 3, 4]                 # seeds of every cell, trained together
    keys: {eval_episodes: 100}             # options of `train` for all cells that do not set them
    cells:                                 # lists: all combinations of these options (`CROSSED`)
      - {algorithm: [td3_bc, iql], task: [neorl2/DMSD, neorl2/Simglucose], num_updates: 300000}
      - {algorithm: wsrl, from: iql/default, task: neorl2/DMSD, num_env_steps: 30000}

A cell with `from: <algorithm>/<name>` builds on an earlier cell of the same task. The new cell's
algorithm fine-tunes that run, distills it, or uses its first seed as the base policy of residual
policies. The complete suite is checked before anything runs. The cost of a cell is estimated from
finished runs of the same algorithm in the same folder or, without such runs, from the cost of an
update.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from offline_rl.algorithms.common.registry import algorithm_class, run_label
from offline_rl.data import Dataset
from offline_rl.data.specs import data_spec
from offline_rl.reporting import compact
from offline_rl.reporting.records import run_of
from offline_rl.runs.folder import BUNDLE, SeedFolder, named_task, run_folder
from offline_rl.runs.options import IDENTITY, aliases
from offline_rl.runs.run import CHECKSUMS, Run, difference, option_name, role_of, runs_of, suffix_of
from offline_rl.training.assemble import expected_seconds
from offline_rl.training.prepare import first_episodes, fit, read_data, read_for
from offline_rl.utils.errors import MissingData, UserError
from offline_rl.utils.files import parse_yaml, read_json, read_json_object, write_json
from offline_rl.utils.options import build, coerce, format_value, unknown
from offline_rl.utils.paths import share
from offline_rl.utils.trees import flatten

VERSION = 1  # format version of plan.json
LENGTHS = ("num_updates", "num_env_steps")  # settings in which a stored run may be longer
CROSSED = ("algorithm", "task", "dataset", "target_cost")


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Content of a file in configs/suite."""

    cells: list  # a dict of `train` options for each cell
    seeds: int | list[int] = 5
    keys: dict = field(default_factory=dict)  # options of all cells that do not set them


@dataclass(frozen=True)
class Cell:
    """One run of a suite: all seeds of one algorithm on one task."""

    keys: dict[str, Any]  # options of `train`, or of `finetune` if there is a `run`
    seconds: float | None = None  # estimated time
    unknown: str = ""  # why there is no estimate; not stored in a plan

    @cached_property
    def runs(self) -> list[Run]:
        """Every seed's run. If the cell continues a run, the options that it inherits are missing.

        Raises UserError for wrong options, or for options that describe several settings.
        """
        runs = runs_of({k: v for k, v in self.keys.items() if k != "run"})
        if len({run.path for run in runs}) > 1:
            raise UserError("a cell is one run. Add a cell for each value of a hyper-parameter.")
        return runs

    @property
    def folders(self) -> list[SeedFolder]:
        """The folders of the run's seeds."""
        return [run.folder for run in self.runs]

    @property
    def run(self) -> str:
        """The run's folder."""
        return str(self.runs[0].path)

    @property
    def label(self) -> str:
        """The run's name in messages."""
        name = self.runs[0].name
        end = "" if name == "default" else f" ({name})"
        return f"{self.keys['algorithm']} on {named_task(self.keys)}{end}"

    @property
    def id(self) -> str:
        """A hash of the options."""
        text = json.dumps(self.keys, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def total(self) -> int:
        """Updates on data plus environment steps, without preliminary phases."""
        return self.updates + self.runs[0].budget.num_env_steps

    @property
    def updates(self) -> int:
        """Offline updates, without preliminary phases."""
        return self.runs[0].budget.num_updates

    @property
    def finished(self) -> bool:
        """True if all seeds are finished with the cell's updates and environment steps."""
        return all(f.finished and self.reached(f.outcome()) for f in self.folders)

    def reached(self, outcome: Mapping[str, Any]) -> bool:
        """Return True if a result has the cell's number of updates and environment steps."""
        steps = self.runs[0].budget.num_env_steps
        done = outcome.get("num_updates", 0), outcome.get("num_env_steps", 0)
        enough = int(done[0]) >= self.updates if self.updates else not int(done[0])
        return enough and int(done[1]) >= steps

    def changed_settings(self) -> dict[str, tuple[Any, Any]]:
        """Return settings in which the stored run differs from this cell: key -> (stored, cell's).

        If the cell continues another run, it inherits options; then only the options that the cell
        sets are compared. Data is compared by its checksum when it is read.
        """
        configs = [read_json_object(f.config) for f in self.folders if f.config.is_file()]
        return self.differing_settings(configs)

    def differing_settings(
        self, configs: Sequence[Mapping[str, Any]]
    ) -> dict[str, tuple[Any, Any]]:
        """Return settings in which `configs` differ from this cell: key -> (stored, cell's)."""
        now, run = flatten(self.runs[0].config(), "."), self.keys.get("run")
        compared = {k for k in now if role_of(k) == IDENTITY and k not in LENGTHS}
        if run is not None:  # options that the cell does not set are those of the earlier run
            given = {key.replace("__", ".") for key in self.keys}
            given |= {aliases()[key] for key in given & aliases().keys()}
            compared = {k for k in compared if option_name(k) in given} | {"start.run"}
            now["start.run"] = _run_name(run)
        found: dict[str, tuple[Any, Any]] = {}
        for config in configs:
            then = flatten(config, ".")
            if "start.run" in then:
                then["start.run"] = _run_name(then["start.run"])
            for key, values in difference(then, now, common=True).items():
                if key in compared or (run is None and key.startswith("online.")):
                    found[option_name(key)] = values
        return found

    @property
    def previous_run(self) -> str | None:
        """The run that must be finished before this one; None if there is none."""
        return str(self.needed[0].path.parent) if self.needed else None

    @property
    def needed(self) -> list[SeedFolder]:
        """The folders of seeds that must be finished before this run."""
        base, run = Path(self.keys.get("base", "")), self.keys.get("run")
        number = base.parent.name.removeprefix("seed_")
        if base.name == BUNDLE and number.isdecimal():
            return [SeedFolder(base.parents[1], int(number))]
        return [SeedFolder(Path(run), f.seed) for f in self.folders] if run else []

    @property
    def can_start(self) -> bool:
        """True if the runs that this one builds on are finished."""
        if "base" in self.keys:
            return all(f.bundle.is_file() and not f.extending for f in self.needed)
        return all(f.finished for f in self.needed)

    @property
    def seconds_left(self) -> float | None:
        """Estimated time for the rest of the run; None if there is no estimate."""
        if self.seconds is None:
            return None
        return self.seconds * (1 - self.count_done() / max(self.total, 1))

    def count_done(self) -> int:
        """Return how much of `total` is done, averaged over seeds (they may train in turn)."""
        done = []
        for folder in self.folders:
            last = (folder.rows("metrics") or [{"updates": 0, "env_steps": 0}])[-1]
            updates = max(last["updates"] - folder.start_updates, 0)
            done.append(min(updates, self.updates) + last["env_steps"])
        return min(sum(done) // len(done), self.total)


def read_suite(name: str) -> Suite:
    """Load configs/suite/<name>.yaml, or a YAML file. Raises UserError."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    files = {path.stem: path for path in (share("configs") / "suite").glob("*.yaml")}
    path = Path(name) if name.endswith((".yaml", ".yml")) else files.get(name)
    if path is None:
        raise UserError(unknown("suite", name, files))
    if not path.is_file():
        raise UserError(f"suite={name} does not exist. Use a file, or a name in configs/suite.")
    values: Any = parse_yaml(path)
    if not isinstance(values, dict):
        raise UserError(f"{path} is not a suite. Expected `cells:`, found {values!r}.")
    try:
        values = OmegaConf.to_container(OmegaConf.create(values), resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from None
    suite = build(Suite, values, f"{path.name}: ")
    if not suite.cells:
        raise UserError(f"{path}: there are no cells to run. Add some under `cells:`.")
    return suite


def _run_name(run: str) -> str:
    """Return task, algorithm and name of a run, which are the last three parts of its path."""
    return "/".join(Path(run).parts[-3:])


def cells(suite: Suite, out: str, seeds: int | list[int] | None = None) -> list[Cell]:
    """Return the cells of a suite, each of them checked. Raises UserError naming the cell."""
    made = list[Cell]()
    firsts: dict[str, SeedFolder] = {}  # run -> its first seed, even if that is not selected
    for number, own in enumerate(suite.cells, 1):
        if not isinstance(own, dict):
            raise UserError(f"cell {number}: expected options of train, found {own!r}")
        keys = {"seeds": suite.seeds, "out": out, **suite.keys, **own}
        before = keys.pop("from", None)
        choices = [_list(keys[name]) for name in CROSSED if name in keys]
        for values in product(*choices):
            chosen = dict(zip([n for n in CROSSED if n in keys], values, strict=True))
            if isinstance(keys.get("target_cost"), list):
                chosen["name"] = keys.get("name", "default") + limit_suffix(chosen["target_cost"])
            try:
                declared = coerce(keys["seeds"], int | list[int], "seeds")
                made_of = keys | chosen | {"seeds": declared if seeds is None else seeds}
                cell = Cell(continuation_keys(before, made_of, firsts) if before else made_of)
                cell.runs  # noqa: B018  # raises for wrong options
            except UserError as error:
                raise UserError(f"cell {number} ({chosen}): {error}") from None
            if cell.run in firsts:
                raise UserError(
                    f"cell {number} ({chosen}) has the same folder as an earlier cell. Add a name."
                )
            made.append(cell)
            firsts[cell.run] = SeedFolder(Path(cell.run), next(iter(_seeds(declared)), 0))
    return made


def select(plan: Sequence[Cell], algorithms: Sequence[str], tasks: Sequence[str]) -> list[Cell]:
    """Return the cells with these algorithms and tasks; an empty list selects all.

    Raises UserError for an unknown name, or if a cell needs one that is not selected or finished.
    """
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
        if not cell.can_start and lacking:
            raise UserError(
                f"{cell.label} builds on {lacking[0].path}, which is not finished. Run that cell "
                f"first, with seeds=[{lacking[0].seed}]."
            )
    return chosen


def check_runs(wanted: Iterable[Cell]) -> None:
    """Check that stored runs have the settings of their cells. Raises UserError if not."""
    for cell in wanted:
        if changes := cell.changed_settings():
            raise UserError(
                f"{cell.label} was started with {_changes(changes)}. Give the cell another name, "
                f"or move {cell.run} away."
            )


def check_data(wanted: Iterable[Cell]) -> list[str]:
    """Check that the cells can train on their data; return a message for each missing data set.

    Cells that continue a run are skipped, because they use its data. Raises UserError naming the
    cell.
    """
    chosen = [c for c in wanted if not c.finished and "run" not in c.keys]
    chosen = [c for c in chosen if c.runs[0].reads_data and c.runs[0].has_dataset]
    missing, data = dict[str, None](), dict[str, Dataset | None]()
    for cell in sorted(chosen, key=_source):
        run, source = cell.runs[0], _source(cell)
        try:
            if source not in data:
                data = {source: None}  # only the last dataset is kept
                read = read_for(run, run.data.dataset or run.task, read_data, True, None)
                data[source] = first_episodes(read, run.data.episodes)
            if (dataset := data[source]) is not None:
                fit(run, data_spec(dataset), dataset)
        except MissingData as error:
            missing[str(error)] = None  # the other cells with this dataset are skipped
        except UserError as error:
            raise UserError(f"{cell.label}: {error}") from None
    return [*missing]


def _source(cell: Cell) -> str:
    """Return a text that is equal for cells that read the same data."""
    run = cell.runs[0]
    return repr((run.data.dataset or run.task.name, run.data))


def stored_seeds(wanted: Iterable[Cell], study: str) -> dict[str, set[int]]:
    """Return cell id -> seeds that a study's compact files contain with enough updates.

    Data and code of algorithms are not compared. Raises UserError if a cell's settings differ from
    the stored ones, or if files are missing or damaged.
    """
    if not (Path(study) / compact.RUNS).is_file():
        raise UserError(f"kept={study} contains no {compact.RUNS}. Use the folder of a study.")
    records, found = {record.key: record for record in compact.read(study)}, {}
    for cell in wanted:
        run = run_of({"name": "default", **cell.keys})
        own = {f.seed: records[run, f.seed] for f in cell.folders if (run, f.seed) in records}
        others = cell.differing_settings([record.config for record in own.values()])
        others.pop("algorithm", None)  # a user's algorithm file may have moved
        if others:
            raise UserError(
                f"{cell.label} is in {study} with {_changes(others)}. Give the cell another name, "
                "or remove kept=."
            )
        found[cell.id] = {s for s, r in own.items() if r.result and cell.reached(r.result)}
    return found


def _changes(changes: Mapping[str, tuple[Any, Any]]) -> str:
    texts = {k: f"{k}={_value_text(a)}, now {_value_text(b)}" for k, (a, b) in changes.items()}
    return ", ".join(CHECKSUMS.get(k, text) for k, text in texts.items())


def _value_text(value: Any) -> str:
    """Return a value of a config as text. The name of a run is a list of its three parts."""
    return format_value(value) or "null"


def continuation_keys(
    before: str, keys: dict[str, Any], firsts: Mapping[str, SeedFolder]
) -> dict[str, Any]:
    """Return the options of a cell that builds on the run `before`, "<algorithm>/<name>".

    firsts: first seed of the run of each earlier cell. Raises UserError if there is no such run.
    """
    algorithm, _, name = before.partition("/")
    method = run_label(algorithm)
    run = str(run_folder(keys["out"], named_task(keys), method, name or "default"))
    if run not in firsts:
        raise UserError(
            f"from={before}: no earlier cell runs {algorithm} with that name on this task. Add "
            "that cell above this one."
        )
    keys, kind = {"name": f"from-{method}", **keys}, algorithm_class(keys["algorithm"])
    if kind.mode.start == "teacher":
        return {**keys, "run": run}
    if kind.mode.start == "base":
        return {**keys, "base": str(firsts[run].bundle), "num_updates": 0}
    return {**keys, "run": run, "num_updates": 0}


def _seeds(value: int | list[int]) -> Sequence[int]:
    return value if isinstance(value, list) else range(value)


def limit_suffix(limit: Any) -> str:
    """Return the suffix of the name of a run with this cost limit, if a cell lists several."""
    return suffix_of({"target_cost": limit})


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def estimate_costs(wanted: Iterable[Cell], out: str) -> list[Cell]:
    """Return the cells with estimated times, from finished runs of the same algorithm in `out`.

    Runs on the same task are preferred. Without finished runs, the estimate in the last plan in
    `out` is used. Without a plan, the time of the algorithm's first cell is estimated and scaled to
    the others. Raises UserError naming a damaged result.
    """
    before = read_costs(Path(out) / "plan.json")
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
            remedy = "Remove it, and repeat the command of its run."
            raise UserError(f"{file} is damaged ({error!r}). {remedy}") from None
    estimated = []
    for cell in wanted:
        k = cell.keys
        name, size = run_label(k["algorithm"]), cell.total * len(cell.folders)
        found = speeds.get((name, k["task"])) or speeds.get((name, None))
        unknown = ""
        if not found:
            known = before.get(cell.id)
            seconds, unknown = (known, "") if known is not None else estimate_seconds(cell)
            if seconds is not None and size:
                found = speeds[name, None] = [seconds / size]
        estimated.append(Cell(k, median(found) * size if found else None, unknown))
    return estimated


def read_costs(plan: Path) -> dict[str, float | None]:
    """Return cell id -> cost in a plan; empty if there is none. Raises UserError as `read_plan`."""
    return {cell.id: cell.seconds for cell in read_plan(plan)} if plan.is_file() else {}


def estimate_seconds(cell: Cell) -> tuple[float | None, str]:
    """Estimate the time of a cell's updates, or return None and the reason."""
    if not cell.total or cell.finished:
        return None, ""
    if "run" in cell.keys:
        return None, "continues another run, and no run of this algorithm is finished yet"
    try:
        return expected_seconds(cell.runs), ""
    except MissingData:  # `check_data` reports it; the data may exist when the cell starts
        return None, "the data does not exist yet"
    except UserError as error:
        return None, str(error)


def write_plan(path: Path, suite: str, wanted: Sequence[Cell]) -> None:
    """Write plan.json, from which other commands can run the same cells."""
    entries = [{"id": c.id, "keys": c.keys, "seconds": c.seconds} for c in wanted]
    write_json(path, {"version": VERSION, "suite": suite, "entries": entries})


def read_plan(path: Path) -> list[Cell]:
    """Read the cells that `write_plan` wrote, and check each of them.

    Raises UserError, also for a plan of another version.
    """
    plan, remedy = read_json(path), "Remove it, and use suite= instead."
    if not isinstance(plan, dict) or plan.get("version") != VERSION:
        raise UserError(f"{path} is not a plan of version {VERSION}. {remedy}")
    try:
        if not isinstance(plan["entries"], list) or not plan["entries"]:
            raise UserError("no entries")
        found = [Cell(entry["keys"], entry["seconds"]) for entry in plan["entries"]]
        for cell in found:
            cell.runs  # noqa: B018  # raises for wrong options
    except (AttributeError, KeyError, TypeError, UserError) as error:
        what = error if isinstance(error, UserError) else "keys or seconds are missing"
        raise UserError(f"{path} has a cell that cannot run ({what}). {remedy}") from None
    return found
