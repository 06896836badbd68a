"""`offline-rl train`: from a task's name to scored policies.

Order of work: options, then data, then everything else; so a mistake costs seconds, and nothing is
written before the checks pass.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

import envs
from envs import Task
from offline_rl import config, hardware
from offline_rl.algorithm import Algorithm
from offline_rl.buffer import ReplayBuffer
from offline_rl.collect import Collector
from offline_rl.config import TrainOptions
from offline_rl.data import Dataset, load
from offline_rl.engine import Engine
from offline_rl.errors import UserError
from offline_rl.files import locked, read_json, write_atomically, write_json
from offline_rl.rundir import SeedFolder, plain, run_folder
from offline_rl.track import tracker
from offline_rl.trainer import Trainer
from offline_rl.transform import Transform
from offline_rl.version import __version__
from policies import Spec, bundle

DATA_FIELDS = ("data_dir",)  # options that say where things lie, not what is learnt
FREE = (*DATA_FIELDS, "seeds", "out", "tracker", "device", "compile", "precision")


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    path: Path  # the folder above the seeds
    results: list[dict[str, Any]]  # each seed's result.json

    @property
    def scores(self) -> list[float]:
        """Each seed's last normalised score; its mean return where there are no references."""
        return [r["score"] if r["score"] is not None else r["mean_return"] for r in self.results]


@dataclass(frozen=True)
class Plan:
    """Everything that is checked before anything is written."""

    options: TrainOptions
    algorithm: type[Algorithm]
    cfg: Any
    pattern: str | None  # of the algorithm's per-task table
    task: Task
    dataset: Dataset | None
    spec: Spec
    seeds: list[int]


def train(
    *, show: bool = True, watch: Callable[[Trainer], None] | None = None, **keys: Any
) -> Result:
    """Trains and evaluates. keys: the command line's; `algorithm.beta` may be `algorithm__beta`.

    watch: called after each evaluation. The same call again continues an interrupted run; on a
    finished one it does nothing. Raises UserError for whatever the user can mend.
    """
    plan = prepare(keys)
    o = plan.options
    run = run_folder(o.out, o.task, o.algorithm, o.name)
    with locked(run):
        folders = [SeedFolder(run, seed) for seed in plan.seeds]
        for folder in folders:
            if folder.config.is_file() or folder.finished:
                folder.agree(description(plan))
        left = [f for f in folders if not f.finished]
        say = print if show else (lambda *_: None)
        if not left:
            say(f"{run}: already finished; nothing to do")
        else:
            say(headline(plan))
        begun = [f for f in left if f.checkpoints()]
        for group in (begun, [f for f in left if f not in begun]):
            if group:
                train_group(plan, group, show, watch)
    return Result(run, [read_json(f.result) for f in folders])


def prepare(keys: Mapping[str, Any]) -> Plan:
    """Options, then data; nothing is written."""
    keys = {k.replace("__", "."): v for k, v in keys.items()}
    hyper = {k[10:]: v for k, v in keys.items() if k.startswith("algorithm.")}
    options = config.build(
        TrainOptions, {k: v for k, v in keys.items() if not k.startswith("algorithm.")}
    )
    algorithm = config.algorithm_class(options.algorithm)
    try:
        task = envs.task(options.task)
        env = envs.make_vector(task, 1) if task.env_id else None
    except ValueError as error:
        raise UserError(str(error)) from None
    seeds = options.seeds if isinstance(options.seeds, list) else list(range(options.seeds))
    checks(options, algorithm, seeds)
    if "batch_size" not in keys:
        options = replace(
            options, batch_size=config.default_batch_size(options.algorithm, options.task)
        )
    cfg, pattern = config.algorithm_config(options.algorithm, options.task, hyper)
    hardware.device(options.device)
    dataset = None
    if options.num_updates:
        if options.dataset is None and task.card is None:
            raise UserError(
                f"task {options.task} brings no data; give it with dataset=<path or id>"
            )
        source = options.dataset if options.dataset is not None else task
        how: dict[str, Any] = {
            "action_scale": options.action_scale,
            "d4rl_compatible": options.d4rl_compatible,
        }
        dataset = load(source, options.data_dir, **how)
        cfg = algorithm.complete(cfg, dataset)
    spec = specification(task, env, dataset)
    if env is not None:
        env.close()
    learner = algorithm(spec, cfg)
    phases = dict(learner.phases)
    if options.pretrain_updates is not None:
        phases = {"pretrain_updates": options.pretrain_updates}
    for name, updates in {"num_updates": options.num_updates, **phases}.items():
        if updates % learner.period:
            raise UserError(
                f"{name}={updates}: {options.algorithm} repeats every {learner.period}; "
                f"give a multiple of {learner.period}"
            )
    return Plan(options, algorithm, cfg, pattern, task, dataset, spec, seeds)


