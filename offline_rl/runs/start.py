"""The run that a new run starts from, by `offline-rl finetune` or `offline-rl distill`.

finetune continues a run online, as a new run. Each seed loads its newest checkpoint: networks,
targets, optimizers, counters and the transform of observations and rewards. The result equals that
of a single command, `train … num_updates= num_env_steps=`. SAC, TD3 and RLPD have a random warm-up
in `train` but not in `finetune`: for them the results are equal only if `online.warmup_steps` and
`online.warmup_policy` have the same values in both.

finetune can also switch to another algorithm. The new run then has the network sizes and the
transform of the old run, and loads all of its networks from it. A tensor that the old run lacks, or
that has another shape, is an error.

distill trains another algorithm with a run's policies as teachers. Each seed's teacher is the
acting network of its newest checkpoint. The student uses the same data, transform and network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from offline_rl.algorithms.common.config import structural_fields
from offline_rl.algorithms.common.registry import (
    algorithm_class,
    algorithm_names,
    rebuild_algorithm,
    run_label,
)
from offline_rl.data.transform import Preprocessing
from offline_rl.runs.folder import (
    Done,
    SeedFolder,
    common_checkpoint,
    learner_tensors,
    named_task,
    run_folder,
    seed_numbers,
)
from offline_rl.runs.options import DataOptions, EvaluationOptions, aliases
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import checksum, read_json_object
from offline_rl.utils.options import format_value, to_python
from offline_rl.utils.trees import flatten, to_json_values
from policies.spec import Spec


@dataclass(frozen=True)
class Start:
    """The run to continue from, with a checkpoint of each seed."""

    run: Path
    task: str
    algorithm: str
    num_updates: int  # offline updates of the run; the length of its learning-rate schedules
    hyper: Mapping[str, Any]  # hyper-parameters of the run
    checkpoints: dict[int, tuple[Done, str]]  # seed -> its checkpoint, and the checksum of the file

    @property
    def updates(self) -> int:
        """Updates in the checkpoints, equal for all seeds."""
        return next(iter(self.checkpoints.values()))[0].updates

    def folder(self, seed: int) -> SeedFolder:
        """Return a seed's folder in the run to continue from."""
        return SeedFolder(self.run, seed)

    def to_json(self, seed: int) -> dict[str, Any]:
        """Return the entry `start` of the new run's config.json for `seed`."""
        sums = {str(seed): self.checkpoints[seed][1]}
        return {"run": str(self.run), "updates": self.updates, "sha256": sums}


def start_of(run: str | Path, seeds: int | list[int] | None = None) -> tuple[Start, dict[str, Any]]:
    """Return the newest checkpoints that all seeds of `run` have in common, and its config.

    A damaged checkpoint is reported and the previous one is used. seeds: a list or a count of the
    run's seeds; default: all. Raises UserError if there is no common checkpoint.
    """
    path = Path(run)
    if not path.is_dir():
        problem = "is a file" if path.is_file() else "does not exist"
        raise UserError(f"run={run} {problem}. Use the folder that contains seed_0.")
    run_seeds = seed_numbers(path)
    if not run_seeds:
        raise UserError(f"run={run} contains no seeds. Use the folder that contains seed_0.")
    if isinstance(seeds, int):
        if not 1 <= seeds <= len(run_seeds):
            raise UserError(f"seeds={seeds}: run={run} has {len(run_seeds)} seeds, {run_seeds}")
        seeds = run_seeds[:seeds]
    for seed in seeds or ():
        if seed not in run_seeds:
            raise UserError(f"run={run} has no seed {seed}; it has {run_seeds}")
    folders = [SeedFolder(path, seed) for seed in seeds or run_seeds]
    newest = {folder.seed: max(folder.checkpoints(), default=None) for folder in folders}
    for seed, last in newest.items():
        if last is None:
            raise UserError(
                f"{path}/seed_{seed} has no checkpoint to start from. Use another run=, or other "
                "seeds with seeds=[…]."
            )
    done = common_checkpoint(folders, "restore one from a copy, or use another run=")
    progress = ", ".join(f"seed {s}: {d.updates:,}" for s, d in newest.items() if d)
    if done is None:
        raise UserError(
            f"run={run}: its seeds have no common checkpoint ({progress} updates). Select seeds "
            "with equal progress by seeds=[…], and give each selection another name=…"
        )
    if len({*newest.values()}) > 1:
        print(
            f"run={run}: its seeds have different progress ({progress} updates); all continue "
            f"from {done.updates:,} updates"
        )
    checkpoints = {f.seed: (done, checksum(f.checkpoints()[done])) for f in folders}
    config = read_json_object(folders[0].config)
    config["algorithm"] = folders[0].algorithm(config)
    if not config["num_updates"] and not config.get("num_env_steps"):
        raise UserError(
            f"run={run} only fitted a dynamics model (num_updates=0), so it has no trained "
            "policy. To use the model, pass the run as dynamics= to `train`."
        )
    values = config["task"], config["algorithm"], config["num_updates"], config["hyper"]
    return Start(path, *values, checkpoints), config


