"""AWAC: updates by hand, its weights, and the policy it converges to."""

import math
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
    one_step,
    opinionated,
    plain,
    start,
    step,
    target_after,
    taught,
    two_actions,
)
from torch.distributions import Normal

from offline_rl.algorithms.awac import AWAC


def test_updates_equal_plain_pytorch():
    """The policy uses the updated critics. Samples are clipped before Q evaluates them."""
    config = {"actor_lr": 1e-3, "critic_lr": 2e-3, "tau": 0.1, "temperature": 0.8}
    first = opinionated(start(AWAC, **config, **SMALL))
    batches = [made_batch(seed) for seed in range(3)]
    state, metrics = advance(first, *batches)

    policy = plain(first.params["policy"], "trunk.")
    critics, targets = ([plain(first.params["critic"], "net.", k) for k in (0, 1)] for _ in "ct")
    log_std = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    policy_adam = torch.optim.Adam([*policy.parameters(), log_std], lr=1e-3)
    critic_adam = torch.optim.Adam([p for q in critics for p in q.parameters()], lr=2e-3)
    for count, batch in enumerate(batches):
        s, a, r, discount, s2 = doubles(batch)
        random = Recorded(count)

        def q(nets, observations, actions):
            pair = torch.cat([observations, actions], 1)
            return torch.minimum(*[net(pair)[:, 0] for net in nets])

        def sample_actions(observations, random=random):
            noise = random.normal((len(observations), 2)).double()
            raw = policy(observations) + log_std.exp() * noise
            assert (raw.abs() > 1).any()
            return raw.clip(-1, 1)

        with torch.no_grad():
            y = r + discount * q(targets, s2, sample_actions(s2))
        critic_loss = sum(((net(torch.cat([s, a], 1))[:, 0] - y) ** 2).mean() for net in critics)
        step(critic_adam, critic_loss)
        with torch.no_grad():
            advantage = q(critics, s, a) - q(critics, s, sample_actions(s))
            weight = torch.exp(advantage / 0.8).clip(max=100)
        density = Normal(policy(s), log_std.exp()).log_prob(a).sum(1)
        policy_loss = -(weight * density).mean()
        step(policy_adam, policy_loss)
        for net, slow in zip(critics, targets, strict=True):
            for p, old in zip(net.parameters(), slow.parameters(), strict=True):
                old.data = 0.9 * old.data + 0.1 * p.data

    assert_same(state, "policy", policy, policy_adam, prefix="trunk.")
    assert_same_number(state, "policy", log_std, policy_adam, key="log_std")
    for k in (0, 1):
        assert_same(state, "critic", critics[k], critic_adam, member=k)
        assert_same(state, "critic_target", targets[k], member=k)
    close(metrics["critic_loss"], critic_loss)
    close(metrics["policy_loss"], policy_loss)
    close(metrics["weight"], weight.mean())
    close(metrics["target"], y.mean())


def raised(state, by):
    """Return a state whose critics are higher by `by` everywhere."""
    critic = dict(state.params["critic"])
    critic["net.biases.2"] = critic["net.biases.2"] + torch.tensor(by).reshape(-1, 1, 1)
    return replace(state, params={**state.params, "critic": critic})


def test_only_differences_of_q_move_the_policy():
    """Adding a constant to Q changes no advantage."""
    first, batch = opinionated(start(AWAC, critic_lr=0.0, **SMALL)), made_batch()
    (one, _), (other, _) = (advance(s, batch) for s in (first, raised(first, [32.0, 32.0])))
    for name, value in one.optimizer["policy"]["first"].items():
        torch.testing.assert_close(
            value, other.optimizer["policy"]["first"][name], atol=1e-5, rtol=1e-4
        )


def test_weights_are_capped():
    """A temperature of 1e-6 makes exp of the advantages overflow; the cap of 100 does not."""
    state = opinionated(start(AWAC, temperature=1e-6, **SMALL))
    state, metrics = advance(state, made_batch())
    assert 0 < metrics["weight"].item() < 100
    assert all(v.isfinite().all() for v in state.params["policy"].values())


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_the_policys_mean_is_that_of_the_weighted_data(temperature):
    """Two actions +-0.5 with values 1 and 0 have weights in the ratio exp(1 / temperature).

    The baseline is common to both, so the mean is tanh(1 / (2 temperature)) / 2.
    """
    batch, rates = two_actions(), {"actor_lr": 3e-3, "critic_lr": 3e-3}
    data = one_step(batch.actions, batch.rewards)
    state = taught(AWAC, data, num_updates=500, temperature=temperature, **rates, **SMALL)
    assert action(state) == pytest.approx(math.tanh(0.5 / temperature) / 2, abs=0.05)


def test_a_mean_outside_the_box_acts_at_its_edge():
    state = start(AWAC, **SMALL)
    policy = {k: 100 * v for k, v in state.params["policy"].items()}
    state = replace(state, params={**state.params, "policy": policy})
    observations = made_batch().observations
    mean = state.policy(observations)
    assert (mean.abs() > 1).any()
    assert torch.equal(state.policy.act(observations), mean.clip(-1, 1))


def test_bootstraps_after_a_truncation_but_not_after_a_termination():
    assert target_after(AWAC, terminated=True, **SMALL) == 1
    assert target_after(AWAC, terminated=False, **SMALL) != 1