def checks(options: TrainOptions, algorithm: type[Algorithm], seeds: list[int]) -> None:
    """The options' ranges and what they need of one another."""
    positive = ("batch_size", "eval_every", "eval_episodes", "checkpoint_every")
    for name in positive:
        if getattr(options, name) < 1:
            raise UserError(f"{name}={getattr(options, name)}: must be at least 1")
    if options.num_updates < 0 or options.num_env_steps < 0 or options.utd <= 0:
        raise UserError("num_updates and num_env_steps must be at least 0 and utd above 0")
    if not options.num_updates and not options.num_env_steps:
        raise UserError("nothing to do: num_updates and num_env_steps are both 0")
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0 or max(seeds) > 900:
        raise UserError(f"seeds={seeds}: give different seeds between 0 and 900")
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


def specification(task: Task, env: envs.VectorEnv | None, dataset: Dataset | None) -> Spec:
    """The policy's spec; raises UserError where data and environment contradict each other."""
    shapes = []
    if dataset is not None:
        shape = dataset.observations.shape[1:], dataset.actions.shape[1]
        shapes.append((f"{dataset.path or dataset.name}", *shape))
    if env is not None:
        shapes.append((f"task {task.name}", tuple(env.observation_shape), env.action_dim))
    if len(shapes) == 2 and shapes[0][1:] != shapes[1][1:]:
        (data, obs, act), (name, own_obs, own_act) = shapes
        raise UserError(
            f"{data} has observations {list(obs)} and {act} actions, {name} has "
            f"{list(own_obs)} and {own_act}: data of another "
            "task? Use its own task, or task=none to train only"
        )
    return Spec(shapes[0][1], shapes[0][2])


def description(plan: Plan) -> dict[str, Any]:
    """What makes two runs the same run."""
    options = {k: v for k, v in asdict(plan.options).items() if k not in FREE}
    data = plan.dataset.sha256 if plan.dataset is not None else None
    return {**options, "hyper": asdict(plan.cfg), "data": data}


def headline(plan: Plan) -> str:
    """What is about to happen, in two lines."""
    o, data = plan.options, plan.dataset
    rows = "no data" if data is None else f"{data.num_rows:,} rows of {data.path or data.name}"
    table = f"; settings of the table's row {plan.pattern}" if plan.pattern else ""
    where = "" if plan.task.env_id else "\nno environment: training without evaluation"
    return f"{o.algorithm} on {o.task}, seeds {plan.seeds}: {rows}{table}{where}"


def train_group(
    plan: Plan,
    folders: Sequence[SeedFolder],
    show: bool,
    watch: Callable[[Trainer], None] | None,
) -> None:
    """Trains seeds that are at the same point, side by side."""
    o, seeds = plan.options, [f.seed for f in folders]
    device = hardware.device(o.device)
    data = plan.dataset and plan.algorithm(plan.spec, plan.cfg).prepare(plan.dataset)
    transform = Transform.fit(plan.cfg, data, plan.spec.observation_shape)
    if data is not None:
        learnt = transform.dataset(data)
        columns = batch_columns(plan.algorithm, plan.cfg, learnt)
        source = ReplayBuffer.from_dataset(learnt, columns=columns, device=device)
    else:
        source = ReplayBuffer(
            plan.spec.observation_shape,
            plan.spec.action_dim,
            o.num_env_steps,
            streams=len(seeds),
            device=device,
        )
    choices = stored_choices(folders) or first_choices(o, device)
    engine = Engine(
        lambda _: plan.algorithm(plan.spec, plan.cfg, o.num_updates or o.num_env_steps),
        seeds,
        source,
        batch_size=o.batch_size,
        device=device,
        precision=choices["precision"],
        compile=choices["compile"] is True,
    )
    if choices["compile"] is None:
        updates = o.num_updates or int(o.num_env_steps * o.utd)
        engine.compiled = hardware.compiling_pays(engine.eager_seconds(), updates)
        choices["compile"] = engine.compiled
    if choices["threads"] is None:
        choices["threads"] = engine.choose_threads(hardware.cores())
    phases = {
        name: n if o.pretrain_updates is None else o.pretrain_updates
        for name, n in engine.algorithm.phases.items()
    }
    threads = min(hardware.cores(), 8)
    evaluation = (
        envs.make_vector(plan.task, len(seeds) * o.eval_episodes, num_threads=threads)
        if plan.task.env_id
        else None
    )
    collector = None
    if o.num_env_steps:
        env = envs.make_vector(plan.task, len(seeds))
        random_steps = getattr(plan.cfg, "random_steps", 0)
        collector = Collector(engine, env, source, transform, random_steps)
    clock, settings = common_checkpoint(folders), description(plan)
    for folder in folders:
        folder.agree(settings)
        if clock is None:
            folder.rewind(-1, -1)
            write_json(folder.path / "environment.json", environment(plan, choices))
    trackers = [tracker(o.tracker, f.path, str(f.path), settings, clock or 0) for f in folders]
    trainer = Trainer(
        o,
        plan.task,
        engine,
        transform,
        list(folders),
        trackers,
        phases=phases,
        evaluation=evaluation,
        collector=collector,
        watch=watch,
        show=show,
    )
    if clock is not None:
        trainer.resume(clock)
    try:
        trainer.run()
    finally:
        trainer.bar.close()
        for t in trackers:
            t.close()
    for s, folder in enumerate(folders):
        finish(plan, trainer, s, folder, choices)
    if evaluation is not None:
        evaluation.close()


