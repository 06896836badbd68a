"""`offline-rl train`: from a task's name to scored policies.

Order of work: options, then data, then everything else; so a mistake costs seconds, and nothing is
written before the checks pass.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec
from itertools import product
from math import inf, prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

import envs
from envs import Task
from offline_rl import config, hardware
from offline_rl.algorithm import Algorithm, check_stackable
from offline_rl.collect import Collector
from offline_rl.config import TrainOptions
from offline_rl.data import Dataset, load
from offline_rl.engine import Engine
from offline_rl.errors import UserError
from offline_rl.files import locked, read_json, write_atomically, write_json
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.mixtures import WithExpert
from offline_rl.replay.streaming import Stream
from offline_rl.rundir import SeedFolder, plain, run_folder
from offline_rl.track import tracker
from offline_rl.trainer import Trainer
from offline_rl.transform import Transform, range_of_returns
from offline_rl.version import __version__
from policies import Spec, bundle

DATA_FIELDS = ("data_dir",)  # options that say where things lie, not what is learnt
FREE = (*DATA_FIELDS, "seeds", "out", "tracker", "device", "compile", "precision", "stream")


@dataclass(frozen=True)
class Result:
    """What a run came to, or several side by side."""

    path: Path  # the folder above the seeds; above the runs where there are several
    results: list[dict[str, Any]]  # each seed's result.json, run after run

    @property
    def scores(self) -> list[float]:
        """Each seed's last normalised score; its mean return where there are no references."""
        return [r["score"] if r["score"] is not None else r["mean_return"] for r in self.results]


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


