"""From what is typed to jobs: Hydra's overrides and sweeps, experiments, --cfg job.

An experiment is a file of configs/experiment, or one of the user's, with the keys that are typed
otherwise, nested or with dots; its `defaults:` name experiments that it begins with. What is typed
goes before the experiment, that before the algorithm's table for the task, that before defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_yaml
from offline_rl.utils.options import coerce, format_value, override_values, parse_overrides, unknown
from offline_rl.utils.paths import config_file, config_files
from offline_rl.utils.trees import flatten

FLAGS = ("-m", "--multirun", "-c", "--cfg", "--help")


class Command(NamedTuple):
    """What a line asks for."""

    jobs: list[dict[str, Any]]  # the keys of `train` for each
    shown: bool  # they are to be printed, not run


def compose(arguments: Sequence[str]) -> Command:
    """Jobs from `key=value`, `experiment=`, -m with several values, --cfg job. Raises UserError."""
    typed, multirun, shown = list[str](), False, False
    words = iter(arguments)
    for word in words:
        flag, _, value = word.partition("=")
        if word in ("-m", "--multirun"):
            multirun = True
        elif flag in ("-c", "--cfg"):
            if (value or next(words, "")) != "job":
                raise UserError(f"{word}: what can be shown is the job: --cfg job")
            shown = True
        elif word.startswith("-"):
            raise UserError(unknown("flag", word, FLAGS))
        else:
            typed.append(word)
    jobs = [with_experiment(job) for job in sweep(typed, multirun)]
    for job in jobs:
        refuse_lists(job)
    return Command(jobs, shown)


def sweep(typed: Sequence[str], multirun: bool) -> list[dict[str, Any]]:
    """The product of all values that are typed, each combination a job, in Hydra's order."""
    given = parse_overrides(typed, Groups())
    several = [override for override in given if override.is_sweep_override()]
    if not several:
        return [override_values(given)]
    if not multirun:
        raise UserError(
            f"{several[0].input_line!r} has several values: -m makes a run of each; a list is "
            "key=[a,b]"
        )
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    for override in several:
        if not override.is_discrete_sweep():
            raise UserError(f"{override.input_line!r}: say which values, or range(start,stop,step)")
    (lines,) = BasicSweeper.split_arguments(list(given), None)
    jobs = [override_values(parse_overrides(line)) for line in lines]
    if not jobs:
        raise UserError(f"{several[0].input_line!r}: one of the sweeps has no values")
    for job in jobs:  # in a sweep a seed is a seed; elsewhere seeds=3 is a count
        if isinstance(job.get("seeds"), int) and any(o.key_or_group == "seeds" for o in several):
            job["seeds"] = [job["seeds"]]
    return jobs


def refuse_lists(job: Mapping[str, Any]) -> None:
    """Raises UserError where a list is given for what takes none: -m runs each of its values."""
    from offline_rl.algorithms.common.registry import algorithm_class
    from offline_rl.training.resolve import option_types

    several = {k: v for k, v in job.items() if isinstance(v, list) and len(v) > 1}
    if not several:
        return
    try:
        kinds = option_types(algorithm_class(str(job.get("algorithm"))))
    except UserError:  # which `train` will tell
        return
    for key, value in several.items():
        if kinds.get(key, float) is not float:  # of which a list makes runs side by side
            try:
                coerce(value, kinds[key], key)
            except UserError as error:
                each = ",".join(map(format_value, value))
                raise UserError(f"{error}; for a run of each: -m '{key}={each}'") from None


class Groups:
    """What Hydra's glob(…) chooses from."""

    def get_group_options(self, group_name: str, *_: Any, **__: Any) -> list[str]:
        return sorted(config_files(group_name))


def with_experiment(job: Mapping[str, Any]) -> dict[str, Any]:
    """`job` over the experiment that it names, after which the run is called unless it has a name.

    Raises UserError naming the file for a key or a value that `train` would not take.
    """
    from offline_rl.training.resolve import TWINS

    job = dict(job)
    if (name := job.pop("experiment", None)) is None:
        return job
    path = config_file("experiment", str(name))
    preset = experiment(path)
    for words in TWINS:
        if job.keys() & {*words}:
            preset = {key: value for key, value in preset.items() if key not in words}
    merged = {"name": path.stem, **preset, **job}
    if "algorithm" in merged:
        check(path, preset, str(merged["algorithm"]))
    return merged


def experiment(path: Path, above: Sequence[Path] = ()) -> dict[str, Any]:
    """The keys of an experiment's file. above: those that begin with it. Raises UserError."""
    if path in above:
        raise UserError(f"{path} begins with itself: {' -> '.join(p.name for p in above)}")
    values, keys = read_yaml(path), dict[str, Any]()
    for entry in values.pop("defaults", None) or ():
        if isinstance(entry, str) and entry != "_self_":
            keys |= experiment(config_file("experiment", entry), (*above, path))
        elif isinstance(entry, dict):  # Hydra's `override /algorithm: iql`
            keys |= {k.removeprefix("override ").strip("/"): v for k, v in entry.items()}
    own = flatten(values, ".")
    if "algorithm.name" in own:
        own["algorithm"] = own.pop("algorithm.name")
    return keys | own


def check(path: Path, preset: Mapping[str, Any], algorithm: str) -> None:
    """Raises UserError naming file and key for what is no key, or has a value of another type."""
    from offline_rl.algorithms.common.registry import algorithm_class
    from offline_rl.training.resolve import option_types

    kinds = option_types(algorithm_class(algorithm))
    for key, value in preset.items():
        if key not in kinds:
            raise UserError(f"{path}: {unknown('option', key, kinds)}")
        stack = kinds[key] is float and isinstance(value, list)
        coerce(value, list[float] if stack else kinds[key], f"{path}: {key}")


def shown(job: Mapping[str, Any]) -> str:
    """The job as YAML, complete: an experiment that would run the same."""
    from dataclasses import asdict, fields

    from omegaconf import OmegaConf

    from offline_rl.algorithms.common.registry import table_of
    from offline_rl.training.resolve import resolve

    run = resolve(job)
    hyper = dict[str, Any]()
    for field in fields(run.cfg):
        values = list(dict.fromkeys(getattr(cfg, field.name) for cfg in run.settings.values()))
        hyper[field.name] = values[0] if len(values) == 1 else values
    options = {k: v for k, v in asdict(run.options).items() if k not in ("batch_size", "utd")}
    tree = {**options, "algorithm": {"name": options["algorithm"], **hyper}}
    if run.options.num_env_steps:
        then = asdict(run.interaction.cfg).items()
        tree["online"] = asdict(run.interaction.online)
        tree["online"] |= {k: v for k, v in then if v != getattr(run.cfg, k)}
    if run.options.tracker == "wandb":
        tree["wandb"] = asdict(run.wandb)
    text = OmegaConf.to_yaml(OmegaConf.create(tree))
    if run.pattern is None:
        return text
    owner = table_of(run.options.algorithm)
    return f"# with the row {run.pattern} of configs/algorithm/{owner}.yaml\n{text}"