def common_checkpoint(folders: Sequence[SeedFolder]) -> int | None:
    """The newest point that all seeds have."""
    common = set.intersection(*(set(f.checkpoints()) for f in folders))
    return max(common) if common else None


def stored_choices(folders: Sequence[SeedFolder]) -> dict[str, Any] | None:
    """What was chosen by measurement when the run began, to be used again when it resumes."""
    path = folders[0].path / "environment.json"
    if common_checkpoint(folders) is None or not path.is_file():
        return None
    choices = read_json(path)["choices"]
    torch.set_num_threads(choices["threads"])
    return dict(choices)


def first_choices(o: TrainOptions, device: torch.device) -> dict[str, Any]:
    """Precision, compilation and threads for this machine and run; None: to be measured."""
    precision = o.precision
    if precision == "auto":
        passed = config.algorithm_yaml(o.algorithm).get("parity") or {}
        precision = "bf16" if "bf16" in passed and hardware.has_bf16(device) else "fp32"
    compiled = {"auto": None, "always": True, "never": False}[o.compile]
    if compiled is None and (missing := hardware.compiler_missing()):
        print(f"not compiling: {missing}")
        compiled = False
    measure = device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ
    threads = None if measure else torch.get_num_threads()
    return {"precision": precision, "compile": compiled, "threads": threads}


def batch_columns(algorithm: type[Algorithm], cfg: Any, data: Dataset) -> dict[str, np.ndarray]:
    """The algorithm's further batch columns. Raises UserError where the data lacks one."""
    columns = {}
    for name in algorithm.needs:
        if name == "mc_returns":
            columns[name] = data.monte_carlo_returns(cfg.discount)
        elif name == "costs" and "costs" in data.extras:
            columns[name] = data.extras["costs"]
        elif name == "next_actions":
            following = np.arange(data.num_rows) + 1
            following[data.episode_ends] -= 1  # never another episode's
            columns[name] = data.actions[following]
        elif name == "timesteps":
            starts = np.repeat(data.episode_starts, data.episode_lengths())
            columns[name] = np.arange(data.num_rows) - starts
        else:
            raise UserError(f"{data.path or data.name} has no {name}, which {algorithm} needs")
    return columns


def environment(plan: Plan, choices: dict[str, Any]) -> dict[str, Any]:
    """Versions, hardware and data: what a result depends on besides its configuration."""
    data = plan.dataset
    return {
        **hardware.description(),
        "dataset": None if data is None else data.path,
        "dataset_sha256": None if data is None else data.sha256,
        "choices": choices,
    }


def finish(
    plan: Plan, trainer: Trainer, s: int, folder: SeedFolder, choices: dict[str, Any]
) -> None:
    """The policy bundle, then result.json, which marks the seed as finished."""
    o, data, reference = plan.options, plan.dataset, plan.task.reference
    last = trainer.last[s] if trainer.last else None
    score = None if last is None or reference is None else plan.task.score(last.returns)
    behaviour = None if data is None else data.episode_returns().mean()
    progress = trainer.progress
    rate = progress.timed_updates / progress.seconds if progress.seconds else None
    newest = list(folder.checkpoints().values())
    result = {
        "algorithm": o.algorithm,
        "task": o.task,
        "dataset": None if data is None else data.path or data.name,
        "dataset_sha256": None if data is None else data.sha256,
        "seed": folder.seed,
        "seeds_stacked": len(trainer.folders),
        "num_updates": trainer.engine.updates,
        "num_env_steps": trainer.env_steps,
        "seconds": round(progress.wall_seconds, 3),
        "compile_seconds": round(trainer.engine.compile_seconds, 3),
        "updates_per_second": rate,
        "device": str(trainer.engine.device),
        "precision": choices["precision"],
        "compiled": choices["compile"],
        "returns": None if last is None else last.returns,
        "success": None if last is None or last.success is None else last.success,
        "mean_return": None if last is None else last.returns.mean(),
        "score": None if score is None else score.mean(),
        "behaviour_return": behaviour,
        "behaviour_score": (
            None if behaviour is None or reference is None else plan.task.score(behaviour).item()
        ),
        "score_reference": None if reference is None else asdict(reference),
        "diverged_at": progress.diverged.get(folder.seed),
        "last_checkpoint": str(newest[-1].relative_to(folder.path)) if newest else None,
        "version": __version__,
        "commit": hardware.commit(),
    }
    result = plain(result)
    if folder.seed not in progress.diverged:
        policy = trainer.policy(
            s, {k: v for k, v in result.items() if k not in ("returns", "success")}
        )
        write_atomically(folder.bundle, lambda temporary: bundle.write(temporary, policy))
    write_json(folder.result, result)