def train(
    *, show: bool = True, watch: Callable[[Trainer], None] | None = None, **keys: Any
) -> Result:
    """Trains and evaluates. keys: the command line's; `algorithm.beta` may be `algorithm__beta`.

    A list given for a hyper-parameter that is a number makes one run for each of its values, named
    after it; all of them train side by side. watch: called after each evaluation. The same call
    again continues an interrupted run; on a finished one it does nothing. Raises UserError for
    whatever the user can mend.
    """
    plan = prepare(keys)
    o = plan.options
    runs = {name: run_folder(o.out, o.task, o.algorithm, name) for name in plan.settings}
    path = next(iter(runs.values())) if len(runs) == 1 else run_folder(o.out, o.task, o.algorithm)
    with ExitStack() as locks:
        for run in runs.values():
            locks.enter_context(locked(run))
        members = [
            Member(SeedFolder(runs[name], seed), cfg, description(plan, name))
            for name, cfg in plan.settings.items()
            for seed in plan.seeds
        ]
        for member in members:
            if member.folder.config.is_file() or member.folder.finished:
                member.folder.agree(member.description)
        left = [m for m in members if not m.folder.finished]
        say = print if show else (lambda *_: None)
        if not left:
            say(f"{path}: already finished; nothing to do")
        else:
            say(headline(plan))
        begun = [m for m in left if m.folder.checkpoints()]
        for group in (begun, [m for m in left if m not in begun]):
            if group:
                train_group(plan, group, show, watch)
    return Result(path, [read_json(m.folder.result) for m in members])


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
    count = options.seeds
    if isinstance(count, int) and not 1 <= count <= 901:
        raise UserError(
            f"seeds={count}: give a count from 1 to 901, or a list such as seeds=[7,42]"
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
        k: config.coerce(v, list[float], f"algorithm.{k}")
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
        settings[name], pattern = config.algorithm_config(
            options.algorithm, task, {**hyper, **chosen}
        )
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
    table = f"; settings of the table's row {plan.pattern}" if plan.pattern else ""
    where = "" if plan.task.env_id else "\nno environment: training without evaluation"
    count = len(plan.settings)
    several = f" for each of {count} settings" if count > 1 else ""
    notes = "".join(f"\n{note}" for note in data.notes) if data is not None else ""
    return f"{o.algorithm} on {o.task}, seeds {plan.seeds}{several}: {rows}{table}{where}{notes}"


def train_group(
    plan: Plan,
    members: Sequence[Member],
    show: bool,
    watch: Callable[[Trainer], None] | None,
) -> None:
    """Trains members that are at the same point, side by side."""
    o, folders = plan.options, [m.folder for m in members]
    seeds, horizon = [f.seed for f in folders], o.num_updates or o.num_env_steps
    device = hardware.device(o.device)
    data = plan.dataset and plan.algorithm(plan.spec, plan.cfg).prepare(plan.dataset)
    transform = Transform.fit(plan.cfg, data, plan.spec.observation_shape)
    source: ReplayBuffer | WithExpert | Stream
    if data is not None and streams(plan, data, device):
        source = streamed(plan, data, transform, seeds, device)
    elif data is not None:
        expert = plan.expert and transform.dataset(plan.expert)
        source = offline_source(
            plan.algorithm, plan.cfg, transform.dataset(data), expert, device=device
        )
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
        lambda s: plan.algorithm(plan.spec, members[s].cfg, horizon),
        seeds,
        source,
        batch_size=plan.cfg.batch_size,
        device=device,
        precision=choices["precision"],
        compile=choices["compile"] is True,
        values=stacked([m.cfg for m in members]),
    )
    if choices["compile"] is None:
        updates = o.num_updates or int(o.num_env_steps * o.utd)
        engine.compiled = hardware.compiling_pays(engine.eager_seconds(), updates)
        choices["compile"] = engine.compiled
    if choices["threads"] is None:
        choices["threads"] = engine.choose_threads(hardware.cores())
    threads = min(hardware.cores(), 8)
    evaluation = (
        envs.make_vector(plan.task, len(seeds) * o.eval_episodes, num_threads=threads)
        if plan.task.env_id
        else None
    )
    collector = None
    if o.num_env_steps:
        assert isinstance(source, ReplayBuffer)
        env = envs.make_vector(plan.task, len(seeds))
        random_steps = getattr(plan.cfg, "random_steps", 0)
        collector = Collector(engine, env, source, transform, random_steps)
    clock = common_checkpoint(folders)
    for member in members:
        folder = member.folder
        folder.agree(member.description)
        if clock is None:
            folder.rewind(-1, -1)
            write_json(folder.path / "environment.json", environment(plan, choices))
    trackers = [
        tracker(o.tracker, m.folder.path, str(m.folder.path), m.description, clock or 0)
        for m in members
    ]
    trainer = Trainer(
        o,
        plan.task,
        engine,
        transform,
        folders,
        trackers,
        phases=phases(plan, engine.algorithm),
        evaluation=evaluation,
        collector=collector,
        watch=watch,
        show=show,
    )
    if clock is not None:
        trainer.resume(clock)
    try:
        trainer.run()
    except torch.OutOfMemoryError as error:
        count, batch = len(members), plan.cfg.batch_size
        total = hardware.memory(device) / 2**30
        fewer = f"{count // 2} seeds at a time" if count > 1 else f"batch_size={batch // 2}"
        raise UserError(
            f"{count} seeds side by side with batches of {batch} need more than the {total:.0f} "
            f"GiB of {device}; {fewer} would need about half, and what is done is kept"
        ) from error
    finally:
        trainer.bar.close()
        for t in trackers:
            t.close()
    for s, folder in enumerate(folders):
        finish(plan, trainer, s, folder, choices)
    if evaluation is not None:
        evaluation.close()


def stacked(cfgs: Sequence[Any]) -> dict[str, list[float]]:
    """The fields in which `cfgs` differ, with each one's value."""
    columns = {f.name: [getattr(cfg, f.name) for cfg in cfgs] for f in fields(cfgs[0])}
    return {name: values for name, values in columns.items() if any(v != values[0] for v in values)}


def common_checkpoint(folders: Sequence[SeedFolder]) -> int | None:
    """The newest point that all seeds have."""
    common = set.intersection(*(set(f.checkpoints()) for f in folders))
    return max(common) if common else None


def stored_choices(folders: Sequence[SeedFolder]) -> dict[str, Any] | None:
    """What was chosen by measurement when the run began, to be used again when it resumes."""
    path = folders[0].path / "environment.json"
    if common_checkpoint(folders) is None or not path.is_file():
        return None
    if (choices := read_json(path).get("choices")) is None:
        raise UserError(
            f"{path} does not say how the run began; remove {path.parent} to begin anew"
        )
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