def out_option(run: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return `out`, the folder of all runs that contains `run`; empty if `run` was moved."""
    names = (named_task(config), run_label(config["algorithm"]), config["name"])
    run = run if len(run.parts) > len(names) else run.resolve()
    out = run.parents[len(names) - 1]
    return {"out": str(out)} if run_folder(str(out), *names) == run else {}


def network_settings(cfg: type, hyper: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of config class `cfg` that define networks and data, taken from `hyper`.

    hyper: hyper-parameters of another algorithm's run. One config may set the layer sizes once for
    all networks, the other for each network. The sizes are then copied only if all are equal.
    """
    settings = {
        name: hyper[name] for name in structural_fields(cfg) - {"batch_size"} if name in hyper
    }
    for name in structural_fields(cfg) - settings.keys():
        sizes = [v for k, v in hyper.items() if k.endswith("hidden") and name.endswith("hidden")]
        shared = name == "hidden" or "hidden" in hyper
        if sizes and shared and all(value == sizes[0] for value in sizes):
            settings[name] = sizes[0]
    return settings


def inherited_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of data and evaluation in a run's config, which the new run copies."""
    names = [f.name for group in (DataOptions, EvaluationOptions) for f in fields(group)]
    excluded = ("base", "dynamics")
    return {k: config[k] for k in names if k not in excluded and config.get(k) is not None}


def continued_keys(
    config: Mapping[str, Any], passed: Mapping[str, Any], start: Start
) -> dict[str, Any]:
    """Return the keys for `train`: options and hyper-parameters of the run, overridden by `passed`.

    If the algorithm changes, only the discount and the hyper-parameters that define networks are
    copied, and not the batch size. Raises UserError if `passed` changes how the data is prepared.
    """
    algorithm = passed.get("algorithm", start.algorithm)
    for f in fields(Preprocessing):
        value, key = config["hyper"].get(f.name, f.default), f"algorithm.{f.name}"
        if to_json_values(passed.get(key, value)) != to_json_values(value):
            raise UserError(
                f"{key}={format_value(to_json_values(passed[key]))}: {start.run} was trained with "
                f"{format_value(to_json_values(value))}, which cannot change. Remove it, or train "
                "from scratch."
            )
    keys: dict[str, Any] = {"algorithm": algorithm, "task": config["task"], "num_updates": 0}
    keys |= inherited_options(config) | out_option(start.run, config)
    keys |= {"seeds": list(start.checkpoints), "name": f"from-{run_label(start.algorithm)}"}
    kind, hyper = algorithm_class(algorithm), config["hyper"]
    if algorithm == start.algorithm:
        options = [f for f in fields(kind.Config) if f.name in hyper]
        # infinity is saved as null: a null field keeps its default, the infinite bound
        options = [f for f in options if hyper[f.name] is not None or f.default is None]
        inherited = {f.name: hyper[f.name] for f in options}
    else:
        inherited = network_settings(kind.Config, hyper) | kind.config_from_run(
            start.algorithm, hyper
        )
        if "discount" in hyper and "discount" in {f.name for f in fields(kind.Config)}:
            inherited["discount"] = hyper["discount"]  # the loaded critics were trained with it
    keys |= {f"algorithm.{k}": v for k, v in inherited.items()}
    if algorithm == start.algorithm and kind.starts_online():
        # the policy is trained: no random warm-up
        keys |= {"online.warmup_steps": 0, "online.warmup_policy": "policy"}
    if passed.get("task", config["task"]) != config["task"]:
        for name in ("target_cost", "episode_steps"):  # the new task has its own
            keys.pop(f"algorithm.{name}", None)
    for alias, option in aliases().items():
        if alias in passed:  # it sets the same option
            keys.pop(option, None)
    return {**keys, **passed}


def suitable_algorithms(start: Start) -> list[str]:
    """Return the online algorithms that can load the networks of the run."""
    seed, (done, _) = next(iter(start.checkpoints.items()))
    stored, progress = start.folder(seed).load(done)
    tensors, spec = learner_tensors(stored), Spec.from_json(progress["spec"])
    kinds = {name: algorithm_class(name) for name in algorithm_names()}
    names = []
    for name, kind in kinds.items():
        if not kind.mode.online or kind.mode.start == "base":
            continue
        try:
            needed = kind.config_from_run(start.algorithm, start.hyper)
            hyper = network_settings(kind.Config, start.hyper) | needed
            algorithm = rebuild_algorithm(name, hyper, spec)
            algorithm.initialize_from(flatten(algorithm.initial()), tensors)
        except (UserError, ValueError):
            continue
        names.append(name)
    return names


def finetune_keys(
    run: str | Path | None, passed: Mapping[str, Any]
) -> tuple[dict[str, Any], Start | None]:
    """Return the keys for `train` to fine-tune `run`, or a policy on a frozen base, and the start.

    Raises UserError if the run cannot be continued online.
    """
    keys = {k.replace("__", "."): to_python(v) for k, v in passed.items()}
    if (run is None) == (keys.get("base") is None):
        raise UserError(
            "finetune needs either run=<folder> to continue from, or base=<bundle or "
            "module:function> to train on a frozen policy"
        )
    if not keys.get("num_env_steps"):
        raise UserError("finetune needs num_env_steps=…")
    if run is None:
        if "task" not in keys:
            raise UserError("finetune with base= needs task=…")
        keys = {"algorithm": "resfit", "num_updates": 0, **keys}
        if algorithm_class(keys["algorithm"]).mode.takes_base and "dataset" not in keys:
            keys = {"online.offline_fraction": 0.0, **keys}  # without data unless it is requested
        return keys, None
    start, config = start_of(run, keys.pop("seeds", None))
    if config.get("base"):
        raise UserError(
            f"run={run} acts on a base policy. Its online experience is not stored, so it cannot "
            f"be continued. Train longer from the start: offline-rl finetune base={config['base']} "
            "name=… num_env_steps=…"
        )
    continued = continued_keys(config, keys, start)
    cls = algorithm_class(continued["algorithm"])
    if not cls.mode.online:
        name = continued["algorithm"]
        if suitable := suitable_algorithms(start):
            raise UserError(
                f"{name} does not learn online. Choose an online algorithm with the same networks: "
                f"algorithm={' or '.join(suitable)}."
            )
        raise UserError(
            f"{name} does not learn online, and no online algorithm can load the networks of "
            f"run={run}. Train one on the same data instead, such as algorithm=iql."
        )
    fraction = continued.get("online.offline_fraction", cls.Online().offline_fraction)
    if "dataset" in keys and not fraction:
        raise UserError(
            f"{continued['algorithm']} learns from online experience only. Remove dataset=."
        )
    return continued, start


def distill_keys(run: str | Path, passed: Mapping[str, Any]) -> tuple[dict[str, Any], Start]:
    """Return the keys for `train` to distill the policies of `run`, and the start.

    Raises UserError if the algorithm is no student, or the run cannot be its teacher.
    """
    keys = {k.replace("__", "."): to_python(v) for k, v in passed.items()}
    keys = {"algorithm": "consistency"} | keys
    student = algorithm_class(keys["algorithm"])
    if student.mode.start != "teacher":
        raise UserError(f"{keys['algorithm']} does not learn from a teacher. Use offline-rl train.")
    if not keys.get("num_updates"):
        raise UserError("distill needs num_updates=…")
    start, config = start_of(run, keys.pop("seeds", None))
    hyper = config["hyper"]
    teacher_config = student.config_from_teacher(start.algorithm, hyper)
    if teacher_config is None:
        process = f" with algorithm.process={hyper['process']}" if "process" in hyper else ""
        raise UserError(
            f"run={run} ({start.algorithm}{process}) cannot be the teacher: "
            f"{keys['algorithm']} needs {student.mode.runs}"
        )
    train_keys: dict[str, Any] = {"task": config["task"], "seeds": list(start.checkpoints)}
    train_keys |= inherited_options(config) | out_option(start.run, config)
    train_keys["name"] = f"from-{run_label(start.algorithm)}"
    for name, value in sorted(teacher_config.items()):
        train_keys[f"algorithm.{name}"] = value
        if to_json_values(keys.get(f"algorithm.{name}", value)) != to_json_values(value):
            raise UserError(
                f"algorithm.{name} must be {value}, as in the teacher's run. Remove the option."
            )
    return train_keys | keys, start
