"""Options, hyper-parameters and seeds of a run, resolved from its keys without reading data."""

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
from offline_rl.utils.options import build, coerce, to_python, unknown
from offline_rl.utils.seeds import TRAINING_SEEDS

TWINS = (("batch_size", "algorithm.batch_size"), ("utd", "online.utd"))  # two keys for one option


@dataclass(frozen=True)
class Resolved:
    """Resolved keys of a run.

    The command line overrides the per-task table, and the table overrides the defaults.
    """

    options: TrainOptions
    wandb: WandbOptions
    algorithm: type[Algorithm]
    settings: dict[str, Any]  # name of a run -> its hyper-parameters
    pattern: str | None  # matching row of the algorithm's per-task table
    task: Task
    seeds: list[int]
    interaction: Interaction  # settings of online training

    @property
    def cfg(self) -> Any:
        """Hyper-parameters of the first run. Other runs differ only in stackable fields."""
        return next(iter(self.settings.values()))


def resolve(keys: Mapping[str, Any]) -> Resolved:
    """Return the complete, checked options of a run. Reads no data.

    Raises UserError for an option that is unknown, has a wrong value, or contradicts another.
    """
    keys = {k.replace("__", "."): to_python(v) for k, v in keys.items()}
    check_task(keys)
    if "algorithm" in keys:
        types = option_types(algorithm_class(str(keys["algorithm"])))
        for key in keys:
            if key not in types:
                # suggest online.<name> only if the user typed an online.<name>
                online_key = key.startswith("online.")
                near = [k for k in types if online_key or f"algorithm.{k[7:]}" not in types]
                raise UserError(unknown("option", key, near))
    general, *groups = (part(keys, prefix) for prefix in ("", "algorithm.", "online.", "wandb."))
    hyper, online, wandb = groups
    if "num_updates" not in general:
        general["num_updates"] = main_updates(general)
    options = build(TrainOptions, general)
    algorithm = algorithm_class(options.algorithm)
    try:
        task = envs.task(options.task)
        task = task.with_options(options.max_episode_steps, options.observation_keys)
    except ValueError as error:
        raise UserError(str(error)) from None
    count = options.seeds
    if isinstance(count, int) and not 1 <= count <= TRAINING_SEEDS:
        raise UserError(
            f"seeds={count}: expected a count from 1 to {TRAINING_SEEDS}, or a list such as "
            "seeds=[7,42]"
        )
    seeds = count if isinstance(count, list) else list(range(count))
    check_options(options, algorithm, seeds)
    if wandb and options.tracker != "wandb":
        raise UserError(f"wandb.{next(iter(wandb))}= needs tracker=wandb")
    for one, other in TWINS:
        if one in keys and other in keys and keys[one] != keys[other]:
            raise UserError(
                f"{one}={keys[one]} and {other}={keys[other]}: both keys set the same option. "
                "Use one of them."
            )
    if options.batch_size is not None:
        hyper["batch_size"] = options.batch_size
    settings, pattern = settings_by_run(options, algorithm, hyper)
    if options.keep_data and not all(cfg.reward_scale for cfg in settings.values()):
        raise UserError(
            "keep_data=true does not work with reward_scale=0, from which the original rewards "
            "cannot be recovered. Remove one of them."
        )
    if online and not options.num_env_steps:
        raise UserError(f"online.{next(iter(online))}= has no effect without num_env_steps=")
    if options.utd is not None and not options.num_env_steps:
        raise UserError("utd= has no effect without num_env_steps=")
    if options.utd is not None:
        online["utd"] = options.utd
    online_settings = interaction(
        options.algorithm, options.task, next(iter(settings.values())), online
    )
    online_settings = replace(
        online_settings, num_updates=max(1, int(options.num_env_steps * online_settings.online.utd))
    )
    wandb_options = build(WandbOptions, wandb, "wandb.")
    return Resolved(
        options, wandb_options, algorithm, settings, pattern, task, seeds, online_settings
    )


def main_updates(keys: Mapping[str, Any]) -> int:
    """Return `num_updates` or its default, which is 0 for algorithms that need no offline phase."""
    online_only = "algorithm" in keys and algorithm_class(str(keys["algorithm"])).starts_online()
    return int(keys.get("num_updates", 0 if online_only else TrainOptions.num_updates))


def option_types(algorithm: type[Algorithm]) -> dict[str, Any]:
    """Return every key of `train` with its type."""
    parts: list[tuple[str, type]] = [("", TrainOptions), ("wandb.", WandbOptions)]
    parts += [("algorithm.", algorithm.Config)]
    parts += [("online.", algorithm.Config), ("online.", algorithm.Online)]
    return {
        prefix + field.name: get_type_hints(options)[field.name]
        for prefix, options in parts
        for field in fields(options)
    }


