"""IQL: its updates equal plain PyTorch, and properties of its losses."""

from dataclasses import replace

import pytest
import torch
from by_hand import (
    SMALL,
    Recorded,
    action,
    advance,
    assert_same,
    assert_same_number,
    close,
    doubles,
    made_batch,
    plain,
    start,
    target_after,
    two_actions,
)
from torch.distributions import Normal

from offline_rl.algorithms.iql import IQL, expectile_loss
from policies.spec import Spec


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_updates_equal_plain_pytorch(deterministic, dropout):
    """Order: V; policy and Q with the new V; target. The policy's learning rate decays."""
    config = {"expectile": 0.8, "beta": 2.0, "tau": 0.1, "dropout": dropout}
    rates = {"actor_lr": 1e-3, "critic_lr": 2e-3, "value_lr": 3e-3}
    first = start(IQL, 4, deterministic=deterministic, **config, **rates, **SMALL)
    batches = made_batch(1), made_batch(2)
    state, metrics = advance(first, *batches)

    policy, value = plain(first.params["policy"], "trunk."), plain(first.params["value"], "net.")
    critics, targets = ([plain(first.params["critic"], "net.", k) for k in (0, 1)] for _ in "ct")
    log_std = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    policy_adam = torch.optim.Adam([*policy.parameters(), log_std], lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(policy_adam, T_max=4)
    critic_adam = torch.optim.Adam([p for q in critics for p in q.parameters()], lr=2e-3)
    value_adam = torch.optim.Adam(value.parameters(), lr=3e-3)
    for count, batch in enumerate(batches):
        s, a, r, discount, s2 = doubles(batch)
        random = Recorded(count)
        q = torch.minimum(*[net(torch.cat([s, a], 1))[:, 0] for net in targets]).detach()
        difference = q - value(s)[:, 0]
        side = torch.where(difference > 0, 0.8, 0.2)
        value_loss = (side * difference**2).mean()
        value_adam.zero_grad()
        value_loss.backward()
        value_adam.step()

        with torch.no_grad():
            weight = torch.exp(2 * (q - value(s)[:, 0])).clamp(max=100)
            y = r + discount * value(s2)[:, 0]
        hidden = s
        for layer in policy:
            hidden = layer(hidden)
            if dropout and isinstance(layer, torch.nn.ReLU):
                kept = random.uniform(hidden.shape).double() >= dropout
                hidden = hidden * kept / (1 - dropout)
        mean = hidden.tanh()
        if deterministic:
            policy_loss = (weight * ((mean - a) ** 2).sum(1)).mean()
        else:
            policy_loss = -(weight * Normal(mean, log_std.exp()).log_prob(a).sum(1)).mean()
        policy_adam.zero_grad()
        policy_loss.backward()
        policy_adam.step()
        schedule.step()

        critic_loss = sum(((net(torch.cat([s, a], 1))[:, 0] - y) ** 2).mean() for net in critics)
        critic_adam.zero_grad()
        critic_loss.backward()
        critic_adam.step()
        for net, slow in zip(critics, targets, strict=True):
            for p, old in zip(net.parameters(), slow.parameters(), strict=True):
                old.data = 0.9 * old.data + 0.1 * p.data

    assert_same(state, "value", value, value_adam)
    assert_same(state, "policy", policy, policy_adam, prefix="trunk.")
    if not deterministic:
        assert_same_number(state, "policy", log_std, policy_adam, key="log_std")
    for k in (0, 1):
        assert_same(state, "critic", critics[k], critic_adam, member=k)
        assert_same(state, "critic_target", targets[k], member=k)
    close(metrics["value_loss"], value_loss)
    close(metrics["policy_loss"], policy_loss)
    close(metrics["critic_loss"], critic_loss)
    close(metrics["weight"], weight.mean())


def test_expectile_of_a_fair_coin_is_the_expectile():
    """Eq. 4 on {0, 1} with equal odds has its minimum at v = expectile."""
    for expectile in (0.5, 0.7, 0.9):
        v = torch.linspace(0, 1, 10_001)[:, None]
        loss = expectile_loss(torch.tensor([0.0, 1.0]) - v, expectile).mean(1)
        assert v[loss.argmin()].item() == pytest.approx(expectile, abs=1e-3)


def test_the_middle_expectile_is_half_the_squared_error():
    u = torch.linspace(-3, 3, 101)
    torch.testing.assert_close(expectile_loss(u, 0.5), 0.5 * u**2)


def test_weights_are_capped():
    """Target values of 1e3 make exp(3 * advantage) overflow; the cap does not."""
    state = start(IQL, max_weight=70.0, **SMALL)
    critic = dict(state.params["critic_target"])
    critic["net.biases.2"] = critic["net.biases.2"] + 1e3
    state = replace(state, params={**state.params, "critic_target": critic})
    state, metrics = advance(state, made_batch())
    assert metrics["weight"].item() == 70
    assert all(v.isfinite().all() for v in state.params["policy"].values())


def test_the_policys_learning_rate_is_zero_after_the_last_update():
    batch = made_batch()
    state, _ = advance(start(IQL, 2, **SMALL), batch, batch)
    after, _ = advance(state, batch)
    for name, value in state.params["policy"].items():
        torch.testing.assert_close(after.params["policy"][name], value, atol=1e-9, rtol=0)


@pytest.mark.parametrize("deterministic", [False, True])
def test_prefers_the_better_of_two_demonstrated_actions(deterministic):
    """Weights are exp(3 (Q - V)) with V = 0.7, the expectile; the limit of the mean is 0.45."""
    rates = {"actor_lr": 3e-3, "critic_lr": 3e-3, "value_lr": 3e-3, "tau": 0.1}
    state = start(IQL, 1000, spec=Spec((1,), 1), deterministic=deterministic, **rates, **SMALL)
    state, metrics = advance(state, *[two_actions()] * 300)
    assert action(state) == pytest.approx(0.45, abs=0.05)
    assert metrics["advantage"].item() == pytest.approx(0.5 - 0.7, abs=0.05)


def test_bootstraps_after_a_truncation_but_not_after_a_termination():
    assert target_after(IQL, terminated=True, **SMALL) == 1
    assert target_after(IQL, terminated=False, **SMALL) != 1
