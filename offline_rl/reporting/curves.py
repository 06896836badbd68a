"""Figure of learning curves."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from offline_rl.reporting.runs import BEHAVIOR, Seed, behavior, groups, key_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F4F24")
STYLES = ("-", ":", "-.")  # a dashed line is the behavior policy
MAX_LINES = 12  # lines per panel, those of the best runs
HEIGHT, WIDTH, GAP = 2.6, 3.6, 0.17  # inches: size of a panel's axes, distance between labels
LETTER = 0.065  # inches: width of a character in a label
# Style of the connection from the end of a short line to the right edge: unlike a data line
DOTS: dict[str, Any] = {"color": "0.6", "ls": (0, (1, 4)), "lw": 1.0, "zorder": 1}


class Panel(NamedTuple):
    """Curves of one task in one measure."""

    task: str
    key: str  # key of `Seed.curves`
    seeds: Sequence[Seed]
    lines: list[Line]  # highest last value first; of costs, lowest first


class Line(NamedTuple):
    """One algorithm's learning curve in a panel."""

    label: str
    updates: list[int]
    values: np.ndarray  # [S, evaluations]

    @property
    def last(self) -> float:
        """Mean over seeds of the last evaluation; -inf if it is NaN."""
        return float(np.nan_to_num(self.values[:, -1].mean(), nan=-np.inf))


class End(NamedTuple):
    """End point and label of a line."""

    label: str
    updates: float
    value: float
    color: str
    style: str


def draw(tasks: Mapping[str, Sequence[Seed]], path: Path) -> None:
    """Write the learning curves of `tasks` as a PNG."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # hide the message on the font cache
    draw_figure(tasks).savefig(path, format="png")


def draw_figure(tasks: Mapping[str, Sequence[Seed]]) -> Figure:
    """Draw a panel for each task, with a line for each algorithm. The range of seeds is shaded.

    A task with cost limits has a second panel, with the costs. Its dashed lines are the limits.

    Labels are at the ends of the lines. If there are more than `MAX_LINES` algorithms, only the
    best are drawn, and the title says so. An algorithm has the same color in every panel. A line
    has a point at each number of updates at which all seeds were evaluated.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    panels = [panel for task, seeds in tasks.items() for panel in panels_of(task, seeds)]
    labels = sorted({line.label for panel in panels for line in panel.lines[:MAX_LINES]})
    side = 0.3 + LETTER * max(map(len, [*labels, BEHAVIOR]))
    columns = 2 if len(panels) == 4 else min(len(panels), 3)
    rows = -(-len(panels) // columns)
    size = ((WIDTH + side + 0.8) * columns, (HEIGHT + 0.8) * rows + 0.3)
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    all_axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, (task, key, seeds, ranked) in zip(all_axes, panels, strict=False):
        ends = list[End]()
        for label, updates, values in ranked[:MAX_LINES]:
            k, mean = labels.index(label), values.mean(0)
            color, style = COLORS[k % len(COLORS)], STYLES[k // len(COLORS) % len(STYLES)]
            marker = "o" if len(updates) == 1 else None
            axes.plot(updates, mean, color=color, ls=style, marker=marker, lw=1.8)
            axes.fill_between(updates, values.min(0), values.max(0), color=color, alpha=0.18, lw=0)
            if np.isfinite(mean[-1]):
                ends.append(End(label, updates[-1], mean[-1], color, style))
        axes.margins(x=0.02)
        for label, value in references(seeds, key):
            axes.axhline(value, color="0.35", ls="--", lw=1.2)
            ends.append(End(label, axes.get_xlim()[1], value, "0.35", "--"))
        label_ends(axes, ends)
        count = len(ranked)
        more = f" (best {MAX_LINES} of {count} runs)" if count > MAX_LINES else ""
        axes.set_title(task + more, fontsize=11)
        is_online = any(seed.moments for seed in seeds)
        axes.set_xlabel("offline updates, then environment steps" if is_online else "updates")
        axes.set_ylabel("normalized score" if key == "score" else key)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(color="0.9", lw=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in all_axes[len(panels) :]:
        axes.set_visible(False)
    figure.supxlabel("means over seeds, shaded from the lowest to the highest seed", fontsize=8)
    return figure


def panels_of(task: str, seeds: Sequence[Seed]) -> Iterator[Panel]:
    """Yield the panels of a task: score or return and, with cost limits, cost."""
    key = key_of(seeds)
    yield Panel(task, key, seeds, sorted(lines(seeds, key), key=lambda line: -line.last))
    costs = sorted(lines(seeds, "cost"), key=lambda line: line.last)
    if costs and cost_limits(seeds):
        yield Panel(task, "cost", seeds, costs)


def cost_limits(seeds: Sequence[Seed]) -> list[float]:
    """Return the cost limits by which the policies are judged, in increasing order."""
    return sorted({limit for seed in seeds for limit in seed.limits.all})


def references(seeds: Sequence[Seed], key: str) -> Iterator[tuple[str, float]]:
    """Yield label and value of the dashed lines of a panel: behavior policy or cost limits."""
    if key == "cost":
        yield from ((f"limit {limit:g}", limit) for limit in cost_limits(seeds))
        return
    for score, mean in behavior(seeds).values():
        if (value := score if key == "score" else mean) is not None:
            yield BEHAVIOR, value


def lines(seeds: Sequence[Seed], key: str) -> Iterator[Line]:
    """Yield a line for each algorithm of a task, if its seeds have a common evaluation."""
    for label, group in groups(seeds).items():
        curves = [seed.curves[key] for seed in group if seed.curves[key]]
        updates = sorted(set(curves[0]).intersection(*curves[1:])) if curves else []
        if updates:
            yield Line(label, updates, np.array([[c[u] for u in updates] for c in curves]))


def label_ends(axes: Any, ends: Sequence[End]) -> None:
    """Write each label to the right of the axes, as close as possible to the end of its line.

    A leader in the line's color connects the right edge to the label. If a line ends before the
    right edge, a dot marks its end, and a dotted gray line continues to the edge.
    """
    low, high = axes.get_ylim()
    edge = axes.get_xlim()[1]
    last = max((end.updates for end in ends if end.style != "--"), default=edge)
    for end in ends:
        if end.updates < last:
            axes.plot(end.updates, end.value, "o", color=end.color, ms=4)
            axes.plot([end.updates, edge], [end.value, end.value], **DOTS)
    axes.set_xlim(right=edge)
    ends = sorted(ends, key=lambda end: end.value)
    positions = spread([(end.value - low) / (high - low) for end in ends], GAP / HEIGHT)
    for (label, _, value, color, style), position in zip(ends, positions, strict=True):
        axes.annotate(
            label,
            (1, value),
            xycoords=axes.get_yaxis_transform(),  # the right edge, at the line's last value
            xytext=(1.05, position),
            textcoords="axes fraction",
            color=color,
            fontsize=8,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": color,
                "ls": style,
                "lw": 0.8,
                "alpha": 0.8,
                "shrinkB": 0,
                "relpos": (0, 0.5),
            },
        )


def spread(targets: Sequence[float], gap: float) -> list[float]:
    """Return positions at least `gap` apart, as close as possible to the ascending `targets`."""
    touching = list[tuple[float, int]]()  # center and size of each group of adjacent labels
    for target in targets:
        middle, count = target, 1
        while touching and middle - touching[-1][0] < gap * (count + touching[-1][1]) / 2:
            other, others = touching.pop()
            middle = (middle * count + other * others) / (count + others)
            count += others
        touching.append((middle, count))
    return [m + gap * (k - (n - 1) / 2) for m, n in touching for k in range(n)]
