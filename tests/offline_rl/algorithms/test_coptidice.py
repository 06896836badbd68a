"""COptiDICE: its limit and density, the closed form of the ratio, and a bandit with a known answer.

Conformance compares the update with OSRL's, except for the corrected limit and density.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from by_hand import Recorded, advance, close, doubles, made_batch, start, taught
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from offline_rl.algorithms.coptidice import COptiDICE, ratio, ratio_loss
from offline_rl.data.dataset import Dataset
from offline_rl.replay.batch import Batch

SMALL = {"hidden": (16, 16), "target_cost": 30.0, "episode_steps": 100, "initial_share": 0.25}


def with_columns(seed: int = 1):
    steps = torch.arange(32) % 4
    return replace(made_batch(seed), costs=(steps == 1).float(), timesteps=steps)


def test_the_cost_per_step_is_compared_with_the_limit_per_step():
    """The bound is sum_i v_i w_i c_i / B, with v = B softmax(ell / tau) and tau = softplus(1)."""
    for as_released, limit in ((False, 0.3), (True, 0.3 * (1 - 0.99**100) / 0.01)):
        state, batch = start(COptiDICE, as_released=as_released, **SMALL), with_columns()
        _, metrics = advance(state, batch)
        s, _, r, discount, s2 = (x.numpy() for x in doubles(batch))
        c, first = batch.costs.double().numpy(), batch.timesteps.numpy() == 0

        def lowest(name, x, state=state):
            x = torch.from_numpy(x).float()
            return getattr(state, name)(x, x[:, :0]).double().numpy().min(0)

        softplus = np.log(1 + np.e)
        e = r - softplus * c + discount * lowest("nu", s2) - lowest("nu", s)
        w = np.where(e < 0, np.exp(np.minimum(e / 0.5, 0)), e / 0.5 + 1)
        ell = 0.01 * lowest("chi", s) * first / 0.25
        ell = ell + w * (c + discount * lowest("chi", s2) - lowest("chi", s))
        v = np.exp(ell / softplus) / np.exp(ell / softplus).mean()
        close(metrics["chi_loss"], (v * ell).mean())
        close(metrics["cost_excess"], (v * w * c).mean() - limit)
        close(metrics["multiplier"], softplus)


def test_the_policy_density_is_that_of_the_squashed_action():
    """The noisy actions are clipped, because the tanh never reaches 1."""
    state, batch = start(COptiDICE, clip_actions=0.9, noise=0.5, **SMALL), with_columns()
    w = torch.rand(32)
    loss = state.algorithm.policy_loss(replace(state, random=Recorded(3)), batch, w)(state.policy)
    random = Recorded(3)
    s, a = (
        x + 0.5 * x.std(0, correction=0) * random.normal(x.shape)
        for x in (batch.observations, batch.actions)
    )
    mean, log_std = state.policy(s)
    pi = TransformedDistribution(Normal(mean, log_std.exp()), TanhTransform())
    close(loss, -(w * pi.log_prob(a.clamp(-0.9, 0.9)).sum(-1)).mean())
    assert (a.abs() > 0.9).any()


def test_the_ratio_maximizes_its_loss():
    """max over w >= 0 of w e - alpha f(w), on a fine grid of w."""
    e, alpha, w = torch.linspace(-2, 2, 9).double(), 0.7, np.linspace(1e-6, 6, 600_001)
    f = np.where(w < 1, w * (np.log(w) - 1) + 1, (w - 1) ** 2 / 2)
    for k, value in enumerate(e.tolist()):
        objective = w * value - alpha * f
        np.testing.assert_allclose(ratio_loss(e, alpha)[k], objective.max(), atol=1e-8)
        np.testing.assert_allclose(ratio(e / alpha)[k], w[objective.argmax()], atol=2e-5)


def test_the_share_of_first_steps_counts_rows_with_a_successor():
    ends = np.isin(np.arange(12), [3, 11])
    data = Dataset.from_arrays(
        np.zeros((12, 3)), np.zeros((12, 2)), np.zeros(12), ends & False, ends
    )
    algorithm = start(COptiDICE, **SMALL | {"initial_share": None}).algorithm
    assert algorithm.prepare(data)[1].initial_share == 2 / int(data.usable.sum())
    algorithm = start(COptiDICE, **SMALL).algorithm
    assert algorithm.prepare(data)[1].initial_share == 0.25


@pytest.mark.slow
@pytest.mark.parametrize(
    ("as_released", "share", "multiplier"), [(False, 0.2, 1.758), (True, 0.86, 0.0)]
)
def test_a_bandit_that_repeats_spends_its_limit(as_released, share, multiplier):
    """Action +0.5 has reward 1 and cost 1, action -0.5 none; both are equally frequent.

    The ratios w of both actions have the mean 1. Within the limit of 0.2 per step, w is 0.4 and
    1.6. The multiplier is 1 - e with e = alpha log 0.4 - alpha (1.6 - 1), for alpha = 0.5. The
    limit of the released code exceeds every cost. The multiplier is then 0, and w of the costly
    action is 1 + y with y + exp(y - 2) = 1, so that its share is 0.86.
    """
    each, zeros = np.arange(64) % 2, np.zeros((64, 1))
    ends = each >= 0  # every step is the first one of an episode that is cut short
    data = Dataset.from_arrays(
        zeros, each[:, None] - 0.5, each, ~ends, ends, zeros, extras={"costs": each}
    )
    config = SMALL | dict.fromkeys(("actor_lr", "critic_lr", "multiplier_lr"), 5e-3)
    config |= {"target_cost": 4.0, "episode_steps": 20, "initial_share": 1.0, "discount": 0.9}
    config |= {"as_released": as_released, "cost_bound": 0.0}
    state = taught(COptiDICE, data, num_updates=2000, **config)
    each = torch.tensor([1.0, 0.0])
    batch = Batch(
        observations=torch.zeros(2, 1),
        actions=each[:, None] - 0.5,
        rewards=each,
        discount=torch.full((2,), 0.9),
        next_observations=torch.zeros(2, 1),
        bootstrap_mask=torch.ones(2),
        costs=each,
        timesteps=torch.ones(2),
    )
    learned = torch.nn.functional.softplus(state.raw_multiplier())
    reward = batch.rewards - learned * each
    w = ratio(state.algorithm.residual(state.nu, batch, reward) / 0.5)
    torch.testing.assert_close(w.mean(), torch.tensor(1.0), atol=0.05, rtol=0)
    torch.testing.assert_close((w * each).mean(), torch.tensor(share), atol=0.04, rtol=0)
    torch.testing.assert_close(learned, torch.tensor(multiplier), atol=0.1, rtol=0)
