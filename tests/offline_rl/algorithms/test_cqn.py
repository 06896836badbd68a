"""CQN: the toy of dependent dimensions, projected targets, terminations, and bounds of returns."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import advance, dependent_actions, made_batch, start

from offline_rl.algorithms.cqn import CQN, Config
from offline_rl.data import Dataset
from offline_rl.utils.errors import UserError
from policies.spec import Spec

SMALL: dict[str, Any] = {"hidden": (16, 16), "features": 8, "levels": 2, "bins": 3}
SMALL |= {"atoms": 21, "v_min": -10.0, "v_max": 10.0}


def test_independent_dimensions_miss_the_best_of_dependent_actions() -> None:
    """The values are the mean rewards of each dimension: 0.2 and 0.3, and 1/3 and 0.15/0.7.

    Their maxima are the action (-, +), whose reward is 0.
    """
    config: dict[str, Any] = {"hidden": (16,), "features": 8, "levels": 1, "bins": 2, "lr": 0.03}
    config |= {"atoms": 3, "v_min": 0.0, "v_max": 1.0, "margin_weight": 0.0}
    state = start(CQN, spec=Spec((1,), 2), dominance_weight=0.0, tau=1.0, **config)
    state, metrics = advance(state, *[dependent_actions()] * 80)
    assert metrics["target"].item() == pytest.approx(0.25)
    logits, _ = state.policy.evaluate(torch.zeros(1, 1), torch.zeros(1, 2))
    q = state.policy.mean(logits)[0, 0].detach()  # [A, K], bins in the order -, +
    np.testing.assert_allclose(q, [[0.3, 0.2], [0.15 / 0.7, 1 / 3]], atol=0.01)
    head, params = state.algorithm.acting_head(), state.algorithm.acting_params(state.params)
    actions = torch.func.functional_call(
        Acting(head), {f"head.{k}": v for k, v in params.items()}, ()
    )
    assert actions.tolist() == [[-0.5, 0.5]]


class Acting(torch.nn.Module):
    """Module whose output is the greedy action in the only state."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.head = head

    def forward(self) -> torch.Tensor:
        actions: torch.Tensor = self.head.act(torch.zeros(1, 1))
        return actions


def project_by_hand(probs: np.ndarray, reward: float, discount: float) -> np.ndarray:
    """Return the projection of a distribution over -10, -9, ..., 10 (C51, algorithm 1)."""
    result = np.zeros(21)
    for p, z in zip(probs, np.arange(-10, 11), strict=True):
        b = np.clip(reward + discount * z, -10, 10) + 10
        low, high = int(np.floor(b)), int(np.ceil(b))
        result[low] += p * (1.0 if low == high else high - b)
        result[high] += p * (0.0 if low == high else b - low)
    return result


@pytest.mark.parametrize("as_released", [False, True])
def test_targets_are_projected_and_stop_at_terminations_unless_as_released(
    as_released: bool,
) -> None:
    state, batch = start(CQN, **SMALL, as_released=as_released), made_batch()
    batch = replace(batch, rewards=torch.linspace(-15, 15, 32).round(decimals=1))
    probs = torch.rand(32, 2, 2, 21).softmax(-1)
    algorithm: Any = state.algorithm
    target = algorithm.project(batch, probs)
    for k in range(32):
        discount = 0.0 if k % 4 == 0 and not as_released else 0.99
        for p, t in zip(probs[k].reshape(4, 21), target[k].reshape(4, 21), strict=True):
            expected = project_by_hand(p.double().numpy(), float(batch.rewards[k]), discount)
            np.testing.assert_allclose(t, expected, atol=1e-5)


def test_losses_of_demonstrations_are_means_over_marked_rows() -> None:
    """The margin loss and the dominance loss have the weights 2 and 3, computed in numpy."""
    state = start(CQN, **SMALL, margin=0.5, margin_weight=2.0, dominance_weight=3.0)
    with torch.no_grad():
        for parameter in state.params["policy"].values():
            parameter.add_(torch.randn(parameter.shape))
    marks = (torch.arange(32) % 3 == 0).float()
    batch = replace(made_batch(), demonstrations=marks)
    logits, is_selected = state.policy.evaluate(batch.observations, batch.actions)
    probs = logits.detach().double().softmax(-1).numpy()  # [B, L, A, K, M]
    q, cdf = probs @ np.arange(-10.0, 11), probs.cumsum(-1)
    own = is_selected.numpy()
    margin = np.maximum(0.5 - (q[own].reshape(32, 2, 2, 1) - q), 0).mean((1, 2, 3))
    own_cdf = cdf[own].reshape(32, 2, 2, 1, 21)
    dominance = np.maximum(own_cdf - cdf, 0).sum(-1).mean((1, 2, 3))
    expected = (2 * margin + 3 * dominance)[np.flatnonzero(marks)].mean()
    metrics = advance(state, batch)[1]
    assert metrics["imitation_loss"].item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("rewards", "bounds"),
    [
        ((-2.0, 0.5), (-200, 50)),
        ((1.0, 3.0), (0, 300)),
        ((-1.0, -1.0), (-100, 0)),
        ((0, 0), (0, 1)),
    ],
)
def test_bounds_of_returns_follow_from_the_rewards(
    rewards: tuple[float, float], bounds: tuple[float, float]
) -> None:
    values = np.resize(np.array(rewards, np.float32), 20)
    actions = np.random.default_rng(0).uniform(-1, 1, (20, 2))
    data = Dataset.from_arrays(np.zeros((20, 3)), actions, values, np.arange(20) % 5 == 4)
    _, cfg = CQN(Spec((3,), 2), Config(reward_scale=1.0)).prepare(data)
    assert (cfg.v_min, cfg.v_max) == pytest.approx(bounds)
    with pytest.raises(UserError, match="is not below v_max"):
        CQN(Spec((3,), 2), Config(v_min=1000.0)).prepare(data)


def test_null_bounds_without_data_and_bounds_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ValueError, match="v_min and v_max are null"):
        CQN(Spec((3,), 2), Config()).networks()
    with pytest.raises(ValueError, match="v_min=1 is not below v_max=1"):
        Config(v_min=1.0, v_max=1.0)


def test_bounds_of_returns_are_those_of_scaled_rewards() -> None:
    values = np.resize(np.array([-2.0, 0.5], np.float32), 20)
    actions = np.random.default_rng(0).uniform(-1, 1, (20, 2))
    data = Dataset.from_arrays(np.zeros((20, 3)), actions, values, np.arange(20) % 5 == 4)
    _, cfg = CQN(Spec((3,), 2), Config(reward_scale=10.0)).prepare(data)
    assert (cfg.v_min, cfg.v_max) == pytest.approx((-2000, 500))


def test_without_weights_no_loss_trains_the_critic() -> None:
    weights = dict.fromkeys(("critic_weight", "margin_weight", "dominance_weight"), 0.0)
    first = start(CQN, **SMALL, **weights)
    state, _ = advance(first, made_batch())
    for name, value in first.params["policy"].items():
        assert state.params["policy"][name].equal(value)
