"""CAPS: its fixed point by hand, the weights of its policies, terminations and the online phase."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import Recorded, advance, close, made_batch, start, taught
from torch import Tensor

from offline_rl.algorithms.caps import CAPS
from offline_rl.algorithms.common.base import Network, State
from offline_rl.algorithms.common.registry import interaction
from offline_rl.algorithms.common.schedule import ONLINE
from offline_rl.data import Dataset
from offline_rl.utils.errors import UserError

SMALL: dict[str, Any] = {"hidden": (16, 16), "target_cost": 10.0, "episode_steps": 5}


def action(state: State, spent: float) -> float:
    """Return the action of the state 0 at the start of an episode with the cost `spent`."""
    algorithm: Any = state.algorithm
    head, params = algorithm.acting_head(), algorithm.acting_params(state.params)
    memory = head.initial_memory(1) | {"spent": torch.tensor([spent])}
    chunk, _ = Network(head, params).decide(torch.zeros(1, 1, 1), memory, torch.zeros(1, 0))
    return float(chunk)


def test_it_acts_for_returns_within_the_budget_and_for_costs_beyond_it() -> None:
    """One state with the actions +0.5 (return 1, cost 1) and -0.5 (return 0, cost 0).

    The 0.7-expectile of the returns 0 and 1 is 0.7, and that of low costs is 0.3. The advantages
    are 0.3 and -0.7 for both policies, with opposite signs of the action.
    """
    risky = np.arange(64) % 2
    zeros = np.zeros((64, 1), np.float32)
    data = Dataset.from_arrays(
        zeros,
        risky[:, None] - 0.5,
        risky.astype(np.float32),
        zeros[:, 0] == 0,
        extras={"costs": risky.astype(np.float32)},
    )
    config = SMALL | dict.fromkeys(("actor_lr", "critic_lr", "value_lr"), 1e-2)
    state = taught(CAPS, data, num_updates=250, reward_scale=1.0, tau=0.1, **config)
    good, bad = math.exp(3 * 0.3), math.exp(3 * -0.7)
    expected = 0.5 * (good - bad) / (good + bad)
    # 2 per step remain in 5 steps, then 0.4, then nothing; the risky action costs 1
    assert action(state, 0.0) == pytest.approx(expected, abs=0.03)
    assert action(state, 9.9) == pytest.approx(-expected, abs=0.03)
    assert action(state, 10.0) == pytest.approx(-expected, abs=0.03)
    value, cost_value = (getattr(state, name)(torch.zeros(1)) for name in ("value", "cost_value"))
    assert (float(value), float(cost_value)) == pytest.approx((0.7, 0.3), abs=0.1)


def test_policies_in_between_weigh_both_advantages() -> None:
    """The factor of the cost weight grows from 2/3 to 4/3, as in the authors' code for H=4."""
    algorithm: Any = start(CAPS, num_heads=4, beta=1.0, cost_beta=2.0, **SMALL).algorithm
    a, c = torch.tensor([0.5, 1.0, 9.0]), torch.tensor([-1.0, 0.5, 9.0])
    weights = algorithm.weights(a, c).double().numpy()
    x, y = np.minimum(np.exp([0.5, 1, 9]), 100), np.minimum(np.exp([-2, 1, 18]), 100)
    np.testing.assert_allclose(weights.T, [x, x + 2 / 3 * y, x + 4 / 3 * y, y], rtol=1e-5)


def test_costs_stop_at_terminations_and_have_a_discount_of_their_own() -> None:
    """The target of costs ignores the discount of returns, and that of returns ignores costs."""
    state = start(CAPS, cost_discount=0.5, **SMALL)
    batch = replace(made_batch(), costs=torch.rand(32))
    later: Tensor = state.cost_value(batch.next_observations)
    ends = torch.arange(32) % 4 == 0
    expected = (batch.costs + torch.where(ends, 0, 0.5 * later)).mean()
    _, metrics = advance(state, batch)
    close(metrics["cost_target"], expected)
    _, other = advance(state, replace(batch, discount=batch.discount / 2, costs=2 * batch.costs))
    close(other["cost_target"], expected + batch.costs.mean())
    returns = batch.rewards + batch.discount * state.value(batch.next_observations)
    close(metrics["target"], returns.mean())


def test_the_learning_rate_of_the_policy_decays_offline_and_is_constant_online() -> None:
    """A half-cosine over 10 updates is 0 after 10 updates."""
    state = start(CAPS, decay_updates=10, **SMALL)
    state.optimizer["policy"]["count"]["steps"] += 10
    batch = replace(made_batch(), costs=torch.rand(32))
    own = state.algorithm
    own.interaction = replace(interaction("caps", "a task", own.cfg, {}), num_updates=100)

    def moves(state: State) -> float:
        fresh = replace(state, random=Recorded())
        after, _ = fresh.algorithm.update(fresh, batch, 0)
        before = state.params["policy"]["trunk.weights.0"]
        return float((after.params["policy"]["trunk.weights.0"] - before).abs().max())

    assert moves(state) == 0
    assert 1e-5 < moves(replace(state, algorithm=own.for_phase(ONLINE))) < 1e-2


def test_a_policy_without_a_limit_is_refused() -> None:
    algorithm = start(CAPS, hidden=(16, 16), target_cost=1.0).algorithm
    with pytest.raises(ValueError, match="target_cost and episode_steps are null"):
        algorithm.acting_head()


def test_returns_of_several_steps_are_refused_online() -> None:
    with pytest.raises(UserError, match="n_step=3: the costs of several steps have no discount"):
        interaction("caps", "a task", start(CAPS, **SMALL).algorithm.cfg, {"n_step": 3})
