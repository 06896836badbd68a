"""`offline-rl search`: trains many settings, stacked where possible, and ranks them.

    <out>/<task>/<algorithm>/<name>/search.json     settings, values, environment usage
                                    search.md       the ranking
                                    best.yaml       experiment file that trains the best setting
    <out>/<task>/<algorithm>/<name>-<k>/seed_<n>    the run of setting k

The search uses separate training seeds and evaluation episodes. Its best score is the maximum of
many and therefore biased upward. The run of best.yaml uses fresh seeds and episodes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from offline_rl.algorithms.common.registry import algorithm_class, run_label
from offline_rl.runs.folder import named_task, run_folder
from offline_rl.runs.options import TrainOptions
from offline_rl.runs.run import Run, option_types, part, runs_of, stack
from offline_rl.search import trials as results
from offline_rl.search.options import OWN, SearchOptions
from offline_rl.search.samplers import (
    LEARNING,
    OPTUNA,
    Fixed,
    Sampler,
    Study,
    grid,
    import_optuna,
    random_settings,
)
from offline_rl.search.space import Choices, Parameter, Setting, parse_space, space_size
from offline_rl.search.trials import DIRECTIONS, FROM_EPISODES, Objective, Trial
from offline_rl.training.assemble import build_engine, longest_phase
from offline_rl.training.prepare import prepare
from offline_rl.training.result import limits_of_run
from offline_rl.training.train import CachedReader, error_label, runs_of_jobs, train_stack
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import lock_folder, read_json_object, write_json, write_text
from offline_rl.utils.options import build, coerce, format_value, unknown
from offline_rl.utils.seeds import TRAINING_SEEDS
from offline_rl.utils.trees import to_json_values
from policies.networks.defaults import denormals_restored, torch_defaults

VERSION = 1  # format version of search.json
TRIALS = 32  # default number of settings
SIDE_BY_SIDE = 16  # default of parallel=, and with a sampler that learns
SIDE_BY_SIDE_LEARNING = 8
FINAL_SEEDS = 5  # training seeds in best.yaml


@dataclass(frozen=True)
class SearchResult:
    """Ranking of the settings. `print` shows the output of `offline-rl search`."""

    path: Path  # folder of the search
    trials: list[Trial]  # best first
    objective: Objective

    @property
    def best(self) -> Trial:
        """The best setting."""
        return self.trials[0]

    @property
    def experiment(self) -> Path:
        """Experiment file that trains the best setting."""
        return self.path / "best.yaml"

    def __str__(self) -> str:
        return "\n".join(
            [
                results.results_table(self.trials, self.objective),
                "",
                note_on(self.trials, self.objective),
                f"Train the best setting: offline-rl train experiment={self.experiment}",
                str(self.path),
            ]
        )

    __repr__ = __str__


@torch_defaults()
@denormals_restored()
def search(keys: Mapping[str, Any], space: Mapping[str, str], *, show: bool = True) -> SearchResult:
    """Train the settings of a search space and rank them.

    keys: options of the command, flat. space: option -> sweep in Hydra's grammar, such as
    {"algorithm.alpha": "interval(0.5,5)"}. show: print progress. A repeated call continues an
    interrupted search. Raises UserError; all options are checked before anything is trained.
    """
    types = types_of(keys)
    for key in keys:
        if key not in types:
            raise UserError(unknown("option", key, types))
        if key == "selection":
            raise UserError("selection=: a search always uses the selection episodes. Remove it.")
    parameters = parse_space(space, types)
    keys = {key: coerce(value, types[key], key) for key, value in keys.items()}
    options = build(SearchOptions, part(keys, ""))
    common = common_keys(keys, options)
    first = {parameter.key: parameter.limits[0] for parameter in parameters}
    (run, *_) = runs_of(common | first)
    check_values(common, first, parameters)
    objective = objective_of(options, run)
    sampler = make_sampler(options, parameters, constrained=objective.limit is not None)
    task = named_task({"task": run.task.name, "dataset": run.data.dataset})
    folder = run_folder(options.out, task, run_label(options.algorithm), options.name)
    name = sampler_name(options, parameters)
    record = identity(options, name, space, objective)
    refuse_other(folder, record)
    search = Search(common, options, objective, folder, record, show)
    with lock_folder(folder):
        search.run(sampler)
    return search.finish(keys)


def types_of(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the type of every option of a search. Raises UserError without an algorithm."""
    if "algorithm" not in keys:
        raise UserError("algorithm=… is missing. Add it.")
    hints = get_type_hints(SearchOptions)
    own = {field.name: hints[field.name] for field in fields(SearchOptions)}
    return option_types(algorithm_class(str(keys["algorithm"]))) | own


def common_keys(keys: Mapping[str, Any], options: SearchOptions) -> dict[str, Any]:
    """Return the options of `train` that all settings share."""
    common = {key: value for key, value in keys.items() if key not in OWN}
    length = max(options.num_updates, options.num_env_steps)
    common |= {
        "seeds": selection_seeds(options.seeds),
        "eval_every": options.eval_every or max(length, 1),
        "name": options.name,
        "out": options.out,
        "selection": True,
    }
    return common


