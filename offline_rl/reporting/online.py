"""Online training: performance over environment steps, the initial drop, and the regret.

The first point is the last evaluation before the first environment step. Runs are compared by
success rate if the task reports success, otherwise by score or return.
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
from offline_rl.utils.text import format_legend, shown_columns, wrap_text

EARLY = 0.1  # share of the environment steps that is searched for an initial drop
FIGURE = "online.png"  # name of the figure's file
HEADER = ["algorithm", "env steps", "before", "worst early", "worst after warm-up", "end"]
HEADER += ["regret", "scores"]
LESS_NEEDED = ("worst after warm-up", "scores", "regret", "worst early", "env steps", "before")
NOTE = (
    "If the task reports success, values are success rates in per cent, with Wilson's 95 % "
    "interval over the episodes of all seeds. The interval treats all episodes as independent, "
    "although seeds share initial states. Otherwise values are scores or returns, averaged over "
    "seeds. If there are several evaluations after the same number of steps, the last one counts. "
    "Critic convergence is not considered here: online training is judged by performance after a "
    "number of environment steps."
)
LEGEND = {
    "env steps": "environment steps of a seed at the last evaluation.",
    "before": "value before the first environment step.",
    "worst early": f"minimum in the first {100 * EARLY:.0f} % of environment steps, and the step "
    "at which it occurred.",
    "worst after warm-up": f"minimum in the {100 * EARLY:.0f} % of environment steps after the "
    "warm-up.",
    "end": "value of the last evaluation.",
    "regret": "100 minus the mean success rate or score over all environment steps. Values are "
    "interpolated linearly between evaluations.",
    "scores": "score before the first environment step, minimum score, and score at the end.",
}


class Point(NamedTuple):
    """Result of all seeds of a method after a number of environment steps."""

    env_steps: int
    value: float
    low: float  # lower end of a success rate's 95 % interval, otherwise the lowest seed
    high: float


@dataclass(frozen=True)
class OnlineCurve:
    """Results of a method over environment steps."""

    points: list[Point]
    measure: str  # success, score or return
    warmup_steps: int = 0  # environment steps before the first update
    scores: Sequence[float] = ()  # scores of the same evaluations, if `measure` is success

    @property
    def initial(self) -> Point | None:
        """The result before the first environment step; None if it was not evaluated."""
        return self.points[0] if self.points[0].env_steps == 0 else None

    @property
    def worst_early(self) -> Point | None:
        """The worst result in the first environment steps; None without an evaluation there."""
        return self._worst(0)

    @property
    def worst_after_warm_up(self) -> Point | None:
        """The worst result in the first environment steps after the warm-up.

        None if there is no warm-up, or no evaluation in these steps.
        """
        return self._worst(self.warmup_steps) if self.warmup_steps else None

    def _worst(self, first: int) -> Point | None:
        last = first + EARLY * self.points[-1].env_steps
        early = [p for p in self.points if first < p.env_steps <= last]
        return min(early, key=lambda p: p.value) if early else None

    @property
    def regret(self) -> float | None:
        """100 minus the mean over all steps; None for returns or fewer than two evaluations."""
        if self.measure == "return" or len(self.points) < 2:
            return None
        steps, values = np.array([(p.env_steps, p.value) for p in self.points]).T
        area = ((values[1:] + values[:-1]) / 2 * np.diff(steps)).sum()
        return float(100 - area / (steps[-1] - steps[0]))


def online_tasks(tasks: Mapping[str, list[Seed]]) -> dict[str, list[Seed]]:
    """Return the tasks with online training."""
    return {t: seeds for t, seeds in tasks.items() if any(seed.moments for seed in seeds)}


def measure_of(seeds: Sequence[Seed]) -> str:
    """Return the measure by which a task's online runs are compared: success, score or return."""
    reported = [m.success is not None for seed in seeds for m in seed.moments.values()]
    return "success" if all(reported) else key_of(seeds)


