"""Gumbel loss of XQL, f-DVL and ReCOIL, and the learner that uses it."""

import math

import pytest
import torch

from offline_rl.algorithms.common.in_sample import gumbel_loss

INF = math.inf


def lowest(x: torch.Tensor, temperature: float) -> float:
    """Return the V that minimizes the mean loss of x - V over one batch, by bisection."""
    low, high = x.min() - 1, x.max() + 1
    for _ in range(60):
        v = ((low + high) / 2).requires_grad_()
        (slope,) = torch.autograd.grad(gumbel_loss(x - v, temperature, INF).mean(), v)
        low, high = (low, v.detach()) if slope > 0 else (v.detach(), high)
    return low.item()


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_the_minimum_is_the_log_of_the_mean_exponential(temperature):
    x = torch.randn(500, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = temperature * (torch.logsumexp(x / temperature, 0) - math.log(500))
    assert lowest(x, temperature) == pytest.approx(expected.item(), abs=1e-6)


def test_the_minimum_falls_from_the_maximum_to_the_mean_as_the_temperature_rises():
    """XQL's lemma 3.1."""
    x = torch.tensor([0.0, 1.0, 5.0], dtype=torch.float64)
    minima = [lowest(x, t) for t in (0.02, 0.5, 2.0, 10.0, 2000.0)]
    assert minima == sorted(minima, reverse=True)
    assert minima[0] == pytest.approx(5, abs=0.03)
    assert minima[-1] == pytest.approx(2, abs=0.01)


def test_the_rescaling_leaves_one_batchs_direction_alone():
    z = torch.tensor([-3.0, 0.5, 2.0], requires_grad=True)
    (ours,) = torch.autograd.grad(gumbel_loss(z, 1.0, INF).sum(), z)
    (plain,) = torch.autograd.grad((z.exp() - z - 1).sum(), z)
    torch.testing.assert_close(ours, plain * math.exp(-2))


@pytest.mark.parametrize(("size", "fixed_point"), [(64, 0.448), (256, 0.483), (1024, 0.495)])
def test_the_rescaling_biases_small_batches_low(size, fixed_point):
    """The minimum is 1/2 for a standard normal at temperature 1; batches converge below it."""
    x = torch.randn(400_000 // size * 8, size, generator=torch.Generator().manual_seed(1))

    def slope(v):
        def loss(v, batch):
            return gumbel_loss(batch - v, 1.0, INF).mean()

        gradients = torch.func.vmap(torch.func.grad(loss), (None, 0))(torch.tensor(v), x)
        return gradients.mean().item()

    assert slope(fixed_point - 0.01) < 0 < slope(fixed_point + 0.01)


def test_clipped_values_have_no_gradient_and_nothing_overflows():
    u = torch.tensor([1e6, 8.0, 1.0, -1e6], requires_grad=True)
    loss = gumbel_loss(u, 1.0, 7.0)
    (gradient,) = torch.autograd.grad(loss.sum(), u)
    assert loss.isfinite().all()
    assert gradient[0] == gradient[1] == 0
    assert gradient[2] > 0 > gradient[3]
    assert gumbel_loss(torch.full((4,), -1e3), 1.0, 7.0).isfinite().all()
