"""IFQL: updates by hand, the fixed point of V and Q, and the selection among samples."""

from dataclasses import replace

import pytest
import torch
from by_hand import (
    Recorded,
    advance,
    chunked,
    close,
    gelu_perceptron,
    made_batch,
    made_chunks,
    opinionated,
    start,
    two_actions,
)
from torch import Tensor

from offline_rl.algorithms.common.base import State
from offline_rl.algorithms.ifql import IFQL
from offline_rl.replay.batch import Batch
from policies.spec import Spec

SMALL = {"hidden": (16, 16), "num_inference_steps": 3, "num_samples": 8}
SMALL |= {"actor_lr": 1e-3, "critic_lr": 1e-3, "value_lr": 1e-3}


@pytest.mark.parametrize("options", [{}, {"q_aggregate": "mean", "rho": 0.5, "num_critics": 3}])
def test_an_update_equals_plain_pytorch(options):
    state, metrics = start(IFQL, tau=0.1, expectile=0.8, **SMALL, **options), {}
    for count, batch in enumerate(chunked(made_batch(seed)) for seed in range(2)):
        leaves = {
            name: {k: v.clone().requires_grad_() for k, v in params.items()}
            for name, params in state.params.items()
        }
        losses, new_target = losses_by_hand(state, batch, leaves, Recorded(count))
        sum(losses.values()).backward()
        before = state
        state, metrics = state.algorithm.update(replace(state, random=Recorded(count)), batch, 0)
        for name, loss in losses.items():
            close(metrics[f"{name}_loss"], loss)
            for k, leaf in leaves[name].items():
                old = before.optimizer[name]["first"][k]
                close(state.optimizer[name]["first"][k], 0.9 * old + 0.1 * leaf.grad)
        for k, value in new_target.items():
            close(state.params["critic_target"][k], value)


def losses_by_hand(state: State, batch: Batch, leaves, random: Recorded):
    """Return the losses at the old parameters, and the new target parameters."""
    cfg, members = state.algorithm.cfg, range(state.algorithm.cfg.num_critics)
    s, s2, a = batch.observations[:, 0], batch.next_observations[:, 0], batch.actions[:, 0]

    def q_of(name: str) -> Tensor:
        x = torch.cat([s, a], -1)
        return torch.stack([gelu_perceptron(leaves[name], "net.", x, k)[:, 0] for k in members])

    def v_of(s: Tensor) -> Tensor:  # the helper reads layer normalization from an ensemble of one
        params = {
            k: v[None] if "weights" in k else v[None, None] for k, v in leaves["value"].items()
        }
        return gelu_perceptron(params, "net.", s, 0)[:, 0]

    with torch.no_grad():
        q = q_of("critic_target")
        if cfg.q_aggregate == "min":
            q = q.min(0).values
        else:
            q = q.mean(0) - cfg.rho * q.var(0, correction=0).sqrt()
        y = batch.rewards + batch.discount * v_of(s2)
    x0 = random.normal((1, 32, 1, 2))[0, :, 0]
    t = 1 - random.uniform((1, 32))[0, :, None]
    inputs = torch.cat([s, (1 - t) * x0 + t * a, t], -1)
    velocity = gelu_perceptron(leaves["policy"], "network.trunk.", inputs)
    u = q - v_of(s)
    losses = {
        "value": (torch.where(u > 0, cfg.expectile, 1 - cfg.expectile) * u.square()).mean(),
        "critic": (q_of("critic") - y).square().sum(0).mean(),
        "policy": (velocity - (a - x0)).square().mean(),
    }
    old = state.params
    target = {k: 0.9 * v + 0.1 * old["critic"][k] for k, v in old["critic_target"].items()}
    return losses, target


def bandit(reward_of_better: float = 1.0) -> Batch:
    """Return one-step data: action 0.5 with a reward, and action -0.5 with reward 0, one state."""
    data = two_actions()
    return chunked(replace(data, rewards=reward_of_better * data.rewards))


def test_v_converges_to_the_expectile_of_the_rewards():
    """V minimizes e (1 - V)^2 + (1 - e) V^2 over both actions, so it is e."""
    rates = dict.fromkeys(("critic_lr", "value_lr"), 2e-2)
    options = SMALL | rates | {"hidden": (8,), "tau": 1.0, "expectile": 0.8}
    state, _ = advance(start(IFQL, spec=Spec((1,), 1), **options), *[bandit()] * 100)
    value = state.value(torch.zeros(1, 1))
    torch.testing.assert_close(value, torch.tensor([0.8]), atol=0.03, rtol=0.0)


def test_the_sample_with_the_highest_minimum_of_the_critics_is_executed():
    state = opinionated(start(IFQL, **SMALL))
    head = state.algorithm.acting_head()
    head.load_state_dict(state.algorithm.acting_params(state.params))
    s, noise = torch.randn(32, 1, 3), torch.randn(32, *head.noise_shape)
    samples = torch.stack([state.policy.decide(s, {}, noise[:, n])[0] for n in range(8)], 1)
    q = state.critic(s.expand(-1, 8, -1), samples[:, :, 0]).double()  # [E, B, N]
    best = torch.minimum(q[0], q[1]).argmax(1)
    assert len(set(best.tolist())) > 3
    executed, _ = head.decide(s, {}, noise)
    torch.testing.assert_close(executed[:, 0], samples[torch.arange(32), best, 0])


def test_the_critics_do_not_influence_the_policy():
    """So the policies of different rewards are equal to the bit."""
    states = [
        advance(start(IFQL, spec=Spec((1,), 1), **SMALL), *[bandit(reward)] * 3)[0]
        for reward in (1.0, -5.0)
    ]
    for a, b in zip(*(state.params["policy"].values() for state in states), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(*(state.params["value"]["net.weights.1"] for state in states))


def test_chunks_of_weight_zero_teach_v_and_the_critics_nothing():
    batch = made_chunks()
    cut = (batch.weights == 0)[:, None, None]
    assert 0 < cut.sum() < len(cut)
    state, other = start(IFQL, **SMALL, horizon=3), torch.where(cut, 0.5, batch.actions)
    one, two = (
        state.algorithm.update(replace(state, random=Recorded()), replace(batch, actions=a), 0)[0]
        for a in (batch.actions, other)
    )
    for name in ("value", "critic"):
        for k, value in one.params[name].items():
            assert torch.equal(value, two.params[name][k])


def test_chunks_enter_policy_and_critics():
    """Steps after the end of an episode count as 0 in the policy's loss, a mean over all steps."""
    batch, first = chunked(made_batch(0), 4), torch.arange(4) < 3
    masks = [first.expand(32, 4), ~first.expand(32, 4), batch.valid]
    losses = []
    for valid in masks:  # with the same random numbers
        state, metrics = advance(start(IFQL, horizon=4, **SMALL), replace(batch, valid=valid))
        losses.append(metrics["policy_loss"])
    close(losses[0] + losses[1], losses[2])
    assert losses[1] < 0.5 * losses[0]
    assert state.algorithm.acting_head().noise_shape == (8, 1, 4, 2)
    assert state.params["critic"]["net.weights.0"].shape[1] == 3 + 4 * 2
    assert state.params["value"]["net.weights.0"].shape[0] == 3
