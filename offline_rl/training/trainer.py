"""Training loop: work on a schedule, write curves, evaluate and save checkpoints.

A group of seeds trains together. Each phase has its own counters of updates, environment steps and
rows. No decision depends on measured time, so a resumed run gives the same result as an
uninterrupted one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from envs import Broken
from offline_rl.algorithms.common.schedule import Piece
from offline_rl.data.transform import Transform
from offline_rl.engine.engine import Engine
from offline_rl.evaluation.evaluator import Evaluator
from offline_rl.evaluation.rollout import Episodes
from offline_rl.online.collector import MAX_FAILURES, Collector, RepeatedFailure
from offline_rl.online.composed import BaseFault
from offline_rl.runs.folder import Done
from offline_rl.training import checkpoint
from offline_rl.training.curves import Curves
from offline_rl.training.trackers import Moment
from offline_rl.training.work import Progress, Work
from offline_rl.utils.errors import UserError
from offline_rl.utils.signals import postpone_signals
from offline_rl.utils.trees import flatten


class Trainer:
    """Training of one group of seeds."""

    def __init__(
        self,
        engine: Engine,
        schedule: Sequence[Piece],
        curves: Curves,
        *,
        eval_every: int,
        checkpoint_every: int,
        transform: Transform,
        choices: Mapping[str, Any],
        evaluator: Evaluator | None = None,
        collector: Collector | None = None,
        overlap: bool = False,
        watch: Callable[[Trainer], None] | None = None,
    ) -> None:
        """Create the trainer of the seeds in `engine`.

        schedule: pieces of work, in order. curves: logs; checkpoints are saved in their folders.
        eval_every, checkpoint_every: work of a phase between two evaluations or checkpoints, in
        updates, environment steps or rows. transform: the transform of the data, stored in
        checkpoints. choices: precision, compilation and threads, stored in checkpoints. evaluator:
        None without an environment. collector: takes the environment steps, if the schedule has
        any. overlap: run the updates of an environment step during the next step. watch: called
        after each evaluation.
        """
        self.engine, self.curves, self.folders = engine, curves, curves.folders
        self.work = Work(
            engine,
            schedule,
            collector,
            curves,
            eval_every=eval_every,
            checkpoint_every=checkpoint_every,
            overlap=overlap,
        )
        self.transform, self.choices = transform, dict(choices)
        self.evaluator, self.collector, self.watch = evaluator, collector, watch
        self.last: list[Episodes] = []  # last evaluation, per seed
        self._evaluating: tuple[Moment, float] | None = None  # start of the running evaluation
        self._evaluated: Done | None = None  # start of the newest evaluation
        self._failed_evaluations = 0  # number of consecutive failures

    @property
    def progress(self) -> Progress:
        """Position in the schedule, counters, timing and divergence."""
        return self.work.progress

    @property
    def env_steps(self) -> int:
        """Environment steps so far, per seed."""
        return self.progress.total("env_steps")

    def run(self) -> None:
        """Run the rest of the schedule.

        Ctrl-C and SIGTERM save a checkpoint and raise KeyboardInterrupt.
        """
        work = self.work
        work.saved = work.reached
        started = time.perf_counter() - self.progress.wall_seconds
        try:
            self.curves.open({phase: step + 1 for phase, step in work.steps().items() if step})
            if not work.must_learn_first():
                self._evaluate_if_due()
            with postpone_signals(self.curves.say) as request:
                stop: Callable[[], bool] = request
                self.engine.compiling = request.abandon_on_signal
                if self.engine.ranks is not None:  # all ranks must stop after the same update
                    stop, self.engine.compiling = self.engine.ranks.any(request), nullcontext
                work.should_stop = stop
                if self.collector is not None:
                    self.collector.should_stop = request
                while work.current is not None:
                    before = work.reached
                    checkpoint_due = work.advance()
                    self.progress.wall_seconds = time.perf_counter() - started
                    learned = work.reached[:2] != before[:2]  # new rows alone have no metrics
                    if learned or (work.reached == before and not stop()):
                        self._log()
                    if not stop():
                        self._evaluate_if_due()
                        if work.current is None:
                            self._finish_evaluation()
                    if checkpoint_due or stop():
                        self.save()
                    if stop():
                        raise KeyboardInterrupt
            self._finish_evaluation()
        except RepeatedFailure:
            self.save()
            raise
        finally:
            self.close()

    def close(self) -> None:
        """Stop a running evaluation and close the curves. The caller closes environments."""
        if self.evaluator is not None:
            self.evaluator.abandon()
        self.curves.close()

    def _log(self) -> None:
        """Write a row of metrics for each seed. Raise UserError if a phase had no useful result."""
        moment = self.work.moment
        means = self.engine.metrics(moment.phase)
        self.engine.for_phase(moment.phase)[0].check_phase(moment.phase, means)
        broken = set(np.flatnonzero(~self.engine.finite_seeds()).tolist())
        if self.collector is not None:
            broken |= self.collector.broken
        if self.engine.ranks is not None:
            self.engine.ranks.check_equal(flatten(self.engine.state), moment)
        rate = self.progress.timed_updates / max(self.progress.seconds, 1e-9)
        self.curves.log_metrics(moment, means, broken, rate, self.collector)

    def _evaluate_if_due(self) -> None:
        due = self.progress.evaluate_at == self.progress.position
        if self.evaluator is not None and due and self._evaluated != self.work.reached:
            self.evaluate()

    def evaluate(self) -> None:
        """Run evaluation episodes of every seed's deterministic policy.

        If a core is free, they run in the background with a copy of the policies. Their results are
        then logged when the next evaluation is due or training ends; the values are the same.
        """
        assert self.evaluator is not None
        self._finish_evaluation()
        moment = self.work.moment
        self._evaluating, self._evaluated = (moment, self.progress.wall_seconds), moment.done
        self.evaluator.begin()
        if not self.evaluator.background:
            self._finish_evaluation()

    def _finish_evaluation(self) -> None:
        """Wait for the running evaluation, if any, and log it."""
        if self.evaluator is None or self._evaluating is None:
            return
        (moment, wall_seconds), self._evaluating = self._evaluating, None
        try:
            evaluation = self.evaluator.finish()
        except (BaseFault, Broken) as error:
            self._report_failed_evaluation(moment, error)
            return
        self._failed_evaluations, self.last = 0, evaluation.seeds
        self.curves.log_evaluation(moment, evaluation, wall_seconds)
        if self.watch is not None:
            self.watch(self)

    def _report_failed_evaluation(self, moment: Moment, error: BaseFault | Broken) -> None:
        """Print that an evaluation failed, and repeat it if it was the final evaluation.

        Raises UserError after MAX_FAILURES consecutive failures.
        """
        self._failed_evaluations, self.last = self._failed_evaluations + 1, []
        culprit = "the base policy" if isinstance(error, BaseFault) else "the environment"
        problem = f"{culprit} failed in the evaluation after {moment} ({error})"
        if self._failed_evaluations >= MAX_FAILURES:
            raise UserError(f"{problem}, for the {MAX_FAILURES}th time in a row") from error
        if self.work.current is not None or moment.done != self.work.reached:
            self.curves.write(f"{problem}; this evaluation is skipped")
            return
        self.curves.write(f"{problem}; this was the final evaluation, so it is repeated")
        self.evaluate()
        self._finish_evaluation()

    def save(self) -> None:
        """Save a checkpoint of every seed. Without folders, as on ranks other than 0, save none.

        An evaluation that started at this point may continue. A resumed run repeats it if its log
        is incomplete.
        """
        done = self.work.reached
        if self._evaluating is not None and self._evaluating[0].done != done:
            self._finish_evaluation()
        checkpoint.store_fallbacks(self.folders, self.engine, self.choices)
        shared = {"transform": self.transform.to_json(), "choices": self.choices}
        if self.folders:
            checkpoint.save(self.folders, done, self.progress, self.engine, self.collector, shared)
        self.work.saved = done
        if self.collector is not None:
            self.collector.saved()

    def resume(self, done: Done) -> None:
        """Continue from the checkpoint that every seed has at `done`.

        If the log of any seed lacks the evaluation at that point, it is repeated. Raises UserError
        if the checkpoint is of another run.
        """
        try:
            progress = checkpoint.load(self.folders, done, self.engine, self.collector)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            where = f"{self.folders[0].path} cannot be resumed from {done.file}"
            raise UserError(f"{where}, which is of another run: {error}") from error
        self.work.progress, self.curves.diverged = progress, progress.diverged
        if progress.evaluate_at == progress.position:
            logged = [e for f in self.folders if (e := f.evaluation(done)) is not None]
            if len(logged) == len(self.folders):
                self.last, self._evaluated = logged, done
        for folder in self.folders:
            folder.rewind(done, evaluated=bool(self.last))
