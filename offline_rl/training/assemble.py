"""Assembly of a training group: engine, collector, evaluator, trackers and trainer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tqdm import tqdm

import envs
from envs import VectorEnv
from offline_rl.algorithms.common.base import Algorithm
from offline_rl.algorithms.common.registry import source_file
from offline_rl.algorithms.common.schedule import ONLINE, axes
from offline_rl.data.transform import Transform, small_columns
from offline_rl.engine.choices import Choices, choose, choose_precision
from offline_rl.engine.cost import COMPILED_SPEEDUP
from offline_rl.engine.engine import Engine
from offline_rl.evaluation.evaluator import Evaluator
from offline_rl.evaluation.specifications import signal_reader
from offline_rl.online.collector import Collector
from offline_rl.online.sinks import ReplaySink, RolloutSink, Sink
from offline_rl.replay.batch import Sources
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.rollouts import Rollouts
from offline_rl.runs.folder import Done, SeedFolder, common_checkpoint
from offline_rl.runs.refusals import phase_updates
from offline_rl.runs.run import Run, differing_values, refuse_other
from offline_rl.training import checkpoint
from offline_rl.training.continuation import load_dynamics, load_start, load_transform
from offline_rl.training.curves import Curves
from offline_rl.training.prepare import Prepared, prepare
from offline_rl.training.result import finish, limits_of_run, store_best_safe
from offline_rl.training.sources import facts_of, sources_of
from offline_rl.training.trackers import Tracker, tracker
from offline_rl.training.trainer import Trainer
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError, close_quietly
from offline_rl.utils.files import read_json_object, write_json
from offline_rl.utils.text import at_a_time
from policies.networks.defaults import torch_defaults

if TYPE_CHECKING:
    from offline_rl.engine.ranks import Ranks

MIN_COMPILED_UPDATES = 50  # a phase with fewer updates in total is not compiled


def build_engine(
    prepared: Prepared,
    runs: Sequence[Run],
    stored: Choices | None = None,
    ranks: Ranks | None = None,
) -> tuple[Engine, Sources, Transform]:
    """Return the engine that trains `runs` in parallel, its data sources and the transform.

    stored: for resumed runs, the choices with which they were started. ranks: processes that share
    the batches.
    """
    run, spec, seeds = runs[0], prepared.spec, [each.seed for each in runs]
    device = hardware.select_device(run.compute.device)
    if run.start is None:
        transform = Transform.fit(run.method.cfg, prepared.data, spec.observation_shapes)
    else:
        transform = load_transform(run.start, seeds, spec, prepared.actions)
    for model in prepared.models.values():
        model.check_transform(transform)
    base = None if prepared.base is None else prepared.base.bundle
    if base is not None:  # its observation is a single vector
        transform = replace(transform, normalizer=next(iter(base.normalizers.values())))
    sources = sources_of(prepared, transform, seeds, device)
    precision = choose_precision(run.compute.precision, run.method.name, device)
    facts = facts_of(prepared, transform) if prepared.learner.uses_facts else None

    def make(s: int) -> Algorithm:
        algorithm = runs[s].learner(spec, base)
        algorithm.facts = facts
        return algorithm

    engine = Engine(
        make,
        seeds,
        sources,
        batch_size=run.method.cfg.batch_size,
        device=device,
        precision=stored.precision if stored else precision,
        values=differing_values(runs),
        ranks=ranks,
    )
    return engine, sources, transform


def train_group(
    prepared: Prepared,
    runs: Sequence[Run],
    show: bool,
    watch: Callable[[Trainer], None] | None,
    say_once: Callable[[str], None],
    ranks: Ranks | None = None,
) -> None:
    """Train runs that are at the same update in parallel, and write their results.

    Environments, threads and trackers are closed at the end. say_once: prints a line once. ranks:
    processes that share the batches; those other than rank 0 write nothing.
    """
    with ExitStack() as opened:
        trainer, choices = assemble(prepared, runs, show, watch, say_once, opened, ranks)
        try:
            trainer.run()
        except Exception as error:
            if not trainer.folders or (other := explained(error, runs, trainer.engine)) is error:
                raise
            raise other from error
        for s, run in enumerate(runs if trainer.folders else ()):
            finish(prepared, trainer, s, run, choices)


def assemble(
    prepared: Prepared,
    runs: Sequence[Run],
    show: bool,
    watch: Callable[[Trainer], None] | None,
    say_once: Callable[[str], None],
    opened: ExitStack,
    ranks: Ranks | None = None,
) -> tuple[Trainer, Choices]:
    """Return the trainer of `runs`, and the choices of precision, compilation and threads.

    Everything that can be refused is checked before anything is written. opened: the stack that
    closes environments, threads and trackers. ranks: processes that share the batches. Rank 0 reads
    the checkpoint and sends its content; the trainers of the others have no folders.
    """
    writes = ranks is None or ranks.rank == 0
    run, folders = runs[0], [each.folder for each in runs if writes]
    done = common_checkpoint(folders) if writes else None
    stored = load_choices(folders[0], done) if done is not None else None
    stored = stored if ranks is None else share_choices(ranks, stored)
    engine, sources, transform = build_engine(prepared, runs, stored, ranks)
    for source in sources.values():
        opened.callback(source.close)
    if show:
        engine.log = partial(tqdm.write, file=sys.stdout)
    updates, phase = longest_phase(prepared)
    choices = stored or choose(run.compute.compile, engine, updates, phase)
    choices = choices if ranks is None else share_choices(ranks, choices) or choices
    use_choices(engine, choices, prepared)
    if show and not stored:
        rewards = prepared.learner.uses_rewards(run.method.cfg)
        notes = small_columns(
            transform, prepared.dataset, prepared.spec, run.method.cfg, rewards=rewards
        )
        print(*notes, choices, sep="\n")
    if done is None and run.start is not None:
        load_start(engine, run.start)
    if done is None and run.data.dynamics is not None:
        load_dynamics(engine, prepared.models)
    collector = open_collector(prepared, engine, sources, transform, opened)
    evaluator = None
    if writes:
        evaluator = open_evaluator(prepared, engine, transform, watch, say_once, opened)
    for each in runs if writes else ():
        store(prepared, each, choices, new=done is None)

    def after_evaluation(trainer: Trainer) -> None:
        store_best_safe(prepared, trainer, runs)
        if watch is not None:
            watch(trainer)

    curves = Curves(
        folders,
        run.task,
        open_tracker=partial(open_tracker, prepared, runs),
        show=show,
        cost_limit=limits_of_run(run).single,
    )
    trainer = Trainer(
        engine,
        prepared.schedule,
        curves,
        eval_every=run.evaluation.eval_every,
        checkpoint_every=run.evaluation.checkpoint_every,
        transform=transform,
        choices=asdict(choices),
        evaluator=evaluator,
        collector=collector,
        overlap=run.budget.overlap,
        watch=after_evaluation,
    )
    opened.callback(trainer.close)
    if done is not None:
        trainer.resume(done)
    trainer.work.progress = checkpoint.send(trainer.progress, engine)
    return trainer, choices


def share_choices(ranks: Ranks, choices: Choices | None) -> Choices | None:
    """Return the choices of rank 0, for all ranks."""
    content = ranks.share(None if choices is None else asdict(choices))
    return None if content is None else Choices(**content)


def load_choices(folder: SeedFolder, done: Done) -> Choices:
    """Load the choices with which a seed's run was started.

    Raises UserError if they are unreadable, or if the run was compiled and no compiler is found.
    """
    try:
        choices = Choices(**folder.load(done)[1]["choices"])
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{folder.path}: the checkpoint does not contain the run's precision, compilation and "
            f"threads ({error}). Remove {folder.path} to restart."
        ) from None
    if choices.compile and (missing := hardware.missing_compiler()):
        remedy = "Install one, or give the new run another name=…"
        raise UserError(f"{folder.path} was started with compilation, but {missing}. {remedy}.")
    return choices


def use_choices(engine: Engine, choices: Choices, prepared: Prepared) -> None:
    """Set compilation and CPU threads of the engine."""
    engine.compiled, engine.fallbacks = choices.compile, dict(choices.fallbacks)
    engine.uncompiled_phases = {
        name for name, size in updates_by_phase(prepared).items() if size < MIN_COMPILED_UPDATES
    }
    torch.set_num_threads(choices.threads)  # compiled code depends on the number of threads


def open_collector(
    prepared: Prepared,
    engine: Engine,
    sources: Sources,
    transform: Transform,
    opened: ExitStack,
) -> Collector | None:
    """Return the collector of environment steps; None without online training."""
    run, threads = prepared.run, min(hardware.num_cores(), 8)
    if not run.budget.num_env_steps:
        return None
    columns = prepared.learner.for_phase(ONLINE).make_columns
    sink: Sink
    rollouts, replay = sources.get("rollouts"), sources.get("online")
    assert isinstance(replay, ReplayBuffer | None)
    if isinstance(rollouts, Rollouts):
        sink = RolloutSink(engine, rollouts, columns, replay)
    else:
        assert replay is not None
        sink = ReplaySink(engine, replay, run.method.interaction.online, columns)
        if run.compute.actors:
            return open_actors(prepared, sink, transform, opened)

    def make(count: int) -> VectorEnv:
        return prepared.make_envs(count, min(count, threads))

    collector = Collector(engine, make, sink, transform, overlap=run.budget.overlap)
    opened.callback(close_quietly, collector)
    return collector


def open_actors(
    prepared: Prepared, sink: ReplaySink, transform: Transform, opened: ExitStack
) -> Collector:
    """Return a collector whose environments run in actor processes."""
    from offline_rl.online.actors.learner import ActorOptions, RemoteCollector  # only with actors=

    run, compute = prepared.run, prepared.run.compute
    env = prepared.make_envs(1)  # for its time limit
    close_quietly(env)
    address, timeout_s = compute.actor_address or ActorOptions.address, compute.env_timeout_s
    options = ActorOptions(
        compute.actors, address, compute.token_file, timeout_s or ActorOptions.env_timeout_s
    )
    method = run.method.name, asdict(run.method.cfg)
    collector = RemoteCollector(
        sink, run.task, transform, method, options, longest=env.max_episode_steps
    )
    opened.callback(close_quietly, collector)
    return collector


def open_evaluator(
    prepared: Prepared,
    engine: Engine,
    transform: Transform,
    watch: Callable[[Trainer], None] | None,
    say_once: Callable[[str], None],
    opened: ExitStack,
) -> Evaluator | None:
    """Return the evaluator; None if there is no environment, or if no policy is trained.

    It is opened after the collector, because the collector needs all its environments and
    evaluation can use fewer. With `watch`, evaluations do not run in the background.
    """
    run, threads = prepared.run, min(hardware.num_cores(), 8)
    if not run.task.env_id or run.fits_model_only:
        return None
    count = len(engine.seeds) * len(prepared.eval_seeds)
    count = min(count, run.evaluation.eval_envs or count)
    env = prepared.make_envs(count, threads, fewer=True)
    opened.callback(close_quietly, env)
    if env.num_envs < count:
        why = "" if env.limit == prepared.limit else f"{env.limit}. "
        say_once(f"{why}Evaluation runs {at_a_time(env.num_envs)}")
    seeds, background = prepared.eval_seeds, watch is None
    reader = signal_reader(run.evaluation.eval_stl, env)
    return Evaluator(engine, env, transform.normalizer, seeds, background=background, reader=reader)


def store(prepared: Prepared, run: Run, choices: Choices, *, new: bool) -> None:
    """Write a seed's config.json and environment.json.

    new: the seed has no checkpoint, so the logs of earlier attempts are removed.
    """
    folder, path = run.folder, run.folder.path / "environment.json"
    refuse_other(folder, run, extends=True)  # `extended_runs` has checked extensions
    folder.store_config(run.config())
    if new:
        folder.rewind(None)
    if new or is_unreadable(path):
        write_json(path, environment(prepared, choices))


def environment(prepared: Prepared, choices: Choices) -> dict[str, Any]:
    """Return the content of environment.json: versions, hardware, data and choices."""
    data = prepared.dataset
    return {
        **hardware.describe_machine(),
        "world_size": hardware.world_size(),
        "dataset": None if data is None else data.path,
        "dataset_sha256": None if data is None else data.sha256,
        "choices": asdict(choices),
        "algorithm": source_file(prepared.run.method.name),
    }


def is_unreadable(path: Path) -> bool:
    """Return True, and print the problem, if the JSON file is missing or damaged."""
    try:
        read_json_object(path)
    except UserError as error:
        print(f"{error}. The file is written again.")
        return True
    return False


def open_tracker(
    prepared: Prepared, runs: Sequence[Run], s: int, first: Mapping[str, int]
) -> Tracker:
    """Return the tracker of the s-th seed. first: first step of each phase to be logged."""
    run = runs[s]
    group = "/".join(run.names)
    interacts = {*axes(prepared.schedule).values()} == {"env_steps"}
    options: Any = {"step_metric": "env_steps" if interacts else "updates"}
    where = run.output.tracker, run.folder, group
    return tracker(*where, run.config(), run.wandb, first=first, **options)


def explained(error: Exception, runs: Sequence[Run], engine: Engine) -> Exception:
    """Return the error to raise instead of `error`, and store its reason in the folders.

    If memory was exhausted, the returned error states a remedy, and no reason is stored.
    """
    if hardware.is_out_of_memory(error):
        count, batch = len(runs), runs[0].method.cfg.batch_size
        total = hardware.total_memory(engine.device) / 2**30
        fewer = f"{count // 2} seeds at a time" if count > 1 else f"batch_size={batch // 2}"
        return UserError(
            f"{count} seeds in parallel with batches of {batch} need more than the "
            f"{total:.0f} GiB of {engine.device}. Checkpoints are kept; {fewer} would need about "
            "half of the memory."
        )
    for run in runs:
        run.folder.fail(str(error) if isinstance(error, UserError | envs.Broken) else repr(error))
    return UserError(str(error)) if isinstance(error, envs.Broken) else error


def longest_phase(prepared: Prepared) -> tuple[int, str]:
    """Return the number of updates and the name of the phase with the most updates."""
    updates = updates_by_phase(prepared)
    phase = max(updates, key=updates.__getitem__)
    return updates[phase], phase


def updates_by_phase(prepared: Prepared) -> dict[str, int]:
    """Return the number of updates of each phase in the complete schedule."""
    phases = dict.fromkeys(piece.phase for piece in prepared.schedule)
    return {phase: phase_updates(prepared.learner, prepared.schedule, phase) for phase in phases}


@torch_defaults()
def expected_seconds(runs: Sequence[Run]) -> float:
    """Estimate the time of all updates, in seconds, of runs that train in one program.

    The estimate counts operations. It is accurate within a factor of about two. Evaluations and
    environment steps are not included. Writes nothing. Raises UserError if `train` would refuse
    the runs.
    """
    prepared = prepare(runs)
    groups = [prepared.runs] if prepared.trains_in_parallel else [[r] for r in prepared.runs]
    engine, _, _ = build_engine(prepared, groups[0])
    updates, phase = longest_phase(prepared)
    choices = choose(runs[0].compute.compile, engine, updates, phase)
    cost = engine.update_cost(phase)
    seconds = cost.seconds(engine.device.type, choices.precision, choices.threads)
    return seconds * updates * len(groups) / (COMPILED_SPEEDUP if choices.compile else 1)
