"""Cal-QL: its lower bound, what it shares with CQL, and its returns."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from by_hand import (
    action,
    advance,
    assert_equal_states,
    made_batch,
    start,
    target_after,
    two_actions,
)

from offline_rl.algorithms.cal_ql import CalQL
from offline_rl.algorithms.common.base import State
from offline_rl.algorithms.common.registry import algorithm_config
from offline_rl.algorithms.cql import CQL
from offline_rl.data.dataset import Dataset
from policies.heads.gaussian import TanhGaussianActor
from policies.spec import Spec

SMALL = {"policy_hidden": (16, 16), "critic_hidden": (16, 16), "num_samples": 4}


def batch_with(returns, seed=1):
    batch = made_batch(seed)
    return replace(batch, mc_returns=torch.full_like(batch.rewards, returns))


@pytest.mark.parametrize("variant", ["H", "H-raw", "rho"])
def test_with_very_low_returns_it_is_cql(variant):
    ours = start(CalQL, variant=variant, gap=1.0, **SMALL)
    config = {k: v for k, v in vars(ours.algorithm.cfg).items() if k in vars(CQL.Config())}
    plain = State(CQL(Spec((3,), 2), CQL.Config(**config)), *list(vars(ours).values())[1:])
    batches = batch_with(-1e9, 1), batch_with(-1e9, 2)
    assert_equal_states(advance(ours, *batches)[0], advance(plain, *batches)[0])
    assert not torch.equal(
        advance(ours, batch_with(9.0))[0].params["critic"]["net.weights.0"],
        advance(plain, batch_with(9.0))[0].params["critic"]["net.weights.0"],
    )


@pytest.mark.parametrize(("variant", "uniform"), [("H", 4), ("H-raw", 4), ("rho", 0)])
def test_only_the_policys_actions_are_bounded_and_the_bound_has_no_gradient(variant, uniform):
    algorithm = start(CalQL, variant=variant, **SMALL).algorithm
    drawn = 4 if variant == "rho" else 12
    q = torch.randn(2, drawn + 1, 32, requires_grad=True)
    batch = replace(made_batch(), mc_returns=torch.linspace(-1, 1, 32))
    pushed = algorithm.penalized_values(q, batch)
    (gradient,) = torch.autograd.grad(pushed.sum(), q)
    bounded = torch.zeros(q.shape, dtype=torch.bool)
    bounded[:, uniform:drawn] = q[:, uniform:drawn] < batch.mc_returns
    assert 0 < bounded.sum() < bounded[:, uniform:drawn].numel()
    assert torch.equal(pushed, torch.where(bounded, batch.mc_returns, q))
    assert torch.equal(gradient, (~bounded).float())


@pytest.mark.parametrize(("returns", "value"), [(-3.0, 0.0), (1.5, 1.5)])
def test_penalty_of_a_constant_critic_and_a_uniform_policy(returns, value, monkeypatch):
    """Z = log(N e^0 + 2N e^max(0, G)) + |A| log 2: the bound precedes the densities."""

    def sample(self, observations, random, samples=None):
        rows = observations.shape[:-1] if samples is None else (samples, *observations.shape[:-1])
        gradient = 0 * self.act(observations).sum()
        a = 2 * random.uniform((*rows, 2)) - 1
        return a + gradient, torch.full(rows, -2 * math.log(2)) + gradient

    monkeypatch.setattr(TanhGaussianActor, "sample", sample)
    state = start(CalQL, **SMALL)
    zeros = {k: torch.zeros_like(v) for k, v in state.params["critic"].items()}
    state = replace(state, params={**state.params, "critic": zeros, "critic_target": zeros})
    _, metrics = advance(state, batch_with(returns))
    expected = math.log(4 + 8 * math.exp(value)) + 2 * math.log(2)
    assert metrics["penalty"].item() == pytest.approx(expected, rel=1e-5)


def returns_of(rewards, ends, tail, discount=0.99):
    """Return G of episodes with these rewards. ends: x terminated, | truncated."""
    rewards, flags = np.array(rewards, np.float32), np.array(list(ends))
    obs = np.zeros((len(rewards), 1), np.float32)
    data = Dataset.from_arrays(
        obs, obs, rewards, flags == "x", flags == "|", next_observations=obs + 1
    )
    return CalQL(Spec((1,), 1), CalQL.Config(tail=tail, discount=discount)).mc_returns(data)


def test_a_truncated_failure_continues_and_a_success_ends():
    """A failed episode has G = -5 / 0.01 in every row, with AntMaze rewards 10 r - 5."""
    G = returns_of([-5, -5, -5, -5, 5, -5], ". .| .x|".replace(" ", ""), "failures")
    np.testing.assert_allclose(G, [-500, -500, -500, -5 + 0.99 * 5, 5, -500], rtol=1e-5)


def test_an_episode_truncated_while_failing_fails_forever():
    """A failure can follow a success in the binary Adroit tasks."""
    G = returns_of([-5, 5, -5, -5], "...|", "failures")
    np.testing.assert_allclose(G, [-5 + 0.99 * (5 - 495), 5 - 495, -500, -500], rtol=1e-5)


def test_an_episode_truncated_while_succeeding_keeps_its_return():
    G = returns_of([-5, 5, -5, 5, -5], "...||", "failures", discount=0.5)
    np.testing.assert_allclose(G, [-5 + 0.5 * 3.75, 5 - 0.5 * 2.5, -5 + 0.5 * 5, 5, -10])


def test_rewards_that_stay_once_earned():
    """The last reward in kitchen continues forever after a truncation, not after an end."""
    G = returns_of([0, 2, 1, 3], ".|.x", "last_reward", discount=0.5)
    np.testing.assert_allclose(G, [0.5 * 4, 4, 1 + 0.5 * 3, 3])


def returns_on(task, rewards, ends):
    """Return G [N] of raw rewards with the task's settings."""
    cfg, _ = algorithm_config("cal_ql", task, {})
    paid = np.array(rewards) * cfg.reward_scale + cfg.reward_shift
    return returns_of(paid, ends, cfg.tail, cfg.discount)


