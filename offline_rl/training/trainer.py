"""Training loop: preliminary phases, offline updates, online steps, evaluations, checkpoints.

A group of seeds trains together. Progress is counted only in updates of the engine and environment
steps of the collector, so a resumed run gives the same result as an uninterrupted one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from envs import Broken, Task, VectorEnv
from offline_rl.algorithms.common.base import Algorithm
from offline_rl.algorithms.common.schedule import (
    ONLINE,
    Collect,
    Fill,
    Interact,
    Learn,
    Piece,
    locate,
)
from offline_rl.data.transform import Transform
from offline_rl.engine.engine import Engine
from offline_rl.evaluation.rollout import Episodes
from offline_rl.online.collector import MAX_FAILURES, Collector, RepeatedFailure
from offline_rl.online.rollouts import RolloutCollector
from offline_rl.online.with_base import BaseFault
from offline_rl.training.choices import LOG_EVERY, log_interval
from offline_rl.training.evaluator import Evaluator, Moment
from offline_rl.training.options import TrainOptions
from offline_rl.training.run_folder import Done, SeedFolder, learner_tensors
from offline_rl.training.trackers import Tracker
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_json_object, write_json
from offline_rl.utils.signals import Abandoned, postpone_signals
from offline_rl.utils.text import format_duration
from policies import Bundle

PROGRESS_EVERY_S = 60.0  # time between two progress lines without a terminal
SLICE_S = 1.0  # seconds of updates between two progress-bar updates and checks for Ctrl-C


@dataclass
class Progress:
    """Timing, divergence and the last evaluation, stored in checkpoints."""

    seconds: float = 0.0  # time spent in updates
    timed_updates: int = 0
    wall_seconds: float = 0.0
    diverged: list[int | None] = field(default_factory=list)  # updates at divergence, per seed
    evaluated: int = -1  # the clock at the last finished evaluation


class Trainer:
    """Training of one group of seeds."""

    def __init__(
        self,
        options: TrainOptions,
        task: Task,
        engine: Engine,
        transform: Transform,
        folders: list[SeedFolder],
        trackers: list[Tracker],
        *,
        schedule: Sequence[Piece],
        evaluation: VectorEnv | None,
        starts: np.ndarray,
        collector: Collector | RolloutCollector | None = None,
        choices: Mapping[str, Any],
        watch: Callable[[Trainer], None] | None = None,
        show: bool = True,
    ) -> None:
        """Create the trainer of one group of S seeds.

        schedule: pieces of work, in order. evaluation: S * episodes environments, or fewer.
        starts: random seeds of the evaluation episodes. choices: precision, compilation and
        threads, stored in checkpoints. watch: called after each evaluation.
        """
        self.watch, self.show, self.choices = watch, show, dict(choices)
        self.options, self.task, self.engine, self.transform = options, task, engine, transform
        self.folders, self.trackers, self.collector = folders, trackers, collector
        self.schedule = schedule
        self._log_interval = cache(partial(log_interval, engine))
        self.progress, self.clock = Progress(diverged=[None] * len(folders)), 0
        self.last: list[Episodes] = []
        self._last_line = (0.0, 0)  # time and clock of the last progress line
        self._should_stop: Callable[[], bool] = lambda: False
        self._saved = Done()  # progress in the newest checkpoint
        self._failed_evaluations = 0  # number of consecutive failures
        self.evaluator: Evaluator | None = None
        if evaluation is not None:
            busy = torch.get_num_threads() if engine.device.type == "cpu" else 1
            background = hardware.num_cores() > busy and watch is None and evaluation.limit is None
            self.evaluator = Evaluator(
                engine, evaluation, transform.normalizer, starts, background=background
            )
        # None: tqdm hides the bar if there is no terminal
        hidden = not show if "ipykernel" in sys.modules else None if show else True
        self.bar = tqdm(total=self.total, disable=hidden, unit="step", dynamic_ncols=True)

    @property
    def total(self) -> int:
        """Clock at the end: updates of `Learn` pieces plus steps and rows of all other pieces."""
        return sum(work.size for work in self.schedule)

    @property
    def work(self) -> tuple[Piece, int] | None:
        """Current piece of the schedule and how much of it is done; None at the end."""
        k, done = locate(self.schedule, self.clock)
        return (self.schedule[k], done) if k < len(self.schedule) else None

    def updates(self, kind: str) -> int:
        """Return a number of updates. kind: `pretrain` (all preliminary phases) or `online`."""
        learn = [work for work in self.schedule if isinstance(work, Learn)]
        if kind == "pretrain":
            return sum(work.updates for work in learn if work.phase not in ("update", ONLINE))
        return self.engine.done.get(ONLINE, 0)

    def run(self) -> None:
        """Run the rest of the schedule.

        Ctrl-C and SIGTERM save a checkpoint and raise KeyboardInterrupt.
        """
        self.bar.update(self.clock - self.bar.n)
        self._last_line, self._saved = (time.monotonic(), self.clock), self._position
        started = time.perf_counter() - self.progress.wall_seconds
        try:
            if not self._has_owed_updates:
                self._evaluate_if_due()
            with postpone_signals(self.bar.write if self.show else (lambda _: None)) as request:
                self._should_stop, self.engine.compiling = request, request.abandon_on_signal
                for stop in self._stops():
                    position = self._position
                    self._advance(stop)
                    self.progress.wall_seconds = time.perf_counter() - started
                    if self._position != position or not self._should_stop():
                        self._log()
                    if not self._should_stop():
                        self._evaluate_if_due()
                        if self.clock == self.total:
                            self._finish_evaluation()
                    if self._should_stop() or self._is_due(self.options.checkpoint_every):
                        self.save()
                    if self._should_stop():
                        raise KeyboardInterrupt
            self._finish_evaluation()
        except RepeatedFailure:
            self.save()
            raise
        finally:
            self.close()

    def close(self) -> None:
        """Stop a running evaluation and close the progress bar. The caller closes environments."""
        if self.evaluator is not None:
            self.evaluator.abandon()
        self.bar.close()

    @property
    def _position(self) -> Done:
        """Environment steps and updates so far."""
        return Done(self.env_steps, self.engine.updates)

    def _period(self, work: Piece) -> int:
        """Return by how much one step of this piece of work advances the clock."""
        if isinstance(work, Learn):
            return self.engine.period(work.phase)
        if isinstance(work, Fill):
            return work.rows
        return self.steps_per_decision if isinstance(work, Collect) else 1

    @property
    def steps_per_decision(self) -> int:
        """Environment steps of one decision in all environments of a seed."""
        assert isinstance(self.collector, RolloutCollector)
        return self.collector.envs_per_seed * self.collector.n_action_steps

    def _stops(self) -> Iterator[int]:
        """Yield the clock values at which to log, evaluate, save or change the phase."""
        marks = list(accumulate(work.size for work in self.schedule))
        if self._has_owed_updates:
            yield self.clock
        while (now := self.clock) < self.total:
            assert self.work is not None
            work, period = self.work[0], self._period(self.work[0])
            log_every = self._log_interval(work.phase) if isinstance(work, Learn) else LOG_EVERY
            every = (log_every, self.options.eval_every, self.options.checkpoint_every)
            end = next(mark for mark in marks if mark > now)
            stop = min((now // e + 1) * e for e in every)
            yield min(now + -(-(stop - now) // period) * period, end)

    def _is_due(self, every: int) -> bool:
        """Return True if a multiple of `every` was passed since the last step, or a phase ended.

        The end of a phase does not count if the phase leaves the acting policy unchanged.
        """
        k, done = locate(self.schedule, self.clock)
        worked = next((j for j in range(k if done else k - 1, 0, -1) if self.schedule[j].size), 0)
        start = sum(work.size for work in self.schedule[:worked])
        before = max(self.clock - self._period(self.schedule[worked]), start)  # before that step
        phases = [work.phase for work in self.schedule]
        end = done == 0 and phases[max(k - 1, 0) : k] != phases[k : k + 1]
        end &= k == 0 or phases[k - 1] not in self.engine.algorithm.phases_without_eval
        return end or self.clock - self.clock % every > before

    def _advance(self, stop: int) -> None:
        """Work until the clock reaches `stop` or a stop is requested, within one piece of work."""
        assert self.work is not None
        work, done = self.work
        if isinstance(work, Learn):
            self.clock += self._learn(stop - self.clock, work.phase, count=True)
            return
        if isinstance(work, Collect):
            assert isinstance(self.collector, RolloutCollector)
            while self.clock < stop and not self._should_stop():
                self.collector.step(adds=work.adds)
                self.clock += self.steps_per_decision
                self.bar.update(self.steps_per_decision)
                self._print_progress(self.clock)
            return
        if isinstance(work, Fill):
            assert isinstance(self.collector, RolloutCollector)
            self.collector.fill(work)
            self.clock += work.rows
            self.bar.update(work.rows)
            return
        self._interact(work, done, stop)

    def _interact(self, work: Interact, done: int, stop: int) -> None:
        """Take environment steps and run the updates of each step after it.

        With overlap, the updates run during the next step.
        """
        assert isinstance(self.collector, Collector)
        collector, overlap = self.collector, self.options.overlap
        if self._has_owed_updates:
            self._run_owed_updates(work.phase)
        while self.clock < stop and not self._should_stop():
            collector.begin()
            if overlap:
                self._run_owed_updates(work.phase, complete=True)
            before, failure = collector.steps, None
            try:
                collector.end()
            except RepeatedFailure as error:  # raised below: the step may have succeeded
                failure = error
            steps = collector.steps - before
            self.clock, done = self.clock + steps, done + steps
            last = done == work.size
            if last or self._has_owed_updates:
                self._run_owed_updates(work.phase, complete=last)
            if failure is not None:
                raise failure
            self.bar.update(1)
            self._print_progress(self.clock)

    def _run_owed_updates(self, phase: str, *, complete: bool = False) -> None:
        """Run the owed updates. complete: run all of them, even if a stop is requested."""
        if owed := self._owed_updates(phase):
            self._learn(owed, phase, complete=complete)

    def _owed_updates(self, phase: str) -> int:
        """Return how many updates are due for the environment steps so far and not yet run."""
        assert isinstance(self.collector, Collector)
        if not self.collector.can_sample(self.engine.batch_size):
            return 0
        learned = self.engine.done.get(phase, 0)
        return max(self._updates_due(phase, self.env_steps) - learned, 0)

    def _updates_due(self, phase: str, env_steps: int) -> int:
        """Return the total number of updates for this many environment steps."""
        algorithm, _ = self.engine.for_phase(phase)
        online = algorithm.interaction.online
        return online.updates_due(env_steps, self.engine.batch_size, algorithm.period)

    @property
    def _has_owed_updates(self) -> bool:
        """True if updates must run before the next environment step.

        With overlap, only a backlog of more than one step's updates counts.
        """
        work = self.work[0] if self.work is not None else None
        if not isinstance(work, Interact) or not self._owed_updates(work.phase):
            return False
        now, before = (self._updates_due(work.phase, self.env_steps - k) for k in (0, 1))
        utd = self.engine.for_phase(work.phase)[0].interaction.online.utd
        return not self.options.overlap or now - before > utd + self.engine.period(work.phase)

    def _learn(
        self, number: int, phase: str, *, count: bool = False, complete: bool = False
    ) -> int:
        """Run `number` updates and return how many were run.

        A requested stop ends the updates early, after a complete period.
        count: the updates advance the clock. complete: do not end early.
        """
        build_started = time.monotonic()
        try:
            self.engine.programs(phase)  # build time is not part of the update rate
        except Abandoned:
            if complete or self._saved == self._position:
                raise  # a checkpoint cannot be written here, or is not needed
            return 0
        self._record_fallbacks()
        self._last_line = self._last_line[0] + time.monotonic() - build_started, self._last_line[1]
        period = self.engine.period(phase)
        started, done, size = time.perf_counter(), 0, period
        while done < number and (complete or not self._should_stop()):
            updates, slice_started = min(size, number - done), time.perf_counter()
            self.engine.run(updates, phase)
            seconds = max(time.perf_counter() - slice_started, 1e-9)
            size = next_slice(number, period, updates / seconds)
            done += updates
            self.progress.timed_updates += updates
            if count:
                self.bar.update(updates)
                self._print_progress(self.clock + done)
            elif done < number:
                doing = f"{done:,} of {number:,} updates before the next step"
                self._print_progress(self.clock, doing)
        if self.engine.device.type == "cuda":
            torch.cuda.synchronize(self.engine.device)
        self.progress.seconds += time.perf_counter() - started
        return done

    def _record_fallbacks(self) -> None:
        """Store which compiled programs failed their check, so a resumed run replaces the same."""
        if self.engine.fallbacks == self.choices.get("fallbacks", {}):
            return
        self.choices["fallbacks"] = dict(self.engine.fallbacks)
        for folder in self.folders:
            path = folder.path / "environment.json"
            write_json(path, read_json_object(path) | {"choices": self.choices})

    def _print_progress(self, clock: int, doing: str = "") -> None:
        """Print `doing`, or the rate and the remaining time, once a minute if there is no bar."""
        now = time.monotonic()
        if not (self.show and self.bar.disable) or now - self._last_line[0] < PROGRESS_EVERY_S:
            return
        rate = (clock - self._last_line[1]) / (now - self._last_line[0])
        left = format_duration((self.total - clock) / rate) if rate else "unknown time"
        doing = doing or f"{rate:,.3g}/s, {left} left"
        print(f"{clock:>10,} of {self.total:,}: {doing}", flush=True)
        self._last_line = now, clock

    def _log(self) -> None:
        """Write a row of metrics for each seed, and report seeds that diverged."""
        updates, metrics = self.engine.updates, dict[str, np.ndarray]()
        for phase in dict.fromkeys(work.phase for work in self.schedule):
            means = self.engine.metrics(phase)
            self.engine.for_phase(phase)[0].check_phase(phase, means)
            metrics |= means
        rate = self.progress.timed_updates / max(self.progress.seconds, 1e-9)
        broken = set(np.flatnonzero(~self.engine.finite_seeds()).tolist())
        if self.collector is not None:
            broken |= self.collector.broken
        for s, (folder, tracker) in enumerate(zip(self.folders, self.trackers, strict=True)):
            values = {f"train/{name}": float(v[s]) for name, v in metrics.items()}
            values["time/updates_per_second"] = rate
            if self.collector is not None and self.env_steps:
                values["data/env_steps"] = self.env_steps
                outcomes: dict[str, list[Any]] = {"return": self.collector.finished[s]}
                outcomes["success"] = self.collector.success[s]
                for name, episodes in outcomes.items():
                    if episodes:
                        values[f"data/{name}"] = float(np.mean(episodes))
                        episodes.clear()
            if s in broken or not all(map(np.isfinite, values.values())):
                self._report_divergence(s, updates)
            row = {"updates": updates, "env_steps": self.env_steps, **values}
            folder.append("metrics", row)
            tracker.log(values, self.clock)

    def _evaluate_if_due(self) -> None:
        if self.evaluator is None:
            return
        current = self.evaluator.moment or {"clock": self.progress.evaluated}
        if self.clock == current["clock"]:
            return
        if self.clock == 0 or self._is_due(self.options.eval_every):
            self.evaluate()

    def evaluate(self) -> None:
        """Run evaluation episodes of every seed's deterministic policy.

        If a core is free, they run in the background with a copy of the policies. Their results are
        then logged when the next evaluation is due or training ends; the values are the same.
        """
        assert self.evaluator is not None
        self._finish_evaluation()
        now: dict[str, Any] = {"updates": self.engine.updates, "env_steps": self.env_steps}
        now |= {"clock": self.clock, "wall_seconds": round(self.progress.wall_seconds, 1)}
        self.evaluator.begin(now)
        if not self.evaluator.background:
            self._finish_evaluation()

    def _finish_evaluation(self) -> None:
        """Wait for the running evaluation, if any, and log it."""
        if self.evaluator is None or (moment := self.evaluator.moment) is None:
            return
        try:
            evaluation = self.evaluator.finish()
        except (BaseFault, Broken) as error:
            self._report_failed_evaluation(moment, error)
            return
        assert evaluation is not None
        self._failed_evaluations = 0
        now, self.last = evaluation.moment, evaluation.seeds
        self.progress.evaluated = now["clock"]
        scores = []
        for s, (folder, tracker) in enumerate(zip(self.folders, self.trackers, strict=True)):
            episodes = self.last[s]
            if s in evaluation.broken:
                self._report_divergence(s, now["updates"])
            values = {"eval/return": float(episodes.returns.mean())}
            values["eval/length"] = float(episodes.lengths.mean())
            if self.task.reference is not None:
                values["eval/score"] = float(self.task.score(episodes.returns).mean())
            if episodes.success is not None:
                values["eval/success"] = float(episodes.success.mean())
            if episodes.costs is not None:
                values["eval/cost"] = float(episodes.costs.mean())
            if s not in evaluation.broken:
                scores.append(values.get("eval/score", values["eval/return"]))
            row: dict[str, Any] = {"updates": now["updates"], "env_steps": now["env_steps"]}
            row |= {**values, **episodes._asdict(), "wall_seconds": now["wall_seconds"]}
            folder.append("evaluations", row)
            tracker.log(values, now["clock"])
        word = "return" if self.task.reference is None else "score"
        line = f"{word} {np.mean(scores):.1f}" if scores else "all seeds diverged"
        self.bar.set_postfix_str(line)
        if self.show and self.bar.disable:  # no terminal: print a line instead of the bar
            print(f"{now['clock']:>10,} of {self.total:,}: {line}", flush=True)
        if self.watch is not None:
            self.watch(self)

    def _report_failed_evaluation(self, moment: Moment, error: BaseFault | Broken) -> None:
        """Print that an evaluation failed, and repeat it if it was the final evaluation.

        Raises UserError after MAX_FAILURES consecutive failures.
        """
        self._failed_evaluations, self.last = self._failed_evaluations + 1, []
        self.progress.evaluated = moment["clock"]
        who = "the base policy" if isinstance(error, BaseFault) else "the environment"
        what = f"{who} failed in the evaluation after {moment['clock']:,} steps ({error})"
        if self._failed_evaluations >= MAX_FAILURES:
            raise UserError(f"{what}, for the {MAX_FAILURES}th time in a row") from error
        if moment["clock"] < self.total:
            self.bar.write(f"{what}; this evaluation is skipped")
            return
        self.bar.write(f"{what}; this was the final evaluation, so it is repeated")
        self.evaluate()
        self._finish_evaluation()

    def _report_divergence(self, s: int, updates: int) -> None:
        """Store and print that a seed diverged, once."""
        if self.progress.diverged[s] is None:
            self.progress.diverged[s] = updates
            self.bar.write(f"{self.folders[s].path} diverged before update {updates:,}")

    def policy(self, s: int, provenance: dict[str, Any]) -> Bundle:
        """Return the current policy of the s-th seed."""
        algorithm = self.engine.algorithm
        params = self.engine.state["params"][algorithm.policy]
        weights = {k: v[s].detach().cpu().numpy().copy() for k, v in params.items()}
        return bundled(algorithm, weights, self.transform, provenance)

    @property
    def env_steps(self) -> int:
        """Environment steps so far, per seed."""
        return 0 if self.collector is None else self.collector.steps

    def save(self) -> None:
        """Save a checkpoint of every seed.

        An evaluation that started at this clock may continue: a resumed run repeats it.
        """
        moment = self.evaluator.moment if self.evaluator is not None else None
        if moment is not None and moment["clock"] != self.clock:
            self._finish_evaluation()
        states = zip(self.folders, self.engine.seed_states(), strict=True)
        for s, (folder, tensors) in enumerate(states):
            progress = vars(self.progress).copy()
            progress["diverged"], progress["clock"] = self.progress.diverged[s], self.clock
            progress["transform"], progress["choices"] = self.transform.to_json(), self.choices
            progress["spec"] = self.engine.algorithm.spec.to_json()
            progress["phases"] = dict(self.engine.done)
            if self.collector is not None:
                progress["collector"] = self.collector.state(s)
                for name, value in self.collector.buffer.stream_state(s).items():
                    tensors[f"buffer/{name}"] = value.cpu().contiguous()
            if isinstance(self.collector, Collector):
                tensors |= {f"memory/{k}": v for k, v in self.collector.memory(s).items()}
            folder.save(self._position, tensors, progress)
        self._saved = self._position

    def resume(self, done: Done) -> None:
        """Continue from the checkpoint that every seed has at `done`.

        If the log of any seed lacks the evaluation at that point, it is repeated. Raises UserError
        if the checkpoint is of another run.
        """
        try:
            self._restore(done)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            where = f"{self.folders[0].path} cannot be resumed from {done.file}"
            raise UserError(f"{where}, which is of another run: {error}") from error
        if self.progress.evaluated == self.clock:
            logged = [folder.evaluation(done) for folder in self.folders]
            self.last = [episodes for episodes in logged if episodes is not None]
            if len(self.last) < len(logged):
                self.last, self.progress.evaluated = [], -1
        for folder in self.folders:
            folder.rewind(done, evaluated=bool(self.last))

    def _restore(self, done: Done) -> None:
        """Load a checkpoint. Logs are not changed."""
        progress, diverged = dict[str, Any](), list[int | None]()
        streams, memories = list[dict[str, Any]](), list[dict[str, Tensor]]()  # per seed
        for s, folder in enumerate(self.folders):
            tensors, progress = folder.load(done)
            diverged.append(progress["diverged"])
            if self.collector is not None:
                stored = {k: v for k, v in tensors.items() if k.startswith("buffer/")}
                self.collector.buffer.load(s, {k[7:]: v for k, v in stored.items()})
                streams.append(progress["collector"])
            memory = {k: v for k, v in tensors.items() if k.startswith("memory/")}
            memories.append({k[7:]: v for k, v in memory.items()})
            self.engine.load_seed_state(s, learner_tensors(tensors))
        if isinstance(self.collector, Collector):
            self.collector.restore(streams, memories)
        elif self.collector is not None:
            self.collector.restore(streams)
        learned = min(done.updates, sum(w.size for w in self.schedule if isinstance(w, Learn)))
        # older checkpoints do not contain the clock
        self.clock = progress.get("clock", learned + done.env_steps)
        self.engine.done = progress.get("phases") or self._phases_before(done)
        names = ("seconds", "timed_updates", "wall_seconds", "evaluated")
        self.progress = Progress(**{name: progress[name] for name in names}, diverged=diverged)

    def _phases_before(self, done: Done) -> dict[str, int]:
        """Return the updates of each phase at `done`. Older checkpoints do not contain them.

        Schedules of older checkpoints have at most one phase with environment steps. It gets the
        updates that the other phases leave.
        """
        updates, clock = dict[str, int](), self.clock
        remaining = done.updates - self.folders[0].start_updates
        for work in self.schedule:
            size = min(work.size, clock)
            clock -= size
            if isinstance(work, Learn):
                updates[work.phase] = updates.get(work.phase, 0) + size
                remaining -= size
        for work in self.schedule:
            if isinstance(work, Interact):
                updates[work.phase] = remaining
        return updates


def bundled(
    algorithm: Algorithm,
    weights: Mapping[str, np.ndarray],
    transform: Transform,
    provenance: Mapping[str, Any],
) -> Bundle:
    """Return the policy bundle of one seed. weights: of the acting network."""
    module: Any = algorithm.modules[algorithm.policy]
    names = ("n_obs_steps", "chunk_size", "n_action_steps") if hasattr(module, "plan") else ()
    spec = replace(
        algorithm.spec,
        **{name: getattr(module, name) for name in names},
        temporal_ensemble_coeff=getattr(module, "temporal_ensemble_coeff", None),
    )
    kind, arguments = type(module).__name__, module.arguments
    return Bundle(spec, kind, arguments, dict(weights), transform.parts, dict(provenance))


def next_slice(number: int, period: int, rate: float) -> int:
    """Return how many of `number` updates to run in one call, a multiple of `period`.

    rate: updates per second.
    """
    size = min(number // 10, int(rate * SLICE_S))
    return max(period, size - size % period)
