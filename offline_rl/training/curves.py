"""Learning curves of a group of seeds: rows in files and trackers, the progress bar, messages."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from tqdm import tqdm

from envs import Task
from offline_rl.algorithms.common.schedule import Piece
from offline_rl.evaluation import specifications
from offline_rl.evaluation.constrained import cost_metrics
from offline_rl.evaluation.evaluator import Evaluation
from offline_rl.online.collector import Collector
from offline_rl.runs.folder import SeedFolder
from offline_rl.training.trackers import Moment, NoTracker, Tracker, word
from offline_rl.utils.text import format_duration

PROGRESS_EVERY_S = 60.0  # time between two progress lines without a terminal


def no_tracker(s: int, first: Mapping[str, int]) -> Tracker:
    """Return a logger that discards all values."""
    return NoTracker()


class Curves:
    """Metrics and evaluations of S seeds: in the seeds' folders, in trackers and on the terminal.

    Without a terminal, lines replace the progress bar.
    """

    def __init__(
        self,
        folders: Sequence[SeedFolder],
        task: Task,
        *,
        open_tracker: Callable[[int, Mapping[str, int]], Tracker] = no_tracker,
        show: bool = True,
        cost_limit: float | None = None,
    ) -> None:
        """Create the curves. `open` opens the trackers.

        task: scores the returns. cost_limit: normalizes costs; None without one.
        open_tracker(s, first): creates the logger of seed s; first: step of the first value to be
        logged in each phase, 0 if missing. show: print progress.
        """
        self.folders, self.task, self.show = folders, task, show
        self.cost_limit = cost_limit
        self.diverged: list[int | None] = [None] * len(folders)  # updates at divergence, per seed
        self._open_tracker, self._trackers = open_tracker, list[Tracker]()
        # None: tqdm hides the bar if there is no terminal
        hidden = not show if "ipykernel" in sys.modules else None if show else True
        self._bar = tqdm(disable=hidden, dynamic_ncols=True)
        self._label = ("", "")  # phase and unit on the bar
        self._printed_s, self._excluded_s = 0.0, 0.0  # time of the last line; see `exclude`
        # phase and unit -> time and progress at their last line; at first, at their start
        self._last_lines = dict[tuple[str, str], tuple[float, int]]()

    def open(self, first: Mapping[str, int]) -> None:
        """Open the tracker of every seed. first: see `open_tracker`."""
        for s in range(len(self.folders)):
            self._trackers.append(self._open_tracker(s, first))
        self._printed_s = self._now_s()

    def close(self) -> None:
        """Close trackers and progress bar."""
        with ExitStack() as closing:  # closes the others even if one fails
            closing.callback(self._bar.close)
            while self._trackers:
                closing.callback(self._trackers.pop().close)

    def write(self, text: str) -> None:
        """Print a line above the progress bar."""
        self._bar.write(text)

    def say(self, text: str) -> None:
        """Print a line if progress is shown."""
        if self.show:
            self.write(text)

    def log_metrics(
        self,
        moment: Moment,
        means: Mapping[str, np.ndarray],
        broken: set[int],
        updates_per_second: float,
        collector: Collector | None,
    ) -> None:
        """Write a row of metrics for each seed, and report seeds that diverged.

        means: means of the algorithm's metrics, [S]. broken: indices of seeds whose parameters or
        actions are NaN or infinite. collector: its returns, successes and costs are written, and
        cleared.
        """
        env_steps = moment.done.env_steps
        for s, (folder, tracker) in enumerate(zip(self.folders, self._trackers, strict=True)):
            values = {f"train/{name}": float(v[s]) for name, v in means.items()}
            values["time/updates_per_second"] = updates_per_second
            if collector is not None and env_steps:
                values["data/env_steps"] = env_steps
                outcomes: dict[str, list[Any]] = {"return": collector.finished[s]}
                outcomes |= {"success": collector.success[s], "cost": collector.costs[s]}
                for name, episodes in outcomes.items():
                    if episodes:
                        values[f"data/{name}"] = float(np.mean(episodes))
                        episodes.clear()
                values |= collector.metrics()
            if s in broken or not all(map(np.isfinite, values.values())):
                self._report_divergence(s, moment)
            folder.append("metrics", moment.row() | values)
            tracker.log(values, moment)

    def log_evaluation(self, moment: Moment, evaluation: Evaluation, wall_seconds: float) -> None:
        """Write and print an evaluation, and report seeds that diverged.

        moment, wall_seconds: when the evaluation started.
        """
        scores, costs = list[float](), list[float]()
        for s, (values, episodes) in enumerate(self._scored(evaluation)):
            if s in evaluation.broken:
                self._report_divergence(s, moment)
            else:
                scores.append(values.get("eval/score", values["eval/return"]))
                costs += (
                    [values["eval/normalized_cost"]] if "eval/normalized_cost" in values else []
                )
            row = {**values, **episodes, "wall_seconds": round(wall_seconds, 1)}
            self.folders[s].append("evaluations", moment.row() | row)
            self._trackers[s].log(values, moment)
        word = "return" if self.task.reference is None else "score"
        line = f"{word} {np.mean(scores):.1f}" if scores else "all seeds diverged"
        line += f", normalized cost {np.mean(costs):.2f}" if costs else ""
        self._bar.set_postfix_str(line)
        if self.show and self._bar.disable:  # no terminal: print a line instead of the bar
            print(f"{moment}: {line}", flush=True)

    def _scored(
        self, evaluation: Evaluation
    ) -> Iterator[tuple[dict[str, float], dict[str, object]]]:
        """Yield the mean values of each seed, and its episodes."""
        for episodes in evaluation.seeds:
            values = {"eval/return": float(episodes.returns.mean())}
            values["eval/length"] = float(episodes.lengths.mean())
            if self.task.reference is not None:
                values["eval/score"] = float(
                    self.task.score(episodes.returns, episodes.success).mean()
                )
            if episodes.success is not None:
                values["eval/success"] = float(episodes.success.mean())
            if episodes.costs is not None:
                values |= cost_metrics(episodes.costs, self.cost_limit)
            yield values | specifications.metrics(episodes), episodes._asdict()

    def _report_divergence(self, s: int, moment: Moment) -> None:
        """Store and print that a seed diverged, once."""
        if self.diverged[s] is None:
            self.diverged[s] = moment.done.updates
            folder, updates = self.folders[s].path, moment.done.updates
            self.write(f"{folder} diverged before update {updates:,}")

    def show_progress(self, piece: Piece, done: int, total: int, activity: str = "") -> None:
        """Show the progress of a phase: on the bar, or once a minute as a line.

        done, total: amount of work in the phase, in the unit of `piece`. activity: text that
        replaces the rate and the remaining time in the line.
        """
        now_s, label = self._now_s(), (piece.phase, piece.unit)
        if label != self._label:
            self._label = label
            self._bar.reset(total)
            self._bar.initial = self._bar.n = done
            self._bar.unit = f" {word(piece.unit)}"
            self._bar.set_description_str(piece.phase, refresh=False)
        self._bar.update(done - self._bar.n)
        since_s, last_done = self._last_lines.setdefault(label, (now_s, done))
        waiting = now_s - self._printed_s < PROGRESS_EVERY_S or now_s == since_s
        if waiting or not (self.show and self._bar.disable):
            return
        rate = (done - last_done) / (now_s - since_s)
        remaining = format_duration((total - done) / rate) if rate else "unknown time"
        activity = activity or f"{rate:,.3g}/s, {remaining} left"
        print(f"{piece.phase}: {done:,} of {total:,} {word(piece.unit)}: {activity}", flush=True)
        self._printed_s, self._last_lines[label] = now_s, (now_s, done)

    def exclude(self, seconds: float) -> None:
        """Exclude `seconds`, such as those of compilation, from the printed rate."""
        self._excluded_s += seconds

    def _now_s(self) -> float:
        return time.monotonic() - self._excluded_s