def test_in_kitchen_four_subtasks_have_a_higher_return_than_three():
    G = returns_on("kitchen-mixed-v0", [2, 3, 3, 3, 2, 3, 3, 4], "...|...x")
    np.testing.assert_allclose(G[1:4], -1 / 0.01, rtol=1e-5)
    np.testing.assert_allclose(G[4:], [-2 - 0.99 - 0.99**2, -1.99, -1, 0], rtol=1e-5)


@pytest.mark.parametrize("task", ["pen-binary-v0", "gym/pen-binary-medium-replay"])
def test_truncated_failures_of_binary_adroit_have_the_same_return(task):
    """Rewards are 10 r + 5 with r = -1 and 0, as in run_adroit.sh."""
    G = returns_on(task, [-1] * 3 + [-1] * 5 + [-1, 0], "..|....|.|")
    np.testing.assert_allclose(G, [-500] * 8 + [-5 + 0.99 * 5, 5], rtol=1e-5)


def test_by_default_nothing_follows_a_truncation():
    np.testing.assert_allclose(returns_of([1, 2, 4], "..|", "zero", discount=0.5), [3, 4, 4])


def test_a_stacked_discount_is_refused():
    algorithm = start(CalQL, **SMALL).algorithm
    algorithm.with_values({"weight": torch.tensor(1.0)})
    with pytest.raises(ValueError, match="discount cannot differ between stacked seeds"):
        algorithm.with_values({"discount": torch.tensor(0.9)})


def test_prefers_the_better_of_two_demonstrated_actions():
    batch = replace(two_actions(), mc_returns=two_actions().rewards)
    rates = {"policy_lr": 1e-2, "critic_lr": 1e-2, "weight": 1.0}
    state, _ = advance(start(CalQL, spec=Spec((1,), 1), **rates, **SMALL), *[batch] * 100)
    assert action(state) == pytest.approx(0.5, abs=0.25)


def test_bootstraps_after_a_truncation_but_not_after_a_termination():
    assert target_after(CalQL, terminated=True, **SMALL) == 1
    assert target_after(CalQL, terminated=False, **SMALL) != 1
