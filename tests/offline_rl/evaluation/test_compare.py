"""Differences of runs, against tables of the t distribution and calculations by hand."""

import math
from pathlib import Path

import numpy as np
import pytest
from test_evaluate import constant_policy, returns_by_a_loop

import offline_rl
from offline_rl.evaluation.compare import difference, mean_interval, note_on, t_quantile
from offline_rl.utils.errors import UserError


@pytest.mark.parametrize(
    ("degrees", "expected"), [(1, 12.7062), (2, 4.30265), (9, 2.26216), (49, 2.00958)]
)
def test_quantiles_are_those_of_the_tables(degrees: int, expected: float) -> None:
    assert t_quantile(degrees) == pytest.approx(expected, abs=1e-4)


def test_with_many_degrees_of_freedom_the_quantile_is_the_normal_one() -> None:
    assert t_quantile(1_000_000) == pytest.approx(1.95996, abs=1e-4)


def test_a_difference_is_paired_by_episode_and_by_training_seed() -> None:
    """Differences by episode 1, 2 and 0: mean 1, std 1. Differences by seed 0 and 2."""
    ours = {0: np.array([2.0, 4.0, 3.0]), 1: np.array([3.0, 5.0, 4.0])}
    theirs = {0: np.array([2.0, 4.0, 3.0]), 1: np.array([1.0, 1.0, 4.0])}
    result = difference("b", "a", "return", ours, theirs)
    assert result.value == 1
    half = 4.30265 / math.sqrt(3)
    assert result.over_episodes == pytest.approx((1 - half, 1 + half), abs=1e-4)
    half = 12.7062 * math.sqrt(2) / math.sqrt(2)
    assert result.over_seeds == pytest.approx((1 - half, 1 + half), abs=1e-3)


def test_training_seeds_are_paired_by_number_and_not_by_order() -> None:
    ours, theirs = ({k: np.full(2, 3.0 * k) for k in order} for order in ((0, 1), (1, 0)))
    result = difference("b", "a", "return", ours, theirs)
    assert result.over_seeds == result.over_episodes == (0, 0)


def test_runs_with_different_training_seeds_have_no_interval_over_seeds() -> None:
    result = difference("b", "a", "return", {0: np.ones(2), 1: np.ones(2)}, {0: np.ones(2)})
    assert result.over_seeds is None
    assert result.over_episodes == (0, 0)


def test_episodes_that_ignore_their_seeds_are_compared_unpaired() -> None:
    """Variances of the means 1 and 1: error sqrt(2), 2 degrees. Two policies each: 1/2, 1/2, 4."""
    ours, theirs = {0: np.array([1.0, 3.0])}, {0: np.array([0.0, 2.0])}
    assert difference("b", "a", "return", ours, theirs).over_episodes == (1, 1)
    for start_kind in ("random", "alike"):
        result = difference("b", "a", "return", ours, theirs, start_kind=start_kind)
        half = 4.30265 * math.sqrt(2)
        assert result.over_episodes == pytest.approx((1 - half, 1 + half), abs=1e-4)
    two = (dict.fromkeys(range(2), values[0]) for values in (ours, theirs))
    result = difference("b", "a", "return", *two, start_kind="random")
    assert result.over_episodes == pytest.approx((1 - 2.77645, 1 + 2.77645), abs=1e-4)
    one = {0: np.ones(1)}
    assert difference("b", "a", "return", one, one, start_kind="random").over_episodes is None


def test_a_repeated_episode_has_no_interval_over_episodes() -> None:
    ours, theirs = {0: np.full(3, 1.5), 1: np.full(3, 2.5)}, {0: np.ones(3), 1: np.ones(3)}
    result = difference("b", "a", "return", ours, theirs, start_kind="alike")
    assert (result.value, result.over_episodes) == (1, None)
    assert result.over_seeds == pytest.approx((1 - 12.7062 / 2, 1 + 12.7062 / 2), abs=1e-3)
    note = note_on([result], "alike")
    assert (
        "not paired: the environment has a single initial state. All episodes of a policy are equal"
        in note
    )
    assert "'Over training seeds'" in note
    assert "'Over episodes'" not in note


def test_the_note_explains_the_columns_that_are_printed() -> None:
    ours, theirs = {0: np.array([1.0, 3.0])}, {0: np.array([0.0, 2.0])}
    for start_kind, words in (
        ("seeded", "are paired: episode k of every run starts from the same seed."),
        ("random", "are not paired: the environment ignores its seed."),
    ):
        note = note_on(
            [difference("b", "a", "return", ours, theirs, start_kind=start_kind)], start_kind
        )
        assert words in note
        assert "'Over episodes'" in note
        assert "training seeds" not in note
        assert ("Welch" in note) == (start_kind == "random")


def test_an_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    intervals = [mean_interval(rng.normal(3, 2, 5)) for _ in range(400)]
    assert 0.92 < np.mean([low < 3 < high for low, high in intervals]) < 0.98


def test_several_runs_are_compared_with_the_first_on_the_same_episodes(tmp_path: Path) -> None:
    actions = {"a": (0.5, -0.25), "b": (0.1, 0.1)}
    for name, action in actions.items():
        path = tmp_path / name / "seed_0" / "policy.bundle"
        constant_policy(path, action, task="neorl2/DMSD")
    runs = [str(tmp_path / name) for name in actions]
    evaluation = offline_rl.evaluate(run=runs, episodes=3)
    first, second = (np.array(returns_by_a_loop(action, 3)) for action in actions.values())
    (only,) = evaluation.differences
    scale = 100 / (849.51 - 30.6)
    assert only.value == pytest.approx(scale * (second - first).mean(), rel=1e-5)
    error = scale * (second - first).std(ddof=1) / math.sqrt(3)
    assert only.over_episodes == pytest.approx(
        (only.value - 4.30265 * error, only.value + 4.30265 * error), rel=1e-4
    )
    assert "b − a" in str(evaluation)
    with pytest.raises(UserError, match="names the same bundle twice"):
        offline_rl.evaluate(run=[runs[0], runs[0]])
    with pytest.raises(UserError, match="names no run"):
        offline_rl.evaluate(run=[])