def part(keys: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the keys that begin with `prefix`, with the prefix removed.

    An empty prefix selects the keys of no group.
    """
    if prefix:
        return {k.removeprefix(prefix): v for k, v in keys.items() if k.startswith(prefix)}
    return {k: v for k, v in keys.items() if not k.startswith(("algorithm.", "online.", "wandb."))}


def settings_by_run(
    options: TrainOptions, algorithm: type[Algorithm], hyper: Mapping[str, Any]
) -> tuple[dict[str, Any], str | None]:
    """Return the config of each run by name, and the matching row of the per-task table.

    A list for a numeric hyper-parameter makes one run for each value.
    """
    types = get_type_hints(algorithm.Config)
    lists = {
        k: coerce(v, list[float], f"algorithm.{k}")
        for k, v in hyper.items()
        if types.get(k) is float and isinstance(v, list | tuple)
    }
    check_stacked(algorithm, lists)
    settings, pattern = dict[str, Any](), None
    task = tuned_for(options)
    for values in product(*lists.values()):
        chosen = dict(zip(lists, values, strict=True))
        run_hyper, name = {**hyper, **chosen}, run_name(options.name, chosen)
        settings[name], pattern = algorithm_config(options.algorithm, task, run_hyper)
    if not settings or len(settings) < prod(map(len, lists.values())):
        raise UserError(f"algorithm.{' and '.join(lists)}: the values of a list must be different")
    return settings, pattern


def tuned_for(options: TrainOptions) -> str:
    """Return the name whose tuned settings apply: the task, or the dataset if task=none."""
    by_dataset = options.task == "none" and options.dataset in known_cards()
    return str(options.dataset) if by_dataset else options.task


def check_stacked(algorithm: type[Algorithm], names: Iterable[str]) -> None:
    """Raise UserError for a hyper-parameter that must be equal for all seeds trained together."""
    names = list(names)
    try:
        check_stackable(algorithm.Config, names)
    except ValueError as error:
        raise UserError(f"algorithm.{error}") from None
    if "discount" in names and "mc_returns" in algorithm.extra_columns:
        raise UserError(
            "algorithm.discount cannot be a list here: the returns of the dataset depend on it. "
            "Start one run for each value."
        )


def run_name(name: str, chosen: Mapping[str, Any]) -> str:
    """Return the name of a run, extended by the settings that distinguish it from the others."""
    return "-".join([str(name), *(f"{key}_{value}" for key, value in chosen.items())])


def check_options(options: TrainOptions, algorithm: type[Algorithm], seeds: list[int]) -> None:
    """Raise UserError for options that contradict or need each other."""
    if not options.name.strip("."):
        raise UserError(f"name={options.name!r} cannot be the name of a folder. Use another name=.")
    if not options.out.strip():
        raise UserError("out= is empty. Use out=. for the working folder.")
    if not options.num_updates and not options.num_env_steps and algorithm.starts_online():
        raise UserError(
            f"{options.algorithm} has nothing to do. Set num_env_steps=… to train online, or "
            "num_updates=… to train on a dataset."
        )
    if not options.num_updates and not options.num_env_steps:
        raise UserError("nothing to do: num_updates and num_env_steps are both 0. Raise one.")
    if not seeds or len(set(seeds)) < len(seeds) or not set(seeds) <= {*range(TRAINING_SEEDS)}:
        last = TRAINING_SEEDS - 1
        raise UserError(f"seeds={seeds}: expected different seeds between 0 and {last}")
    if options.compile == "always" and (missing := hardware.missing_compiler()):
        raise UserError(f"compile=always: {missing}")
    package = {"wandb": "wandb", "tensorboard": "tensorboard"}.get(options.tracker)
    if package is not None and find_spec(package) is None:
        raise UserError(f"tracker={options.tracker} needs a package: pip install {package}")
    if options.num_env_steps and not algorithm.online:
        raise UserError(f"{options.algorithm} does not learn online. Remove num_env_steps.")
    if options.num_env_steps and options.task == "none":
        raise UserError("num_env_steps needs an environment, and task=none has none. Set task=.")
    if options.overlap and issubclass(algorithm.Online, OnPolicy):
        raise UserError(
            f"overlap=true does not work with {options.algorithm}, which is on-policy: it collects "
            "and learns in turns. Remove it."
        )
    if options.overlap and not options.num_env_steps:
        raise UserError("overlap=true has no effect without num_env_steps=")
    if options.keep_data and issubclass(algorithm.Online, OnPolicy):
        raise UserError(
            f"keep_data=true does not work with {options.algorithm}, which does not store its "
            "online experience. Remove it."
        )
    if options.keep_data and not options.num_env_steps:
        raise UserError("keep_data=true saves online experience. Set num_env_steps=.")
    if options.expert_dataset is not None and "expert" not in algorithm.extra_columns:
        raise UserError(f"{options.algorithm} does not use expert_dataset. Remove it.")
    if options.expert_dataset is None and "expert" in algorithm.extra_columns:
        raise UserError(
            f"{options.algorithm} needs expert demonstrations. Set expert_dataset=<path or id>, in "
            "addition to the data of the task or of dataset=."
        )
