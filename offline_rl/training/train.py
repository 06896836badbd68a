"""`offline-rl train`: from a task's name to scored policies.

Order of work: options, then data, then everything else; so a mistake costs seconds, and nothing is
written before the checks pass.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

import envs
from offline_rl.algorithms.common.base import Algorithm
from offline_rl.algorithms.common.registry import label, rebuild_algorithm
from offline_rl.algorithms.common.schedule import Interact, Learn
from offline_rl.data.env_spec import note_on_shares
from offline_rl.data.transform import Transform, small_columns
from offline_rl.engine.engine import Engine
from offline_rl.engine.work import COMPILED_SPEEDUP
from offline_rl.online.collector import Collector
from offline_rl.online.rollouts import RolloutCollector
from offline_rl.replay.batch import Sources
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.rollouts import Rollouts
from offline_rl.replay.streaming import Stream
from offline_rl.training.choices import Choices, choose, precision, stored
from offline_rl.training.finetune import Start, networks_of
from offline_rl.training.options import TrainOptions
from offline_rl.training.plan import (
    CHANGING,
    Member,
    Plan,
    description,
    headline,
    lengthened,
    prepare,
    stacked,
)
from offline_rl.training.result import Result, environment, finish
from offline_rl.training.run_folder import (
    Done,
    SeedFolder,
    common_checkpoint,
    learner,
    named_task,
    run_folder,
)
from offline_rl.training.sources import further_columns, sources_of
from offline_rl.training.trackers import Tracker, log_in, tracker
from offline_rl.training.trainer import Trainer
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError, close_quietly
from offline_rl.utils.files import locked, read_object, remove_temporaries, write_json
from offline_rl.utils.options import signature, spelled
from offline_rl.utils.text import at_a_time
from offline_rl.utils.trees import plain
from policies import Spec, channels
from policies.networks.defaults import denormals_restored, torch_defaults
from policies.networks.mlp import MLP

BRIEF = 50  # updates; a phase of fewer, such as a gate, is not compiled


@torch_defaults()
@denormals_restored()
def train(
    *,
    show: bool = True,
    watch: Callable[[Trainer], None] | None = None,
    start: Start | None = None,
    **keys: Any,
) -> Result:
    """Trains and evaluates. keys: the command line's; `algorithm.beta` may be `algorithm__beta`.

    A list given for a hyper-parameter that is a number makes one run for each of its values, named
    after it; all of them train side by side. watch: called after each evaluation. The same call
    again continues an interrupted run; on a finished one it does nothing; with a higher num_updates
    it goes on with either. Ctrl-C and SIGTERM leave a checkpoint. Raises UserError for
    whatever the user can mend.
    """
    plan = prepare(keys, start)
    if start is not None:
        begun_with(
            start, plan.seeds, plan.spec, plan.actions
        )  # refuses observations of another kind
    o, members = plan.options, members_of(plan)
    runs = list(dict.fromkeys(m.folder.path.parent for m in members))
    path = runs[0] if len(runs) == 1 else runs[0].parent
    if o.tracker == "wandb" and not all(m.folder.finished for m in members):
        log_in(plan.wandb)
    with ExitStack() as locks:
        for run in runs:
            locks.enter_context(locked(run))
        longer = begun_alike(plan, members)
        done = [m for m in members if m.folder.finished]
        left = [m for m in members if m in longer or m not in done]
        say = print if show else (lambda *_: None)
        say_once = cache(say)
        if start is not None and o.task != start.task:
            say(f"{start.run} learned in {start.task}, and goes on in {o.task}")
        if not left:
            say(f"{path}: already finished; nothing to do")
        else:
            say(headline(plan))
            if (note := range_note(plan)) is not None:
                say(note)
        for member in left:
            remove_temporaries(member.folder.path)
        begun = [m for m in left if m.folder.checkpoints() and m not in done]
        new = [m for m in left if m not in begun and m not in done]
        if plan.stackable and torn(begun, new):
            say("killed between the first checkpoints of two seeds: all begin again, together")
            begun, new = [], [m for m in left if m not in done]
        groups = [*abreast([m for m in left if m in done]), *abreast(begun), new]
        why = plan.limit
        if not plan.stackable and len(left) > 1:
            why = f"{why or f'{o.algorithm}: networks too large to gain by it'}, so one seed after "
            why += "another"
            groups = [[m] for group in groups for m in group]
        if left and why is not None:
            say(why)
        for group in groups:
            if group:
                train_group(plan, group, show, watch, say_once)
    names = [m.folder.path.parent.name for m in members]
    return Result(path, [m.folder.outcome() for m in members], names)


train.__signature__ = signature(train, TrainOptions)  # type: ignore[attr-defined]


def check(keys: Mapping[str, Any]) -> None:
    """Raises UserError where `train` would refuse `keys`; nothing is written."""
    plan = prepare(keys)
    begun_alike(plan, members_of(plan))


def members_of(plan: Plan) -> list[Member]:
    """Every seed of every run, with its folder."""
    o = plan.options
    method = str(run_folder(o.out, named_task(vars(o)), label(o.algorithm)))
    return [
        Member(SeedFolder(run_folder(method, name), seed), cfg, description(plan, name, seed))
        for name, cfg in plan.settings.items()
        for seed in plan.seeds
    ]


def begun_alike(plan: Plan, members: Sequence[Member]) -> list[Member]:
    """Those that go on to more updates. Raises UserError where one was begun otherwise."""
    longer = [m for m in members if lengthened(plan, m)]
    for member in members:
        if member.folder.config.is_file() or member.folder.finished:
            member.folder.agree(member.description, free_of(member, longer))
        if member.folder.finished:
            member.folder.outcome()  # refuses a damaged one
    return longer


def free_of(member: Member, longer: Sequence[Member]) -> tuple[str, ...]:
    """In which options a run may go on otherwise than it was begun."""
    return (*CHANGING, "num_updates") if member in longer else CHANGING


def abreast(members: Sequence[Member]) -> list[list[Member]]:
    """Groups that have a checkpoint in common: seeds cut by different commands may have none."""
    groups: list[tuple[set[Done], list[Member]]] = []
    for member in members:
        own = set(member.folder.checkpoints())
        for k, (common, group) in enumerate(groups):
            if common & own:
                groups[k] = common & own, [*group, member]
                break
        else:
            groups.append((own, [member]))
    return [group for _, group in groups]


def torn(begun: Sequence[Member], new: Sequence[Member]) -> bool:
    """Whether a kill came while the first checkpoints of seeds that train together were written.

    Who has begun is at its first one, and others, which have not come to it, had begun too: a group
    begins when the one before it is finished.
    """
    first = bool(begun) and all(len(m.folder.checkpoints()) == 1 for m in begun)
    return first and any(m.folder.config.is_file() for m in new)


def train_group(
    plan: Plan,
    members: Sequence[Member],
    show: bool,
    watch: Callable[[Trainer], None] | None,
    say_once: Callable[[str], None],
) -> None:
    """Train members that are at the same point side by side; close all that was opened for it."""
    with ExitStack() as opened:
        _train_group(plan, members, show, watch, say_once, opened)


def _train_group(
    plan: Plan,
    members: Sequence[Member],
    show: bool,
    watch: Callable[[Trainer], None] | None,
    say_once: Callable[[str], None],
    opened: ExitStack,
) -> None:
    """See `train_group`. opened: closes environments, threads and trackers at the end."""
    o, folders = plan.options, [m.folder for m in members]
    seeds = [f.seed for f in folders]
    done = common_checkpoint(folders)
    begun = stored(folders[0], done) if done is not None else None
    engine, sources, transform = engine_of(plan, members, begun)
    if isinstance(sources.offline, Stream):
        opened.callback(sources.offline.close)
    if show:
        engine.say = partial(tqdm.write, file=sys.stdout)
    choices = begun or choose(o, engine, *longest(plan))
    engine.compiled, engine.fallbacks = choices.compile, dict(choices.fallbacks)
    engine.uncompiled_phases = {name for name, size in sizes(plan).items() if size < BRIEF}
    torch.set_num_threads(choices.threads)  # before anything is compiled, which is for so many
    if show and not begun:
        rewards = plan.algorithm.uses_rewards(plan.cfg)
        said = small_columns(transform, plan.dataset, plan.spec, plan.cfg, rewards=rewards)
        print(*said, choices, sep="\n")
    if done is None and plan.start is not None:
        go_on(engine, plan.start)  # may refuse, before anything is written
    threads = min(hardware.cores(), 8)
    collector: Collector | RolloutCollector | None = None
    if isinstance(sources.rollouts, Rollouts):
        assert sources.online is None or isinstance(sources.online, ReplayBuffer)
        collector = RolloutCollector(
            engine,
            lambda count: plan.world(count, threads),
            sources.rollouts,
            transform,
            sources.online,
            partial(further_columns, plan.algorithm, plan.interaction.cfg),
        )
    elif o.num_env_steps:
        assert isinstance(sources.online, ReplayBuffer)
        collector = Collector(
            engine,
            lambda: plan.world(1),
            sources.online,
            transform,
            plan.interaction.online,
            partial(further_columns, plan.algorithm, plan.interaction.cfg),
            overlap=o.overlap,
        )
    if collector is not None:
        opened.callback(close_quietly, collector)
    # after the collector, which needs one for each seed: fewer are enough
    evaluation: envs.VectorEnv | None = None
    if plan.task.env_id:
        count = len(seeds) * len(plan.starts)
        count = min(count, o.eval_envs or count)
        evaluation = plan.world(count, threads, fewer=True)
        opened.callback(close_quietly, evaluation)
        if evaluation.num_envs < count:
            why = "" if evaluation.limit == plan.limit else f"{evaluation.limit}. "
            say_once(f"{why}Evaluation runs {at_a_time(evaluation.num_envs)}")
    for member in members:
        folder = member.folder
        folder.agree(member.description, (*CHANGING, "num_updates"))  # which is checked
        folder.renew(member.description)
        if done is None:
            folder.rewind(None)
        if done is None or lost(folder.path / "environment.json"):
            write_json(folder.path / "environment.json", environment(plan, choices))
    trackers = list[Tracker]()
    trainer = Trainer(
        o,
        plan.task,
        engine,
        transform,
        folders,
        trackers,
        schedule=plan.schedule,
        evaluation=evaluation,
        starts=plan.starts,
        collector=collector,
        choices=asdict(choices),
        watch=watch,
        show=show,
    )
    opened.callback(trainer.close)
    if done is not None:
        trainer.resume(done)
    first = trainer.clock + 1 if done is not None else 0
    for m in members:
        group = f"{named_task(vars(o))}/{label(o.algorithm)}/{m.description['name']}"
        trackers.append(tracker(o.tracker, m.folder, group, m.description, plan.wandb, first))
        opened.callback(trackers[-1].close)
    try:
        trainer.run()
    except Exception as error:
        if hardware.out_of_memory(error):
            count, batch = len(members), plan.cfg.batch_size
            device = engine.device
            total = hardware.memory(device) / 2**30
            fewer = f"{count // 2} seeds at a time" if count > 1 else f"batch_size={batch // 2}"
            raise UserError(
                f"{count} seeds side by side with batches of {batch} need more than the "
                f"{total:.0f} GiB of {device}; {fewer} would need about half, and what is done is "
                "kept"
            ) from error
        mistake = isinstance(error, UserError | envs.Broken)
        for folder in folders:
            folder.fail(f"{error}" if mistake else repr(error))
        if isinstance(error, envs.Broken):
            raise UserError(str(error)) from error
        raise
    for s, folder in enumerate(folders):
        finish(plan, trainer, s, folder, choices)


def engine_of(
    plan: Plan, members: Sequence[Member], begun: Choices | None = None
) -> tuple[Engine, Sources, Transform]:
    """What trains members side by side, what it learns from, and how that was transformed."""
    o, seeds, own = plan.options, [m.folder.seed for m in members], [m.cfg for m in members]
    earlier = plan.start.num_updates if plan.start is not None else 0
    online = int(o.num_env_steps * plan.interaction.online.utd)
    horizon = o.num_updates or earlier or online  # updates, for schedules
    device = hardware.device(o.device)
    data = plan.dataset and plan.algorithm(plan.spec, plan.cfg).prepare(plan.dataset)
    if plan.start is None:
        transform = Transform.fit(plan.cfg, data, plan.spec.seen)
    else:
        transform = begun_with(plan.start, seeds, plan.spec, plan.actions)
    sources = sources_of(plan, data, transform, seeds, device)
    engine = Engine(
        lambda s: plan.algorithm(plan.spec, own[s], horizon, plan.interaction.of(own[s])),
        seeds,
        sources,
        batch_size=plan.cfg.batch_size,
        device=device,
        precision=begun.precision if begun else precision(o, device),
        values=stacked(own),
    )
    return engine, sources, transform


@torch_defaults()
def expected_seconds(keys: Mapping[str, Any]) -> float:
    """What the updates of a run should take, all seeds together, by their counted work.

    Within a factor of two or so; evaluations and the environment are left out. Nothing is written.
    Raises UserError where the run would be refused.
    """
    plan = prepare(keys)
    name, cfg = next(iter(plan.settings.items()))
    o = plan.options
    run = run_folder(o.out, named_task(vars(o)), label(o.algorithm), name)
    members = [Member(SeedFolder(run, seed), cfg, {}) for seed in plan.seeds]
    groups = [members] if plan.stackable else [[member] for member in members]
    engine, _, _ = engine_of(plan, groups[0])
    updates, phase = longest(plan)
    choices = choose(plan.options, engine, updates, phase)
    work = engine.work(phase)
    one = work.seconds(engine.device.type, choices.precision, choices.threads)
    return one * updates * len(groups) / (COMPILED_SPEEDUP if choices.compile else 1)


def longest(plan: Plan) -> tuple[int, str]:
    """The phase with the most updates, and how many: what compilation and threads are for."""
    found = sizes(plan)
    phase = max(found, key=found.__getitem__)
    return found[phase], phase


def sizes(plan: Plan) -> dict[str, int]:
    """How many updates each phase has in all."""
    utd, found = plan.interaction.online.utd, dict[str, int]()
    for piece in plan.schedule:
        share = {Learn: 1.0, Interact: utd}.get(type(piece), 0.0)
        found[piece.phase] = found.get(piece.phase, 0) + int(piece.size * share)
    return found


def begun_with(
    start: Start, seeds: Sequence[int], spec: Spec, actions: Spec | None = None
) -> Transform:
    """The transform of the run that is gone on from. Raises UserError where it does not fit.

    actions: with the action range of the environment, if it states one. Default: spec.
    """
    transform, known = before(start, seeds[0])
    if not fits(transform, spec):
        learned = channels.each(lambda part: list(part.mean.shape), transform.parts)
        raise UserError(
            f"{start.run} learned from observations {learned}, the task has "
            f"{channels.each(list, spec.seen)}: give its own task, or data of it"
        )
    own, here = known or spec, actions or spec
    if (problem := own.mismatch(spec)) is not None:
        raise UserError(
            f"{start.run} cannot go on with this data or task: {problem}; give it what its own are "
            "like"
        )
    try:
        same = own.conversion(here) is None
    except ValueError:
        same = False
    if not same:
        raise UserError(
            f"{start.run} cannot go on with this data or task: The policy's action range is "
            f"{own.action_range}; here it is {here.action_range}. Use a task with range "
            f"{own.action_range}, or retrain for {here.action_range}"
        )
    return transform


def before(start: Start, seed: int) -> tuple[Transform, Spec | None]:
    """Return the transform and the policy's spec of a seed that is continued.

    The spec is None if an earlier version saved the checkpoint.
    """
    _, progress = start.folder(seed).load(start.checkpoints[seed][0])
    spec = Spec.from_json(progress["spec"]) if "spec" in progress else None
    return Transform.from_json(progress["transform"]), spec


def range_note(plan: Plan) -> str | None:
    """Return a note if the actions of a policy trained before become shares of another range."""
    own = None
    if plan.start is not None:
        own = before(plan.start, plan.seeds[0])[1]
    elif plan.base is not None and plan.base.bundle is not None:
        own = plan.base.bundle.spec
    if own is None or plan.actions is None:
        return None
    return note_on_shares(own, plan.actions, f"task {plan.options.task}")


def fits(transform: Transform, spec: Spec) -> bool:
    """Whether it normalizes what `spec` says is seen."""
    shape = channels.each(lambda part: part.mean.shape, transform.parts)
    return shape == (spec.seen if spec.lone else {c.name: c.shape for c in spec.vectors})


def go_on(engine: Engine, start: Start) -> None:
    """Puts every seed where its checkpoint stands. Raises UserError naming what differs."""
    for s, seed in enumerate(engine.seeds):
        path = start.folder(seed).checkpoints()[start.checkpoints[seed][0]]
        tensors, _ = start.folder(seed).load(start.checkpoints[seed][0])
        tensors = learner(tensors)
        try:
            own = engine.seed_state(s)
            if own.keys() != tensors.keys():
                tensors = engine.algorithm.initialize_from(own, tensors)
            engine.load_seed_state(s, tensors)
        except ValueError as error:
            made = networks_of(type(engine.algorithm.cfg), start.hyper)
            other = {k: v for k, v in made.items() if plain(getattr(engine.algorithm.cfg, k)) != v}
            given = " ".join(f"algorithm.{k}={spelled(v)}" for k, v in other.items())
            remedy = f"that run had {given}" if given else "it is made of other networks"
            raise UserError(f"{path} cannot be gone on from: {error}; {remedy}") from None
    if (differs := other_functions(engine.algorithm, start)) is not None:
        raise UserError(f"run={start.run} cannot be gone on from: {differs}")


def other_functions(own: Algorithm, start: Start) -> str | None:
    """Which network has the same tensors and yet computes something else from them; None: none.

    Bounds of a deviation may differ: they are the method's. Heads of chunks are what their
    algorithms make of them.
    """
    if hasattr(own.modules[own.policy], "plan"):
        return None
    learned = rebuild_algorithm(start.algorithm, start.hyper, own.spec)
    for name, module in own.modules.items():
        other = learned.modules.get(name)
        if other is None:
            continue
        mine, theirs = function(module), function(other)
        for key in sorted(mine.keys() | theirs.keys()):
            if mine.get(key) != theirs.get(key):
                then, now = theirs.get(key), mine.get(key)
                return f"its {name} had {key}={then}, here it is {now}"
    return None


def function(module: nn.Module) -> dict[str, Any]:
    """What a network computes, but for its tensors."""
    told = {k: plain(v) for k, v in getattr(module, "arguments", {}).items()}
    told.pop("log_std_range", None)
    for layers in module.modules():
        if isinstance(layers, MLP):
            told["activation"] = layers.activation
            told["norm_after_activation"] = layers.norm_after_activation
    return {"kind": type(module).__name__} | told


def lost(path: Path) -> bool:
    """Whether the JSON file is missing or damaged; says so."""
    try:
        read_object(path)
    except UserError as error:
        print(f"{error}: written anew")
        return True
    return False
