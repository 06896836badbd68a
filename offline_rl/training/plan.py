"""Everything that is checked before anything is written: options, then data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.util import find_spec
from itertools import product
from math import prod
from typing import Any, get_type_hints

import envs
from envs import Task
from offline_rl.algorithms.common.base import Algorithm, Interaction
from offline_rl.algorithms.common.config import check_stackable
from offline_rl.algorithms.common.registry import (
    algorithm_class,
    algorithm_config,
    algorithm_names,
    interaction,
    prepared,
)
from offline_rl.algorithms.common.schedule import Learn, Piece
from offline_rl.data import Dataset, load
from offline_rl.data.transform import range_of_returns
from offline_rl.evaluation.meaning import spec_of
from offline_rl.training.finetune import Start
from offline_rl.training.options import TrainOptions, WandbOptions
from offline_rl.training.run_folder import SeedFolder
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import build, coerce
from offline_rl.utils.seeds import TRAINING_SEEDS
from policies import Spec, channels
from policies.heads.head import kinds

DATA_FIELDS = ("data_dir",)  # options that say where things lie, not what is learnt

READING = (  # options that say how a file is read
    *("action_scale", "action_range", "d4rl_compatible", "terminate_on_end"),
    *("observation_keys", "subset"),
)
IN_MEMORY = "in memory"  # what stands for a Dataset where a file's name would

FREE = (*DATA_FIELDS, "seeds", "out", "tracker", "device", "compile", "precision", "stream")


@dataclass(frozen=True)
class Resolved:
    """What the keys alone decide: command line over per-task table over default."""

    options: TrainOptions
    wandb: WandbOptions
    algorithm: type[Algorithm]
    settings: dict[str, Any]  # a run's name -> its hyper-parameters
    pattern: str | None  # of the algorithm's per-task table
    task: Task
    seeds: list[int]
    interaction: Interaction  # how it goes on in an environment

    @property
    def cfg(self) -> Any:
        """The first run's; the others differ in what may be stacked."""
        return next(iter(self.settings.values()))


@dataclass(frozen=True)
class Plan(Resolved):
    """Everything that is checked before anything is written."""

    dataset: Dataset | None
    expert: Dataset | None  # what expert_dataset names
    spec: Spec
    schedule: list[Piece]
    start: Start | None  # where it goes on from, if not from nothing
    stackable: bool  # its seeds train side by side


@dataclass(frozen=True)
class Member:
    """One seed of one run: what trains in one place of the stack."""

    folder: SeedFolder
    cfg: Any
    description: dict[str, Any]  # what makes two runs the same run


def resolve(keys: Mapping[str, Any]) -> Resolved:
    """The options, complete and checked; no data is looked at. Raises UserError."""
    keys = {k.replace("__", "."): v for k, v in keys.items()}
    own, *groups = (part(keys, prefix) for prefix in ("", "algorithm.", "online.", "wandb."))
    hyper, online, wandb = groups
    options = build(TrainOptions, own)
    algorithm = algorithm_class(options.algorithm)
    try:
        task = envs.task(options.task)
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
    if wandb and options.tracker != "wandb":
        raise UserError(f"wandb.{next(iter(wandb))}= needs tracker=wandb")
    if options.batch_size is not None:
        hyper["batch_size"] = options.batch_size  # the two keys are one
    settings, pattern = runs(options, algorithm, hyper)
    if online and not options.num_env_steps:
        raise UserError(f"online.{next(iter(online))}= is of no use without num_env_steps=")
    if options.utd is not None and not options.num_env_steps:
        raise UserError("utd= is of no use without num_env_steps=")
    if options.utd is not None:
        online["utd"] = options.utd  # the two keys are one
    how = interaction(options.algorithm, options.task, next(iter(settings.values())), online)
    built = build(WandbOptions, wandb, "wandb.")
    return Resolved(options, built, algorithm, settings, pattern, task, seeds, how)


