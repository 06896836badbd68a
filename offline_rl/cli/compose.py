"""Parser of the command line of `train`: Hydra's overrides and sweeps, experiments, --cfg job.

An experiment is a YAML file with options of `train`, nested or with dots: a file in
configs/experiment or one of the user's. The entry `defaults:` names experiments that it extends.
The command line overrides the experiment, the experiment overrides the algorithm's per-task table,
and the table overrides the defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_yaml
from offline_rl.utils.options import coerce, format_value, override_values, parse_overrides, unknown
from offline_rl.utils.paths import config_file, config_files
from offline_rl.utils.trees import flatten

if TYPE_CHECKING:
    from offline_rl.runs.run import Run

FLAGS = ("-m", "--multirun", "-c", "--cfg", "--help")


class Command(NamedTuple):
    """Parsed command line of `train`."""

    jobs: list[dict[str, Any]]  # options of `train`, one dictionary for each job
    print_only: bool  # --cfg job: print the jobs, do not run them


def compose(arguments: Sequence[str]) -> Command:
    """Parse `key=value`, `experiment=`, -m with several values, and --cfg job. Raises UserError."""
    overrides, multirun, print_only = list[str](), False, False
    words = iter(arguments)
    for word in words:
        flag, _, value = word.partition("=")
        if word in ("-m", "--multirun"):
            multirun = True
        elif flag in ("-c", "--cfg"):
            if (value or next(words, "")) != "job":
                raise UserError(f"{word} can print only the job. Use --cfg job.")
            print_only = True
        elif word.startswith("-"):
            raise UserError(unknown("flag", word, FLAGS))
        else:
            overrides.append(word)
    jobs = [with_experiment(job) for job in sweep(overrides, multirun)]
    for job in jobs:
        refuse_lists(job)
    return Command(jobs, print_only)


def sweep(overrides: Sequence[str], multirun: bool) -> list[dict[str, Any]]:
    """Return one job for each combination of the overrides' values, in Hydra's order."""
    parsed = parse_overrides(overrides, Groups())
    several = [override for override in parsed if override.is_sweep_override()]
    if not several:
        return [override_values(parsed)]
    if not multirun:
        raise UserError(
            f"{several[0].input_line!r} has several values. Use -m for one run per value, or "
            "key=[a,b] for a list."
        )
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    for override in several:
        if not override.is_discrete_sweep():
            raise UserError(
                f"{override.input_line!r} is not a list of values. Use key=a,b or "
                "key=range(start,stop,step)."
            )
    (lines,) = BasicSweeper.split_arguments(list(parsed), None)
    jobs = [override_values(parse_overrides(line)) for line in lines]
    if not jobs:
        raise UserError(f"{several[0].input_line!r}: one of the sweeps has no values. Give it one")
    for job in jobs:  # in a sweep, seeds=1,2 means the seeds 1 and 2; else seeds=3 is a count
        if isinstance(job.get("seeds"), int) and any(o.key_or_group == "seeds" for o in several):
            job["seeds"] = [job["seeds"]]
    return jobs


def split_sweeps(arguments: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the options of a search with one value, and the sweeps of the others as text.

    The option `experiment` is replaced by the options in its file. Raises UserError.
    """
    parsed = parse_overrides(arguments, Groups())
    sweeps = [override for override in parsed if override.is_sweep_override()]
    keys = with_experiment(override_values(o for o in parsed if o not in sweeps))
    space = {o.key_or_group: str(o.input_line).partition("=")[2] for o in sweeps}
    return {key: value for key, value in keys.items() if key not in space}, space


def refuse_lists(job: Mapping[str, Any]) -> None:
    """Raise UserError for a list as the value of an option that takes one value.

    The message suggests -m, which runs each value.
    """
    from offline_rl.algorithms.common.registry import algorithm_class
    from offline_rl.runs.run import option_types

    several = {k: v for k, v in job.items() if isinstance(v, list) and len(v) > 1}
    if not several:
        return
    try:
        types = option_types(algorithm_class(str(job.get("algorithm"))))
    except UserError:  # reported by `train`
        return
    for key, value in several.items():
        if types.get(key, float) is not float:  # a list of numbers makes one run for each
            try:
                coerce(value, types[key], key)
            except UserError as error:
                each = ",".join(map(format_value, value))
                raise UserError(f"{error}. For one run per value: -m '{key}={each}'.") from None


