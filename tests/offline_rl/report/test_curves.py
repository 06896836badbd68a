"""The figure of learning curves: its size, labels at the ends of lines, at most a dozen lines."""

from pathlib import Path

import numpy as np
import pytest
from made_runs import seed_folder
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from offline_rl.reporting.curves import GAP, HEIGHT, draw_figure, spread
from offline_rl.reporting.runs import behavior, collect


@pytest.mark.parametrize("wanted", [[0.1, 0.5, 0.9], [0.5, 0.5, 0.5], [0.1, 0.11, 0.2, 0.9]])
def test_labels_keep_their_distance_and_stay_as_close_as_possible(wanted: list[float]) -> None:
    places = spread(wanted, 0.1)
    assert (np.diff(places) >= 0.1 - 1e-9).all()
    assert sum(places) == pytest.approx(sum(wanted))  # adjacent labels move in both directions
    if (np.diff(wanted) >= 0.1).all():
        assert places == wanted


def test_forty_runs_do_not_shrink_the_panels(tmp_path: Path) -> None:
    """The best dozen of forty runs of a task are drawn, with labels that do not overlap."""
    for k in range(40):
        seed_folder(tmp_path, 0, {0: 1.0, 4000: float(k)}, name=f"run-{k}")
    for name in ("a", "b"):
        seed_folder(tmp_path, 0, {0: 1.0, 4000: 50.0}, task="toy/other", name=name)
    figure = draw_figure(collect([tmp_path]))
    FigureCanvasAgg(figure).draw()
    bounds = figure.get_window_extent()
    for axes in figure.axes:
        box = axes.get_window_extent()
        assert box.height / figure.dpi > 0.8 * HEIGHT
        assert box.width > box.height
        middles = sorted(text.xyann[1] for text in axes.texts)
        assert (np.diff(middles) >= GAP / HEIGHT - 1e-6).all()
        for text in axes.texts:
            extent = Text.get_window_extent(text)  # without its line
            assert box.x1 < extent.x0 < extent.x1 <= bounds.x1
    many, few = sorted(figure.axes, key=lambda axes: -len(axes.lines))
    assert len(many.lines) == 13  # and the behavior policy
    assert {text.get_text() for text in many.texts} == {
        *(f"bc (run-{k})" for k in range(28, 40)),
        "behavior policy",
    }
    assert "best 12 of 40 runs" in many.get_title()
    assert len({(line.get_color(), line.get_linestyle()) for line in many.lines}) == 13
    assert len(few.lines) == 3


def test_data_sets_of_equal_behavior_policies_share_a_line(tmp_path: Path) -> None:
    for k, value in enumerate((130.0, 130.0, 150.0)):
        data = {"dataset": f"{k}.npz", "behavior_return": value, "behavior_score": value / 2 - 50}
        seed_folder(tmp_path, 0, {0: 1.0, 4000: 5.0}, name=f"run-{k}", **data)
    (seeds,) = collect([tmp_path]).values()
    assert behavior(seeds) == {"0.npz, 1.npz": (15, 130), "2.npz": (25, 150)}
    (axes,) = draw_figure({"toy/line": seeds}).axes
    assert [text.get_text() for text in axes.texts].count("behavior policy") == 2


def test_leaders_end_before_the_labels(tmp_path: Path) -> None:
    for k in range(9):
        seed_folder(tmp_path, 0, {0: 1.0, 4000: float(k)}, name=f"run-{k}")
    figure = draw_figure(collect([tmp_path]))
    FigureCanvasAgg(figure).draw()
    for text in figure.axes[0].texts:
        leader = text.arrow_patch.get_window_extent()
        assert leader.x1 <= Text.get_window_extent(text).x0 + 1


def test_no_leader_to_a_label_crosses_the_axes_and_a_short_line_has_a_dot(tmp_path: Path) -> None:
    """Runs have 1,000 and 4,000 updates. Only data and gray dots lie inside the axes."""
    seed_folder(tmp_path, 0, {0: 1.0, 1000: 90.0}, name="short")
    seed_folder(tmp_path, 0, {0: 1.0, 4000: 20.0}, name="long")
    figure = draw_figure(collect([tmp_path]))
    FigureCanvasAgg(figure).draw()
    (axes,) = figure.axes
    for text in axes.texts:
        leader = text.arrow_patch.get_window_extent()
        assert leader.x0 >= axes.get_window_extent().x1 - 1
    (dot,) = (line for line in axes.lines if line.get_marker() == "o")
    assert (dot.get_xdata(), dot.get_ydata()) == ([1000], [90.0])
    (dots,) = (line for line in axes.lines if line.get_color() == "0.6")
    assert list(dots.get_xdata()) == [1000, axes.get_xlim()[1]]


def test_a_task_with_cost_limits_has_a_panel_of_costs_with_the_limits(tmp_path: Path) -> None:
    limits = {"target_cost": None, "cost_limits": [10, 20]}
    for update, costs in enumerate(([40.0, 60.0], [5.0, 9.0])):
        seed_folder(tmp_path, 0, {update: 50.0}, costs=costs, finished=update == 1, **limits)
    seed_folder(tmp_path, 0, {0: 1.0, 1: 5.0}, task="toy/other", costs=[1.0, 2.0])
    constrained, other = (draw_figure({"t": seeds}) for seeds in collect([tmp_path]).values())
    scores, costs = constrained.axes
    assert (scores.get_ylabel(), costs.get_ylabel()) == ("normalized score", "cost")
    assert {text.get_text() for text in costs.texts} == {"bc", "limit 10", "limit 20"}
    curves = [[*line.get_ydata()] for line in costs.lines]
    assert curves == [[50.0, 7.0], [10, 10], [20, 20]]
    assert len(other.axes) == 1
