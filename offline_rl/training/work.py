"""Execution of a schedule: updates, environment steps and rows, counted separately per phase."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import takewhile

import torch

from offline_rl.algorithms.common.schedule import (
    Collect,
    Counts,
    Fill,
    Interact,
    Learn,
    Piece,
    Position,
    Unit,
    axes,
    locate,
)
from offline_rl.engine.choices import LOG_EVERY, log_interval
from offline_rl.engine.engine import Engine
from offline_rl.online.collector import Collector, RepeatedFailure
from offline_rl.runs.folder import Done
from offline_rl.training.curves import Curves
from offline_rl.training.trackers import Moment
from offline_rl.utils.signals import Abandoned

SLICE_S = 1.0  # seconds of updates between two progress-bar updates and checks for Ctrl-C


@dataclass
class Progress:
    """Progress and timing of a group of seeds, stored in checkpoints."""

    position: Position = field(default_factory=Position)  # in the schedule
    counters: dict[str, Counts] = field(default_factory=dict)  # per phase
    evaluate_at: Position = field(default_factory=Position)  # newest position with an evaluation
    seconds: float = 0.0  # time spent in updates
    timed_updates: int = 0
    wall_seconds: float = 0.0
    diverged: list[int | None] = field(default_factory=list)  # updates at divergence, per seed

    def counts(self, phase: str) -> Counts:
        """Return the counters of a phase."""
        return self.counters.setdefault(phase, Counts())

    def total(self, unit: Unit) -> int:
        """Return the work of all phases in one unit."""
        return sum(getattr(counts, unit) for counts in self.counters.values())


class Work:
    """Execution of the pieces of a schedule, in order, for a group of seeds."""

    def __init__(
        self,
        engine: Engine,
        schedule: Sequence[Piece],
        collector: Collector | None,
        curves: Curves,
        *,
        eval_every: int,
        checkpoint_every: int,
        overlap: bool,
    ) -> None:
        """Create the work. For the arguments, see `Trainer`."""
        self.engine, self.schedule, self.collector = engine, schedule, collector
        self.curves, self.overlap = curves, overlap
        self.eval_every, self.checkpoint_every = eval_every, checkpoint_every
        self.progress = Progress(diverged=curves.diverged)
        self.saved = Done()  # progress in the newest checkpoint
        self.should_stop: Callable[[], bool] = lambda: False  # True once a stop is requested
        self._log_interval = cache(partial(log_interval, engine))
        self._axes = axes(schedule)
        self._totals = Counter[tuple[str, str]]()  # work of each phase in each unit
        for piece in schedule:
            self._totals[piece.phase, piece.unit] += piece.size

    @property
    def current(self) -> tuple[Piece, int] | None:
        """Current piece of the schedule and how much of it is done; None at the end."""
        k, done = locate(self.schedule, self.progress.position)
        return (self.schedule[k], done) if k < len(self.schedule) else None

    @property
    def reached(self) -> Done:
        """Progress of the run. The updates include those of the run that it continues."""
        total = self.progress.total
        return Done(total("env_steps"), self.engine.updates, total("rows"))

    @property
    def moment(self) -> Moment:
        """Progress of the last phase and of the run."""
        phase = self.schedule[self.progress.position.piece].phase
        return Moment(phase, self.steps()[phase], self._axes[phase], self.reached)

    def steps(self) -> dict[str, int]:
        """Return the progress of each phase in the unit of its curves."""
        counts = self.progress.counts
        return {phase: getattr(counts(phase), unit) for phase, unit in self._axes.items()}

    @property
    def _ended(self) -> bool:
        """True if the schedule, or a phase with evaluations, has just ended.

        Pieces without evaluation, such as updates of a model between two parts of the main phase,
        do not end a phase.
        """
        k, done = self.progress.position
        piece = self.schedule[k]
        if done < piece.size or not piece.evaluate:
            return done == piece.size and k + 1 == len(self.schedule)
        later = (self.schedule[i] for i in range(k + 1, len(self.schedule)))
        following = next((each for each in later if each.evaluate), None)
        return following is None or following.phase != piece.phase

    def advance(self) -> bool:
        """Work until metrics, an evaluation or a checkpoint are due, or the piece ends.

        A requested stop ends the work early. Return True if a checkpoint is due.
        """
        index, done = locate(self.schedule, self.progress.position)
        piece = self.schedule[index]
        counts = self.progress.counts(piece.phase)
        before = getattr(counts, piece.unit)
        log_every = self._log_interval(piece.phase) if isinstance(piece, Learn) else LOG_EVERY
        intervals = log_every, self.eval_every, self.checkpoint_every
        amount = min(*(interval - before % interval for interval in intervals), piece.size - done)
        self._show()
        try:
            self._run(piece, amount, piece.size - done)
        finally:  # a failed environment step counts, too
            after = getattr(counts, piece.unit)
            if after > before:
                self.progress.position = Position(index, done + after - before)
                evaluates = piece.evaluate or isinstance(piece, Interact)
                evaluates &= piece.unit == self._axes[piece.phase]
                if self._ended or (evaluates and passed(before, after, self.eval_every)):
                    self.progress.evaluate_at = self.progress.position
        if isinstance(piece, Learn) and piece.skips and self.progress.position.done == piece.size:
            self._skip_converged(piece, index)
        saves = piece.unit != "rows" and passed(before, after, self.checkpoint_every)
        return after > before and (self._ended or saves)

    def _skip_converged(self, piece: Learn, index: int) -> None:
        """Count the pieces after `piece` as done if its phase has converged for all seeds."""
        if not self.engine.has_converged(piece.phase):
            return
        skipped = self.schedule[index + 1 : index + 1 + piece.skips]
        for each in skipped:
            self.engine.skip(each.size, each.phase)
            self.progress.counts(each.phase).updates += each.size
        self.progress.position = Position(index + len(skipped), skipped[-1].size)

    def _run(self, piece: Piece, amount: int, remaining: int) -> None:
        """Do `amount` of the `remaining` work of a piece, and complete a period or decision."""
        counts = self.progress.counts(piece.phase)
        if isinstance(piece, Learn):
            period = self.engine.period(piece.phase)
            self._learn(min(-(-amount // period) * period, remaining), piece.phase)
        elif isinstance(piece, Interact):
            self._interact(piece.phase, counts.env_steps + amount, counts.env_steps + remaining)
        elif isinstance(piece, Collect):
            assert self.collector is not None
            end, steps = counts.env_steps + amount, self.collector.steps - counts.env_steps
            while counts.env_steps < end and not self.should_stop():
                try:
                    self.collector.step(adds=piece.adds)
                finally:  # the decision is complete even if an environment failed repeatedly
                    counts.env_steps = self.collector.steps - steps
                self._show()
        else:
            before = self.schedule[: locate(self.schedule, self.progress.position).piece]
            repeat = sum(1 for _ in takewhile(lambda x: isinstance(x, Fill), reversed(before)))
            self.engine.fill(piece.phase, piece.rows, piece.states, piece.target, repeat=repeat)
            counts.rows += piece.rows
            self._show()

    def _interact(self, phase: str, stop: int, end: int) -> None:
        """Take environment steps until the phase has taken `stop` steps. Updates follow each step.

        With overlap, the updates run during the next step. end: steps at the end of the piece.
        """
        assert self.collector is not None
        if self.must_learn_first():
            self._learn_owed(phase)
            return
        counts = self.progress.counts(phase)
        while counts.env_steps < stop and not self.should_stop():
            self.collector.begin()
            if self.overlap:
                self._learn_owed(phase, complete=True)
            steps_before, failure = self.collector.steps, None
            try:
                self.collector.end()
            except RepeatedFailure as error:  # raised below: the step may have succeeded
                failure = error
            counts.env_steps += self.collector.steps - steps_before
            is_last = counts.env_steps == end
            if is_last or self.must_learn_first():
                self._learn_owed(phase, complete=is_last)
            if failure is not None:
                raise failure
            self._show()

    def must_learn_first(self) -> bool:
        """Return True if updates must run before the next environment step.

        With overlap, the usual updates of one step run during the next step. If more updates are
        due, such as those of the critics alone after the warm-up, they run before it.
        """
        piece = self.current[0] if self.current is not None else None
        if not isinstance(piece, Interact) or not self._owed_updates(piece.phase):
            return False
        assert self.collector is not None
        steps = self.collector.steps_per_decision
        due, due_before = (self._updates_due(piece.phase, ago=k) for k in (0, steps))
        utd = self.engine.for_phase(piece.phase)[0].interaction.online.utd
        return not self.overlap or due - due_before > utd * steps + self.engine.period(piece.phase)

    def _owed_updates(self, phase: str) -> int:
        """Return the number of updates that are due for the steps so far but have not run."""
        assert self.collector is not None
        if not self.collector.can_sample(self.engine.batch_size):
            return 0
        return max(self._updates_due(phase) - self.progress.counts(phase).updates, 0)

    def _updates_due(self, phase: str, ago: int = 0) -> int:
        """Return the total updates that were due in a phase `ago` environment steps ago."""
        algorithm, _ = self.engine.for_phase(phase)
        steps, online = self.progress.counts(phase).env_steps, algorithm.interaction.online
        return online.updates_due(steps - ago, self.engine.batch_size, algorithm.period)

    def _learn_owed(self, phase: str, *, complete: bool = False) -> None:
        """Run the owed updates. complete: run all of them, even if a stop is requested."""
        if owed := self._owed_updates(phase):
            self._learn(owed, phase, complete=complete)

    def _learn(self, number: int, phase: str, *, complete: bool = False) -> None:
        """Run `number` updates of the current phase.

        A requested stop ends them early, after a complete period. complete: do not end early.
        """
        build_started = time.monotonic()
        try:
            self.engine.programs(phase)  # build time is not part of the update rate
        except Abandoned:
            if complete or self.saved == self.reached:
                raise  # no checkpoint can be written here, or none is needed
            return
        self.curves.exclude(time.monotonic() - build_started)
        period, counts = self.engine.period(phase), self.progress.counts(phase)
        started, done, size = time.perf_counter(), 0, period
        while done < number and (complete or not self.should_stop()):
            updates, slice_started = min(size, number - done), time.perf_counter()
            self.engine.run(updates, phase)
            seconds = max(time.perf_counter() - slice_started, 1e-9)
            size = next_slice(number, period, updates / seconds)
            if self.engine.ranks is not None:
                size = self.engine.ranks.largest(size)
            done += updates
            counts.updates += updates
            self.progress.timed_updates += updates
            activity = f"{done:,} of {number:,} updates before the next step"
            self._show(activity if done < number else "")
        if self.engine.device.type == "cuda":
            torch.cuda.synchronize(self.engine.device)
        elapsed = time.perf_counter() - started
        counts.seconds += elapsed
        self.progress.seconds += elapsed

    def _show(self, activity: str = "") -> None:
        """Show the progress of the current phase. activity: text about the updates of a step."""
        assert self.current is not None
        piece, _ = self.current
        activity = activity if isinstance(piece, Interact) else ""
        done = getattr(self.progress.counts(piece.phase), piece.unit)
        self.curves.show_progress(piece, done, self._totals[piece.phase, piece.unit], activity)


def passed(before: int, after: int, interval: int) -> bool:
    """Return True if a counter has passed a multiple of `every`."""
    return after // interval > before // interval


def next_slice(number: int, period: int, rate: float) -> int:
    """Return how many of `number` updates to run in one call, a multiple of `period`.

    rate: updates per second.
    """
    size = min(number // 10, int(rate * SLICE_S))
    return max(period, size - size % period)