class Groups:
    """Config groups for Hydra's glob(…)."""

    def get_group_options(self, group_name: str, *_: Any, **__: Any) -> list[str]:
        return sorted(config_files(group_name))


def with_experiment(job: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `job` with the experiment that its option `experiment` names, if any.

    Options of `job` have priority. Without the option `name`, the run is named after the
    experiment. Raises UserError, with the experiment's file, for an invalid option or value.
    """
    from offline_rl.runs.options import aliases

    job = dict(job)
    if (name := job.pop("experiment", None)) is None:
        return job
    path = config_file("experiment", str(name))
    preset = load_experiment(path)
    for twins in aliases().items():  # two keys of one option: the job's key replaces both
        if job.keys() & {*twins}:
            preset = {key: value for key, value in preset.items() if key not in twins}
    merged = {"name": path.stem, **preset, **job}
    if "algorithm" in merged:
        check_preset(path, preset, str(merged["algorithm"]))
    return merged


def load_experiment(path: Path, above: Sequence[Path] = ()) -> dict[str, Any]:
    """Return the options in an experiment file. above: the files that extend it.

    Raises UserError.
    """
    if path in above:
        raise UserError(f"{path} extends itself: {' -> '.join(p.name for p in above)}")
    values, keys = read_yaml(path), dict[str, Any]()
    for entry in values.pop("defaults", None) or ():
        if isinstance(entry, str) and entry != "_self_":
            keys |= load_experiment(config_file("experiment", entry), (*above, path))
        elif isinstance(entry, dict):  # Hydra's `override /algorithm: iql`
            keys |= {k.removeprefix("override ").strip("/"): v for k, v in entry.items()}
    options = flatten(values, ".")
    if "algorithm.name" in options:
        options["algorithm"] = options.pop("algorithm.name")
    return keys | options


def check_preset(path: Path, preset: Mapping[str, Any], algorithm: str) -> None:
    """Raise UserError naming the file for an unknown option or a value of the wrong type."""
    from offline_rl.algorithms.common.registry import algorithm_class
    from offline_rl.runs.run import option_types

    types = option_types(algorithm_class(algorithm))
    for key, value in preset.items():
        if key not in types:
            raise UserError(f"{path}: {unknown('option', key, types)}")
        stack = types[key] is float and isinstance(value, list)
        coerce(value, list[float] if stack else types[key], f"{path}: {key}")


def runs_to_yaml(runs: Sequence[Run]) -> str:
    """Return the runs of a stack as YAML. As an experiment file, it starts the same runs.

    Values that differ become a list. Runs that are no product of lists and seeds become several
    documents.
    """
    from dataclasses import asdict, fields
    from math import prod

    from omegaconf import OmegaConf

    from offline_rl.algorithms.common.registry import table_of
    from offline_rl.runs.options import aliases

    run, method = runs[0], runs[0].method
    hyper = dict[str, Any]()
    for field in fields(method.cfg):
        values = list(dict.fromkeys(getattr(each.method.cfg, field.name) for each in runs))
        hyper[field.name] = values[0] if len(values) == 1 else values
    seeds = list(dict.fromkeys(each.seed for each in runs))
    sizes = [len(value) for value in hyper.values() if isinstance(value, list)]
    if len(runs) < prod(sizes) * len(seeds):
        by_path = {each.path: [r for r in runs if r.path == each.path] for each in runs}
        return "---\n".join(map(runs_to_yaml, by_path.values()))
    count = len(seeds) if seeds == [*range(len(seeds))] else seeds
    groups = (run.data, run.budget, run.evaluation, run.compute, run.output)
    options = {k: v for group in groups for k, v in asdict(group).items() if k not in aliases()}
    options["name"] = run.output.name if sizes else run.name
    tree: dict[str, Any] = {"algorithm": {"name": method.name, **hyper}, "task": run.task.name}
    tree |= {"seeds": count, **options}
    if run.budget.num_env_steps:
        online_cfg = asdict(method.interaction.cfg).items()
        tree["online"] = asdict(method.interaction.online)
        tree["online"] |= {k: v for k, v in online_cfg if v != getattr(method.cfg, k)}
    if run.output.tracker == "wandb":
        tree["wandb"] = asdict(run.wandb)
    text = OmegaConf.to_yaml(OmegaConf.create(tree))
    if method.table_row is None:
        return text
    owner = table_of(method.name)
    return f"# includes row {method.table_row} of configs/algorithm/{owner}.yaml\n{text}"
