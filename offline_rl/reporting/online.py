"""How runs went on in an environment: the dip after the switch, what was lost on the way, the end.

Over environment steps, from the last evaluation before the first of them. Compared is the share of
episodes that succeeded where the task tells it, else the score or the return.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from offline_rl.reporting.curves import COLORS, STYLES
from offline_rl.reporting.runs import Seed, groups, key_of
from offline_rl.reporting.statistics import wilson

EARLY = 0.1  # share of all steps in which what was learned may collapse
FIGURE = "online.png"  # what `draw` makes is called
HEADER = ["algorithm", "env steps", "before", "worst early", "worst after warm-up", "end", "lost"]
HEADER += ["score"]
LESS_NEEDED = ("worst after warm-up", "score", "lost", "worst early", "env steps", "before")
NOTE = (
    "In an environment, of several evaluations after as many steps the last counts: before is that "
    "before the first step, worst early the "
    f"lowest in the first {100 * EARLY:.0f} % of all steps, and when that was, worst after warm-up "
    f"that in the {100 * EARLY:.0f} % after it, end the last one. Success in per cent with "
    "Wilson's 95 % interval over all seeds' episodes, as though none shared a start; scores and "
    "returns as means over seeds. Lost: 100 less the mean over the run's own steps of success or "
    "score (cumulative regret), between evaluations linear. Score: before, lowest at all, and at "
    "the end, where success is compared. "
    "A policy that acts is judged by what it does after as many steps, however far its values have "
    "formed."
)


class Point(NamedTuple):
    """All seeds of a method after so many environment steps."""

    env_steps: int
    value: float
    low: float  # of the 95 % interval of a share, else of the seeds
    high: float


@dataclass(frozen=True)
class Course:
    """A method's way through its environment steps."""

    points: list[Point]
    measure: str  # success, score or return
    warmup_steps: int = 0  # steps before anything was learned
    scores: Sequence[float] = ()  # at the same moments, where success is compared

    @property
    def before(self) -> Point | None:
        """Where it began, if it was evaluated there."""
        return self.points[0] if self.points[0].env_steps == 0 else None

    @property
    def worst_early(self) -> Point | None:
        """The lowest of the first steps, if it was evaluated among them."""
        return self._worst(0)

    @property
    def worst_after_warm_up(self) -> Point | None:
        """The lowest of the first steps that follow it, if there is one."""
        return self._worst(self.warmup_steps) if self.warmup_steps else None

    def _worst(self, first: int) -> Point | None:
        last = first + EARLY * self.points[-1].env_steps
        early = [p for p in self.points if first < p.env_steps <= last]
        return min(early, key=lambda p: p.value) if early else None

    @property
    def lost(self) -> float | None:
        """100 less the mean over all steps; None of returns, or of fewer than two evaluations."""
        if self.measure == "return" or len(self.points) < 2:
            return None
        steps, values = np.array([(p.env_steps, p.value) for p in self.points]).T
        area = ((values[1:] + values[:-1]) / 2 * np.diff(steps)).sum()
        return float(100 - area / (steps[-1] - steps[0]))


def acting(tasks: Mapping[str, list[Seed]]) -> dict[str, list[Seed]]:
    """The tasks in whose environment something was learned."""
    return {task: own for task, own in tasks.items() if any(seed.moments for seed in own)}


def measure_of(seeds: Sequence[Seed]) -> str:
    """What the seeds of a task are compared by in an environment."""
    told = [m.success is not None for seed in seeds for m in seed.moments.values()]
    return "success" if all(told) else key_of(seeds)


def courses(seeds: Sequence[Seed]) -> dict[str, Course]:
    """Label -> its way, of a task's seeds that act; only moments that all its seeds have."""
    acting = [seed for seed in seeds if seed.moments]
    measure, found = measure_of(acting), {}
    for label, group in groups(acting).items():
        common = sorted(set.intersection(*(set(seed.moments) for seed in group)))
        if common:
            points = [point(group, steps, measure) for steps in common]
            warmup_steps = int(group[0].config.get("online.warmup_steps", 0))
            scores = [point(group, steps, "score").value for steps in common]
            told = measure == "success" and not np.isnan(scores).any()
            found[label] = Course(points, measure, warmup_steps, scores if told else ())
    return found