def offline_source(
    algorithm: type[Algorithm],
    cfg: Any,
    data: Dataset,
    expert: Dataset | None = None,
    *,
    device: torch.device | str = "cpu",
) -> ReplayBuffer | WithExpert:
    """Where offline batches come from; data and the expert's as they are learnt from."""
    columns = batch_columns(algorithm, cfg, data)
    buffer = ReplayBuffer.from_dataset(data, columns=columns, device=device)
    if expert is None:
        return buffer
    return WithExpert(buffer, ReplayBuffer.from_dataset(expert, device=device))


def streams(plan: Plan, data: Dataset, device: torch.device) -> bool:
    """Whether the data stays outside the device's memory. Raises UserError where it cannot."""
    needed = ReplayBuffer.bytes_for(data)
    free, give = hardware.free_memory(device), plan.options.stream
    fits = needed < 0.8 * free
    if give == "never" or (give == "auto" and fits):
        if not fits:
            rows = int(data.num_rows * 0.8 * free / needed)
            raise UserError(
                f"stream=never: {data.num_rows:,} rows need {needed / 2**30:.1f} GiB on {device}, "
                f"where {free / 2**30:.1f} are free: about {rows:,} rows would fit"
            )
        return False
    for reason, holds in {
        "learns from windows of several steps": plan.algorithm.source is not Algorithm.source,
        "has an expert's data beside the other": plan.expert is not None,
        "learns online": bool(plan.options.num_env_steps),
    }.items():
        if holds:
            raise UserError(
                f"{plan.options.algorithm} {reason}, which cannot be streamed; the data needs "
                f"{needed / 2**30:.1f} GiB on {device}, where {free / 2**30:.1f} are free"
            )
    return True


def streamed(
    plan: Plan, data: Dataset, transform: Transform, seeds: Sequence[int], device: torch.device
) -> Stream:
    """The data where it lies, for `plan`'s batches."""
    raw = transform.all_but_observations(data)
    return Stream(
        raw,
        seeds,
        plan.cfg.batch_size,
        normalise=transform.normaliser,
        columns=batch_columns(plan.algorithm, plan.cfg, raw),
        period=plan.algorithm(plan.spec, plan.cfg).period,
        device=device,
    )


def batch_columns(algorithm: type[Algorithm], cfg: Any, data: Dataset) -> dict[str, np.ndarray]:
    """The algorithm's further batch columns. Raises KeyError where the data has no costs."""
    columns = {}
    for name in algorithm.needs:
        if name == "expert":  # no column, but a batch of its own
            continue
        if name == "mc_returns":
            columns[name] = algorithm.mc_returns(cfg, data)
        elif name == "costs":
            columns[name] = data.extras["costs"]
        elif name == "next_actions":
            following = np.arange(data.num_rows) + 1
            following[data.episode_ends] -= 1  # never another episode's
            columns[name] = data.actions[following]
        elif name == "timesteps":
            starts = np.repeat(data.episode_starts, data.episode_lengths())
            columns[name] = np.arange(data.num_rows) - starts
        else:
            raise ValueError(f"{algorithm.__name__}.needs names {name}, which is no column")
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
        "success": None if last is None else last.success,
        "costs": None if last is None else last.costs,
        "mean_return": None if last is None else last.returns.mean(),
        "score": None if score is None else score.mean(),
        "behaviour_return": behaviour,
        "behaviour_score": (
            None if behaviour is None or reference is None else plan.task.score(behaviour).item()
        ),
        "score_reference": None if reference is None else asdict(reference),
        "diverged_at": progress.diverged[s],
        "last_checkpoint": str(newest[-1].relative_to(folder.path)) if newest else None,
        "version": __version__,
        "commit": hardware.commit(),
    }
    result = plain(result)
    if progress.diverged[s] is None:
        policy = trainer.policy(
            s, {k: v for k, v in result.items() if k not in ("returns", "success", "costs")}
        )
        write_atomically(folder.bundle, lambda temporary: bundle.write(temporary, policy))
    write_json(folder.result, result)
