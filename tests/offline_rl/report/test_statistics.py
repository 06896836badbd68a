"""Errors, intervals and the forming of values, against numbers derived by hand."""

import math

import numpy as np
import pytest

from offline_rl.reporting.statistics import (
    evaluation_error,
    formed,
    formed_share,
    last_mean,
    wilson,
)


def test_the_formed_share_is_what_a_simulated_critic_reaches():
    """One state, reward 1: Q = 1 + 0.9 target, the target follows by 0.1; it tends to 10."""
    target = 0.0
    for _ in range(50):
        target += 0.1 * (1 + 0.9 * target - target)
    assert formed(50, tau=0.1, discount=0.9) == pytest.approx(target / 10)


def test_with_the_usual_settings_a_time_constant_is_twenty_thousand_updates():
    usual = {"tau": 0.005, "discount": 0.99}
    assert formed_share(usual, 20_000) == pytest.approx(1 - math.exp(-1), abs=1e-4)
    delayed = usual | {"policy_delay": 2}
    assert formed_share(delayed, 40_000) == formed_share(usual, 20_000)


def test_what_has_no_target_has_no_values_to_form():
    assert formed_share({"discount": 0.99}, 1000) is None
    assert formed_share({"tau": None, "discount": 0.99}, 1000) is None


def test_the_evaluation_error_is_over_starts_which_the_seeds_share():
    """Means by start 2, 4, 6: deviation 2, error 2 / sqrt(3). The seeds' own levels drop out."""
    assert evaluation_error(np.array([[1.0, 3, 5], [3, 5, 7]])) == pytest.approx(2 / math.sqrt(3))
    assert evaluation_error(np.array([[1.0], [3.0]])) is None


def test_the_last_five_evaluations_count_and_never_the_untrained_one():
    curve = {0: -99.0, 10: 1.0, 20: 2.0, 30: 3.0, 40: 4.0, 50: 5.0, 60: 9.0}
    assert last_mean(curve) == pytest.approx((2 + 3 + 4 + 5 + 9) / 5)
    assert last_mean({0: -99.0, 10: 1.0, 20: 2.0}) == 1.5
    assert last_mean({0: 7.0}) is None


def test_wilsons_interval_ends_where_the_share_is_1_96_deviations_off():
    """Its definition: |share - p| = z sqrt(p (1 - p) / n) at both ends p."""
    low, high = wilson(30, 40)
    for p in (low, high):
        assert abs(0.75 - p) == pytest.approx(1.959964 * math.sqrt(p * (1 - p) / 40))
    assert low < 0.75 < high
    for n in range(1, 50):  # rounded, an end must not pass 0 or 1: -1e-17 is printed as -0
        assert 0 <= wilson(0, n)[0] < 1e-12
        assert 1 - 1e-12 < wilson(n, n)[1] <= 1