def online_curves(seeds: Sequence[Seed]) -> dict[str, OnlineCurve]:
    """Return label -> results over environment steps, at the evaluations common to its seeds."""
    acting = [seed for seed in seeds if seed.moments]
    measure, by_label = measure_of(acting), {}
    for label, group in groups(acting).items():
        common = sorted(set.intersection(*(set(seed.moments) for seed in group)))
        if common:
            points = [point(group, steps, measure) for steps in common]
            warmup_steps = int(group[0].config.get("online.warmup_steps", 0))
            scores = [point(group, steps, "score").value for steps in common]
            scored = measure == "success" and not np.isnan(scores).any()
            by_label[label] = OnlineCurve(points, measure, warmup_steps, scores if scored else ())
    return by_label


def point(seeds: Sequence[Seed], env_steps: int, measure: str) -> Point:
    """Return the result of all `seeds` after `env_steps` environment steps."""
    moments = [seed.moments[env_steps] for seed in seeds]
    if measure == "success":
        success = [s for m in moments for s in m.success or ()]
        share = sum(success) / len(success)
        low, high = wilson(sum(success), len(success))
        return Point(env_steps, 100 * share, 100 * low, 100 * high)
    values = [m.score if measure == "score" else m.mean_return for m in moments]
    array = np.array([np.nan if v is None else v for v in values])
    return Point(env_steps, float(array.mean()), float(array.min()), float(array.max()))


def table_of(seeds: Sequence[Seed]) -> list[list[str]]:
    """Return the rows of a task's table, the highest final value first."""
    ranked = sorted(online_curves(seeds).items(), key=lambda item: -item[1].points[-1].value)
    return [row(label, course) for label, course in ranked]


def explanation(body: Sequence[Sequence[str]]) -> str:
    """Return the note below online tables, and definitions of the columns that `body` fills."""
    return f"{wrap_text(NOTE)}\n\n{format_legend(LEGEND, shown_columns(HEADER, body))}"


def row(label: str, course: OnlineCurve) -> list[str]:
    """Return the cells of a method's row."""
    regret, scores = course.regret, course.scores
    first = f"{scores[0]:.1f}, " if scores and course.initial else ""
    return [
        label,
        f"{course.points[-1].env_steps:,}",
        value_text(course.initial, course.measure),
        value_and_step(course.worst_early, course.measure),
        value_and_step(course.worst_after_warm_up, course.measure),
        value_text(course.points[-1], course.measure),
        "" if regret is None else f"{regret:.1f}",
        f"{first}{min(scores):.1f}, {scores[-1]:.1f}" if scores else "",
    ]


def value_and_step(point: Point | None, measure: str) -> str:
    """Return a result and its number of environment steps; "" for None."""
    return "" if point is None else f"{value_text(point, measure)} at {point.env_steps:,}"


def value_text(point: Point | None, measure: str) -> str:
    """Return a result, with its interval if it is a success rate; "" for None."""
    if point is None:
        return ""
    if measure != "success":
        return f"{point.value:.1f}"
    return f"{point.value:.0f} [{point.low:.0f}, {point.high:.0f}]"


def draw(tasks: Mapping[str, Sequence[Seed]], path: Path) -> None:
    """Write a PNG with a panel for each task and a line for each method over environment steps."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # hide the message on the font cache
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    lines = {task: online_curves(seeds) for task, seeds in tasks.items()}
    labels = sorted({label for by_label in lines.values() for label in by_label})
    columns = min(len(lines), 2)
    rows = -(-len(lines) // columns)
    figure = Figure(figsize=(max(6.4, 5.2 * columns), 3.6 * rows + 0.7), dpi=150)
    figure.set_layout_engine("constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    handles = {}
    for axes, (task, by_label) in zip(panels, lines.items(), strict=False):
        for label, course in by_label.items():
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
    for axes in panels[len(lines) :]:
        axes.set_visible(False)
    shown = {label: handles[label] for label in labels if label in handles}
    title = "shaded: 95 % interval of a success rate, else from the lowest to the highest seed"
    legend = {"title": title, "title_fontsize": "small", "ncols": 3, "frameon": False}
    figure.legend([*shown.values()], [*shown], loc="outside lower center", **legend)
    figure.savefig(path, format="png")
