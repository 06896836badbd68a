"""Everything that is checked before anything is written: options, then data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec
from itertools import product
from math import inf, prod
from typing import Any

import envs
from envs import Task
from offline_rl.algorithms.common.base import Algorithm, check_stackable
from offline_rl.algorithms.common.registry import algorithm_class, algorithm_config, prepared
from offline_rl.data import Dataset, load
from offline_rl.data.transform import range_of_returns
from offline_rl.training.options import TrainOptions
from offline_rl.training.run_folder import SeedFolder
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import build, coerce
from offline_rl.utils.seeds import TRAINING_SEEDS
from policies import Spec

DATA_FIELDS = ("data_dir",)  # options that say where things lie, not what is learnt

FREE = (*DATA_FIELDS, "seeds", "out", "tracker", "device", "compile", "precision", "stream")


@dataclass(frozen=True)
class Plan:
    """Everything that is checked before anything is written."""

    options: TrainOptions
    algorithm: type[Algorithm]
    settings: dict[str, Any]  # a run's name -> its hyper-parameters
    pattern: str | None  # of the algorithm's per-task table
    task: Task
    dataset: Dataset | None
    expert: Dataset | None  # what expert_dataset names
    spec: Spec
    seeds: list[int]

    @property
    def cfg(self) -> Any:
        """The first run's; the others differ in what may be stacked."""
        return next(iter(self.settings.values()))


@dataclass(frozen=True)
class Member:
    """One seed of one run: what trains in one place of the stack."""

    folder: SeedFolder
    cfg: Any
    description: dict[str, Any]  # what makes two runs the same run


def prepare(keys: Mapping[str, Any]) -> Plan:
    """Options, then data; nothing is written."""
    keys = {k.replace("__", "."): v for k, v in keys.items()}
    hyper = {k[10:]: v for k, v in keys.items() if k.startswith("algorithm.")}
    options = build(TrainOptions, {k: v for k, v in keys.items() if not k.startswith("algorithm.")})
    algorithm = algorithm_class(options.algorithm)
    try:
        task = envs.task(options.task)
        env = envs.make_vector(task, 1) if task.env_id else None
    except ValueError as error:
        raise UserError(str(error)) from None
    count = options.seeds
    if isinstance(count, int) and not 1 <= count <= TRAINING_SEEDS:
        raise UserError(
            f"seeds={count}: give a count from 1 to {TRAINING_SEEDS}, or a list such as "
            "seeds=[7,42]"
        )
    seeds = count if isinstance(count, list) else list(range(count))
    checks(options, algorithm, seeds)
    if options.batch_size is not None:
        hyper["batch_size"] = options.batch_size  # the two keys are one
    settings, pattern = runs(options, algorithm, hyper)
    hardware.device(options.device)
    dataset = expert = None
    if options.num_updates:
        if options.dataset is None and task.card is None:
            raise UserError(
                f"task {options.task} brings no data; give it with dataset=<path or id>"
            )
        source = options.dataset if options.dataset is not None else task
        how: dict[str, Any] = {
            "action_scale": options.action_scale,
            "action_range": options.action_range,
            "d4rl_compatible": options.d4rl_compatible,
            "terminate_on_end": options.terminate_on_end,
            "observation_keys": options.observation_keys,
            "subset": options.subset,
        }
        dataset = load(source, options.data_dir, **how)
        if "costs" in algorithm.needs and "costs" not in dataset.extras:
            raise UserError(
                f"{dataset.path or dataset.name} has no costs, which {options.algorithm} learns "
                "from: give data with a column `costs`, as DSRL's"
            )
        if not dataset.has_rewards and any(map(algorithm.uses_rewards, settings.values())):
            raise UserError(
                f"{dataset.path or dataset.name} has no rewards, which {options.algorithm} learns "
                "from: give data that has them, or an algorithm that needs none, as bc or recoil"
            )
        settings = {name: algorithm.complete(cfg, dataset) for name, cfg in settings.items()}
        if any(cfg.normalise_returns for cfg in settings.values()):
            range_of_returns(dataset)  # refuses what has none
        if options.expert_dataset is not None:
            expert = load(options.expert_dataset, options.data_dir, **how)
    spec = specification(task, env, dataset, expert)
    if env is not None:
        env.close()
    plan = Plan(options, algorithm, settings, pattern, task, dataset, expert, spec, seeds)
    learner = algorithm(spec, plan.cfg)
    if options.pretrain_updates is not None and not learner.phases:
        raise UserError(
            f"pretrain_updates={options.pretrain_updates}: {options.algorithm} has no preliminary "
            "phase with these settings; leave it out"
        )
    lengths = {"num_updates": options.num_updates}
    for name, updates in phases(plan, learner).items():
        lengths[name if options.pretrain_updates is None else "pretrain_updates"] = updates
    for name, updates in lengths.items():
        if updates % learner.period:
            raise UserError(
                f"{name}={updates}: {options.algorithm} repeats every {learner.period}; "
                f"give a multiple of {learner.period}"
            )
    return plan


