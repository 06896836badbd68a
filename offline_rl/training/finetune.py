"""`offline-rl finetune`: a run goes on in an environment, as a run of its own.

Each seed begins where its newest checkpoint in the other run stands: networks, targets, optimizers,
counters and the transform of observations and rewards. The same seed learns the same as in one
command, `train … num_updates= num_env_steps=`; where a method warms up by random actions (SAC, TD3,
RLPD), with the same `online.warmup_steps` and `online.warmup_policy` given: who goes on has none. Another
algorithm has the same sizes of networks and the same transform, takes over what it can use, or says
by name which tensor it lacks.

`offline-rl distill`: another algorithm learns from a run's policies. Each seed's teacher is what
acted in its newest checkpoint; the student sees the same data through the same transform, and its
network is made of the same parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from offline_rl.algorithms.common.config import built
from offline_rl.algorithms.common.registry import algorithm_class, algorithm_names, label
from offline_rl.data.transform import Preprocessing
from offline_rl.training.options import FinetuneOptions, TrainOptions
from offline_rl.training.run_folder import (
    Done,
    SeedFolder,
    common_checkpoint,
    named_task,
    run_folder,
)
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import checksum, read_object
from offline_rl.utils.options import plain_python, signature, spelled
from offline_rl.utils.trees import plain

KEPT = (  # of the other run's options
    *("dataset", "data_dir", "action_scale", "action_range", "observation_keys", "subset"),
    *("episodes", "max_episode_steps", "format"),
    *("d4rl_compatible", "terminate_on_end", "expert_dataset"),
    *("eval_every", "eval_episodes", "checkpoint_every"),
)


@dataclass(frozen=True)
class Start:
    """Where each seed of a run begins."""

    run: Path
    task: str
    algorithm: str
    num_updates: int  # of that run's main phase: the length that its schedules know
    hyper: Mapping[str, Any]  # its hyper-parameters
    checkpoints: dict[int, tuple[Done, str]]  # seed -> its newest one, and that one's checksum

    @property
    def updates(self) -> int:
        """Done before; all seeds have done as many."""
        return next(iter(self.checkpoints.values()))[0].updates

    def folder(self, seed: int) -> SeedFolder:
        """Of a seed in the other run."""
        return SeedFolder(self.run, seed)

    def to_json(self, seed: int) -> dict[str, Any]:
        """What the config.json of a seed that goes on says of it."""
        sums = {str(seed): self.checkpoints[seed][1]}
        return {"run": str(self.run), "updates": self.updates, "sha256": sums}


def start_of(run: str | Path, seeds: int | list[int] | None = None) -> tuple[Start, dict[str, Any]]:
    """Where `run` can be gone on from, and its config. Raises UserError where it cannot.

    That is the newest checkpoint that all have; a damaged one is named, and the one before taken.
    seeds: only these of its seeds, or so many; default: all.
    """
    path = Path(run)
    if not path.is_dir():
        remedy = "; it is a file: give the folder above seed_0" if path.is_file() else ""
        raise UserError(f"run={run}: there is no such folder{remedy}")
    found = sorted(int(p.name[5:]) for p in path.glob("seed_*") if p.name[5:].isdigit())
    if not found:
        raise UserError(f"run={run} holds no seeds: give the folder above seed_0")
    if isinstance(seeds, int):
        if not 1 <= seeds <= len(found):
            raise UserError(f"seeds={seeds}: run={run} has {len(found)} seeds, {found}")
        seeds = found[:seeds]
    for seed in seeds or ():
        if seed not in found:
            raise UserError(f"run={run} has no seed {seed}; it has {found}")
    folders = [SeedFolder(path, seed) for seed in seeds or found]
    reached = {folder.seed: max(folder.checkpoints(), default=None) for folder in folders}
    for seed, last in reached.items():
        if last is None:
            raise UserError(f"{path}/seed_{seed} holds no checkpoint to begin from")
    done = common_checkpoint(folders, "bring one back from a copy, or name another run=")
    far = ", ".join(f"seed {s}: {d.updates:,}" for s, d in reached.items() if d)
    if done is None:
        raise UserError(
            f"run={run}: its seeds have no checkpoint in common ({far} updates); go on from some, "
            "each under a name of its own, with seeds=[…]"
        )
    if len({*reached.values()}) > 1:
        print(f"run={run}: its seeds have come to {far}; all go on from {done.updates:,} updates")
    checkpoints = {f.seed: (done, checksum(f.checkpoints()[done])) for f in folders}
    config = read_object(folders[0].config)
    config["algorithm"] = folders[0].algorithm(config)
    told = config["task"], config["algorithm"], config["num_updates"], config["hyper"]
    return Start(path, *told, checkpoints), config


def place_of(run: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """The folder of all runs in which `run` lies, as `out`; nothing where it was moved."""
    names = (named_task(config), label(config["algorithm"]), config["name"])
    run = run if len(run.parts) > len(names) else run.resolve()
    out = run.parents[len(names) - 1]
    return {"out": str(out)} if run_folder(str(out), *names) == run else {}


def networks_of(cfg: type, hyper: Mapping[str, Any]) -> dict[str, Any]:
    """What networks and data are made with, of `cfg`, as another algorithm's run had it.

    Layers' sizes may be for all networks there and for each of them here, or the other way round.
    """
    known = {name: hyper[name] for name in built(cfg) - {"batch_size"} if name in hyper}
    for name in built(cfg) - known.keys():
        alike = [v for k, v in hyper.items() if k.endswith("hidden") and name.endswith("hidden")]
        shared = name == "hidden" or "hidden" in hyper
        if alike and shared and all(value == alike[0] for value in alike):
            known[name] = alike[0]
    return known


def keys_of(config: Mapping[str, Any], given: Mapping[str, Any], start: Start) -> dict[str, Any]:
    """What `train` is told: the other run's options and hyper-parameters under the given ones.

    Of another algorithm's hyper-parameters those that networks are made with, and the discount: the
    size of its batches was its own. Raises UserError where data were to be prepared otherwise.
    """
    algorithm = given.get("algorithm", start.algorithm)
    for f in fields(Preprocessing):
        had, key = config["hyper"].get(f.name, f.default), f"algorithm.{f.name}"
        if plain(given.get(key, had)) != plain(had):
            raise UserError(
                f"{key}={spelled(plain(given[key]))}: what {start.run} learned was prepared with "
                f"{spelled(plain(had))}, and so is what it goes on with; leave it out, or train anew"
            )
    keys: dict[str, Any] = {"algorithm": algorithm, "task": config["task"], "num_updates": 0}
    keys |= {name: config[name] for name in KEPT if config.get(name) is not None}
    keys |= place_of(start.run, config)
    keys |= {"seeds": list(start.checkpoints), "name": f"from-{label(start.algorithm)}"}
    kind, hyper = algorithm_class(algorithm), config["hyper"]
    if algorithm == start.algorithm:
        own = [f for f in fields(kind.Config) if f.name in hyper]
        # null of what has no default of None is a bound at infinity, its default
        own = [f for f in own if hyper[f.name] is not None or f.default is None]
        kept = {f.name: hyper[f.name] for f in own}
    else:
        kept = networks_of(kind.Config, hyper) | kind.config_from_run(start.algorithm, hyper)
        if "discount" in hyper and "discount" in {f.name for f in fields(kind.Config)}:
            kept["discount"] = hyper["discount"]  # what the critics that are taken over are worth
    keys |= {f"algorithm.{k}": v for k, v in kept.items()}
    if algorithm == start.algorithm and kind.starts_online():
        keys |= {"online.warmup_steps": 0, "online.warmup_policy": "policy"}  # it can act already
    if "batch_size" in given:
        keys.pop("algorithm.batch_size", None)  # the two keys are one
    return {**keys, **given}


def finetune(*, show: bool = True, run: str | Path | None = None, **keys: Any) -> Any:
    """Trains on from `run`, or corrects a frozen `base`. -> a Result.

    keys: those of `train`, `num_env_steps` above all.
    """
    from offline_rl.training.train import train

    keys = {k.replace("__", "."): plain_python(v) for k, v in keys.items()}
    if (run is None) == (keys.get("base") is None):
        raise UserError(
            "finetune: say what to go on from, with run=<folder>, or which policy to correct, with "
            "base=<bundle or module:function>; one of the two"
        )
    if not keys.get("num_env_steps"):
        raise UserError("finetune: say how long, with num_env_steps=…")
    if run is None:
        if "task" not in keys:
            raise UserError("finetune: say where the base is corrected, with task=…")
        return train(show=show, **{"algorithm": "resfit", "num_updates": 0, **keys})
    start, config = start_of(run, keys.get("seeds"))
    if config.get("base"):
        raise UserError(
            f"run={run} corrects a base, and its experience is its own: a longer one begins anew, "
            f"as finetune base={config['base']} name=… num_env_steps=…"
        )
    told = keys_of(config, {k: v for k, v in keys.items() if k != "seeds"}, start)
    kind = algorithm_class(told["algorithm"])
    if not kind.online:
        chunks = "horizon" in config["hyper"]  # which those take that continue a clone
        kinds = {name: algorithm_class(name) for name in algorithm_names()}
        able = [k for k, v in kinds.items() if v.online and bool(v.finetunes_from) == chunks]
        able = [name for name in able if not kinds[name].is_residual]
        raise UserError(
            f"{told['algorithm']} does not learn online; name one that does and has its networks, "
            f"with algorithm={' or '.join(able)}"
        )
    if "dataset" in keys and not told.get(
        "online.offline_fraction", kind.Online().offline_fraction
    ):
        raise UserError(f"{told['algorithm']} learns from no data: leave dataset= out")
    return train(show=show, start=start, **told)


def distill(*, show: bool = True, run: str | Path, **keys: Any) -> Any:
    """Teaches from `run`; keys: those of `train`, `num_updates` above all. -> a Result."""
    from offline_rl.training.train import train

    keys = {"algorithm": "consistency"} | {
        k.replace("__", "."): plain_python(v) for k, v in keys.items()
    }
    student = algorithm_class(keys["algorithm"])
    if not student.distills_from:
        raise UserError(f"{keys['algorithm']} learns from data alone: train it")
    if not keys.get("num_updates"):
        raise UserError("distill: say how long, with num_updates=…")
    seeds = keys.pop("seeds", None)
    start, config = start_of(run, seeds)
    hyper = config["hyper"]
    given = student.config_from_teacher(start.algorithm, hyper)
    if given is None:
        how = f" with algorithm.process={hyper['process']}" if "process" in hyper else ""
        raise UserError(
            f"run={run}, of {start.algorithm}{how}, is no teacher: {keys['algorithm']} is taught "
            f"by {student.distills_from}"
        )
    told: dict[str, Any] = {"task": config["task"], "seeds": list(start.checkpoints)}
    told |= {name: config[name] for name in KEPT if config.get(name) is not None}
    told |= place_of(start.run, config) | {"name": f"from-{label(start.algorithm)}"}
    for name, value in sorted(given.items()):
        told[f"algorithm.{name}"] = value
        if plain(keys.get(f"algorithm.{name}", value)) != plain(value):
            raise UserError(f"algorithm.{name}: the student's is its teacher's, {value}")
    return train(show=show, start=start, **(told | keys))


finetune.__signature__ = signature(finetune, FinetuneOptions, TrainOptions)  # type: ignore[attr-defined]
