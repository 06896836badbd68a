"""SAC: an update by hand, and the policy and temperature it converges to."""

import math

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
    hill,
    made_batch,
    plain,
    squashed,
    start,
    target_after,
)

from offline_rl.algorithms.sac import SAC
from policies.heads.gaussian import TanhGaussianActor
from policies.spec import Spec


def test_updates_equal_plain_pytorch():
    rates = {"actor_lr": 1e-3, "critic_lr": 1e-3, "alpha_lr": 1e-2}
    first = start(SAC, tau=0.1, initial_alpha=0.5, entropy_scale=0.5, **rates, **SMALL)
    batches = made_batch(1), made_batch(2)
    state, metrics = advance(first, *batches)

    policy = plain(first.params["policy"], "trunk.")
    critics, targets = ([plain(first.params["critic"], "net.", k) for k in (0, 1)] for _ in "ct")
    log_alpha = torch.tensor(math.log(0.5), dtype=torch.float64, requires_grad=True)
    policy_adam = torch.optim.Adam(policy.parameters(), lr=1e-3)
    critic_adam = torch.optim.Adam([p for q in critics for p in q.parameters()], lr=1e-3)
    alpha_adam = torch.optim.Adam([log_alpha], lr=1e-2)
    for count, batch in enumerate(batches):
        s, a, r, discount, s2 = doubles(batch)
        random = Recorded(count)
        next_noise, noise = (random.normal(a.shape).double() for _ in range(2))
        alpha = log_alpha.exp().item()
        with torch.no_grad():
            a2, log_pi2 = squashed(policy(s2), next_noise)
            q2 = [q(torch.cat([s2, a2], 1))[:, 0] for q in targets]
            y = r + discount * (torch.minimum(*q2) - alpha * log_pi2)
        critic_loss = sum((q(torch.cat([s, a], 1))[:, 0] - y).pow(2).mean() for q in critics)
        critic_adam.zero_grad()
        critic_loss.backward()
        critic_adam.step()
        pi, log_pi = squashed(policy(s), noise)
        q = torch.minimum(*[net(torch.cat([s, pi], 1))[:, 0] for net in critics])
        policy_loss = (alpha * log_pi - q).mean()
        policy_adam.zero_grad()
        policy_loss.backward()
        policy_adam.step()
        alpha_adam.zero_grad()
        (-log_alpha * (log_pi.detach() - 0.5 * 2).mean()).backward()
        alpha_adam.step()
        for net, slow in zip(critics, targets, strict=True):
            for p, old in zip(net.parameters(), slow.parameters(), strict=True):
                old.data = 0.9 * old.data + 0.1 * p.data

    assert_same(state, "policy", policy, policy_adam, prefix="trunk.")
    for k in (0, 1):
        assert_same(state, "critic", critics[k], critic_adam, member=k)
        assert_same(state, "critic_target", targets[k], member=k)
    assert_same_number(state, "log_alpha", log_alpha, alpha_adam)
    close(metrics["policy_loss"], policy_loss)
    close(metrics["critic_loss"], critic_loss)
    close(metrics["entropy"], -log_pi.mean())


@pytest.mark.parametrize(("log_pi", "rises"), [(2.1, True), (1.9, False)])
def test_the_temperature_rises_when_entropy_is_below_its_target(log_pi, rises, monkeypatch):
    """The target entropy of two action dimensions is -2, which is a log density of 2."""

    def sample(self, observations, random, samples=None):
        pi = self.act(observations)
        return pi, 0 * pi.sum(-1) + log_pi

    monkeypatch.setattr(TanhGaussianActor, "sample", sample)
    state, _ = advance(start(SAC, **SMALL), made_batch())
    assert (state.log_alpha() > 0).item() is rises


def test_policy_becomes_the_boltzmann_policy():
    """Reward 1 - 4 (a - 0.3)^2, temperature 0.1: the best policy is Normal(0.3, sqrt(0.1 / 8))."""
    config = {"actor_lr": 3e-3, "critic_lr": 3e-3, "alpha_lr": 0.0, "initial_alpha": 0.1}
    state = start(SAC, spec=Spec((1,), 1), hidden=(32, 32), **config)
    state, _ = advance(state, *map(hill, range(400)))
    samples, _ = state.policy.sample(torch.zeros(1, 1), Recorded(999), 4000)
    assert action(state) == pytest.approx(0.3, abs=0.1)
    assert samples.std().item() == pytest.approx(math.sqrt(0.1 / 8), abs=0.04)


def test_bootstraps_after_a_truncation_but_not_after_a_termination():
    assert target_after(SAC, terminated=True, **SMALL) == 1
    assert target_after(SAC, terminated=False, **SMALL) != 1