def phases(plan: Plan, learner: Algorithm) -> dict[str, int]:
    """The preliminary phases' lengths, in updates."""
    given = plan.options.pretrain_updates
    return {name: n if given is None else given for name, n in learner.phases.items()}


def runs(
    options: TrainOptions, algorithm: type[Algorithm], hyper: Mapping[str, Any]
) -> tuple[dict[str, Any], str | None]:
    """A run's name -> its config, for each choice from the lists given for numbers; the pattern."""
    numbers = {f.name for f in fields(algorithm.Config) if f.type in (float, "float")}
    lists = {
        k: coerce(v, list[float], f"algorithm.{k}")
        for k, v in hyper.items()
        if k in numbers and isinstance(v, list)
    }
    try:
        check_stackable(algorithm.Config, lists)
    except ValueError as error:
        raise UserError(f"algorithm.{error}") from None
    if "discount" in lists and "mc_returns" in algorithm.needs:
        raise UserError("algorithm.discount cannot be stacked: the data's returns depend on it")
    settings, pattern = dict[str, Any](), None
    task = options.task
    if task == "none" and options.dataset in envs.cards():
        task = options.dataset  # its settings hold without its environment too
    for values in product(*lists.values()):
        chosen = dict(zip(lists, values, strict=True))
        name = "-".join([options.name, *(f"{k}_{v}" for k, v in chosen.items())])
        settings[name], pattern = algorithm_config(options.algorithm, task, {**hyper, **chosen})
    if not settings or len(settings) < prod(map(len, lists.values())):
        raise UserError(f"algorithm.{' and '.join(lists)}: give a list of different values")
    return settings, pattern


def checks(options: TrainOptions, algorithm: type[Algorithm], seeds: list[int]) -> None:
    """The options' ranges and what they need of one another."""
    positive = ("batch_size", "eval_every", "eval_episodes", "checkpoint_every")
    for name in positive:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"{name}={value}: must be at least 1")
    for name in ("num_updates", "num_env_steps", "pretrain_updates"):
        if (getattr(options, name) or 0) < 0:
            raise UserError(f"{name}={getattr(options, name)}: must be at least 0")
    if not 0 < options.utd < inf:
        raise UserError(f"utd={options.utd}: must be a number above 0")
    if not options.name.strip("."):
        raise UserError(f"name={options.name!r} is no name for a folder")
    if not options.num_updates and not options.num_env_steps:
        raise UserError("nothing to do: num_updates and num_env_steps are both 0")
    if not seeds or len(set(seeds)) < len(seeds) or not set(seeds) <= {*range(TRAINING_SEEDS)}:
        last = TRAINING_SEEDS - 1
        raise UserError(f"seeds={seeds}: give different seeds between 0 and {last}")
    if options.compile == "always" and (missing := hardware.compiler_missing()):
        raise UserError(f"compile=always: {missing}")
    package = {"wandb": "wandb", "tensorboard": "tensorboard"}.get(options.tracker)
    if package is not None and find_spec(package) is None:
        raise UserError(f"tracker={options.tracker} needs a package: pip install {package}")
    if options.num_env_steps and not algorithm.online:
        raise UserError(f"{options.algorithm} does not learn online; leave num_env_steps out")
    if options.num_env_steps and options.task == "none":
        raise UserError("num_env_steps needs an environment; task=none has none")
    if options.expert_dataset is not None and "expert" not in algorithm.needs:
        raise UserError(f"{options.algorithm} does not use expert_dataset")
    if options.expert_dataset is None and "expert" in algorithm.needs:
        raise UserError(
            f"{options.algorithm} imitates an expert: give the expert's data with "
            "expert_dataset=<path or id>, beside the other data of the task or dataset="
        )