def selection_seeds(seeds: int | list[int]) -> list[int]:
    """Return the training seeds of each setting; a number selects the highest seeds."""
    if isinstance(seeds, list):
        return seeds
    return [TRAINING_SEEDS - 1 - k for k in range(min(seeds, TRAINING_SEEDS))]


def check_values(
    common: Mapping[str, Any], first: Setting, parameters: Sequence[Parameter]
) -> None:
    """Raise UserError if `train` refuses a value of a searched option."""
    for parameter in parameters:
        for value in parameter.limits:
            runs_of({**common, **first, parameter.key: value})


def objective_of(options: SearchOptions, run: Run) -> Objective:
    """Return the objective. Raises UserError if the runs do not report it."""
    name = options.objective
    if name not in FROM_EPISODES:
        prepared = prepare([run])
        engine = build_engine(prepared, prepared.runs)[0]
        metrics = engine.metric_names(longest_phase(prepared)[1])
        if name not in metrics:
            raise UserError(unknown("objective", name, [*FROM_EPISODES, *metrics]))
    elif not run.task.env_id:
        raise UserError(
            f"objective={name} needs an environment, and task={run.task.name} has none. Set "
            "another task=, or objective=<metric of training>."
        )
    limit = None if name == "cost" else limits_of_run(run).single
    return Objective(name, options.direction or DIRECTIONS.get(name, "minimize"), limit)


def sampler_name(options: SearchOptions, parameters: Sequence[Parameter]) -> str:
    """Return the name of the sampler, or its default."""
    if options.sampler is not None:
        return options.sampler
    lists = all(isinstance(parameter, Choices) for parameter in parameters)
    size = space_size(list(parameters))
    whole = size is not None and (options.trials is None or options.trials >= size)
    return "grid" if lists and whole else "random"


def make_sampler(
    options: SearchOptions, parameters: Sequence[Parameter], *, constrained: bool
) -> Sampler:
    """Return the sampler. Raises UserError if it cannot search the space or is not installed."""
    name, seed = sampler_name(options, parameters), options.sampler_seed
    if name == "grid":
        return Fixed(grid(parameters, options.trials))
    if name == "random":
        return Fixed(random_settings(parameters, options.trials or TRIALS, seed))
    return Study(
        parameters,
        name,
        trials=options.trials or TRIALS,
        round_size=side_by_side(options),
        seed=seed,
        direction=options.direction or DIRECTIONS.get(options.objective, "minimize"),
        constrained=constrained,
    )


def side_by_side(options: SearchOptions) -> int:
    """Return the maximum number of stacked settings."""
    learns = options.sampler in LEARNING
    return options.parallel or (SIDE_BY_SIDE_LEARNING if learns else SIDE_BY_SIDE)


def identity(
    options: SearchOptions, sampler: str, space: Mapping[str, str], objective: Objective
) -> dict[str, Any]:
    """Return the options that define the sequence of settings and their comparison.

    The runs check the other options. A larger `trials` continues a search.
    """
    return {
        **space,
        "sampler": sampler,
        "sampler_seed": options.sampler_seed,
        "parallel": side_by_side(options),
        "objective": objective.name,
        "direction": objective.direction,
        "seeds": selection_seeds(options.seeds),
        "optuna": import_optuna(sampler).__version__ if sampler in OPTUNA else None,
    }


def refuse_other(folder: Path, record: Mapping[str, Any]) -> None:
    """Raise UserError if the folder contains another search."""
    path = folder / "search.json"
    if not path.is_file():
        return
    stored = read_json_object(path)
    if stored.get("version") != VERSION:
        raise UserError(f"{path} is from another version. Give the new search another name=…")
    before = stored.get("identity", {})
    for key in sorted({*before, *record}):
        old, value = before.get(key), to_json_values(record.get(key))
        if old != value:
            raise UserError(
                f"{folder} was started with {key}={format_value(old) or 'null'}, now it is "
                f"{format_value(value) or 'null'}. Give the new search another name=…"
            )


