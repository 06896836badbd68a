"""A training run as plain data: one seed of one setting. No data is read and no network is built.

keys of the command line -> runs_of -> [Run] -> stack -> runs that train in one program
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, get_type_hints

import envs
from envs import Task
from offline_rl.algorithms.common.base import Algorithm, Interaction
from offline_rl.algorithms.common.config import stackable_fields
from offline_rl.algorithms.common.registry import (
    algorithm_class,
    algorithm_config,
    interaction,
    run_label,
    source_file,
)
from offline_rl.algorithms.common.safety.costs import LimitConfig
from offline_rl.data import Dataset
from offline_rl.data.load import known_cards
from offline_rl.evaluation.options import check_task
from offline_rl.runs import refusals
from offline_rl.runs.folder import SeedFolder, named_task, run_folder
from offline_rl.runs.options import (
    IDENTITY,
    BudgetOptions,
    ComputeOptions,
    DataOptions,
    EvaluationOptions,
    OutputOptions,
    Role,
    TrainOptions,
    WandbOptions,
    aliases,
    part_of,
    roles,
    stored_options,
)
from offline_rl.runs.refusals import refuse
from offline_rl.runs.start import Start
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import build, coerce, to_python, unknown
from offline_rl.utils.seeds import TRAINING_SEEDS
from offline_rl.utils.trees import flatten, to_json_values
from policies import Bundle, Spec

IN_MEMORY = "in memory"  # value of dataset= in the config if a Dataset object was passed
GROUPS = ("algorithm.", "online.", "wandb.")  # prefixes of keys
CHECKSUMS = {  # checksum in a config -> text for messages
    "start": "another checkpoint of the run that it continues",
    "data": "other data",
    "expert_data": "another expert's data",
    "base_sha256": "another base policy",
    "dynamics_sha256": "another dynamics model",
    "code_sha256": "other code in its algorithm's file",
}


@dataclass(frozen=True)
class Method:
    """An algorithm with its settings."""

    name: str  # the value of algorithm=
    cls: type[Algorithm]
    cfg: Any  # hyper-parameters
    interaction: Interaction  # settings of online training
    table_row: str | None = None  # matching row of the algorithm's per-task table

    def with_config(self, cfg: Any) -> Method:
        """Return the method with other hyper-parameters.

        Values that are set only for online training stay.
        """
        return replace(self, cfg=cfg, interaction=self.interaction.with_config(cfg))


@dataclass(frozen=True, kw_only=True)
class Run:
    """One seed of one setting.

    The command line overrides the per-task table, and the table overrides the defaults.
    """

    method: Method
    task: Task
    data: DataOptions
    budget: BudgetOptions
    evaluation: EvaluationOptions
    compute: ComputeOptions
    output: OutputOptions
    wandb: WandbOptions
    seed: int
    suffix: str = ""  # names the values of listed hyper-parameters
    start: Start | None = None  # the run to continue from; None: train from scratch
    in_memory: Mapping[str, Dataset] = field(default_factory=dict, compare=False)
    checksums: Mapping[str, Any] = field(default_factory=dict)  # of data and code, once read

    @property
    def name(self) -> str:
        """Name of the run, the same for all seeds of a setting."""
        return self.output.name + self.suffix

    @property
    def names(self) -> tuple[str, str, str]:
        """Task, algorithm and name, which together identify the run."""
        task = named_task({"task": self.task.name, "dataset": self.data.dataset})
        return task, run_label(self.method.name), self.name

    @property
    def folder(self) -> SeedFolder:
        """The seed's folder."""
        return SeedFolder(run_folder(self.output.out, *self.names), self.seed)

    @property
    def path(self) -> Path:
        """The run's folder, which contains the folders of all seeds."""
        return self.folder.path.parent

    @property
    def label(self) -> str:
        """Task, algorithm and name, for messages."""
        return " ".join(self.path.parts[-3:])

    def config(self) -> dict[str, Any]:
        """Return the content of config.json. Equal configs mean the same run.

        Before the data is read, the checksums of data and base policy are missing.
        """
        method, groups = self.method, (self.data, self.budget, self.evaluation, self.output)
        config = {"algorithm": method.name, "task": self.task.name, **stored_options(*groups)}
        config |= {"name": self.name, "hyper": asdict(method.cfg), **self.checksums}
        config["success_timing"] = self.task.success_timing  # also if it is the default
        if self.budget.num_env_steps:
            changed = asdict(method.interaction.cfg).items()
            config["online"] = asdict(method.interaction.online)
            config["online"] |= {k: v for k, v in changed if v != getattr(method.cfg, k)}
        if self.start is not None:
            config["start"] = self.start.to_json(self.seed)
        return config

    def identity(self) -> dict[str, Any]:
        """Return the flat config without changeable options. Runs are the same if it is equal."""
        config = flatten(to_json_values(self.config()), ".")
        return {key: value for key, value in config.items() if role_of(key) == IDENTITY}

    def learner(self, spec: Spec, base: Bundle | None = None) -> Algorithm:
        """Return the algorithm for the observations and actions of `spec`, without its networks.

        base: the policy of base=, if it becomes part of the networks.
        """
        start_updates = self.start.num_updates if self.start is not None else 0
        total = self.budget.num_updates or start_updates or self.method.interaction.num_updates
        algorithm = self.method.cls(spec, self.method.cfg, total, self.method.interaction)
        algorithm.base = base
        return algorithm

    @property
    def fits_model_only(self) -> bool:
        """True if the run fits a dynamics model and trains no policy."""
        has_work = self.budget.num_updates or self.budget.num_env_steps
        return self.method.cls.dynamics_model is not None and not has_work

    @property
    def has_dataset(self) -> bool:
        """True if `dataset=` is set or the task has a dataset."""
        return self.data.dataset is not None or self.task.card is not None

    @property
    def reads_data(self) -> bool:
        """True if the run needs a dataset, to learn from it or to normalize observations."""
        fraction = self.method.interaction.online.offline_fraction
        mode = self.method.cls.mode
        normalizes = mode.start == "base" and mode.how == "residual" and self.has_dataset
        steps = self.budget.num_env_steps
        learns_offline = self.budget.num_updates or self.fits_model_only
        return bool(learns_offline or (steps and (fraction or normalizes)))