def point(seeds: Sequence[Seed], env_steps: int, measure: str) -> Point:
    """All of `seeds` at one moment."""
    moments = [seed.moments[env_steps] for seed in seeds]
    if measure == "success":
        told = [s for m in moments for s in m.success or ()]
        share = sum(told) / len(told)
        low, high = wilson(sum(told), len(told))
        return Point(env_steps, 100 * share, 100 * low, 100 * high)
    values = [m.score if measure == "score" else m.mean_return for m in moments]
    known = np.array([np.nan if v is None else v for v in values])
    return Point(env_steps, float(known.mean()), float(known.min()), float(known.max()))


def table_of(seeds: Sequence[Seed]) -> list[list[str]]:
    """The rows of a task, the highest end first."""
    found = sorted(courses(seeds).items(), key=lambda item: -item[1].points[-1].value)
    return [row(label, course) for label, course in found]


def row(label: str, course: Course) -> list[str]:
    """A method's cells."""
    lost, scores = course.lost, course.scores
    first = f"{scores[0]:.1f}, " if scores and course.before else ""
    return [
        label,
        f"{course.points[-1].env_steps:,}",
        said(course.before, course.measure),
        when(course.worst_early, course.measure),
        when(course.worst_after_warm_up, course.measure),
        said(course.points[-1], course.measure),
        "" if lost is None else f"{lost:.1f}",
        f"{first}{min(scores):.1f}, {scores[-1]:.1f}" if scores else "",
    ]


def when(point: Point | None, measure: str) -> str:
    """A value, and after how many steps."""
    return "" if point is None else f"{said(point, measure)} at {point.env_steps:,}"


def said(point: Point | None, measure: str) -> str:
    """A value, and the interval of a share."""
    if point is None:
        return ""
    if measure != "success":
        return f"{point.value:.1f}"
    return f"{point.value:.0f} [{point.low:.0f}, {point.high:.0f}]"


def draw(tasks: Mapping[str, Sequence[Seed]], path: Path) -> None:
    """Writes a PNG: a panel for each task, a line for each method over environment steps."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # its font cache is no news
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    ways = {task: courses(seeds) for task, seeds in tasks.items()}
    labels = sorted({label for own in ways.values() for label in own})
    columns = min(len(ways), 2)
    rows = -(-len(ways) // columns)
    figure = Figure(figsize=(max(6.4, 5.2 * columns), 3.6 * rows + 0.7), dpi=150)
    figure.set_layout_engine("constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    handles = {}
    for axes, (task, own) in zip(panels, ways.items(), strict=False):
        for label, course in own.items():
            k, (steps, *values) = labels.index(label), np.array(course.points).T
            color, style = COLORS[k % len(COLORS)], STYLES[k // len(COLORS) % len(STYLES)]
            (handles[label],) = axes.plot(steps, values[0], color=color, ls=style, lw=1.8)
            axes.fill_between(steps, *values[1:], color=color, alpha=0.15, lw=0)
        names = {"success": "success, per cent", "score": "normalized score", "return": "return"}
        axes.set_title(task, fontsize=11)
        axes.set_xlabel("environment steps")
        axes.set_ylabel(names[measure_of([seed for seed in tasks[task] if seed.moments])])
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(color="0.9", lw=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.02)
    for axes in panels[len(ways) :]:
        axes.set_visible(False)
    shown = {label: handles[label] for label in labels if label in handles}
    title = "shaded: 95 % interval of a success rate, else from the lowest to the highest seed"
    legend = {"title": title, "title_fontsize": "small", "ncols": 3, "frameon": False}
    figure.legend([*shown.values()], [*shown], loc="outside lower center", **legend)
    figure.savefig(path, format="png")
