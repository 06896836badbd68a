"""Standard errors, intervals and critic convergence, against numbers derived by hand."""

import math

import numpy as np
import pytest

from offline_rl.reporting.statistics import (
    convergence_after,
    critic_convergence,
    evaluation_error,
    last_mean,
    wilson,
)


def test_critic_convergence_is_that_of_a_simulated_critic():
    """One state, reward 1: Q = 1 + 0.9 * target, tau = 0.1. The target converges to 10."""
    target = 0.0
    for _ in range(50):
        target += 0.1 * (1 + 0.9 * target - target)
    assert critic_convergence(50, tau=0.1, discount=0.9) == pytest.approx(target / 10)


def test_with_the_usual_settings_a_time_constant_is_twenty_thousand_updates():
    usual = {"tau": 0.005, "discount": 0.99}
    assert convergence_after(usual, 20_000) == pytest.approx(1 - math.exp(-1), abs=1e-4)
    delayed = usual | {"policy_delay": 2}
    assert convergence_after(delayed, 40_000) == convergence_after(usual, 20_000)


def test_without_a_target_network_there_is_no_convergence():
    assert convergence_after({"discount": 0.99}, 1000) is None
    assert convergence_after({"tau": None, "discount": 0.99}, 1000) is None


def test_the_evaluation_error_is_over_initial_states_that_the_seeds_share():
    """Means per initial state 2, 4, 6: std 2, error 2 / sqrt(3). The seeds' levels cancel."""
    assert evaluation_error(np.array([[1.0, 3, 5], [3, 5, 7]])) == pytest.approx(2 / math.sqrt(3))
    assert evaluation_error(np.array([[1.0], [3.0]])) is None


def test_the_last_five_evaluations_count_and_never_the_untrained_one():
    curve = {0: -99.0, 10: 1.0, 20: 2.0, 30: 3.0, 40: 4.0, 50: 5.0, 60: 9.0}
    assert last_mean(curve) == pytest.approx((2 + 3 + 4 + 5 + 9) / 5)
    assert last_mean({0: -99.0, 10: 1.0, 20: 2.0}) == 1.5
    assert last_mean({0: 7.0}) is None


def test_the_ends_of_wilsons_interval_are_1_96_standard_errors_from_the_share():
    """The definition is |share - p| = z sqrt(p (1 - p) / n) at both ends p."""
    low, high = wilson(30, 40)
    for p in (low, high):
        assert abs(0.75 - p) == pytest.approx(1.959964 * math.sqrt(p * (1 - p) / 40))
    assert low < 0.75 < high
    for n in range(1, 50):  # rounding must not exceed 0 or 1: -1e-17 is printed as -0
        assert 0 <= wilson(0, n)[0] < 1e-12
        assert 1 - 1e-12 < wilson(n, n)[1] <= 1
