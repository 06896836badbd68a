"""The one loop: preliminary phases, offline updates, online steps, evaluations, checkpoints.

A group of seeds trains together. What was done is counted by the engine's updates and the
collector's environment steps alone, so that a resumed run continues as if nothing had happened.
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
from offline_rl.online.collector import MISHAPS, Collector, GivenUp
from offline_rl.online.rollouts import RolloutCollector
from offline_rl.online.with_base import BaseFault
from offline_rl.training.choices import LOG_EVERY, log_interval
from offline_rl.training.evaluator import Evaluator, Moment
from offline_rl.training.options import TrainOptions
from offline_rl.training.run_folder import Done, SeedFolder, learner
from offline_rl.training.trackers import Tracker
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_object, write_json
from offline_rl.utils.signals import Abandoned, postponed
from offline_rl.utils.text import duration
from policies import Bundle

TELL_EVERY_S = 60.0  # lines of progress, without a terminal
PIECE_S = 1.0  # of updates, after which the bar moves and Ctrl-C is heard


@dataclass
class Progress:
    """What a checkpoint holds beside tensors."""

    seconds: float = 0.0  # in updates alone
    timed_updates: int = 0
    wall_seconds: float = 0.0
    diverged: list[int | None] = field(default_factory=list)  # each place's updates when first seen
    evaluated: int = -1  # the clock at the last evaluation that is finished


class Trainer:
    """Trains one group of seeds to the end."""

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
        """schedule: what is done, in order. evaluation: S * episodes environments, or fewer.

        starts: the seeds of an evaluation's episodes.
        choices: how it computes (`training/choices.py`); kept. watch: called after each
        evaluation.
        """
        self.watch, self.show, self.choices = watch, show, dict(choices)
        self.options, self.task, self.engine, self.transform = options, task, engine, transform
        self.folders, self.trackers, self.collector = folders, trackers, collector
        self.schedule = schedule
        self._log_interval = cache(partial(log_interval, engine))
        self.progress, self.clock = Progress(diverged=[None] * len(folders)), 0
        self.last: list[Episodes] = []
        self._told = (0.0, 0)  # when the last line was told, and at which clock
        self._asked: Callable[[], bool] = lambda: False  # whether to end
        self._saved = Done()  # what the newest checkpoint holds
        self._mishaps = 0  # evaluations in a row that broke
        self.evaluator: Evaluator | None = None
        if evaluation is not None:
            busy = torch.get_num_threads() if engine.device.type == "cpu" else 1
            beside = hardware.cores() > busy and watch is None and evaluation.limit is None
            self.evaluator = Evaluator(
                engine, evaluation, transform.normalizer, starts, beside=beside
            )
        hidden = not show if "ipykernel" in sys.modules else None if show else True  # no terminal
        self.bar = tqdm(total=self.total, disable=hidden, unit="step", dynamic_ncols=True)

    @property
    def total(self) -> int:
        """Updates of the schedule's learning and steps of its acting: the clock at the end."""
        return sum(work.size for work in self.schedule)

    @property
    def work(self) -> tuple[Piece, int] | None:
        """The piece under way, and how much of it is done; None at the end."""
        k, done = locate(self.schedule, self.clock)
        return (self.schedule[k], done) if k < len(self.schedule) else None

    def updates(self, kind: str) -> int:
        """Updates in all: of preliminary phases (`pretrain`), or `online`."""
        learn = [work for work in self.schedule if isinstance(work, Learn)]
        if kind == "pretrain":
            return sum(work.updates for work in learn if work.phase not in ("update", ONLINE))
        return self.engine.done.get(ONLINE, 0)

    def run(self) -> None:
        """Everything that is left to do.

        Ctrl-C and SIGTERM end it in KeyboardInterrupt once there is a checkpoint.
        """
        self.bar.update(self.clock - self.bar.n)
        self._told, self._saved = (time.monotonic(), self.clock), self._done
        started = time.perf_counter() - self.progress.wall_seconds
        try:
            if not self._behind:
                self._evaluate_if_due()
            with postponed(self.bar.write if self.show else (lambda _: None)) as request:
                self._asked, self.engine.compiling = request, request.abandons
                for stop in self._stops():
                    before = self._done
                    self._advance(stop)
                    self.progress.wall_seconds = time.perf_counter() - started
                    if self._done != before or not self._asked():
                        self._log()
                    if not self._asked():
                        self._evaluate_if_due()
                        if self.clock == self.total:
                            self._finish_evaluation()
                    if self._asked() or self._due(self.options.checkpoint_every):
                        self.save()
                    if self._asked():
                        raise KeyboardInterrupt
            self._finish_evaluation()
        except GivenUp:
            self.save()
            raise
        finally:
            self.close()

    def close(self) -> None:
        """End the evaluation under way, if any, and the bar. The environments are the caller's."""
        if self.evaluator is not None:
            self.evaluator.abandon()
        self.bar.close()

    @property
    def _done(self) -> Done:
        """Environment steps and updates so far."""
        return Done(self.env_steps, self.engine.updates)

    def _period(self, work: Piece) -> int:
        """Of the clock: what is done is done in so many at a time."""
        if isinstance(work, Learn):
            return self.engine.period(work.phase)
        if isinstance(work, Fill):
            return work.rows
        return self.each if isinstance(work, Collect) else 1

    @property
    def each(self) -> int:
        """What the clock counts of a decision in all environments of a seed."""
        assert isinstance(self.collector, RolloutCollector)
        return self.collector.each * self.collector.n_action_steps

    def _stops(self) -> Iterator[int]:
        """The clock's next moments at which something besides learning happens."""
        marks = list(accumulate(work.size for work in self.schedule))
        if self._behind:
            yield self.clock
        while (now := self.clock) < self.total:
            assert self.work is not None
            work, period = self.work[0], self._period(self.work[0])
            log_every = self._log_interval(work.phase) if isinstance(work, Learn) else LOG_EVERY
            every = (log_every, self.options.eval_every, self.options.checkpoint_every)
            end = next(mark for mark in marks if mark > now)
            stop = min((now // e + 1) * e for e in every)
            yield min(now + -(-(stop - now) // period) * period, end)

    def _due(self, every: int) -> bool:
        """At the first stop after a multiple of `every`, and wherever one piece of work ends."""
        k, done = locate(self.schedule, self.clock)
        worked = next((j for j in range(k if done else k - 1, 0, -1) if self.schedule[j].size), 0)
        begun = sum(work.size for work in self.schedule[:worked])
        before = max(self.clock - self._period(self.schedule[worked]), begun)  # its last step
        phases = [work.phase for work in self.schedule]
        end = done == 0 and phases[max(k - 1, 0) : k] != phases[k : k + 1]
        end &= k == 0 or phases[k - 1] not in self.engine.algorithm.phases_without_eval
        return end or self.clock - self.clock % every > before

    def _advance(self, stop: int) -> None:
        """Works until the clock shows `stop`, or it is asked to end, within one piece of work."""
        assert self.work is not None
        work, done = self.work
        if isinstance(work, Learn):
            self.clock += self._learn(stop - self.clock, work.phase, count=True)
            return
        if isinstance(work, Collect):
            assert isinstance(self.collector, RolloutCollector)
            while self.clock < stop and not self._asked():
                self.collector.step(adds=work.adds)
                self.clock += self.each
                self.bar.update(self.each)
                self._tell(self.clock)
            return
        if isinstance(work, Fill):
            assert isinstance(self.collector, RolloutCollector)
            self.collector.fill(work)
            self.clock += work.rows
            self.bar.update(work.rows)
            return
        self._interact(work, done, stop)

    def _interact(self, work: Interact, done: int, stop: int) -> None:
        """Environment steps and the updates that they bring; with overlap beside the next step."""
        assert isinstance(self.collector, Collector)
        collector, overlap = self.collector, self.options.overlap
        if self._behind:
            self._catch_up(work.phase)
        while self.clock < stop and not self._asked():
            collector.begin()
            if overlap:
                self._catch_up(work.phase, whole=True)
            before, gone = collector.steps, None
            try:
                collector.end()
            except GivenUp as error:  # after the step, where it was a reset that broke
                gone = error
            taken = collector.steps - before
            self.clock, done = self.clock + taken, done + taken
            last = done == work.size
            if last or self._behind:
                self._catch_up(work.phase, whole=last)
            if gone is not None:
                raise gone
            self.bar.update(1)
            self._tell(self.clock)

    def _catch_up(self, phase: str, *, whole: bool = False) -> None:
        """The updates that are owed. whole: does not end before, though it may be asked to."""
        if owed := self._owed(phase):
            self._learn(owed, phase, whole=whole)

    def _owed(self, phase: str) -> int:
        """Updates that the environment's steps so far have brought and that are not done."""
        assert isinstance(self.collector, Collector)
        if not self.collector.ready(self.engine.batch_size):
            return 0
        learned = self.engine.done.get(phase, 0)
        return max(self._brought(phase, self.env_steps) - learned, 0)

    def _brought(self, phase: str, env_steps: int) -> int:
        """Updates that so many environment steps bring in all."""
        algorithm, _ = self.engine.at(phase)
        online = algorithm.interaction.online
        return online.updates_due(env_steps, self.engine.batch_size, algorithm.period)

    @property
    def _behind(self) -> bool:
        """Whether updates are owed before anything else is done: with overlap, many at once."""
        work = self.work[0] if self.work is not None else None
        if not isinstance(work, Interact) or not self._owed(work.phase):
            return False
        now, before = (self._brought(work.phase, self.env_steps - k) for k in (0, 1))
        utd = self.engine.at(work.phase)[0].interaction.online.utd
        return not self.options.overlap or now - before > utd + self.engine.period(work.phase)

    def _learn(self, number: int, phase: str, *, count: bool = False, whole: bool = False) -> int:
        """`number` updates; -> how many. count: the clock counts them.

        It ends before, at a period's end, where it is asked to. whole: it does not.
        """
        begun_s = time.monotonic()
        try:
            self.engine.programs(phase)  # their building is no part of the rate
        except Abandoned:
            if whole or self._saved == self._done:
                raise  # no checkpoint can be written here, or none is needed
            return 0
        self._record_fallbacks()
        self._told = self._told[0] + time.monotonic() - begun_s, self._told[1]
        period = self.engine.period(phase)
        started, done, piece = time.perf_counter(), 0, period
        while done < number and (whole or not self._asked()):
            now, begun = min(piece, number - done), time.perf_counter()
            self.engine.run(now, phase)
            piece = next_piece(number, period, now / max(time.perf_counter() - begun, 1e-9))
            done += now
            self.progress.timed_updates += now
            if count:
                self.bar.update(now)
                self._tell(self.clock + done)
            elif done < number:
                self._tell(self.clock, f"{done:,} of {number:,} updates before the next step")
        if self.engine.device.type == "cuda":
            torch.cuda.synchronize(self.engine.device)
        self.progress.seconds += time.perf_counter() - started
        return done

    def _record_fallbacks(self) -> None:
        """Store which compiled programs failed their check; a resumed run repeats the choice."""
        if self.engine.fallbacks == self.choices.get("fallbacks", {}):
            return
        self.choices["fallbacks"] = dict(self.engine.fallbacks)
        for folder in self.folders:
            path = folder.path / "environment.json"
            write_json(path, read_object(path) | {"choices": self.choices})

    def _tell(self, clock: int, doing: str = "") -> None:
        """A line a minute with the rate and what is left, or `doing`, where there is no bar."""
        now = time.monotonic()
        if not (self.show and self.bar.disable) or now - self._told[0] < TELL_EVERY_S:
            return
        rate = (clock - self._told[1]) / (now - self._told[0])
        left = duration((self.total - clock) / rate) if rate else "unknown time"
        doing = doing or f"{rate:,.3g}/s, {left} left"
        print(f"{clock:>10,} of {self.total:,}: {doing}", flush=True)
        self._told = now, clock

    def _log(self) -> None:
        updates, metrics = self.engine.updates, dict[str, np.ndarray]()
        for phase in dict.fromkeys(work.phase for work in self.schedule):
            means = self.engine.metrics(phase)
            self.engine.at(phase)[0].check_phase(phase, means)
            metrics |= means
        rate = self.progress.timed_updates / max(self.progress.seconds, 1e-9)
        broken = set(np.flatnonzero(~self.engine.finite()).tolist())
        if self.collector is not None:
            broken |= self.collector.broken
        for s, (folder, tracker) in enumerate(zip(self.folders, self.trackers, strict=True)):
            values = {f"train/{name}": float(v[s]) for name, v in metrics.items()}
            values["time/updates_per_second"] = rate
            if self.collector is not None and self.env_steps:
                values["data/env_steps"] = self.env_steps
                told: dict[str, list[Any]] = {"return": self.collector.finished[s]}
                told["success"] = self.collector.success[s]
                for name, episodes in told.items():
                    if episodes:
                        values[f"data/{name}"] = float(np.mean(episodes))
                        episodes.clear()
            if s in broken or not all(map(np.isfinite, values.values())):
                self._diverged(s, updates)
            row = {"updates": updates, "env_steps": self.env_steps, **values}
            folder.append("metrics", row)
            tracker.log(values, self.clock)

    def _evaluate_if_due(self) -> None:
        if self.evaluator is None:
            return
        begun = self.evaluator.moment or {"clock": self.progress.evaluated}
        if self.clock == begun["clock"]:
            return
        if self.clock == 0 or self._due(self.options.eval_every):
            self.evaluate()

    def evaluate(self) -> None:
        """Whole episodes of every seed's deterministic policy, logged episode by episode.

        Where a core is free they run beside the training, with a copy of the policies, and are
        logged when the next evaluation is due or the training ends: later, but the same.
        """
        assert self.evaluator is not None
        self._finish_evaluation()
        now: dict[str, Any] = {"updates": self.engine.updates, "env_steps": self.env_steps}
        now |= {"clock": self.clock, "wall_seconds": round(self.progress.wall_seconds, 1)}
        self.evaluator.begin(now)
        if not self.evaluator.beside:
            self._finish_evaluation()

    def _finish_evaluation(self) -> None:
        """Waits for the evaluation that is under way, if any, and logs it."""
        if self.evaluator is None or (begun := self.evaluator.moment) is None:
            return
        try:
            done = self.evaluator.finish()
        except (BaseFault, Broken) as error:
            self._mishap(begun, error)
            return
        assert done is not None
        self._mishaps = 0
        now, self.last = done.moment, done.seeds
        self.progress.evaluated = now["clock"]
        scores = []
        for s, (folder, tracker) in enumerate(zip(self.folders, self.trackers, strict=True)):
            mine = self.last[s]
            if s in done.broken:
                self._diverged(s, now["updates"])
            values = {"eval/return": float(mine.returns.mean())}
            values["eval/length"] = float(mine.lengths.mean())
            if self.task.reference is not None:
                values["eval/score"] = float(self.task.score(mine.returns).mean())
            if mine.success is not None:
                values["eval/success"] = float(mine.success.mean())
            if mine.costs is not None:
                values["eval/cost"] = float(mine.costs.mean())
            if s not in done.broken:
                scores.append(values.get("eval/score", values["eval/return"]))
            row: dict[str, Any] = {"updates": now["updates"], "env_steps": now["env_steps"]}
            row |= {**values, **mine._asdict(), "wall_seconds": now["wall_seconds"]}
            folder.append("evaluations", row)
            tracker.log(values, now["clock"])
        word = "return" if self.task.reference is None else "score"
        line = f"{word} {np.mean(scores):.1f}" if scores else "all seeds diverged"
        self.bar.set_postfix_str(line)
        if self.show and self.bar.disable:  # no terminal: a line an evaluation instead of a bar
            print(f"{now['clock']:>10,} of {self.total:,}: {line}", flush=True)
        if self.watch is not None:
            self.watch(self)

    def _mishap(self, moment: Moment, error: BaseFault | Broken) -> None:
        """Says that an evaluation broke; gives up where it is one too many."""
        self._mishaps, self.last = self._mishaps + 1, []
        self.progress.evaluated = moment["clock"]
        who = "the base policy" if isinstance(error, BaseFault) else "the environment"
        what = f"{who} broke in the evaluation after {moment['clock']:,} steps ({error})"
        if self._mishaps >= MISHAPS:
            raise UserError(f"{what}, for the {MISHAPS}th time in a row") from error
        if moment["clock"] < self.total:
            self.bar.write(f"{what}; it is left out")
            return
        self.bar.write(f"{what}; it is begun again, being the last")
        self.evaluate()
        self._finish_evaluation()

    def _diverged(self, s: int, updates: int) -> None:
        """Notes it and says so, once."""
        if self.progress.diverged[s] is None:
            self.progress.diverged[s] = updates
            self.bar.write(f"{self.folders[s].path} diverged before update {updates:,}")

    def policy(self, s: int, provenance: dict[str, Any]) -> Bundle:
        """The s-th seed's policy as it is now."""
        algorithm = self.engine.algorithm
        params = self.engine.state["params"][algorithm.policy]
        weights = {k: v[s].detach().cpu().numpy().copy() for k, v in params.items()}
        return bundled(algorithm, weights, self.transform, provenance)

    @property
    def env_steps(self) -> int:
        """Environment steps learned from so far, per seed."""
        return 0 if self.collector is None else self.collector.steps

    def save(self) -> None:
        """A checkpoint of every seed.

        An evaluation that began just now may go on: who resumes from here begins it again.
        """
        moment = self.evaluator.moment if self.evaluator is not None else None
        if moment is not None and moment["clock"] != self.clock:
            self._finish_evaluation()
        both = zip(self.folders, self.engine.seed_states(), strict=True)
        for s, (folder, tensors) in enumerate(both):
            progress = vars(self.progress).copy()
            progress["diverged"], progress["clock"] = self.progress.diverged[s], self.clock
            progress["transform"], progress["choices"] = self.transform.to_json(), self.choices
            progress["spec"] = self.engine.algorithm.spec.to_json()
            progress["phases"] = dict(self.engine.done)
            if self.collector is not None:
                progress["collector"] = self.collector.state(s)
                for name, value in self.collector.buffer.filled(s).items():
                    tensors[f"buffer/{name}"] = value.cpu().contiguous()
            if isinstance(self.collector, Collector):
                tensors |= {f"memory/{k}": v for k, v in self.collector.memory(s).items()}
            folder.save(self._done, tensors, progress)
        self._saved = self._done

    def resume(self, done: Done) -> None:
        """Continues from the checkpoint that every seed has at `done`.

        An evaluation there whose record is lost, of any seed, is done again. Raises UserError where
        the checkpoint is of another run.
        """
        try:
            self._restore(done)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            where = f"{self.folders[0].path} cannot go on from {done.file}"
            raise UserError(f"{where}, which is of another run: {error}") from error
        if self.progress.evaluated == self.clock:
            logged = [folder.evaluation(done) for folder in self.folders]
            self.last = [episodes for episodes in logged if episodes is not None]
            if len(self.last) < len(logged):
                self.last, self.progress.evaluated = [], -1
        for folder in self.folders:
            folder.rewind(done, evaluated=bool(self.last))

    def _restore(self, done: Done) -> None:
        """Everything but the logs."""
        progress, diverged = dict[str, Any](), list[int | None]()
        streams, memories = list[dict[str, Any]](), list[dict[str, Tensor]]()  # each seed's
        for s, folder in enumerate(self.folders):
            tensors, progress = folder.load(done)
            diverged.append(progress["diverged"])
            if self.collector is not None:
                stored = {k: v for k, v in tensors.items() if k.startswith("buffer/")}
                self.collector.buffer.load(s, {k[7:]: v for k, v in stored.items()})
                streams.append(progress["collector"])
            memory = {k: v for k, v in tensors.items() if k.startswith("memory/")}
            memories.append({k[7:]: v for k, v in memory.items()})
            self.engine.load_seed_state(s, learner(tensors))
        if isinstance(self.collector, Collector):
            self.collector.restore(streams, memories)
        elif self.collector is not None:
            self.collector.restore(streams)
        learned = min(done.updates, sum(w.size for w in self.schedule if isinstance(w, Learn)))
        self.clock = progress.get("clock", learned + done.env_steps)  # older ones do not say
        self.engine.done = progress.get("phases") or self._phases_before(done)
        names = ("seconds", "timed_updates", "wall_seconds", "evaluated")
        self.progress = Progress(**{name: progress[name] for name in names}, diverged=diverged)

    def _phases_before(self, done: Done) -> dict[str, int]:
        """Updates of each phase at `done`, for older checkpoints, which do not hold them.

        In their schedules one phase at most interacts; its updates are those that remain.
        """
        found, clock = dict[str, int](), self.clock
        left = done.updates - self.folders[0].began
        for work in self.schedule:
            now = min(work.size, clock)
            clock -= now
            if isinstance(work, Learn):
                found[work.phase] = found.get(work.phase, 0) + now
                left -= now
        for work in self.schedule:
            if isinstance(work, Interact):
                found[work.phase] = left
        return found


def bundled(
    algorithm: Algorithm,
    weights: Mapping[str, np.ndarray],
    transform: Transform,
    provenance: Mapping[str, Any],
) -> Bundle:
    """What leaves training of one seed. weights: of the network that acts."""
    module: Any = algorithm.modules[algorithm.policy]
    names = ("n_obs_steps", "chunk_size", "n_action_steps") if hasattr(module, "plan") else ()
    told = {name: getattr(module, name) for name in names}
    spec = replace(
        algorithm.spec,
        **told,
        temporal_ensemble_coeff=getattr(module, "temporal_ensemble_coeff", None),
    )
    kind, arguments = type(module).__name__, module.arguments
    return Bundle(spec, kind, arguments, dict(weights), transform.parts, dict(provenance))


def next_piece(number: int, period: int, rate: float) -> int:
    """Updates of `number` that are done in one go, whole periods. rate: of the last ones, 1/s."""
    most = min(number // 10, int(rate * PIECE_S))
    return max(period, most - most % period)
