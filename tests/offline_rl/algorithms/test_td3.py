"""TD3: two periods by hand, and the effect of its three components."""

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
    hill,
    made_batch,
    opinionated,
    plain,
    start,
    target_after,
)

from offline_rl.algorithms.td3 import TD3
from policies.spec import Spec


def test_two_periods_equal_plain_pytorch():
    config = {"actor_lr": 1e-3, "critic_lr": 1e-3, "tau": 0.1}
    config |= {"policy_noise": 1.0, "noise_clip": 1.5}  # far enough to leave the box
    first = opinionated(start(TD3, **config, **SMALL))
    batches = [made_batch(seed) for seed in range(4)]
    halfway, _ = advance(first, batches[0])
    state, metrics = advance(first, *batches)

    policy, policy_target = (plain(first.params["policy"], "trunk.") for _ in range(2))
    critics, targets = ([plain(first.params["critic"], "net.", k) for k in (0, 1)] for _ in "ct")
    policy_adam = torch.optim.Adam(policy.parameters(), lr=1e-3)
    critic_adam = torch.optim.Adam([p for q in critics for p in q.parameters()], lr=1e-3)
    for count, batch in enumerate(batches):
        s, a, r, discount, s2 = doubles(batch)
        noise = first_noise(count, a.shape)
        with torch.no_grad():
            a2 = (policy_target(s2).tanh() + noise.clamp(-1.5, 1.5)).clamp(-1, 1)
            q2 = [q(torch.cat([s2, a2], 1))[:, 0] for q in targets]
            y = r + discount * torch.minimum(*q2)
        losses = [(q(torch.cat([s, a], 1))[:, 0] - y).pow(2).mean() for q in critics]
        critic_adam.zero_grad()
        sum(losses).backward()
        critic_adam.step()
        if count % 2:
            loss = -critics[0](torch.cat([s, policy(s).tanh()], 1)).mean()
            policy_adam.zero_grad()
            loss.backward()
            policy_adam.step()
            for net, slow in zip([policy, *critics], [policy_target, *targets], strict=True):
                for p, old in zip(net.parameters(), slow.parameters(), strict=True):
                    old.data = 0.9 * old.data + 0.1 * p.data

    assert halfway.params["policy"] is first.params["policy"]  # delayed
    assert halfway.params["critic_target"] is first.params["critic_target"]
    assert_same(state, "policy", policy, policy_adam, prefix="trunk.")
    assert_same(state, "policy_target", policy_target, prefix="trunk.")
    for k in (0, 1):
        assert_same(state, "critic", critics[k], critic_adam, member=k)
        assert_same(state, "critic_target", targets[k], member=k)
    close(metrics["critic_loss"], sum(losses))
    close(metrics["policy_loss"], loss)
    close(metrics["target"], y.mean())


def first_noise(update, shape):
    """Return the first normal numbers of an update."""
    return Recorded(update).normal(shape).double()


def test_noise_beyond_the_clip_does_not_count():
    """The noise is its sign times the clip if its standard deviation is infinite."""
    state, batch = start(TD3, policy_noise=1e9, noise_clip=0.25, **SMALL), made_batch()
    target = state.algorithm.target(state, batch)
    signs = first_noise(0, batch.actions.shape).float().sign()
    a2 = (state.policy(batch.next_observations) + 0.25 * signs).clamp(-1, 1)
    q2 = state.critic(batch.next_observations, a2).min(0).values
    torch.testing.assert_close(target, batch.rewards + batch.discount * q2)


def test_climbs_to_the_best_action():
    """Uniform actions have rewards 1 - 4 (a - 0.3)^2, so 0.3 is best."""
    state = start(TD3, spec=Spec((1,), 1), hidden=(32, 32), actor_lr=3e-3, critic_lr=3e-3)
    state, _ = advance(state, *map(hill, range(400)))
    assert action(state) == pytest.approx(0.3, abs=0.1)


def test_bootstraps_after_a_truncation_but_not_after_a_termination():
    assert target_after(TD3, terminated=True, **SMALL) == 1
    assert target_after(TD3, terminated=False, **SMALL) != 1
