"""Conjugate gradients and the natural-gradient step, against linear algebra in float64."""

import numpy as np
import torch

from offline_rl.algorithms.common.on_policy.trust_region import conjugate_gradients, natural_step

RNG = np.random.default_rng(0)
ROOTS = RNG.normal(size=(2, 4, 4))
MATRICES = torch.from_numpy(ROOTS @ ROOTS.transpose(0, 2, 1) + np.eye(4))  # [H, 4, 4]
SLOPES = torch.from_numpy(RNG.normal(size=(2, 4)))


def product(v: dict) -> dict:
    return {"a": (MATRICES @ v["a"][..., None])[..., 0]}


def test_conjugate_gradients_solve_each_system():
    x = conjugate_gradients(product, {"a": SLOPES})["a"].numpy()
    expected = np.linalg.solve(MATRICES.numpy(), SLOPES.numpy()[..., None])[..., 0]
    np.testing.assert_allclose(x, expected, atol=1e-8)


def test_systems_without_a_right_side_stay_at_zero():
    x = conjugate_gradients(product, {"a": torch.stack([SLOPES[0], torch.zeros(4)])})["a"]
    assert torch.equal(x[1], torch.zeros(4, dtype=x.dtype))
    assert x[0].abs().min() > 0


def kl(params: dict) -> torch.Tensor:
    d = params["a"]
    return 0.5 * torch.einsum("hi,hij,hj->h", d, MATRICES, d)


def step(loss, start: torch.Tensor):
    return natural_step({"a": start}, loss, kl, max_kl=0.01, damping=0.5)


def full_step() -> np.ndarray:
    """Return the step of a linear loss, by its definition."""
    damped = MATRICES.numpy() + 0.5 * np.eye(4)
    x = -np.linalg.solve(damped, SLOPES.numpy()[..., None])[..., 0]
    return x * np.sqrt(2 * 0.01 / np.einsum("hi,hij,hj->h", x, damped, x))[:, None]


def test_a_linear_loss_takes_the_full_step_of_the_damped_natural_gradient():
    result = step(lambda p: (SLOPES * p["a"]).sum(1), torch.zeros(2, 4, dtype=torch.float64))
    np.testing.assert_allclose(result.params["a"].numpy(), full_step(), atol=1e-9)
    assert result.accepted.tolist() == [1, 1]


def test_the_line_search_halves_the_step_of_each_policy_by_itself():
    """The second loss rises steeply beyond 0.3 of the step; the first share below is 1/4."""
    full = torch.from_numpy(full_step())
    decrease = -(SLOPES * full).sum(1)
    rise = torch.tensor([0.0, 100.0], dtype=torch.float64)

    def loss(p: dict) -> torch.Tensor:
        gain = -(SLOPES * p["a"]).sum(1)
        return -gain + rise * (gain - 0.3 * decrease).clamp(min=0)

    result = step(loss, torch.zeros(2, 4, dtype=torch.float64)).params["a"]
    share = torch.tensor([1.0, 0.25], dtype=torch.float64)[:, None]
    torch.testing.assert_close(result, share * full)


def test_parameters_stay_where_no_step_lowers_the_loss():
    """A zero gradient, and a loss that no trial lowers."""
    start = torch.zeros(2, 4, dtype=torch.float64)
    result = step(lambda p: p["a"].square().sum(1), start)
    assert torch.equal(result.params["a"], start)
    result = step(lambda p: (SLOPES * p["a"]).sum(1) + 1e6 * p["a"].abs().sum(1), start)
    assert torch.equal(result.params["a"], start)
    assert result.accepted.tolist() == [0, 0]


def test_a_step_must_lower_the_loss_by_a_tenth_of_what_its_slope_predicts():
    """The loss stops falling after 0.04 of the predicted decrease: enough for a quarter step."""
    full = torch.from_numpy(full_step())
    limit = -0.04 * (SLOPES * full).sum(1)

    def loss(p: dict) -> torch.Tensor:
        return -torch.minimum(-(SLOPES * p["a"]).sum(1), limit)

    result = step(loss, torch.zeros(2, 4, dtype=torch.float64)).params["a"]
    torch.testing.assert_close(result, full / 4)
