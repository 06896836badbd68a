"""f-DVL: conjugates by numeric maximization, and the V that each of them gives."""

import math
from dataclasses import replace

import pytest
import torch
from by_hand import (
    SMALL,
    action,
    advance,
    assert_equal_states,
    made_batch,
    start,
    target_after,
    two_actions,
)

from offline_rl.algorithms.common.in_sample import gumbel_loss
from offline_rl.algorithms.f_dvl import FDVL, chi_square, total_variation
from offline_rl.algorithms.xql import XQL
from policies.spec import Spec

W = torch.linspace(0, 60, 600_001, dtype=torch.float64)  # densities
GENERATORS = {
    (chi_square, "two_sided"): (W - 1).square(),
    (chi_square, "one_sided"): (W - 1).clamp(min=0).square(),
    (total_variation, "two_sided"): (W - 1).abs() / 2,
    (total_variation, "one_sided"): (W - 1).clamp(min=0) / 2,
}


@pytest.mark.parametrize(("function", "kind"), GENERATORS)
def test_conjugates_are_the_maximum_over_densities(function, kind):
    """Total variation is checked up to y = 1/2, where it becomes infinite."""
    top = 0.5 if function is total_variation else 8.0
    y = torch.linspace(-6, top, 27, dtype=torch.float64)
    numeric = torch.stack([(W * value - GENERATORS[function, kind]).max() for value in y])
    torch.testing.assert_close(function(y, kind), numeric, atol=1e-7, rtol=0)


@pytest.mark.parametrize(("function", "kind"), GENERATORS)
def test_their_slope_is_a_density(function, kind):
    """f*'(y) is the maximizer (envelope theorem): never negative, never falling."""
    y = torch.linspace(-9, 9, 73, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(function(y, kind).sum(), y)
    assert slope.min() >= 0
    assert slope.diff().min() >= -1e-12


def test_the_released_chi_square_pulls_down_to_outliers():
    y = torch.tensor([-9.0, -3.0, 1.0], requires_grad=True)
    (slope,) = torch.autograd.grad(chi_square(y, "released").sum(), y)
    assert slope.tolist() == [1 - 4.5, 0, 1.5]


def test_reverse_kl_is_the_gumbel_loss():
    """max_w w y - (w log w - w + 1) = e^y - 1."""
    y = torch.linspace(-3, 2, 11, dtype=torch.float64)
    entropy = torch.special.xlogy(W, W) - W + 1
    numeric = torch.stack([(W * value - entropy).max() for value in y])
    unscaled = gumbel_loss(y, 1.0, math.inf) * math.exp(y.max())
    torch.testing.assert_close(unscaled, numeric - y, atol=1e-6, rtol=0)


def test_with_reverse_kl_it_is_xql():
    config = {"temperature": 1.5, "max_clip": 0.1, "random_actions": 1, **SMALL}
    batches = made_batch(1), made_batch(2)
    ours, _ = advance(start(FDVL, divergence="reverse_kl", **config), *batches)
    xql, _ = advance(start(XQL, **config), *batches)
    assert_equal_states(ours, xql)


def best_value(x: torch.Tensor, **config: object) -> float:
    """Return the V with the smallest mean loss of x - V, on a grid."""
    algorithm = start(FDVL, **config, **SMALL).algorithm
    grid = torch.linspace(float(x.min()) - 1, float(x.max()) + 4, 5001, dtype=torch.float64)
    losses = torch.stack([algorithm.value_loss(x - v) for v in grid])
    return grid[losses.argmin()].item()


@pytest.mark.parametrize("lam", [0.6, 0.75, 0.8, 0.9])
def test_total_variation_finds_a_quantile(lam):
    """A share (1 - lam) / lam of Q is above V: 1/4 for lam = 0.8."""
    x = torch.randn(4001, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    level = (2 * lam - 1) / lam
    found = best_value(x, divergence="total_variation", lam=lam)
    assert found == pytest.approx(x.quantile(level).item(), abs=0.01)


COIN = torch.tensor([0.0, 1.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("conjugate", "lam", "value"),
    [
        # one-sided, 0 <= V <= 1: lam (1 + (1 - V) / 2) / 2 = 1 - lam
        ("one_sided", 0.6, 1 / 3),
        ("one_sided", 0.65, 3 - 4 * 0.35 / 0.65),
        ("one_sided", 0.99, 1.0),
        # two-sided, all of it counts while V <= 2: lam (1 + (1/2 - V) / 2) = 1 - lam
        ("two_sided", 0.5, 0.5),
        ("two_sided", 0.6, 2.5 - 2 * 0.4 / 0.6),
        ("two_sided", 0.99, 3 - 4 * 0.01 / 0.99),
    ],
)
def test_chi_square_on_a_fair_coin(conjugate, lam, value):
    assert best_value(COIN, conjugate=conjugate, lam=lam) == pytest.approx(value, abs=2e-3)


def test_the_temperature_is_a_unit_of_value():
    once = best_value(COIN, lam=0.6)
    assert best_value(5 * COIN, lam=0.6, temperature=5.0) == pytest.approx(5 * once, abs=0.01)


@pytest.mark.parametrize(
    ("divergence", "name", "value"),
    [
        ("reverse_kl", "lam", 0.7),
        ("reverse_kl", "conjugate", "two_sided"),
        ("chi_square", "max_clip", 5.0),
        ("total_variation", "max_clip", torch.tensor(5.0)),  # stacked
    ],
)
def test_options_that_the_divergence_does_not_use_are_refused(divergence, name, value):
    with pytest.raises(ValueError, match=f"{name} is not used with divergence={divergence}"):
        FDVL.Config(divergence=divergence, **{name: value})
    replace(FDVL.Config(), lam=torch.tensor(0.7))  # stacked, and read


def test_in_one_sided_total_variation_the_temperature_is_a_factor():
    u = torch.linspace(-3, 3, 7)
    at_1, at_5 = (
        start(FDVL, divergence="total_variation", temperature=t, **SMALL).algorithm.value_loss(u)
        for t in (1.0, 5.0)
    )
    torch.testing.assert_close(at_5, at_1 / 5)


@pytest.mark.parametrize("divergence", ["chi_square", "total_variation", "reverse_kl"])
def test_prefers_the_better_of_two_demonstrated_actions(divergence):
    rates = {"actor_lr": 1e-2, "critic_lr": 1e-2, "value_lr": 1e-2, "tau": 0.1}
    state = start(FDVL, 1000, spec=Spec((1,), 1), divergence=divergence, **rates, **SMALL)
    state, _ = advance(state, *[two_actions()] * 100)
    assert action(state) > 0.3


def test_bootstraps_after_a_truncation_but_not_after_a_termination():
    assert target_after(FDVL, terminated=True, **SMALL) == 1
    assert target_after(FDVL, terminated=False, **SMALL) != 1
