"""What the keys of a run alone decide: options, hyper-parameters, seeds. No data is looked at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from itertools import product
from math import prod
from typing import Any, get_type_hints

import envs
from envs import Task
from offline_rl.algorithms.common.base import Algorithm, Interaction
from offline_rl.algorithms.common.config import check_stackable
from offline_rl.algorithms.common.registry import algorithm_class, algorithm_config, interaction
from offline_rl.algorithms.common.schedule import OnPolicy
from offline_rl.data.load import known_cards
from offline_rl.evaluation.options import check_task
from offline_rl.training.options import TrainOptions, WandbOptions
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import build, coerce, plain_python, unknown
from offline_rl.utils.seeds import TRAINING_SEEDS

TWINS = (("batch_size", "algorithm.batch_size"), ("utd", "online.utd"))  # two words for one thing


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


def resolve(keys: Mapping[str, Any]) -> Resolved:
    """The options, complete and checked; no data is looked at. Raises UserError."""
    keys = {k.replace("__", "."): plain_python(v) for k, v in keys.items()}
    check_task(keys)
    if "algorithm" in keys:
        known = kinds_of(algorithm_class(str(keys["algorithm"])))
        for key in keys:
            if key not in known:
                later = key.startswith("online.")  # else what holds everywhere is meant
                near = [k for k in known if later or f"algorithm.{k[7:]}" not in known]
                raise UserError(unknown("option", key, near))
    own, *groups = (part(keys, prefix) for prefix in ("", "algorithm.", "online.", "wandb."))
    hyper, online, wandb = groups
    if "num_updates" not in own:
        own["num_updates"] = main_updates(own)
    options = build(TrainOptions, own)
    algorithm = algorithm_class(options.algorithm)
    try:
        task = envs.task(options.task)
        task = task.adapted(options.max_episode_steps, options.observation_keys)
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
    for one, other in TWINS:
        if one in keys and other in keys and keys[one] != keys[other]:
            raise UserError(f"{one}={keys[one]} and {other}={keys[other]}: the two keys are one")
    if options.batch_size is not None:
        hyper["batch_size"] = options.batch_size  # the two keys are one
    settings, pattern = runs(options, algorithm, hyper)
    if options.keep_data and not all(cfg.reward_scale for cfg in settings.values()):
        raise UserError(
            "keep_data=true: with reward_scale=0 no reward can be told from what is kept"
        )
    if online and not options.num_env_steps:
        raise UserError(f"online.{next(iter(online))}= is of no use without num_env_steps=")
    if options.utd is not None and not options.num_env_steps:
        raise UserError("utd= is of no use without num_env_steps=")
    if options.utd is not None:
        online["utd"] = options.utd  # the two keys are one
    how = interaction(options.algorithm, options.task, next(iter(settings.values())), online)
    how = replace(how, num_updates=max(1, int(options.num_env_steps * how.online.utd)))
    built = build(WandbOptions, wandb, "wandb.")
    return Resolved(options, built, algorithm, settings, pattern, task, seeds, how)


def main_updates(keys: Mapping[str, Any]) -> int:
    """`num_updates`, or its default: none for what begins in an environment, from nothing."""
    alone = "algorithm" in keys and algorithm_class(str(keys["algorithm"])).begins_online()
    return int(keys.get("num_updates", 0 if alone else TrainOptions.num_updates))


def kinds_of(algorithm: type[Algorithm]) -> dict[str, Any]:
    """Every key of `train` -> its type."""
    parts: list[tuple[str, type]] = [("", TrainOptions), ("wandb.", WandbOptions)]
    parts += [("algorithm.", algorithm.Config)]
    parts += [("online.", algorithm.Config), ("online.", algorithm.Online)]
    return {
        prefix + field.name: get_type_hints(options)[field.name]
        for prefix, options in parts
        for field in fields(options)
    }


def part(keys: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The keys that begin with `prefix`, without it; for "" those of no group."""
    if prefix:
        return {k.removeprefix(prefix): v for k, v in keys.items() if k.startswith(prefix)}
    return {k: v for k, v in keys.items() if not k.startswith(("algorithm.", "online.", "wandb."))}


def runs(
    options: TrainOptions, algorithm: type[Algorithm], hyper: Mapping[str, Any]
) -> tuple[dict[str, Any], str | None]:
    """A run's name -> its config, for each choice from the lists given for numbers; the pattern."""
    kinds = get_type_hints(algorithm.Config)
    lists = {
        k: coerce(v, list[float], f"algorithm.{k}")
        for k, v in hyper.items()
        if kinds.get(k) is float and isinstance(v, list | tuple)
    }
    check_stacked(algorithm, lists)
    settings, pattern = dict[str, Any](), None
    task = tuned_for(options)
    for values in product(*lists.values()):
        chosen = dict(zip(lists, values, strict=True))
        given, name = {**hyper, **chosen}, run_name(options.name, chosen)
        settings[name], pattern = algorithm_config(options.algorithm, task, given)
    if not settings or len(settings) < prod(map(len, lists.values())):
        raise UserError(f"algorithm.{' and '.join(lists)}: give a list of different values")
    return settings, pattern


def tuned_for(options: TrainOptions) -> str:
    """The task or card whose settings hold: a card's do without its environment too."""
    named = options.task == "none" and options.dataset in known_cards()
    return str(options.dataset) if named else options.task


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
    if not options.out.strip():
        raise UserError("out= is no name for a folder; out=. is the working folder")
    if not options.num_updates and not options.num_env_steps and algorithm.begins_online():
        raise UserError(
            f"{options.algorithm} learns in an environment: say how long, with num_env_steps=…, or "
            "with num_updates=… from data alone"
        )
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
    if options.overlap and issubclass(algorithm.Online, OnPolicy):
        raise UserError(f"overlap=true: {options.algorithm} acts and learns in turns")
    if options.overlap and not options.num_env_steps:
        raise UserError("overlap=true is of no use without num_env_steps=")
    if options.keep_data and issubclass(algorithm.Online, OnPolicy):
        raise UserError(f"keep_data=true: {options.algorithm} keeps nothing of what it saw")
    if options.keep_data and not options.num_env_steps:
        raise UserError("keep_data=true keeps what is seen online: give num_env_steps=")
    if options.expert_dataset is not None and "expert" not in algorithm.needs:
        raise UserError(f"{options.algorithm} does not use expert_dataset")
    if options.expert_dataset is None and "expert" in algorithm.needs:
        raise UserError(
            f"{options.algorithm} imitates an expert: give the expert's data with "
            "expert_dataset=<path or id>, beside the other data of the task or dataset="
        )