def runs_of(keys: Mapping[str, Any], start: Start | None = None) -> list[Run]:
    """Return the runs that `keys` describe: one for each listed hyper-parameter value and seed.

    keys: options of the command line, flat. start: the run to continue from. Raises UserError for
    an option that is unknown, has a wrong value, or contradicts another.
    """
    keys = {k.replace("__", "."): to_python(v) for k, v in keys.items()}
    check_objects(keys)
    in_memory = {k: v for k, v in keys.items() if isinstance(v, Dataset)}
    keys = {k: IN_MEMORY if k in in_memory else v for k, v in keys.items()}
    check_names(keys)
    general, hyper, online, wandb = (part(keys, prefix) for prefix in ("", *GROUPS))
    if "num_updates" not in general:
        general["num_updates"] = main_updates(general)
    options = build(TrainOptions, general)
    cls = algorithm_class(options.algorithm)
    try:
        task = envs.task(options.task)
        task = task.with_options(
            options.max_episode_steps, options.observation_keys, options.success_timing
        )
    except ValueError as error:
        raise UserError(str(error)) from None
    refuse(refusals.no_limit_taken(options, cls))
    for alias, key in aliases().items():
        prefix, _, name = key.partition(".")
        if (value := getattr(options, alias)) is not None:
            (hyper if prefix == "algorithm" else online)[name] = value
    unset: dict[str, Any] = dict.fromkeys(aliases())  # their values are in hyper and online
    set_options = replace(options, **unset)
    groups = {name: part_of(set_options, group) for name, group in GROUPS_OF_RUN.items()}
    runs = [
        Run(
            method=method,
            task=task,
            **groups,
            wandb=build(WandbOptions, wandb, "wandb."),
            seed=seed,
            suffix=suffix,
            start=start,
            in_memory=in_memory,
            checksums=code_checksum(options.algorithm),
        )
        for suffix, method in methods_of(options, cls, hyper, online, task)
        for seed in seeds_of(options.seeds)
    ]
    for run in runs:
        refuse(refusals.wrong_options(run))
    refuse(refusals.wrong_keys(keys, aliases(), options, online, wandb))
    return runs


