"""`offline-rl train`: from a task's name to scored policies.

Order of work: options, then data, then everything else; so a mistake costs seconds, and nothing is
written before the checks pass.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

import envs
from offline_rl.algorithms.common.registry import algorithm_yaml
from offline_rl.data.transform import Transform
from offline_rl.engine.engine import Engine
from offline_rl.online.collector import Collector
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.mixtures import WithExpert
from offline_rl.replay.streaming import Stream
from offline_rl.training.options import TrainOptions
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
from offline_rl.training.trackers import tracker
from offline_rl.training.trainer import Trainer
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import locked, read_object, write_json


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
            if member.folder.finished:
                member.folder.outcome()  # refuses a damaged one
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
    return Result(path, [m.folder.outcome() for m in members])


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
    choices = first_choices(o, device) if done is None else stored_choices(folders[0], done)
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
        engine.compiled = hardware.compiling_pays(engine.eager_seconds(), horizon)
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
    for member in members:
        folder = member.folder
        folder.agree(member.description)
        if done is None:
            folder.rewind(None)
        if done is None or lost(folder.path / "environment.json"):
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
        phases=phases(plan, engine.algorithm),
        evaluation=evaluation,
        collector=collector,
        choices=choices,
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
    """The newest point of which all seeds have a whole checkpoint; None where none has any.

    Names the damaged ones that it passes over. Raises UserError where no whole ones are left.
    """
    common = set.intersection(*(set(f.checkpoints()) for f in folders))
    for done in sorted(common, reverse=True):
        try:
            for folder in folders:
                folder.load(done)
        except UserError as error:
            print(f"{error}: not used")
        else:
            return done
    if common:
        raise UserError(
            f"{folders[0].path.parent}: no checkpoint is left to go on from; remove the folder to "
            "begin again, or give the new run another name=…"
        )
    return None


def stored_choices(folder: SeedFolder, done: Done) -> dict[str, Any]:
    """What was chosen by measurement when the run began, to be used again when it resumes."""
    path, (_, progress) = folder.path / "environment.json", folder.load(done)
    try:  # before format 3 of checkpoints they were in that file alone
        choices = progress["choices"] if "choices" in progress else read_object(path)["choices"]
        torch.set_num_threads(choices["threads"])
        return {name: choices[name] for name in ("precision", "compile", "threads")}
    except (KeyError, RuntimeError, TypeError) as error:
        raise UserError(
            f"{path} does not say how the run began ({error}); remove {path.parent} to begin anew"
        ) from None


def lost(path: Path) -> bool:
    """Whether the JSON file is missing or damaged; says so."""
    try:
        read_object(path)
    except UserError as error:
        print(f"{error}: written anew")
        return True
    return False


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
