"""Reports on online training: intervals, the initial drop, and the regret."""

from pathlib import Path

import pytest
from made_runs import seed_folder
from printed import report

from offline_rl.reporting.online import OnlineCurve, Point, online_curves, row
from offline_rl.reporting.runs import Seed, collect
from offline_rl.runs.folder import SeedFolder


def acting(
    out: Path, seed: int, shares: dict[int, float], *, reported: bool = True, warmup_steps: int = 0
) -> SeedFolder:
    """Write a seed that was evaluated in ten episodes. shares: env steps -> success in per cent."""
    how = {"num_env_steps": 10_000, "online": {"warmup_steps": warmup_steps}}
    folder = seed_folder(out, seed, {}, algorithm="wsrl", config=how, num_env_steps=10_000)
    first = {"updates": 7, "env_steps": 0, "eval/return": 0.0, "eval/score": 0.0}
    rows = {"returns": [0.0], "lengths": [1], "success": [False] * 10 if reported else None}
    folder.append("evaluations", first | rows)  # before the offline updates
    for steps, share in shares.items():
        line = {"updates": 9, "env_steps": steps, "eval/return": 2 * share, "eval/score": share}
        good = [k < round(share / 10) for k in range(10)]
        folder.append("evaluations", line | rows | {"success": good if reported else None})
    return folder


def seeds(out: Path) -> list[Seed]:
    return collect([out])["toy/line"]


def test_success_is_over_all_seeds_episodes_with_wilsons_interval(tmp_path: Path) -> None:
    """13 of 20 episodes succeed: z = 1.96 gives 43.3 to 81.9 per cent."""
    for seed, share in enumerate((60, 70)):
        acting(tmp_path, seed, {0: 90, 500: share, 1000: 50})
    course = online_curves(seeds(tmp_path))["wsrl"]
    assert course.measure == "success"
    assert [p.env_steps for p in course.points] == [0, 500, 1000]
    assert course.points[0].value == pytest.approx(90)  # the last before the first step
    point = course.points[1]
    assert point[1:] == pytest.approx((65, 43.29, 81.88), abs=0.01)


def test_scores_are_shown_next_to_success_rates(tmp_path: Path) -> None:
    acting(tmp_path, 0, {0: 90, 500: 20, 10_000: 45})
    acting(tmp_path, 1, {0: 80, 500: 30, 10_000: 55})
    assert row("x", online_curves(seeds(tmp_path))["wsrl"])[-1] == "85.0, 25.0, 50.0"


def test_scores_are_means_if_success_is_not_reported(tmp_path: Path) -> None:
    for seed, share in enumerate((60, 70)):
        acting(tmp_path, seed, {0: 90, 500: share}, reported=False)
    course = online_curves(seeds(tmp_path))["wsrl"]
    assert course.measure == "score"
    assert course.points[1] == (500, 65, 60, 70)


def test_the_drop_is_the_minimum_over_the_first_tenth_of_all_steps_or_after_a_warm_up() -> None:
    values = {0: 80, 500: 70, 1000: 30, 1500: 20, 5000: 10, 10_000: 90}
    points = [Point(steps, value, value, value) for steps, value in values.items()]
    for warmup_steps, worst in ((500, 20), (1000, 20), (4000, 10)):
        course = OnlineCurve(points, "score", warmup_steps)
        assert course.worst_early == points[2]
        assert course.worst_after_warm_up is not None
        assert course.worst_after_warm_up.value == worst
    cells = row("x", OnlineCurve(points, "score"))
    assert cells[2:6] == ["80.0", "30.0 at 1,000", "", "90.0"]
    assert row("x", OnlineCurve(points, "score", 4000))[4] == "10.0 at 5,000"


def test_regret_is_the_area_above_the_curve() -> None:
    """A straight line from 0 to 100 has a regret of 50. A return has no upper bound, so none."""
    line = [Point(0, 0, 0, 0), Point(100, 100, 100, 100)]
    assert OnlineCurve(line, "success").regret == pytest.approx(50)
    flat = [Point(0, 0, 0, 0), Point(50, 100, 100, 100), Point(100, 100, 100, 100)]
    assert OnlineCurve(flat, "score").regret == pytest.approx(25)
    assert OnlineCurve(flat, "return").regret is None
    assert OnlineCurve(flat[:1], "score").regret is None


def test_a_report_of_online_runs_has_a_separate_table_and_figure(tmp_path: Path) -> None:
    acting(tmp_path, 0, {0: 90, 500: 20, 10_000: 100})
    seed_folder(tmp_path, 0, {0: 1.0, 100: 2.0}, task="toy/other")
    text = report([tmp_path])
    assert "20 [6, 51] at 500" in text
    page = (tmp_path / "report.md").read_text()
    assert "![Over environment steps](online.png)" in page
    assert "- **worst early**: minimum in the first 10 %" in page
    assert "worst after warm-up" not in page  # no run has a warm-up
    assert "### toy/other" not in page
    assert (tmp_path / "online.png").stat().st_size > 10_000
