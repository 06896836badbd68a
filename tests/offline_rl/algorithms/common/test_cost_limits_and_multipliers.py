"""Cost limits and Lagrange multipliers."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from offline_rl.algorithms.common.base import Algorithm, State
from offline_rl.algorithms.common.safety.costs import discounted_limit
from offline_rl.algorithms.common.safety.lagrangian import (
    DualAscentConfig,
    Multiplier,
    PIDConfig,
    dual_ascent,
    pid,
)
from offline_rl.utils.random import Random
from policies.spec import Spec

GAINS = (0.1, 0.003, 0.001)  # KP, KI, KD


class OnlyMultiplier(Algorithm):
    initial_multiplier = 0.0

    def networks(self) -> dict[str, nn.Module]:
        return {"multiplier": Multiplier(self.initial_multiplier)}

    def optimizers(self):
        return {}


class FromOne(OnlyMultiplier):
    initial_multiplier = 1.0


def new_state(cfg, cls=OnlyMultiplier, dtype=torch.float64) -> State:
    algorithm = cls(Spec((3,), 2), cfg)
    params = {
        k: {n: x.to(dtype) for n, x in v.items()} for k, v in algorithm.initial()["params"].items()
    }
    return State(algorithm, params, {}, Random(torch.tensor(0), torch.tensor(0)))


def multipliers(step, state: State, errors) -> list[float]:
    values = []
    for error in errors:
        state, value = step(state, torch.tensor(error, dtype=torch.float64))
        assert value == state.multiplier()
        values.append(value.item())
    return values


def released_controller(errors) -> list[float]:
    """OSRL's controller in plain Python."""
    kp, ki, kd = GAINS
    integral = before = 0.0
    values = []
    for error in errors:
        integral = max(integral + error, 0)
        values.append(kp * max(error, 0) + ki * integral + kd * max(error - before, 0))
        before = error
    return values


def test_the_multiplier_follows_the_released_controller_for_100_errors():
    errors = np.random.default_rng(0).normal(0.3, 2, size=100)
    ours = multipliers(pid, new_state(PIDConfig()), errors)
    np.testing.assert_allclose(ours, released_controller(errors), rtol=1e-12)
    assert min(ours) < 0.01 < 0.2 < max(ours)


def test_three_errors_by_hand():
    ours = multipliers(pid, new_state(PIDConfig()), [2.0, -1.0, 0.5])
    first = 0.1 * 2 + 0.003 * 2 + 0.001 * 2
    third = 0.1 * 0.5 + 0.003 * 1.5 + 0.001 * 1.5
    assert ours == pytest.approx([first, 0.003 * 1, third], rel=1e-12)


def test_a_multiplier_at_its_bound_falls_with_the_first_cost_below_the_limit():
    cfg = PIDConfig(max_multiplier=1.0)
    values = multipliers(pid, new_state(cfg), [50.0] * 1000 + [-50.0] * 7)
    assert values[999] == 1.0
    # the integral is within one error of max_multiplier / KI = 333, and each step removes 50
    assert values[1000] < 1.0
    assert values[-1] == 0.0


def test_dual_ascent_multiplies_by_the_exponential_of_rate_times_error():
    cfg = DualAscentConfig(multiplier_lr=0.1)
    errors = [1.0, 3.0, -2.5]
    values = multipliers(dual_ascent, new_state(cfg, FromOne), errors)
    np.testing.assert_allclose(values, np.exp(0.1 * np.cumsum(errors)), rtol=1e-12)


def test_dual_ascent_recovers_from_both_of_its_bounds_in_one_step():
    cfg = DualAscentConfig(multiplier_lr=0.1, max_multiplier=5.0)
    values = multipliers(dual_ascent, new_state(cfg, FromOne), [1e6, -1.0, -1e6, 10.0])
    assert values == pytest.approx([5, 5 * math.exp(-0.1), 1e-3, 1e-3 * math.e])


def test_stacked_seeds_have_multipliers_of_their_own():
    """Gains may differ between seeds too."""
    state = new_state(PIDConfig())

    def two_steps(first, second, gain):
        algorithm = state.algorithm.with_values({"proportional_gain": gain})
        own = State(algorithm, state.params, {}, state.random)
        own, _ = pid(own, first)
        return pid(own, second)[1]

    errors = torch.tensor([[1.0, -1.0], [2.0, 3.0]], dtype=torch.float64)
    gains = torch.tensor([0.1, 0.5], dtype=torch.float64)
    stacked = torch.func.vmap(two_steps)(errors[:, 0], errors[:, 1], gains)
    single = [two_steps(*errors[k], gains[k]) for k in range(2)]
    torch.testing.assert_close(stacked, torch.stack(single))


@pytest.mark.parametrize(
    ("steps", "limit", "kappa"),
    [  # L=10 and L=40 of the published time limits
        (100, 10, 6.340),
        (200, 10, 4.330),
        (300, 10, 3.170),
        (500, 10, 1.987),
        (1000, 10, 1.000),
        (300, 40, 12.68),
        (1000, 80, 8.000),
    ],
)
def test_the_discounted_limit_has_the_values_of_the_published_tasks(steps, limit, kappa):
    assert discounted_limit(limit, steps, 0.99) == pytest.approx(kappa, rel=3e-4)


def test_the_discounted_limit_is_the_discounted_sum_of_a_constant_cost():
    limits, steps = torch.tensor([7.0, 3.0]), torch.tensor([13, 2])
    summed = [sum(0.9**t * limits[k] / steps[k] for t in range(steps[k])) for k in range(2)]
    torch.testing.assert_close(discounted_limit(limits, steps, 0.9), torch.stack(summed))
    assert discounted_limit(7.0, 13, 0.0) == pytest.approx(7 / 13)
