"""The picture of learning curves."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from offline_rl.report.runs import Seed, behaviour, groups, key_of

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F4F24")
STYLES = ("-", "-.", ":")  # dashed is the behaviour policy


def draw(tasks: Mapping[str, Sequence[Seed]], path: Path) -> None:
    """Writes a PNG: a panel for each task, a line for each algorithm, its seeds' range shaded.

    An algorithm has the same colour in every panel. Drawn are the updates at which all of its
    seeds were evaluated.
    """
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # its font cache is no news
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    labels = sorted({seed.label for seeds in tasks.values() for seed in seeds})
    columns = 2 if len(tasks) == 4 else min(len(tasks), 3)
    rows = -(-len(tasks) // columns)
    size = (max(6.4, 4.2 * columns), 3.3 * rows + 0.7)
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    handles, dashed = {}, {}
    for axes, (task, seeds) in zip(panels, tasks.items(), strict=False):
        key = key_of(seeds)
        for label, group in groups(seeds).items():
            curves = [seed.curves[key] for seed in group if seed.curves[key]]
            updates = sorted(set(curves[0]).intersection(*curves[1:])) if curves else []
            if not updates:
                continue
            values = np.array([[curve[u] for u in updates] for curve in curves])  # [S, evaluations]
            k = labels.index(label)
            colour, style = COLOURS[k % len(COLOURS)], STYLES[k // len(COLOURS) % len(STYLES)]
            marker = "o" if len(updates) == 1 else None
            look = {"color": colour, "ls": style, "marker": marker, "lw": 1.8}
            (handles[label],) = axes.plot(updates, values.mean(0), **look)
            axes.fill_between(updates, values.min(0), values.max(0), color=colour, alpha=0.18, lw=0)
        for score, mean in behaviour(seeds).values():
            value = score if key == "score" else mean
            if value is not None:
                dashed["behaviour policy"] = axes.axhline(value, color="0.35", ls="--", lw=1.2)
        axes.set_title(task, fontsize=11)
        axes.set_xlabel("updates")
        axes.set_ylabel("normalised score" if key == "score" else "return")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(color="0.9", lw=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.02)
    for axes in panels[len(tasks) :]:
        axes.set_visible(False)
    handles = {label: handles[label] for label in labels if label in handles} | dashed
    entry = 0.09 * max(map(len, handles), default=1) + 0.7  # inches, about
    figure.legend(
        handles.values(),
        handles.keys(),
        title="means over seeds, shaded from the lowest to the highest seed",
        title_fontsize="small",
        loc="outside lower center",
        ncols=max(1, int(size[0] / entry)),
        frameon=False,
    )
    figure.savefig(path, format="png")
