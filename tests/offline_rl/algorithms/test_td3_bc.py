"""TD3+BC: two periods by hand, its lambda, and the effect of its Q term."""

from dataclasses import replace

import pytest
import torch
from by_hand import (
    SMALL,
    Recorded,
    action,
    advance,
    assert_same,
    close,
    doubles,
    made_batch,
    opinionated,
    plain,
    start,
    target_after,
    two_actions,
)

from offline_rl.algorithms.bc import BC
from offline_rl.algorithms.td3_bc import TD3BC
from policies.spec import Spec


def test_two_periods_equal_plain_pytorch():
    config = {"actor_lr": 1e-3, "critic_lr": 1e-3, "tau": 0.1, "alpha": 1.5}
    first = opinionated(start(TD3BC, **config, **SMALL))
    batches = [made_batch(seed) for seed in range(4)]
    state, metrics = advance(first, *batches)

    policy, policy_target = (plain(first.params["policy"], "trunk.") for _ in range(2))
    critics, targets = ([plain(first.params["critic"], "net.", k) for k in (0, 1)] for _ in "ct")
    policy_adam = torch.optim.Adam(policy.parameters(), lr=1e-3)
    critic_adam = torch.optim.Adam([p for q in critics for p in q.parameters()], lr=1e-3)
    for count, batch in enumerate(batches):
        s, a, r, discount, s2 = doubles(batch)
        noise = Recorded(count).normal(a.shape).double()
        with torch.no_grad():
            a2 = (policy_target(s2).tanh() + (0.2 * noise).clamp(-0.5, 0.5)).clamp(-1, 1)
            q2 = [q(torch.cat([s2, a2], 1))[:, 0] for q in targets]
            y = r + discount * torch.minimum(*q2)
        losses = [(q(torch.cat([s, a], 1))[:, 0] - y).pow(2).mean() for q in critics]
        critic_adam.zero_grad()
        sum(losses).backward()
        critic_adam.step()
        if count % 2 == 0:
            continue
        pi = policy(s).tanh()
        q = critics[0](torch.cat([s, pi], 1))
        loss = -1.5 / q.abs().mean().item() * q.mean() + torch.nn.functional.mse_loss(pi, a)
        policy_adam.zero_grad()
        loss.backward()
        policy_adam.step()
        for net, slow in zip([policy, *critics], [policy_target, *targets], strict=True):
            for p, old in zip(net.parameters(), slow.parameters(), strict=True):
                old.data = 0.9 * old.data + 0.1 * p.data
        assert (q > 0).any()  # else a mean of |Q| is not told from the |mean of Q|
        assert (q < 0).any()

    assert_same(state, "policy", policy, policy_adam, prefix="trunk.")
    assert_same(state, "policy_target", policy_target, prefix="trunk.")
    for k in (0, 1):
        assert_same(state, "critic", critics[k], critic_adam, member=k)
        assert_same(state, "critic_target", targets[k], member=k)
    close(metrics["critic_loss"], sum(losses))
    close(metrics["policy_loss"], loss)


def test_the_policy_update_is_independent_of_the_scale_of_q():
    """lambda divides by mean |Q|: a critic a thousand times larger gives the same step."""
    state, batch = start(TD3BC, critic_lr=0.0, **SMALL), made_batch()
    critic = dict(state.params["critic"])
    last = [k for k in critic if k.endswith(".2")]
    larger = critic | {k: 1000 * critic[k] for k in last}
    other = replace(state, params={**state.params, "critic": larger})
    (a, _), (b, _) = (advance(s, batch, batch) for s in (state, other))
    for name, value in a.optimizer["policy"]["first"].items():
        torch.testing.assert_close(value, b.optimizer["policy"]["first"][name])


def test_with_alpha_zero_it_is_behavior_cloning():
    batch = made_batch()
    ours, _ = advance(start(TD3BC, alpha=0.0, **SMALL), batch, batch)
    clone, _ = advance(start(BC, **SMALL), batch)
    for name, value in clone.params["policy"].items():
        torch.testing.assert_close(ours.params["policy"][name], value)


def test_prefers_the_better_of_two_demonstrated_actions():
    config = {"hidden": (32, 32), "actor_lr": 3e-3, "critic_lr": 3e-3}
    state = start(TD3BC, spec=Spec((1,), 1), **config)
    state, _ = advance(state, *[two_actions()] * 200)
    assert action(state) > 0.3


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_bootstraps_after_a_truncation_but_not_after_a_termination(noise):
    assert target_after(TD3BC, terminated=True, policy_noise=noise, **SMALL) == 1
    assert target_after(TD3BC, terminated=False, policy_noise=noise, **SMALL) != 1
