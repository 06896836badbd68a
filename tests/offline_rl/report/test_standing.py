"""What the seeds of one algorithm came to together."""

from pathlib import Path
from typing import Any

import pytest
from made_runs import seed_folder

from offline_rl.reporting.runs import collect
from offline_rl.reporting.standing import Standing, standing


def of_scores(
    out: Path, last: tuple[float, ...], before: float, updates: int = 4000, **more: Any
) -> Standing:
    """Seeds that ended at `last`, with `before` in four evaluations; target rate and bias 0.5."""
    config = {"num_updates": updates, "hyper": {"tau": 0.5, "discount": 0.5}, **more}
    for seed, score in enumerate(last):
        curve = {0: -99.0, **dict.fromkeys(range(1, 5), before), updates: score}
        seed_folder(out, seed, curve, config=config, num_updates=updates)
    (seeds,) = collect([out]).values()
    return standing(seeds, "score")


def test_above_is_by_more_than_the_deviation_over_seeds_and_the_error_over_episodes(
    tmp_path: Path,
) -> None:
    """40, 50, 60: deviation 8.165; episodes two apart in return, one in score: error 0.5."""
    found = of_scores(tmp_path, (40.0, 50.0, 60.0), before=60.0)
    assert found.deviation == pytest.approx((200 / 3) ** 0.5)
    assert found.error == pytest.approx(0.5)
    assert found.above(50 - 8.17 - 0.51)
    assert not found.above(50 - 8.16 - 0.49)
    assert found.above(50 - 8.17 - 0.51 - 2.0, error=2.0)
    assert not found.above(50 - 8.16 - 0.49 - 2.0, error=2.0)


def test_who_played_every_start_has_no_error_over_episodes(tmp_path: Path) -> None:
    found = of_scores(tmp_path, (40.0, 50.0), before=50.0, eval_episodes="all")
    assert (found.error, found.error_text) == (0.0, "exact")
    assert of_scores(tmp_path / "some", (40.0, 50.0), before=50.0).error_text == "0.5"


def test_values_of_the_run_before_count_as_formed(tmp_path: Path) -> None:
    """One update of the target halves what is left by a half: 1 - 0.75^n."""
    more = {"start": {"run": "a/b", "updates": 2, "sha256": {}}}
    assert of_scores(tmp_path, (1.0,), before=1.0, updates=5, **more).formed == pytest.approx(
        1 - 0.75**7
    )


def test_who_learns_no_values_and_still_rises_is_unfinished(tmp_path: Path) -> None:
    """The last is 40 above the last five; the same where an environment is acted in."""
    for number, (more, rising) in enumerate((({}, True), ({"num_env_steps": 9}, False))):
        more = {**more, "hyper": {"beta": 1.0}}
        found = of_scores(tmp_path / str(number), (60.0, 60.0), before=10.0, **more)
        assert (found.rising, found.finished) == (rising, not rising)
    steady = of_scores(tmp_path / "steady", (60.0, 50.0), before=58.0, hyper={"beta": 1.0})
    assert steady.finished


def test_above_is_at_the_end_and_over_the_last_five_evaluations(tmp_path: Path) -> None:
    """The last is at 50; the mean of the last five at (4 * 20 + 50) / 5 = 26."""
    found = of_scores(tmp_path, (50.0,), before=20.0)
    assert found.lasts == [pytest.approx(26.0)]
    assert found.above(25.0)
    assert not found.above(26.0)


def test_what_is_unfinished_is_above_nothing(tmp_path: Path) -> None:
    """1 - 0.75^8 = 90.0 %, 1 - 0.75^7 = 86.7 %."""
    assert of_scores(tmp_path / "a", (50.0,), 50.0, updates=9).above(0.0)
    assert not of_scores(tmp_path / "b", (50.0,), 50.0, updates=7).above(0.0)