def specification(
    task: Task, env: envs.VectorEnv | None, dataset: Dataset | None, expert: Dataset | None = None
) -> Spec:
    """The policy's spec; raises UserError where data and environment contradict each other."""
    shapes = []
    for data in (dataset, expert):
        if data is not None:
            shape = data.observations.shape[1:], data.actions.shape[1]
            shapes.append((f"{data.path or data.name}", *shape))
    if env is not None:
        shapes.append((f"task {task.name}", tuple(env.observation_shape), env.action_dim))
    first, obs, act = shapes[0]
    if len(obs) != 1 or not obs[0] or not act:
        raise UserError(
            f"{first} has observations {list(obs)} and {act} actions: what is learnt from are "
            "vectors of at least one number; choose arrays with observation_keys=, or flatten them"
        )
    for name, own_obs, own_act in shapes[1:]:
        if (obs, act) != (own_obs, own_act):
            raise UserError(
                f"{first} has observations {list(obs)} and {act} actions, {name} has "
                f"{list(own_obs)} and {own_act}: data of another "
                "task? Use its own task, or task=none to train only"
            )
    return Spec(obs, act)


def description(plan: Plan, name: str) -> dict[str, Any]:
    """What makes two runs the same run."""
    options = {k: v for k, v in asdict(plan.options).items() if k not in FREE}
    data = plan.dataset.sha256 if plan.dataset is not None else None
    made: dict[str, Any] = {"name": name, "data": data, "hyper": asdict(plan.settings[name])}
    if plan.expert is not None:
        made["expert_data"] = plan.expert.sha256
    return options | made


def headline(plan: Plan) -> str:
    """What is about to happen, in a few lines."""
    o, data = plan.options, plan.dataset
    rows = "no data" if data is None else f"{data.num_rows:,} rows of {data.path or data.name}"
    if plan.expert is not None:
        rows += f", {plan.expert.num_rows:,} of the expert's"
    card = prepared(o.algorithm, o.task)
    table = f"; the card's {', '.join(f'{k}={v:g}' for k, v in card.items())}" if card else ""
    table += f"; settings of the table's row {plan.pattern}" if plan.pattern else ""
    where = "" if plan.task.env_id else "\nno environment: training without evaluation"
    count = len(plan.settings)
    several = f" for each of {count} settings" if count > 1 else ""
    notes = "".join(f"\n{note}" for note in data.notes) if data is not None else ""
    return f"{o.algorithm} on {o.task}, seeds {plan.seeds}{several}: {rows}{table}{where}{notes}"


def stacked(cfgs: Sequence[Any]) -> dict[str, list[float]]:
    """The fields in which `cfgs` differ, with each one's value."""
    columns = {f.name: [getattr(cfg, f.name) for cfg in cfgs] for f in fields(cfgs[0])}
    return {name: values for name, values in columns.items() if any(v != values[0] for v in values)}
