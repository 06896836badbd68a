"""XQL: updates by hand, its soft maximum on a coin, and its Huber loss."""

import math
from types import SimpleNamespace

import pytest
import torch
from by_hand import (
    SMALL,
    Recorded,
    advance,
    assert_same,
    close,
    descend,
    doubles,
    follow,
    made_batch,
    plain,
    start,
    target_after,
    two_actions,
    value_of,
)
from torch.distributions import Normal

from offline_rl.algorithms.xql import XQL
from policies.spec import Spec

PLAIN = {"layer_norm": False, **SMALL}


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"random_actions": 2, "value_updates": 3, "temperature": 0.7, "max_clip": 0.5},
        {"noise": True, "decay_actor_lr": False, "huber": 0.4},
        {"noise": True, "random_actions": 1},
        {"layer_norm": True},
    ],
)
def test_updates_equal_plain_pytorch(config):
    config = PLAIN | config
    first = start(XQL, 4, tau=0.1, actor_lr=1e-3, critic_lr=2e-3, value_lr=3e-3, **config)
    cfg, batches = first.algorithm.cfg, (made_batch(1), made_batch(2))
    state, metrics = advance(first, *batches)

    policy, value = plain(first.params["policy"], "trunk."), plain(first.params["value"], "net.")
    critics, targets = ([plain(first.params["critic"], "net.", k) for k in (0, 1)] for _ in "ct")
    log_std = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    policy_adam = torch.optim.Adam([*policy.parameters(), log_std], lr=1e-3)
    critic_adam = torch.optim.Adam([p for q in critics for p in q.parameters()], lr=2e-3)
    value_adam = torch.optim.Adam(value.parameters(), lr=3e-3)
    for count, batch in enumerate(batches):
        s, a, r, discount, s2 = doubles(batch)
        random = Recorded(count)

        def min_q(actions, s=s):
            return torch.minimum(*[value_of(net, s, actions) for net in targets]).detach()

        seen = a
        if cfg.noise:
            seen = (a + (0.1 * random.normal(a.shape).double()).clip(-0.5, 0.5)).clip(-1, 1)
        seen = seen[None]
        if cfg.random_actions:
            uniform = 2 * random.uniform((cfg.random_actions, *a.shape)).double() - 1
            seen = torch.cat([seen, uniform])  # [1 + N, B, A]
        q_seen = min_q(seen)
        for _ in range(cfg.value_updates):
            z = ((q_seen - value(s)[:, 0]) / cfg.temperature).clip(max=cfg.max_clip)
            value_loss = (z.exp() - z - 1).mean() / math.exp(max(z.max().item(), -1))
            descend(value_loss, value_adam)

        with torch.no_grad():
            weight = torch.exp(3 * (min_q(a) - value(s)[:, 0])).clip(max=100)
            y = r + discount * value(s2)[:, 0]
        log_pi = Normal(policy(s).tanh(), log_std.exp()).log_prob(a).sum(1)
        policy_loss = -(weight * log_pi).mean()
        if cfg.decay_actor_lr:
            policy_adam.param_groups[0]["lr"] = 1e-3 * (1 + math.cos(math.pi * count / 4)) / 2
        descend(policy_loss, policy_adam)
        huber = torch.nn.HuberLoss(delta=cfg.huber)
        critic_loss = sum(huber(value_of(net, s, a), y) for net in critics)
        descend(critic_loss, critic_adam)
        follow(targets, critics, 0.1)

    assert_same(state, "value", value, value_adam)
    assert_same(state, "policy", policy, policy_adam, prefix="trunk.")
    for k in (0, 1):
        assert_same(state, "critic", critics[k], critic_adam, member=k)
        assert_same(state, "critic_target", targets[k], member=k)
    close(metrics["value_loss"], value_loss)
    close(metrics["critic_loss"], critic_loss)


@pytest.mark.parametrize("temperature", [0.25, 1.0])
def test_value_of_a_fair_coin_is_its_soft_maximum(temperature):
    """Rewards 0 or 1: V = t log((1 + e^(1/t)) / 2), and the policy prefers the better action."""
    rates = {"actor_lr": 1e-2, "critic_lr": 1e-2, "value_lr": 1e-2, "tau": 0.1}
    state = start(XQL, 1000, spec=Spec((1,), 1), temperature=temperature, **rates, **PLAIN)
    state, metrics = advance(state, *[two_actions()] * 150)
    soft = temperature * math.log((1 + math.exp(1 / temperature)) / 2)
    assert metrics["advantage"].item() == pytest.approx(0.5 - soft, abs=0.03)
    assert state.policy.act(torch.zeros(1, 1)).item() > 0.3


def test_the_huber_bound_limits_the_gradient_of_outliers():
    algorithm, batch = start(XQL, **SMALL).algorithm, SimpleNamespace(observations=0, actions=0)
    for error, loss, slope in ((0.5, 0.125, 0.5), (20.0, 200.0, 20.0), (1000.0, 19_800.0, 20.0)):
        q = torch.tensor([[error], [0.0]], requires_grad=True)
        value = algorithm.critic_loss(lambda *_, q=q: q, None, batch, torch.zeros(1))
        (gradient,) = torch.autograd.grad(value, q)
        assert value.item() == pytest.approx(loss)
        assert gradient[0].item() == pytest.approx(slope)


def test_bootstraps_after_a_truncation_but_not_after_a_termination():
    assert target_after(XQL, terminated=True, **SMALL) == 1
    assert target_after(XQL, terminated=False, **SMALL) != 1
