"""Reports over environment steps: intervals, the dip after the switch, what was lost."""

from pathlib import Path

import pytest
from made_runs import seed_folder
from printed import report

from offline_rl.reporting.online import Course, Point, courses, row
from offline_rl.reporting.runs import Seed, collect
from offline_rl.training.run_folder import SeedFolder


def acting(
    out: Path, seed: int, shares: dict[int, float], *, told: bool = True, warmup_steps: int = 0
) -> SeedFolder:
    """Evaluated at environment steps in ten episodes, of which a share succeeds."""
    how = {"num_env_steps": 10_000, "online": {"warmup_steps": warmup_steps}}
    folder = seed_folder(out, seed, {}, algorithm="wsrl", config=how, num_env_steps=10_000)
    first = {"updates": 7, "env_steps": 0, "eval/return": 0.0, "eval/score": 0.0}
    rows = {"returns": [0.0], "lengths": [1], "success": [False] * 10 if told else None}
    folder.append("evaluations", first | rows)  # of before the offline updates
    for steps, share in shares.items():
        line = {"updates": 9, "env_steps": steps, "eval/return": 2 * share, "eval/score": share}
        good = [k < round(share / 10) for k in range(10)]
        folder.append("evaluations", line | rows | {"success": good if told else None})
    return folder


def seeds(out: Path) -> list[Seed]:
    return collect([out])["toy/line"]


def test_success_is_of_all_seeds_episodes_with_wilsons_interval(tmp_path: Path) -> None:
    """13 of 20 episodes: z = 1.96 gives 43.3 to 81.9 per cent; two at equal updates both count."""
    for seed, share in enumerate((60, 70)):
        acting(tmp_path, seed, {0: 90, 500: share, 1000: 50})
    course = courses(seeds(tmp_path))["wsrl"]
    assert course.measure == "success"
    assert [p.env_steps for p in course.points] == [0, 500, 1000]
    assert course.points[0].value == pytest.approx(90)  # the last before the first step
    point = course.points[1]
    assert point[1:] == pytest.approx((65, 43.29, 81.88), abs=0.01)


def test_where_success_is_compared_the_scores_stand_beside_it(tmp_path: Path) -> None:
    acting(tmp_path, 0, {0: 90, 500: 20, 10_000: 45})
    acting(tmp_path, 1, {0: 80, 500: 30, 10_000: 55})
    assert row("x", courses(seeds(tmp_path))["wsrl"])[-1] == "85.0, 25.0, 50.0"


def test_scores_are_means_where_success_is_not_told(tmp_path: Path) -> None:
    for seed, share in enumerate((60, 70)):
        acting(tmp_path, seed, {0: 90, 500: share}, told=False)
    course = courses(seeds(tmp_path))["wsrl"]
    assert course.measure == "score"
    assert course.points[1] == (500, 65, 60, 70)


def test_the_dip_is_the_lowest_of_a_tenth_of_all_steps_and_of_as_many_after_a_warm_up() -> None:
    values = {0: 80, 500: 70, 1000: 30, 1500: 20, 5000: 10, 10_000: 90}
    points = [Point(steps, value, value, value) for steps, value in values.items()]
    for warmup_steps, worst in ((500, 20), (1000, 20), (4000, 10)):
        found = Course(points, "score", warmup_steps)
        assert found.worst_early == points[2]
        assert found.worst_after_warm_up is not None
        assert found.worst_after_warm_up.value == worst
    cells = row("x", Course(points, "score"))
    assert cells[2:6] == ["80.0", "30.0 at 1,000", "", "90.0"]
    assert row("x", Course(points, "score", 4000))[4] == "10.0 at 5,000"


def test_what_is_lost_is_the_area_above_the_curve() -> None:
    """From 0 to 100 in a line half is lost; of a return nobody knows how much."""
    line = [Point(0, 0, 0, 0), Point(100, 100, 100, 100)]
    assert Course(line, "success").lost == pytest.approx(50)
    held = [Point(0, 0, 0, 0), Point(50, 100, 100, 100), Point(100, 100, 100, 100)]
    assert Course(held, "score").lost == pytest.approx(25)
    assert Course(held, "return").lost is None
    assert Course(held[:1], "score").lost is None


def test_a_report_of_runs_that_act_has_a_table_and_a_picture_of_its_own(tmp_path: Path) -> None:
    acting(tmp_path, 0, {0: 90, 500: 20, 10_000: 100})
    seed_folder(tmp_path, 0, {0: 1.0, 100: 2.0}, task="toy/other")
    text = report([tmp_path])
    assert "20 [6, 51] at 500" in text
    page = (tmp_path / "report.md").read_text()
    assert "![Over environment steps](online.png)" in page
    assert "### toy/other" not in page
    assert (tmp_path / "online.png").stat().st_size > 10_000
