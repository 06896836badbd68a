"""`offline-rl train`: train the seeds of one or more runs, evaluate them, write their results.

Options are checked first, then the data, then everything else. Nothing is written before all checks
pass.
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
from offline_rl.algorithms.common.registry import rebuild_algorithm, run_label
from offline_rl.algorithms.common.schedule import Interact, Learn
from offline_rl.data.env_spec import note_on_normalized_actions
from offline_rl.data.transform import Transform, small_columns
from offline_rl.engine.cost import COMPILED_SPEEDUP
from offline_rl.engine.engine import Engine
from offline_rl.online.collector import Collector
from offline_rl.online.rollouts import RolloutCollector
from offline_rl.replay.batch import Sources
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.rollouts import Rollouts
from offline_rl.replay.streaming import Stream
from offline_rl.training.choices import Choices, choose, choose_precision, load_choices
from offline_rl.training.finetune import Start, network_settings
from offline_rl.training.options import TrainOptions
from offline_rl.training.plan import (
    CHANGING,
    Member,
    Plan,
    description,
    headline,
    is_extension,
    prepare,
    stacked,
)
from offline_rl.training.result import Result, environment, finish
from offline_rl.training.run_folder import (
    Done,
    SeedFolder,
    common_checkpoint,
    learner_tensors,
    named_task,
    run_folder,
)
from offline_rl.training.sources import further_columns, sources_of
from offline_rl.training.trackers import Tracker, log_in, tracker
from offline_rl.training.trainer import Trainer
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError, close_quietly
from offline_rl.utils.files import lock_folder, read_json_object, remove_temporaries, write_json
from offline_rl.utils.options import format_value, options_signature
from offline_rl.utils.text import at_a_time
from offline_rl.utils.trees import to_json_values
from policies import Spec, channels
from policies.networks.defaults import denormals_restored, torch_defaults
from policies.networks.mlp import MLP

MIN_COMPILED_UPDATES = 50  # a phase with fewer updates in total is not compiled


@torch_defaults()
@denormals_restored()
def train(
    *,
    show: bool = True,
    watch: Callable[[Trainer], None] | None = None,
    start: Start | None = None,
    **keys: Any,
) -> Result:
    """Train and evaluate the seeds of one or more runs.

    keys: the options of the command line; write `algorithm__beta` for `algorithm.beta`. A list for
    a numeric hyper-parameter makes one run for each value, named after it; all of them train in
    parallel.
    show: print progress. watch: called after each evaluation. start: the run to continue from.

    A repeated call continues an interrupted run and does not change a finished run. A higher
    num_updates extends either. Ctrl-C and SIGTERM save a checkpoint first. Raises UserError for
    mistakes in options, data or files.
    """
    plan = prepare(keys, start)
    if start is not None:
        load_transform(start, plan.seeds, plan.spec, plan.actions)  # raises if specs differ
    o, members = plan.options, members_of(plan)
    runs = list(dict.fromkeys(m.folder.path.parent for m in members))
    path = runs[0] if len(runs) == 1 else runs[0].parent
    if o.tracker == "wandb" and not all(m.folder.finished for m in members):
        log_in(plan.wandb)
    with ExitStack() as locks:
        for run in runs:
            locks.enter_context(lock_folder(run))
        extended = extended_members(plan, members)
        finished = [m for m in members if m.folder.finished]
        pending = [m for m in members if m in extended or m not in finished]
        say = print if show else (lambda *_: None)
        say_once = cache(say)
        if start is not None and o.task != start.task:
            say(f"{start.run} was trained on {start.task} and continues on {o.task}")
        if not pending:
            say(f"{path}: already finished; nothing to do")
        else:
            say(headline(plan))
            if (note := range_note(plan)) is not None:
                say(note)
        for member in pending:
            remove_temporaries(member.folder.path)
        resumed = [m for m in pending if m.folder.checkpoints() and m not in finished]
        new = [m for m in pending if m not in resumed and m not in finished]
        if plan.stackable and killed_between_first_checkpoints(resumed, new):
            say(
                "The last process was killed before every seed had saved a checkpoint. All seeds "
                "restart at update 0."
            )
            resumed, new = [], [m for m in pending if m not in finished]
        groups = [*resume_groups([m for m in pending if m in finished]), *resume_groups(resumed)]
        groups.append(new)
        why = plan.limit
        if not plan.stackable and len(pending) > 1:
            why = why or f"{o.algorithm}: training seeds in parallel would not be faster"
            why += ". Seeds train one after another"
            groups = [[m] for group in groups for m in group]
        if pending and why is not None:
            say(why)
        for group in groups:
            if group:
                train_group(plan, group, show, watch, say_once)
    names = [m.folder.path.parent.name for m in members]
    return Result(path, [m.folder.outcome() for m in members], names)


train.__signature__ = options_signature(train, TrainOptions)  # type: ignore[attr-defined]


def check(keys: Mapping[str, Any]) -> None:
    """Raise UserError if `train` would refuse `keys`. Writes nothing."""
    plan = prepare(keys)
    extended_members(plan, members_of(plan))


def members_of(plan: Plan) -> list[Member]:
    """Return every seed of every run, with its folder."""
    o = plan.options
    method = str(run_folder(o.out, named_task(vars(o)), run_label(o.algorithm)))
    return [
        Member(SeedFolder(run_folder(method, name), seed), cfg, description(plan, name, seed))
        for name, cfg in plan.settings.items()
        for seed in plan.seeds
    ]


def extended_members(plan: Plan, members: Sequence[Member]) -> list[Member]:
    """Return the members that are extended to more updates.

    Raises UserError if a folder contains a run with another configuration, or a damaged result.
    """
    extended = [m for m in members if is_extension(plan, m)]
    for member in members:
        if member.folder.config.is_file() or member.folder.finished:
            member.folder.agree(member.description, changeable_options(member, extended))
        if member.folder.finished:
            member.folder.outcome()  # raises if it is damaged
    return extended


def changeable_options(member: Member, extended: Sequence[Member]) -> tuple[str, ...]:
    """Return the stored options that may change when this member is resumed."""
    return (*CHANGING, "num_updates") if member in extended else CHANGING


def resume_groups(members: Sequence[Member]) -> list[list[Member]]:
    """Return the groups of seeds that can resume together because they share a checkpoint."""
    groups: list[tuple[set[Done], list[Member]]] = []
    for member in members:
        checkpoints = set(member.folder.checkpoints())
        for k, (common, group) in enumerate(groups):
            if common & checkpoints:
                groups[k] = common & checkpoints, [*group, member]
                break
        else:
            groups.append((checkpoints, [member]))
    return [group for _, group in groups]


def killed_between_first_checkpoints(resumed: Sequence[Member], new: Sequence[Member]) -> bool:
    """Return True if a process was killed when only some seeds had saved their first checkpoint.

    Then some seeds have exactly one checkpoint, and another seed has a config file, because it was
    started, but no checkpoint. All of them must restart together.
    """
    first = bool(resumed) and all(len(m.folder.checkpoints()) == 1 for m in resumed)
    return first and any(m.folder.config.is_file() for m in new)


def train_group(
    plan: Plan,
    members: Sequence[Member],
    show: bool,
    watch: Callable[[Trainer], None] | None,
    say_once: Callable[[str], None],
) -> None:
    """Train members that are at the same update in parallel, then close environments and logs."""
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
    """Implement `train_group`. opened: closes environments, threads and trackers at the end."""
    o, folders = plan.options, [m.folder for m in members]
    seeds = [f.seed for f in folders]
    done = common_checkpoint(folders)
    stored = load_choices(folders[0], done) if done is not None else None
    engine, sources, transform = build_engine(plan, members, stored)
    if isinstance(sources.offline, Stream):
        opened.callback(sources.offline.close)
    if show:
        engine.log = partial(tqdm.write, file=sys.stdout)
    choices = stored or choose(o, engine, *longest_phase(plan))
    engine.compiled, engine.fallbacks = choices.compile, dict(choices.fallbacks)
    engine.uncompiled_phases = {
        name for name, size in updates_by_phase(plan).items() if size < MIN_COMPILED_UPDATES
    }
    torch.set_num_threads(choices.threads)  # compiled code depends on the number of threads
    if show and not stored:
        rewards = plan.algorithm.uses_rewards(plan.cfg)
        notes = small_columns(transform, plan.dataset, plan.spec, plan.cfg, rewards=rewards)
        print(*notes, choices, sep="\n")
    if done is None and plan.start is not None:
        load_start(engine, plan.start)  # may raise UserError: nothing may be written before
    threads = min(hardware.num_cores(), 8)
    collector: Collector | RolloutCollector | None = None
    if isinstance(sources.rollouts, Rollouts):
        assert sources.online is None or isinstance(sources.online, ReplayBuffer)
        collector = RolloutCollector(
            engine,
            lambda count: plan.make_envs(count, threads),
            sources.rollouts,
            transform,
            sources.online,
            partial(further_columns, plan.algorithm, plan.interaction.cfg),
        )
    elif o.num_env_steps:
        assert isinstance(sources.online, ReplayBuffer)
        collector = Collector(
            engine,
            lambda: plan.make_envs(1),
            sources.online,
            transform,
            plan.interaction.online,
            partial(further_columns, plan.algorithm, plan.interaction.cfg),
            overlap=o.overlap,
        )
    if collector is not None:
        opened.callback(close_quietly, collector)
    # the collector needs one environment for each seed, so it opens its environments first;
    # evaluation can do with fewer
    evaluation: envs.VectorEnv | None = None
    if plan.task.env_id:
        count = len(seeds) * len(plan.starts)
        count = min(count, o.eval_envs or count)
        evaluation = plan.make_envs(count, threads, fewer=True)
        opened.callback(close_quietly, evaluation)
        if evaluation.num_envs < count:
            why = "" if evaluation.limit == plan.limit else f"{evaluation.limit}. "
            say_once(f"{why}Evaluation runs {at_a_time(evaluation.num_envs)}")
    for member in members:
        folder = member.folder
        # a different num_updates is allowed here, because extended_members has checked it
        folder.agree(member.description, (*CHANGING, "num_updates"))
        folder.renew(member.description)
        if done is None:
            folder.rewind(None)
        if done is None or is_unreadable(folder.path / "environment.json"):
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
        group = f"{named_task(vars(o))}/{run_label(o.algorithm)}/{m.description['name']}"
        trackers.append(tracker(o.tracker, m.folder, group, m.description, plan.wandb, first))
        opened.callback(trackers[-1].close)
    try:
        trainer.run()
    except Exception as error:
        if hardware.is_out_of_memory(error):
            count, batch = len(members), plan.cfg.batch_size
            device = engine.device
            total = hardware.total_memory(device) / 2**30
            fewer = f"{count // 2} seeds at a time" if count > 1 else f"batch_size={batch // 2}"
            raise UserError(
                f"{count} seeds in parallel with batches of {batch} need more than the "
                f"{total:.0f} GiB of {device}. Checkpoints are kept; {fewer} would need about half "
                "of the memory."
            ) from error
        expected = isinstance(error, UserError | envs.Broken)
        for folder in folders:
            folder.fail(f"{error}" if expected else repr(error))
        if isinstance(error, envs.Broken):
            raise UserError(str(error)) from error
        raise
    for s, folder in enumerate(folders):
        finish(plan, trainer, s, folder, choices)


def build_engine(
    plan: Plan, members: Sequence[Member], stored: Choices | None = None
) -> tuple[Engine, Sources, Transform]:
    """Return the engine that trains members in parallel, its data sources and the transform."""
    o, seeds, cfgs = plan.options, [m.folder.seed for m in members], [m.cfg for m in members]
    earlier = plan.start.num_updates if plan.start is not None else 0
    online = int(o.num_env_steps * plan.interaction.online.utd)
    schedule_length = o.num_updates or earlier or online  # updates
    device = hardware.select_device(o.device)
    data = plan.dataset and plan.algorithm(plan.spec, plan.cfg).prepare(plan.dataset)
    if plan.start is None:
        transform = Transform.fit(plan.cfg, data, plan.spec.observation_shapes)
    else:
        transform = load_transform(plan.start, seeds, plan.spec, plan.actions)
    sources = sources_of(plan, data, transform, seeds, device)
    engine = Engine(
        lambda s: plan.algorithm(plan.spec, cfgs[s], schedule_length, plan.interaction.of(cfgs[s])),
        seeds,
        sources,
        batch_size=plan.cfg.batch_size,
        device=device,
        precision=stored.precision if stored else choose_precision(o, device),
        values=stacked(cfgs),
    )
    return engine, sources, transform


@torch_defaults()
def expected_seconds(keys: Mapping[str, Any]) -> float:
    """Estimate the seconds that the updates of a run take, all seeds together.

    The estimate counts operations and is right within a factor of about two. Evaluations and
    environment steps are not included. Writes nothing. Raises UserError if `train` would refuse.
    """
    plan = prepare(keys)
    name, cfg = next(iter(plan.settings.items()))
    o = plan.options
    run = run_folder(o.out, named_task(vars(o)), run_label(o.algorithm), name)
    members = [Member(SeedFolder(run, seed), cfg, {}) for seed in plan.seeds]
    groups = [members] if plan.stackable else [[member] for member in members]
    engine, _, _ = build_engine(plan, groups[0])
    updates, phase = longest_phase(plan)
    choices = choose(plan.options, engine, updates, phase)
    work = engine.update_cost(phase)
    one = work.seconds(engine.device.type, choices.precision, choices.threads)
    return one * updates * len(groups) / (COMPILED_SPEEDUP if choices.compile else 1)


def longest_phase(plan: Plan) -> tuple[int, str]:
    """Return the number of updates and the name of the phase with the most updates."""
    updates = updates_by_phase(plan)
    phase = max(updates, key=updates.__getitem__)
    return updates[phase], phase


def updates_by_phase(plan: Plan) -> dict[str, int]:
    """Return the number of updates of each phase in the complete schedule."""
    utd, updates = plan.interaction.online.utd, dict[str, int]()
    for piece in plan.schedule:
        factor = {Learn: 1.0, Interact: utd}.get(type(piece), 0.0)
        updates[piece.phase] = updates.get(piece.phase, 0) + int(piece.size * factor)
    return updates


def load_transform(
    start: Start, seeds: Sequence[int], spec: Spec, actions: Spec | None = None
) -> Transform:
    """Return the transform of the run to continue from. Raises UserError if `spec` does not fit.

    actions: spec with the action range of the environment, if it states one. Default: `spec`.
    """
    transform, start_spec = load_transform_and_spec(start, seeds[0])
    if not fits(transform, spec):
        shapes = channels.map_channels(lambda part: list(part.mean.shape), transform.parts)
        raise UserError(
            f"{start.run} was trained on observations {shapes}, but the task has "
            f"{channels.map_channels(list, spec.observation_shapes)}. Use the task or data of the "
            "run."
        )
    learned, here = start_spec or spec, actions or spec
    if (problem := learned.mismatch(spec)) is not None:
        raise UserError(
            f"{start.run} cannot continue with this data or task: {problem}. Use data and a task "
            "like those of the run."
        )
    try:
        same = learned.conversion(here) is None
    except ValueError:
        same = False
    if not same:
        raise UserError(
            f"{start.run} cannot continue with this data or task: the policy's action range is "
            f"{learned.action_range}; here it is {here.action_range}. Use a task with range "
            f"{learned.action_range}, or retrain for {here.action_range}."
        )
    return transform


def load_transform_and_spec(start: Start, seed: int) -> tuple[Transform, Spec | None]:
    """Return the transform and the policy's spec of a seed to continue from.

    The spec is None if an earlier version saved the checkpoint.
    """
    _, progress = start.folder(seed).load(start.checkpoints[seed][0])
    spec = Spec.from_json(progress["spec"]) if "spec" in progress else None
    return Transform.from_json(progress["transform"]), spec


def range_note(plan: Plan) -> str | None:
    """Return a note if normalized actions of the loaded policy are fractions of a new range."""
    spec = None
    if plan.start is not None:
        spec = load_transform_and_spec(plan.start, plan.seeds[0])[1]
    elif plan.base is not None and plan.base.bundle is not None:
        spec = plan.base.bundle.spec
    if spec is None or plan.actions is None:
        return None
    return note_on_normalized_actions(spec, plan.actions, f"task {plan.options.task}")


def fits(transform: Transform, spec: Spec) -> bool:
    """Return True if the transform normalizes observations of the shape in `spec`."""
    shape = channels.map_channels(lambda part: part.mean.shape, transform.parts)
    return shape == (
        spec.observation_shapes if spec.single_vector else {c.name: c.shape for c in spec.vectors}
    )


def load_start(engine: Engine, start: Start) -> None:
    """Load every seed's checkpoint of the run to continue from.

    Raises UserError naming the difference if the networks do not fit.
    """
    for s, seed in enumerate(engine.seeds):
        path = start.folder(seed).checkpoints()[start.checkpoints[seed][0]]
        tensors, _ = start.folder(seed).load(start.checkpoints[seed][0])
        tensors = learner_tensors(tensors)
        try:
            state = engine.seed_state(s)
            if state.keys() != tensors.keys():
                tensors = engine.algorithm.initialize_from(state, tensors)
            engine.load_seed_state(s, tensors)
        except ValueError as error:
            settings, cfg = (
                network_settings(type(engine.algorithm.cfg), start.hyper),
                engine.algorithm.cfg,
            )
            differing = {k: v for k, v in settings.items() if to_json_values(getattr(cfg, k)) != v}
            keys = " ".join(f"algorithm.{k}={format_value(v)}" for k, v in differing.items())
            remedy = f"Set {keys}, as in that run" if keys else "Its networks are of another kind"
            raise UserError(f"cannot continue from {path}: {error}. {remedy}.") from None
    if (difference := network_difference(engine.algorithm, start)) is not None:
        raise UserError(f"cannot continue from run={start.run}: {difference}")


def network_difference(algorithm: Algorithm, start: Start) -> str | None:
    """Return a difference between networks whose tensor shapes are equal; None if there is none.

    For example, the activations may differ. Bounds of the standard deviation may differ and are not
    compared. Policies that predict action chunks are not compared either.
    """
    if hasattr(algorithm.modules[algorithm.policy], "plan"):
        return None
    learned = rebuild_algorithm(start.algorithm, start.hyper, algorithm.spec)
    for name, module in algorithm.modules.items():
        other = learned.modules.get(name)
        if other is None:
            continue
        here, there = module_description(module), module_description(other)
        for key in sorted(here.keys() | there.keys()):
            if here.get(key) != there.get(key):
                return f"its {name} has {key}={there.get(key)}, but here it is {here.get(key)}"
    return None


def module_description(module: nn.Module) -> dict[str, Any]:
    """Return the kind and arguments of a network: everything but its tensors."""
    arguments = {k: to_json_values(v) for k, v in getattr(module, "arguments", {}).items()}
    arguments.pop("log_std_range", None)
    for layers in module.modules():
        if isinstance(layers, MLP):
            arguments["activation"] = layers.activation
            arguments["norm_after_activation"] = layers.norm_after_activation
    return {"kind": type(module).__name__} | arguments


def is_unreadable(path: Path) -> bool:
    """Return True, and print the problem, if the JSON file is missing or damaged."""
    try:
        read_json_object(path)
    except UserError as error:
        print(f"{error}. The file is written again.")
        return True
    return False