def part(keys: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The keys that begin with `prefix`, without it; for "" those of no group."""
    if prefix:
        return {k.removeprefix(prefix): v for k, v in keys.items() if k.startswith(prefix)}
    return {k: v for k, v in keys.items() if not k.startswith(("algorithm.", "online.", "wandb."))}


def prepare(keys: Mapping[str, Any], start: Start | None = None) -> Plan:
    """Options, then data; nothing is written. start: where the run goes on from."""
    given = {k: v for k, v in keys.items() if isinstance(v, Dataset)}
    chosen = resolve({**keys, **dict.fromkeys(given, IN_MEMORY)})
    options, algorithm, settings = chosen.options, chosen.algorithm, chosen.settings
    try:
        env = envs.make_vector(chosen.task, 1) if chosen.task.env_id else None
    except ValueError as error:  # a package that is missing, actions that are no vector
        raise UserError(str(error)) from None
    hardware.device(options.device)
    dataset = expert = None
    how = chosen.interaction
    if options.num_updates or (options.num_env_steps and how.online.mixing):
        if options.dataset is None and chosen.task.card is None:
            raise UserError(
                f"task {options.task} brings no data; give it with dataset=<path or id>"
                + (", or num_updates=0 to learn online alone" if options.num_env_steps else "")
            )
        dataset = data_of(given.get("dataset", options.dataset or chosen.task), options)
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
        how = replace(how, cfg=algorithm.complete(how.cfg, dataset))
        if any(cfg.normalise_returns for cfg in settings.values()):
            range_of_returns(dataset)  # refuses what has none
        if options.expert_dataset is not None:
            expert = data_of(given.get("expert_dataset", options.expert_dataset), options)
    spec = specification(chosen.task, env, dataset, expert)
    if env is not None:
        env.close()
    if spec.lone is None and algorithm.vector_only:
        able = [name for name in algorithm_names() if not algorithm_class(name).vector_only]
        raise UserError(
            f"{options.algorithm} sees one vector only, and what is observed here is "
            f"{seen(spec)}: choose vectors with observation_keys=, or take "
            f"{' or '.join(able) or 'another algorithm'}"
        )
    learner = algorithm(spec, next(iter(settings.values())), interaction=how)
    if (head := type(learner.modules[learner.policy])) not in kinds().values():
        raise UserError(
            f"{options.algorithm} acts by {head.__name__}, of which no bundle can be made; take a "
            f"head of policies.heads: {', '.join(kinds())}"
        )
    if options.pretrain_updates is not None and not learner.phases:
        raise UserError(
            f"pretrain_updates={options.pretrain_updates}: {options.algorithm} has no preliminary "
            "phase with these settings; leave it out"
        )
    steps, pretrain = options.num_env_steps, options.pretrain_updates
    schedule = learner.schedule(options.num_updates, steps, pretrain)
    for piece in schedule:
        period = learner.at(piece.phase).period
        if isinstance(piece, Learn) and piece.updates % period:
            key = "num_updates" if piece.phase == "update" else piece.phase
            key = "pretrain_updates" if key == piece.phase and pretrain is not None else key
            raise UserError(
                f"{key}={piece.updates}: {options.algorithm} repeats every {period}; "
                f"give a multiple of {period}"
            )
    known = vars(chosen) | {"settings": settings, "interaction": how, "schedule": schedule}
    known["stackable"] = learner.stackable
    return Plan(**known, dataset=dataset, expert=expert, spec=spec, start=start)


def data_of(source: str | Task | Dataset, options: TrainOptions) -> Dataset:
    """What `source` names, read as `options` say; or itself, known by what is in its arrays."""
    how = {name: getattr(options, name) for name in READING}
    if not isinstance(source, Dataset):
        return load(source, options.data_dir, **how)
    if told := [name for name, value in how.items() if value]:
        raise UserError(f"{told[0]}= says how a file is read; this data is in memory already")
    return replace(source, path=None, sha256=source.checksum())


def runs(
    options: TrainOptions, algorithm: type[Algorithm], hyper: Mapping[str, Any]
) -> tuple[dict[str, Any], str | None]:
    """A run's name -> its config, for each choice from the lists given for numbers; the pattern."""
    kinds = get_type_hints(algorithm.Config)
    lists = {
        k: coerce(v, list[float], f"algorithm.{k}")
        for k, v in hyper.items()
        if kinds.get(k) is float and isinstance(v, list)
    }
    check_stacked(algorithm, lists)
    settings, pattern = dict[str, Any](), None
    task = options.task
    if task == "none" and options.dataset in envs.cards():
        task = options.dataset  # its settings hold without its environment too
    for values in product(*lists.values()):
        chosen = dict(zip(lists, values, strict=True))
        given, name = {**hyper, **chosen}, run_name(options.name, chosen)
        settings[name], pattern = algorithm_config(options.algorithm, task, given)
    if not settings or len(settings) < prod(map(len, lists.values())):
        raise UserError(f"algorithm.{' and '.join(lists)}: give a list of different values")
    return settings, pattern


def check_stacked(algorithm: type[Algorithm], names: Iterable[str]) -> None:
    """Raises UserError for a hyper-parameter that has one value for all seeds of a program."""
    names = list(names)
    try:
        check_stackable(algorithm.Config, names)
    except ValueError as error:
        raise UserError(f"algorithm.{error}") from None
    if "discount" in names and "mc_returns" in algorithm.needs:
        raise UserError("algorithm.discount cannot be stacked: the data's returns depend on it")


def run_name(name: str, chosen: Mapping[str, Any]) -> str:
    """The name of a run among others that differ from it in what was `chosen`."""
    return "-".join([str(name), *(f"{key}_{value}" for key, value in chosen.items())])


def checks(options: TrainOptions, algorithm: type[Algorithm], seeds: list[int]) -> None:
    """What the options need of one another."""
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
    """The policy's spec: what data and environment say of themselves, the environment first.

    Raises UserError where they contradict each other.
    """
    told = list[tuple[str, Spec]]()
    for data in (dataset, expert):
        if data is not None:
            told.append((f"{data.path or data.name}", described(data)))
    if env is not None:
        told.append((f"task {task.name}", spec_of(env)))
    first, spec = told[0]
    if spec.lone is not None and len(spec.observation_shape) != 1:
        raise UserError(
            f"{first} has observations {seen(spec)} and {spec.action_dim} actions: what is learnt "
            "from are vectors of at least one number, or named channels; choose arrays with "
            "observation_keys=, or flatten them"
        )
    for name, own in told[1:]:
        if (spec.seen, spec.action_dim) != (own.seen, own.action_dim):
            raise UserError(
                f"{first} has observations {seen(spec)} and {spec.action_dim} actions, {name} has "
                f"{seen(own)} and {own.action_dim}: data of another "
                "task? Use its own task, or task=none to train only"
            )
        if spec.rate_hz and own.rate_hz and abs(own.rate_hz / spec.rate_hz - 1) > 0.01:
            raise UserError(
                f"{first} has {spec.rate_hz:g} actions a second, {name} has {own.rate_hz:g}: a "
                "policy learnt from the one is not at home in the other; give data of that rate, "
                "or task=none to train only"
            )
        spec = own.over(spec)
    return spec


def described(data: Dataset) -> Spec:
    """What a data set's file says of its numbers. Raises UserError where there are none."""
    obs, act = channels.shapes(data.observations), data.actions.shape[1]
    if not act or not all(shape and min(shape) for shape in channels.parts(obs)):
        raise UserError(
            f"{data.path or data.name} has observations {channels.each(list, obs)} and {act} "
            "actions: what is learnt from are vectors of at least one number; choose arrays with "
            "observation_keys=, or flatten them"
        )
    return data.spec or Spec(obs, act)


def seen(spec: Spec) -> str:
    """The shape of what is observed, in words."""
    if spec.lone is not None:
        return str(list(spec.lone.shape))
    return ", ".join(f"{channel.name} {list(channel.shape)}" for channel in spec.channels)


def description(plan: Plan, name: str) -> dict[str, Any]:
    """What makes two runs the same run."""
    options = {k: v for k, v in asdict(plan.options).items() if k not in FREE}
    data = plan.dataset.sha256 if plan.dataset is not None else None
    made: dict[str, Any] = {"name": name, "data": data, "hyper": asdict(plan.settings[name])}
    if plan.start is not None:
        made["start"] = plan.start.to_json()
    if plan.options.num_env_steps:
        made["online"] = asdict(plan.interaction.online)
        cfg = asdict(plan.interaction.cfg)
        made["online"] |= {k: v for k, v in cfg.items() if v != getattr(plan.cfg, k)}
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