GROUPS_OF_RUN = {
    "data": DataOptions,
    "budget": BudgetOptions,
    "evaluation": EvaluationOptions,
    "compute": ComputeOptions,
    "output": OutputOptions,
}


def check_objects(keys: Mapping[str, Any]) -> None:
    """Raise UserError for arrays or an environment where a name is expected."""
    check_task(keys)
    for key in ("dataset", "expert_dataset"):
        if isinstance(keys.get(key), Mapping | list):
            raise UserError(
                f"{key}= takes a file name or a Dataset, not arrays. Use offline_rl.Dataset."
                "from_arrays(observations, actions, rewards, terminals)."
            )


def check_names(keys: Mapping[str, Any]) -> None:
    """Raise UserError for a key that is no option of `train` with this algorithm."""
    if "algorithm" not in keys:
        return
    types = option_types(algorithm_class(str(keys["algorithm"])))
    for key in keys:
        if key not in types:
            # suggest online.<name> only if the user typed an online.<name>
            online_key = key.startswith("online.")
            candidates = [k for k in types if online_key or f"algorithm.{k[7:]}" not in types]
            raise UserError(unknown("option", key, candidates))


def option_types(algorithm: type[Algorithm]) -> dict[str, Any]:
    """Return every key of `train` with its type."""
    groups: list[tuple[str, type]] = [("", TrainOptions), ("wandb.", WandbOptions)]
    groups += [("algorithm.", algorithm.Config)]
    groups += [("online.", algorithm.Config), ("online.", algorithm.Online)]
    return {
        prefix + option.name: get_type_hints(options)[option.name]
        for prefix, options in groups
        for option in fields(options)
    }


