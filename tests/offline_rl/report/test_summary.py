"""Summaries of the seeds of one algorithm."""

from pathlib import Path
from typing import Any

import pytest
from made_runs import seed_folder

from offline_rl.reporting.runs import collect
from offline_rl.reporting.summary import Summary, summarize


def summary_of(
    out: Path, last: tuple[float, ...], before: float, updates: int = 4000, **more: Any
) -> Summary:
    """Summarize seeds that end at `last` after four evaluations of `before`; tau and gamma 0.5."""
    config = {"num_updates": updates, "hyper": {"tau": 0.5, "discount": 0.5}, **more}
    for seed, score in enumerate(last):
        curve = {0: -99.0, **dict.fromkeys(range(1, 5), before), updates: score}
        seed_folder(out, seed, curve, config=config, num_updates=updates)
    (seeds,) = collect([out]).values()
    return summarize(seeds, "score")


def test_above_is_by_more_than_the_std_over_seeds_plus_the_error_over_episodes(
    tmp_path: Path,
) -> None:
    """Scores 40, 50, 60: std 8.165. Two episodes that differ by 1 in score: error 0.5."""
    summary = summary_of(tmp_path, (40.0, 50.0, 60.0), before=60.0)
    assert summary.std == pytest.approx((200 / 3) ** 0.5)
    assert summary.error == pytest.approx(0.5)
    assert summary.above(50 - 8.17 - 0.51)
    assert not summary.above(50 - 8.16 - 0.49)
    assert summary.above(50 - 8.17 - 0.51 - 2.0, error=2.0)
    assert not summary.above(50 - 8.16 - 0.49 - 2.0, error=2.0)


def test_an_evaluation_from_every_initial_state_has_no_error_over_episodes(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, (40.0, 50.0), before=50.0, eval_episodes="all")
    assert (summary.error, summary.error_text) == (0.0, "exact")
    assert summary_of(tmp_path / "some", (40.0, 50.0), before=50.0).error_text == "0.5"


def test_convergence_includes_the_updates_of_the_run_that_is_continued(tmp_path: Path) -> None:
    """Tau and gamma are 0.5: a target update removes 0.25 of the distance: 1 - 0.75^n."""
    more = {"start": {"run": "a/b", "updates": 2, "sha256": {}}}
    assert summary_of(
        tmp_path, (1.0,), before=1.0, updates=5, **more
    ).critic_convergence == pytest.approx(1 - 0.75**7)


def test_an_offline_run_without_a_critic_that_still_rises_is_unfinished(tmp_path: Path) -> None:
    """The last evaluation is 40 above the last five. Online runs are never marked as rising."""
    for number, (more, rising) in enumerate((({}, True), ({"num_env_steps": 9}, False))):
        more = {**more, "hyper": {"beta": 1.0}}
        summary = summary_of(tmp_path / str(number), (60.0, 60.0), before=10.0, **more)
        assert (summary.rising, summary.finished) == (rising, not rising)
    steady = summary_of(tmp_path / "steady", (60.0, 50.0), before=58.0, hyper={"beta": 1.0})
    assert steady.finished


def test_above_is_at_the_end_and_over_the_last_five_evaluations(tmp_path: Path) -> None:
    """The last evaluation is 50, the mean of the last five (4 * 20 + 50) / 5 = 26."""
    summary = summary_of(tmp_path, (50.0,), before=20.0)
    assert summary.last_five == [pytest.approx(26.0)]
    assert summary.above(25.0)
    assert not summary.above(26.0)


def test_an_unfinished_result_is_above_nothing(tmp_path: Path) -> None:
    """1 - 0.75^8 = 90.0 %, 1 - 0.75^7 = 86.7 %."""
    assert summary_of(tmp_path / "a", (50.0,), 50.0, updates=9).above(0.0)
    assert not summary_of(tmp_path / "b", (50.0,), 50.0, updates=7).above(0.0)