class Search:
    """Execution of a search: trains a run for each setting and reads its results."""

    def __init__(
        self,
        common: Mapping[str, Any],
        options: SearchOptions,
        objective: Objective,
        folder: Path,
        record: Mapping[str, Any],
        show: bool,
    ) -> None:
        """Create the search. common: options of `train` for all settings. record: its identity."""
        self.common, self.options, self.objective = common, options, objective
        self.folder, self.record, self.show = folder, record, show
        self.trials = dict[str, Trial]()  # settings as text -> results, in the order of proposals
        self._names = dict[str, str]()  # settings as text -> name of the run
        self._read = CachedReader()

    def run(self, sampler: Sampler) -> None:
        """Train all settings that the sampler proposes."""
        while settings := sampler.ask():
            jobs = {text_of(s): self.job(s) for s in settings}
            for text, job in jobs.items():
                with error_label(text):
                    runs_of(job)
            new = {text: job for text, job in jobs.items() if text not in self.trials}
            by_text = {text_of(setting): setting for setting in settings}
            for group in programs(new, side_by_side(self.options)):
                if self.show:
                    total = len(self.trials) + sum(t not in self.trials for t in new)
                    number = len(self.trials)
                    print(f"settings {number + 1} to {number + len(group)} of {total}", flush=True)
                runs = runs_of_jobs([new[text] for text in group])
                (runs,) = stack(runs)
                train_stack(prepare(runs, self._read), self.show)
                for text in group:
                    folders = [run.folder for run in runs if run.name == new[text]["name"]]
                    self.trials[text] = results.read_trial(by_text[text], folders, self.objective)
                self.store()
            found = [self.trials[text_of(setting)] for setting in settings]
            sampler.tell(
                [trial.value for trial in found],
                [results.violation(trial, self.objective.limit) for trial in found],
            )

    def job(self, setting: Setting) -> dict[str, Any]:
        """Return the options of `train` for a setting."""
        text = text_of(setting)
        name = self._names.setdefault(text, f"{self.options.name}-{len(self._names):03d}")
        return {**self.common, **setting, "name": name}

    def store(self) -> None:
        """Write search.json and search.md."""
        trials = list(self.trials.values())
        ranking = results.ranked(trials, self.objective)
        values = [trial.value for trial in trials if trial.value is not None]
        content: dict[str, Any] = {
            "version": VERSION,
            "identity": self.record,
            "online": results.online_use(trials),
            "expected_best": results.expected_best(values, self.objective.direction),
            "trials": results.to_json(ranking),
        }
        write_json(self.folder / "search.json", to_json_values(content))
        page = [
            "# Search",
            results.results_table(ranking, self.objective, markdown=True),
            note_on(ranking, self.objective),
            "Expected best value of k settings, chosen at random (arXiv:2110.04156): "
            + ", ".join(f"{k}: {v:.4g}" for k, v in shown_budgets(content["expected_best"])),
        ]
        write_text(self.folder / "search.md", "\n\n".join(page) + "\n")

    def finish(self, keys: Mapping[str, Any]) -> SearchResult:
        """Write best.yaml and return the result. keys: options of the command."""
        ranking = results.ranked(list(self.trials.values()), self.objective)
        result = SearchResult(self.folder, ranking, self.objective)
        if result.best.value is None:
            raise UserError(f"{self.folder}: every setting diverged. Use lower learning rates.")
        experiment = best_experiment(keys, self.common, result.best, self.options)
        comment = (
            f"# Best of {len(ranking)} settings. {note_on(ranking, self.objective)}\n"
            f"# Its {self.objective.name} in the selection, {result.best.value:.4g}, is biased "
            "upward. This run has other seeds and episodes.\n"
        )
        write_text(result.experiment, comment + yaml.safe_dump(experiment, sort_keys=False))
        return result


def text_of(setting: Setting) -> str:
    """Return a setting as canonical text."""
    return json.dumps(to_json_values(setting), sort_keys=True)


def programs(jobs: Mapping[str, Mapping[str, Any]], size: int) -> list[list[str]]:
    """Return the settings in groups of at most `size` that train in one program."""
    firsts = {text: runs_of(job)[0] for text, job in jobs.items()}
    names = {run.name: text for text, run in firsts.items()}
    stacks = [[names[run.name] for run in group] for group in stack(firsts.values())]
    return [texts[k : k + size] for texts in stacks for k in range(0, len(texts), size)]


def best_experiment(
    keys: Mapping[str, Any], common: Mapping[str, Any], best: Trial, options: SearchOptions
) -> dict[str, Any]:
    """Return the experiment that trains the best setting with fresh training seeds."""
    left_out = {*OWN, "seeds", "name", "out", "eval_every"}
    fixed = {key: value for key, value in keys.items() if key not in left_out}
    defaults = {field.name: field.default for field in fields(TrainOptions)}
    if options.eval_every is not None and options.eval_every != defaults["eval_every"]:
        fixed["eval_every"] = options.eval_every
    unused = [seed for seed in range(TRAINING_SEEDS) if seed not in common["seeds"]]
    fresh = unused[:FINAL_SEEDS]
    seeds: Any = len(fresh) if fresh == [*range(len(fresh))] else fresh
    experiment = {**fixed, **best.setting, "seeds": seeds, "name": f"{options.name}-best"}
    plain: dict[str, Any] = json.loads(json.dumps(to_json_values(experiment)))
    return plain


def note_on(trials: Sequence[Trial], objective: Objective) -> str:
    """Return a sentence that states the comparison and the environment usage."""
    seeds = {len(trial.values) for trial in trials}
    note = f"{objective.name}: mean over {min(seeds)} training seeds, " if min(seeds) > 1 else ""
    note += f"{objective.direction}d. " if note else f"{objective.name} is {objective.direction}d. "
    if objective.limit is not None:
        note += f"Settings above the cost limit {objective.limit:g} rank last. "
    return note + results.use_text(results.online_use(trials))


def shown_budgets(best: Sequence[float]) -> list[tuple[int, float]]:
    """Return the values for 1, 2, 4, … settings and for all of them."""
    numbers = {1 << k for k in range(20)} | {len(best)}
    return [(k, best[k - 1]) for k in sorted(numbers) if k <= len(best) and best]