def part(keys: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the keys that begin with `prefix`, without it; for "", the keys of no group."""
    if prefix:
        return {k.removeprefix(prefix): v for k, v in keys.items() if k.startswith(prefix)}
    return {k: v for k, v in keys.items() if not k.startswith(GROUPS)}


def main_updates(keys: Mapping[str, Any]) -> int:
    """Return `num_updates` or its default, which is 0 for algorithms that need no offline phase."""
    online_only = "algorithm" in keys and algorithm_class(str(keys["algorithm"])).starts_online()
    return int(keys.get("num_updates", 0 if online_only else TrainOptions.num_updates))


def seeds_of(seeds: int | list[int]) -> list[int]:
    """Return the list of seeds; a count n stands for 0, …, n-1. Raises UserError."""
    if isinstance(seeds, int):
        if not 1 <= seeds <= TRAINING_SEEDS:
            raise UserError(
                f"seeds={seeds}: expected a count from 1 to {TRAINING_SEEDS}, or a list such as "
                "seeds=[7,42]"
            )
        return list(range(seeds))
    if not seeds or len(set(seeds)) < len(seeds) or not set(seeds) <= {*range(TRAINING_SEEDS)}:
        largest = TRAINING_SEEDS - 1
        raise UserError(f"seeds={seeds}: expected different seeds between 0 and {largest}")
    return seeds


def methods_of(
    options: TrainOptions,
    cls: type[Algorithm],
    hyper: Mapping[str, Any],
    online: Mapping[str, Any],
    task: Task,
) -> list[tuple[str, Method]]:
    """Return the method of each setting, and the suffix of its run's name.

    A list for a numeric hyper-parameter makes one setting for each value.
    """
    types = get_type_hints(cls.Config)
    lists = {
        name: coerce(value, list[float], f"algorithm.{name}")
        for name, value in hyper.items()
        if types.get(name) is float and isinstance(value, list | tuple)
    }
    refuse(refusals.not_stackable(cls, list(lists)))
    refuse(refusals.no_effect_on_model(cls, list(lists), options))
    settings = dict[str, Method]()
    for values in product(*lists.values()):
        choice = dict(zip(lists, values, strict=True))
        name = tuned_for(options.task, options.dataset)
        cfg, row = algorithm_config(options.algorithm, name, {**hyper, **choice})
        cfg = with_limits(cfg, task if name == options.task else envs.task(name))
        online_settings = interaction(options.algorithm, options.task, cfg, online)
        updates = max(1, int(options.num_env_steps * online_settings.online.utd))
        online_settings = replace(online_settings, num_updates=updates)
        settings[suffix_of(choice)] = Method(options.algorithm, cls, cfg, online_settings, row)
    if not settings or len(settings) < prod(map(len, lists.values())):
        raise UserError(f"algorithm.{' and '.join(lists)}: the values of a list must be different")
    return list(settings.items())


def with_limits(cfg: Any, task: Task) -> Any:
    """Return the config with the task's cost limit and time limit in place of null values."""
    limits = {"target_cost": task.cost_limit, "episode_steps": task.max_episode_steps}
    options = {f.name for f in fields(cfg)} if isinstance(cfg, LimitConfig) else set()
    missing = {k: v for k, v in limits.items() if k in options and getattr(cfg, k) is None}
    return replace(cfg, **missing) if missing else cfg


def tuned_for(task: str, dataset: str | None) -> str:
    """Return the name whose tuned settings apply: the task, or the dataset if task=none."""
    return str(dataset) if task == "none" and dataset in known_cards() else task


def suffix_of(settings: Mapping[str, Any]) -> str:
    """Return the suffix of a run's name: the settings in which it differs from other runs."""
    return "".join(f"-{key}_{name_part(value)}" for key, value in settings.items())


def name_part(value: Any) -> str:
    """Return a value as part of a run's name."""
    return "-".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def code_checksum(algorithm: str) -> dict[str, str]:
    """Return the checksum of a user's algorithm file; empty for a built-in algorithm."""
    code = source_file(algorithm)
    return {"code_sha256": code["sha256"]} if code else {}


# grouping of runs that train together


def stackable_names(algorithm: type[Algorithm]) -> frozenset[str]:
    """Return the hyper-parameters that may differ between seeds that train in one program."""
    shared = {"discount"} if "mc_returns" in algorithm.extra_columns else set()
    return stackable_fields(algorithm.Config) - shared


def program_key(run: Run) -> tuple[Any, ...]:
    """Return a key that is equal for runs that train in one program."""
    stackable, online = stackable_names(run.method.cls), run.method.interaction
    shared = {k: v for k, v in vars(run.method.cfg).items() if k not in stackable}
    method = run.method.name, shared, online.online, online.own_values(run.method.cfg)
    options = run.task, run.data, datasets(run), run.budget, run.evaluation, run.compute
    return (*method, *options, replace(run.output, name=""), run.start)


def datasets(run: Run) -> dict[str, int]:
    """Return the identities of the `Dataset` objects that a run was passed."""
    return {key: id(data) for key, data in run.in_memory.items()}


def stack(runs: Iterable[Run]) -> list[list[Run]]:
    """Return the runs in groups that train in one program, in the order of their first runs.

    The runs of a group are equal except for the seed and for numbers that may differ between
    stacked seeds. This is the only place where runs are grouped.
    """
    stacks = list[list[Run]]()
    for run in runs:
        for group in stacks:
            if program_key(group[0]) == program_key(run):
                group.append(run)
                break
        else:
            stacks.append([run])
    return stacks


def differing_values(runs: Sequence[Run]) -> dict[str, list[float]]:
    """Return the hyper-parameters in which stacked runs differ, with each run's value."""
    cfgs = [run.method.cfg for run in runs]
    columns = {f.name: [getattr(cfg, f.name) for cfg in cfgs] for f in fields(cfgs[0])}
    return {name: values for name, values in columns.items() if any(v != values[0] for v in values)}


def distinguish(runs: Sequence[Run]) -> list[Run]:
    """Return the runs of a sweep, each with a folder of its own.

    The settings in which runs of one folder differ are appended to their names. A run that is
    listed twice is left out. Raises UserError if two runs would still write the same folder.
    """
    by_path, renamed = dict[Path, list[Run]](), list[Run]()
    for run in runs:
        by_path.setdefault(run.path, []).append(run)
    names = dict[int, Run]()
    for group in by_path.values():
        configs = [flatten(to_json_values(run.config()), ".") for run in group]
        every = dict.fromkeys(k for config in configs for k in config)
        keys = [k for k in every if any(c.get(k) != configs[0].get(k) for c in configs)]
        for run, config in zip(group, configs, strict=True):
            own = [k for k in keys if k in config]
            settings = {option_name(k).removeprefix("algorithm."): config[k] for k in own}
            names[id(run)] = replace(run, suffix=run.suffix + suffix_of(settings))
    owners = dict[Path, Run]()
    for run in (names[id(run)] for run in runs):
        owner = owners.setdefault(run.folder.path, run)
        if owner is run:
            renamed.append(run)
        elif owner != run or datasets(owner) != datasets(run):
            raise UserError(f"two jobs would write {run.path}. Give each another name=…")
    return renamed


# comparison of runs


def role_of(key: str) -> Role:
    """Return the role of a key of a flat config."""
    if key == "start.run":  # location of the earlier run; its checkpoints are compared instead
        return "changeable"
    return roles().get(key, IDENTITY)


def option_name(key: str) -> str:
    """Return the command-line name of a key of a flat config."""
    return f"algorithm.{key[6:]}" if key.startswith("hyper.") else key


def difference(
    stored: Mapping[str, Any], current: Mapping[str, Any], *, common: bool = False
) -> dict[str, tuple[Any, Any]]:
    """Return the keys in which two configs differ, with both values.

    This is the only comparison of two runs. A missing option equals null and false. A missing
    `online.<field>` has the value of `hyper.<field>`. A user's algorithm is compared by its
    checksum, not by its path.
    common: leave out keys that only one config has, and null hyper-parameters of `current`, which
    are computed from the data.
    """
    old, new = (flatten(to_json_values(dict(config)), ".") for config in (stored, current))
    codes = old.get("code_sha256"), new.get("code_sha256")
    differences = dict[str, tuple[Any, Any]]()
    for key in sorted(old.keys() | new.keys()):
        general = f"hyper.{key.removeprefix('online.')}"
        has_default = key.startswith("online.") and general in old and general in new
        default = ({general: c[general]} if has_default else {} for c in (old, new))
        a, b = (c.get(key, d.get(general)) for c, d in zip((old, new), default, strict=True))
        is_missing = not has_default and (key not in old or key not in new)
        if a == b or (is_missing and all(x is None or x is False for x in (a, b))):
            continue
        if key == "algorithm" and None not in codes:
            continue
        if common and (is_missing or (b is None and key.startswith("hyper."))):
            continue
        differences[key] = a, b
    return differences


def checksum_text(key: str) -> str | None:
    """Return the text in `CHECKSUMS` for a key of a flat config; None if it is no checksum."""
    return CHECKSUMS.get(key.partition(".")[0])


def refuse_other(folder: SeedFolder, run: Run, *, extends: bool = False) -> None:
    """Raise UserError naming an option in which `run` differs from the run stored in `folder`.

    extends: `num_updates` may differ.
    """
    stored = folder.stored_config()
    if stored is None:
        return
    current = to_json_values(run.config())
    differences = difference(stored, current)
    ignored = {"num_updates"} if extends else set()
    differing = [key for key in differences if role_of(key) == IDENTITY and key not in ignored]
    if not differing:
        return
    # checksums come first, because other data explain other options
    differing.sort(key=lambda key: checksum_text(key) is None)
    key = differing[0]
    old_value, new_value = differences[key]
    text = checksum_text(key) or f"{option_name(key)}={old_value!r}, now it is {new_value!r}"
    files = [config.get("dataset") for config in (stored, current)]
    if key == "data" and all(files) and files[0] != files[1]:
        text = f"other data ({files[0]}, now it is {files[1]})"
    old_run, new_run = ((config.get("start") or {}).get("run") for config in (stored, current))
    if key.startswith("start.") and old_run != new_run:
        text = f"run={old_run or 'null'}, now it is {new_run or 'null'}"
    raise UserError(f"{folder.path} was started with {text}. Give the new run another name=…")
