"""`offline-rl train`: from a task's name to scored policies.

Order of work: options, then data, then everything else; so a mistake costs seconds, and nothing is
written before the checks pass.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

import envs
from offline_rl.algorithms.common.registry import algorithm_yaml
from offline_rl.algorithms.common.schedule import ONLINE
from offline_rl.data.transform import Transform
from offline_rl.engine.engine import Engine
from offline_rl.online.collector import Collector
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.training.finetune import Start
from offline_rl.training.options import TrainOptions
from offline_rl.training.plan import (
    Member,
    Plan,
    description,
    headline,
    prepare,
    stacked,
)
from offline_rl.training.result import Result, environment, finish
from offline_rl.training.run_folder import Done, SeedFolder, run_folder
from offline_rl.training.sources import further_columns, sources_of
from offline_rl.training.trackers import tracker
from offline_rl.training.trainer import Trainer
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import locked, read_json, write_json
from policies import Spec


def train(
    *,
    show: bool = True,
    watch: Callable[[Trainer], None] | None = None,
    start: Start | None = None,
    **keys: Any,
) -> Result:
    """Trains and evaluates. keys: the command line's; `algorithm.beta` may be `algorithm__beta`.

    A list given for a hyper-parameter that is a number makes one run for each of its values, named
    after it; all of them train side by side. watch: called after each evaluation. start: what
    `finetune` goes on from. The same call again continues an interrupted run; on a finished one it
    does nothing. Raises UserError for whatever the user can mend.
    """
    plan = prepare(keys, start)
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


def train_group(
    plan: Plan,
    members: Sequence[Member],
    show: bool,
    watch: Callable[[Trainer], None] | None,
) -> None:
    """Trains members that are at the same point, side by side."""
    o, folders = plan.options, [m.folder for m in members]
    seeds = [f.seed for f in folders]
    utd = plan.interaction.online.utd
    earlier = plan.start.num_updates if plan.start is not None else 0
    horizon = o.num_updates or earlier or int(o.num_env_steps * utd)  # updates, for schedules
    device = hardware.device(o.device)
    data = plan.dataset and plan.algorithm(plan.spec, plan.cfg).prepare(plan.dataset)
    if plan.start is None:
        transform = Transform.fit(plan.cfg, data, plan.spec.observation_shape)
    else:
        transform = begun_with(plan.start, seeds, plan.spec)
    sources = sources_of(plan, data, transform, seeds, device)
    main = "update" if o.num_updates else ONLINE
    choices = stored_choices(folders) or first_choices(o, device)
    engine = Engine(
        lambda s: plan.algorithm(plan.spec, members[s].cfg, horizon, plan.interaction),
        seeds,
        sources,
        batch_size=plan.cfg.batch_size,
        device=device,
        precision=choices["precision"],
        compile=choices["compile"] is True,
        values=stacked([m.cfg for m in members]),
    )
    if choices["compile"] is None:
        engine.compiled = hardware.compiling_pays(engine.eager_seconds(main), horizon)
        choices["compile"] = engine.compiled
    if choices["threads"] is None:
        choices["threads"] = engine.choose_threads(hardware.cores(), main)
    threads = min(hardware.cores(), 8)
    evaluation = (
        envs.make_vector(plan.task, len(seeds) * o.eval_episodes, num_threads=threads)
        if plan.task.env_id
        else None
    )
    collector = None
    if o.num_env_steps:
        assert isinstance(sources.online, ReplayBuffer)
        collector = Collector(
            engine,
            lambda: envs.make_vector(plan.task, 1),
            sources.online,
            transform,
            plan.interaction.online,
            partial(further_columns, plan.algorithm, plan.interaction.cfg),
        )
    done = common_checkpoint(folders)
    for member in members:
        folder = member.folder
        folder.agree(member.description)
        if done is None:
            folder.rewind(-1, -1)
            write_json(folder.path / "environment.json", environment(plan, choices))
    trackers = [
        tracker(
            o.tracker, m.folder.path, str(m.folder.path), m.description, done.updates if done else 0
        )
        for m in members
    ]
    trainer = Trainer(
        o,
        plan.task,
        engine,
        transform,
        folders,
        trackers,
        schedule=plan.schedule,
        begun=plan.start.updates if plan.start is not None else 0,
        evaluation=evaluation,
        collector=collector,
        watch=watch,
        show=show,
    )
    if done is not None:
        trainer.resume(done)
    elif plan.start is not None:
        go_on(engine, plan.start)
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
    for made in (evaluation, collector):
        if made is not None:
            made.close()


def begun_with(start: Start, seeds: Sequence[int], spec: Spec) -> Transform:
    """The transform of the run that is gone on from. Raises UserError where it does not fit."""
    _, progress = start.folder(seeds[0]).load(start.checkpoints[seeds[0]][0])
    transform = Transform.from_json(progress["transform"])
    shape = transform.normaliser.mean.shape
    if shape != spec.observation_shape:
        raise UserError(
            f"{start.run} learnt from observations {list(shape)}, the task has "
            f"{list(spec.observation_shape)}: fine-tune it on its own task"
        )
    return transform


def go_on(engine: Engine, start: Start) -> None:
    """Puts every seed where its checkpoint stands. Raises UserError naming what differs."""
    for s, seed in enumerate(engine.seeds):
        path = start.folder(seed).checkpoints()[start.checkpoints[seed][0]]
        tensors, _ = start.folder(seed).load(start.checkpoints[seed][0])
        tensors = {k: v for k, v in tensors.items() if not k.startswith("buffer/")}
        try:
            own = engine.seed_state(s)
            if own.keys() != tensors.keys():
                tensors = engine.algorithm.adopt(own, tensors)
            engine.load_seed_state(s, tensors)
        except ValueError as error:
            remedy = "give the options of its networks, as algorithm.hidden=…, or its own algorithm"
            raise UserError(f"{path} cannot be gone on from: {error}; {remedy}") from None


def common_checkpoint(folders: Sequence[SeedFolder]) -> Done | None:
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
        passed = algorithm_yaml(o.algorithm).get("parity") or {}
        precision = "bf16" if "bf16" in passed and hardware.has_bf16(device) else "fp32"
    compiled = {"auto": None, "always": True, "never": False}[o.compile]
    if compiled is None and (missing := hardware.compiler_missing()):
        print(f"not compiling: {missing}")
        compiled = False
    measure = device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ
    threads = None if measure else torch.get_num_threads()
    return {"precision": precision, "compile": compiled, "threads": threads}
