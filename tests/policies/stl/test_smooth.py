"""Smooth robustness: its bounds, its limit, its gradient, and training through dynamics."""

import math

import numpy as np
import pytest
import torch

from policies.stl.formula import Signal, parse
from policies.stl.robustness import robustness
from policies.stl.smooth import smooth_robustness

FORMULAS = (
    "always[0,3](x > 0.1)",
    "eventually[1,4](x - y < 0.2)",
    "x > 0 implies always(y < 1)",
    "eventually(always[0,2](x > 0) and y > 0)",
    "(x > -1) until[1,4] (y > 0.5)",
    "not ((x > 0) until (y > 0))",
)


def signals(seed: int, grad: bool = False) -> dict[Signal, torch.Tensor]:
    rng = np.random.default_rng(seed)
    return {
        Signal(name): torch.tensor(rng.normal(size=(3, 9)), requires_grad=grad) for name in "xy"
    }


def exact(text: str, values: dict[Signal, torch.Tensor]) -> np.ndarray:
    found = robustness(parse(text), {s: v.detach().numpy() for s, v in values.items()})
    return found.clip(-1e9, 1e9)


@pytest.mark.parametrize("text", FORMULAS)
def test_smooth_robustness_approaches_exact_robustness(text: str) -> None:
    values = signals(0)
    expected = exact(text, values)
    without = smooth_robustness(parse(text), values, sharpness=None)
    np.testing.assert_allclose(without.numpy(), expected, atol=1e-12)
    errors = []
    for sharpness in (10.0, 1000.0):
        smooth = smooth_robustness(parse(text), values, sharpness=sharpness).numpy()
        errors.append(np.abs(smooth - expected).max())
    assert errors[1] < 0.011
    assert errors[1] < 0.1 * errors[0]


def test_the_smooth_minimum_of_equal_values_is_below_them_by_the_stated_bound() -> None:
    """The definition gives -log(n exp(-k c)) / k = c - log(n) / k."""
    values = {Signal("x"): torch.full((1, 6), 2.0, dtype=torch.float64)}
    low = smooth_robustness(parse("always[0,3](x > 0)"), values, sharpness=5.0)[0, 0]
    assert low.item() == pytest.approx(2 - math.log(4) / 5)
    high = smooth_robustness(parse("eventually[0,3](x > 0)"), values, sharpness=5.0)[0, 0]
    assert high.item() == pytest.approx(2 + math.log(4) / 5)


def test_a_positive_smooth_robustness_of_a_conjunction_proves_it() -> None:
    text, proved = "always(x > -2.5 and y > -2.5) and always[0,4](x + y > -4)", 0
    for seed in range(40):
        values = signals(seed)
        smooth = smooth_robustness(parse(text), values, sharpness=4.0)[:, 0].numpy()
        assert (smooth <= exact(text, values)[:, 0] + 1e-12).all()
        proved += int((smooth > 0).sum())
    assert proved > 10


@pytest.mark.parametrize("text", FORMULAS)
def test_the_gradient_equals_central_differences(text: str) -> None:
    values = signals(1, grad=True)
    smooth_robustness(parse(text), values, sharpness=8.0)[:, 0].sum().backward()
    x, step = values[Signal("x")], 1e-6
    for row, t in ((0, 0), (1, 2), (2, 3)):
        totals = []
        for sign in (1, -1):
            moved = {s: v.detach().clone() for s, v in values.items()}
            moved[Signal("x")][row, t] += sign * step
            totals.append(smooth_robustness(parse(text), moved, sharpness=8.0)[:, 0].sum().item())
        gradient = 0.0 if x.grad is None else x.grad[row, t].item()
        assert gradient == pytest.approx((totals[0] - totals[1]) / (2 * step), abs=1e-6)


def test_windows_without_steps_leave_gradients_finite() -> None:
    values = signals(2, grad=True)
    text = parse("always[20,30](x > 0) and (eventually[20,30](y > 0) or x > 0)")
    found = smooth_robustness(text, values, sharpness=20.0)[:, 0]
    found.sum().backward()
    np.testing.assert_allclose(found.detach(), values[Signal("x")].detach()[:, 0], atol=1e-9)
    for value in values.values():
        assert value.grad is None or value.grad.isfinite().all()


def test_a_controller_trained_by_robustness_satisfies_its_formula() -> None:
    """A point moves by at most 0.2 per step. From x < 0.5 it must reach 1 and stay below 1.2."""
    torch.manual_seed(0)
    formula = parse("eventually(always[0,2](x > 1)) and always(x < 1.2)")
    network = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10))
    optimizer = torch.optim.Adam(network.parameters(), 0.03)

    def visit(start: torch.Tensor) -> torch.Tensor:
        steps = 0.2 * torch.tanh(network(start))
        return torch.cat([start, start + steps.cumsum(1)], 1)

    test = torch.linspace(0, 0.5, 50)[:, None]
    before = robustness(formula, {Signal("x"): visit(test).detach().numpy()})[:, 0]
    for _ in range(80):
        x = visit(0.5 * torch.rand(64, 1))
        rho = smooth_robustness(formula, {Signal("x"): x}, sharpness=40.0)[:, 0]
        loss = torch.relu(0.05 - rho).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = robustness(formula, {Signal("x"): visit(test).detach().numpy()})[:, 0]
    assert (before < 0).all()
    assert (after > 0).all()
