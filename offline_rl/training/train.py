"""`offline-rl train`: from a task's name to scored policies.

Order of work: options, then data, then everything else; so a mistake costs seconds, and nothing is
written before the checks pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch

import envs
from offline_rl.algorithms.common.registry import label
from offline_rl.data.transform import Transform
from offline_rl.engine.engine import Engine
from offline_rl.online.collector import Collector
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.mixtures import WithExpert
from offline_rl.replay.streaming import Stream
from offline_rl.training.choices import choose, precision, stored
from offline_rl.training.plan import (
    Member,
    Plan,
    description,
    headline,
    phases,
    prepare,
    stacked,
)
from offline_rl.training.result import Result, environment, finish
from offline_rl.training.run_folder import Done, SeedFolder, run_folder
from offline_rl.training.sources import offline_source, streamed, streams
from offline_rl.training.trackers import log_in, tracker
from offline_rl.training.trainer import Trainer
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import locked, read_json, write_json


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
    method = run_folder(o.out, o.task, label(o.algorithm))
    runs = {name: run_folder(str(method), name) for name in plan.settings}
    path = next(iter(runs.values())) if len(runs) == 1 else method
    members = [
        Member(SeedFolder(runs[name], seed), cfg, description(plan, name))
        for name, cfg in plan.settings.items()
        for seed in plan.seeds
    ]
    if o.tracker == "wandb" and not all(m.folder.finished for m in members):
        log_in(plan.wandb)
    with ExitStack() as locks:
        for run in runs.values():
            locks.enter_context(locked(run))
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
    horizon = o.num_updates or int(o.num_env_steps * o.utd)  # updates, for schedules
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
    done = common_checkpoint(folders)
    begun = stored(folders[0].path) if done is not None else None
    engine = Engine(
        lambda s: plan.algorithm(plan.spec, members[s].cfg, horizon),
        seeds,
        source,
        batch_size=plan.cfg.batch_size,
        device=device,
        precision=begun.precision if begun else precision(o, device),
        values=stacked([m.cfg for m in members]),
    )
    choices = begun or choose(o, engine, horizon)
    engine.compiled = choices.compile
    torch.set_num_threads(choices.threads)  # before anything is compiled, which is for so many
    if show and not begun:
        print(choices)
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
    for member in members:
        folder = member.folder
        folder.agree(member.description)
        if done is None:
            folder.rewind(-1, -1)
            write_json(folder.path / "environment.json", environment(plan, choices))
    trackers = [
        tracker(
            o.tracker,
            m.folder,
            f"{o.task}/{o.algorithm}/{m.description['name']}",
            m.description,
            plan.wandb,
            done.updates if done else 0,
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
        phases=phases(plan, engine.algorithm),
        evaluation=evaluation,
        collector=collector,
        watch=watch,
        show=show,
    )
    if done is not None:
        trainer.resume(done)
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


def common_checkpoint(folders: Sequence[SeedFolder]) -> Done | None:
    """The newest point that all seeds have."""
    common = set.intersection(*(set(f.checkpoints()) for f in folders))
    return max(common) if common else None
