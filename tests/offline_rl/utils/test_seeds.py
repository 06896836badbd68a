"""Tests of environment seeds: no two uses share a seed."""

from itertools import combinations

import pytest

from offline_rl.utils import seeds
from offline_rl.utils.errors import UserError


def test_ranges_are_disjoint_and_fit_in_31_bits() -> None:
    for (a, one), (b, other) in combinations(seeds.RANGES.items(), 2):
        assert one.stop <= other.start or other.stop <= one.start, f"{a} meets {b}"
    assert all(0 <= r.start < r.stop <= 2**31 for r in seeds.RANGES.values())


def test_no_training_seed_meets_another_nor_any_other_use() -> None:
    """Seed 499 started at 500,000,000 in an earlier version, the first seed of rolled-out sets."""
    assert seeds.TRAINING_SEEDS == 901
    firsts = [seeds.training_episode_seed(seed, 0) for seed in range(seeds.TRAINING_SEEDS)]
    lasts = [seeds.training_episode_seed(seed, 999_999) for seed in range(seeds.TRAINING_SEEDS)]
    spans = sorted(zip(firsts, lasts, strict=True))
    assert all(last < first for (_, last), (first, _) in zip(spans, spans[1:], strict=False))
    generated = range(500_000_000, 1_000_000_000)  # sets, rolled out and scripted
    evaluation = range(1_000_000_000, 1_000_000_000 + 10_000_000)
    for first, last in spans:
        for other in (generated, evaluation):
            assert last < other.start or first >= other.stop


def test_seeds_of_published_results_do_not_change() -> None:
    assert seeds.EVALUATION_SEED == 1_000_000_000
    assert [seeds.training_episode_seed(seed, 7) for seed in (0, 42, 498)] == [
        1_000_007,
        43_000_007,
        499_000_007,
    ]
    assert [seeds.episode_seed("rolled-out sets", k) for k in (0, 5)] == [500_000_000, 505_000_000]
    assert [seeds.episode_seed("scripted sets", k) for k in (0, 3)] == [600_000_000, 603_000_000]


@pytest.mark.parametrize(("seed", "episode"), [(0, 1_000_000), (498, 1_000_000), (901, 0)])
def test_seeds_outside_their_range_are_refused(seed: int, episode: int) -> None:
    with pytest.raises(UserError, match="no seed exists"):
        seeds.training_episode_seed(seed, episode)
