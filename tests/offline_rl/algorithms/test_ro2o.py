"""RO2O: updates by hand, sample by sample, and properties of its three regularizers."""

import numpy as np
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
    squashed,
    start,
    target_after,
    value_of,
)
from torch.distributions import Normal, kl_divergence

from offline_rl.algorithms.ro2o import RO2O, jeffreys_divergence

ANTMAZE = {"bound": "lcb", "independent": True, "cloning": 2.0}
PESSIMISM = {"pessimism": 2.0, "min_pessimism": 0.7, "pessimism_decay": 1.0}


@pytest.mark.parametrize("config", [{}, ANTMAZE])
def test_updates_equal_plain_pytorch(config):
    rates = {"actor_lr": 1e-3, "critic_lr": 2e-3, "alpha_lr": 1e-2}
    sizes = {"q_noise": 0.3, "policy_noise": 0.2, "ood_noise": 0.1}
    weights = {"q_smoothness": 0.5, "policy_smoothness": 0.4, "uncertainty": 0.3}
    shape = {"num_critics": 4, "num_samples": 3, "init": "fan_out", "tau": 0.1, **SMALL}
    first = start(RO2O, **PESSIMISM, **config, **rates, **sizes, **weights, **shape)
    batches = made_batch(1), made_batch(2), made_batch(3)
    state, metrics = advance(first, *batches)

    policy = plain(first.params["policy"], "trunk.")
    critics, targets = ([plain(first.params["critic"], "net.", k) for k in range(4)] for _ in "ct")
    log_alpha = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    policy_adam = torch.optim.Adam(policy.parameters(), lr=1e-3)
    critic_adam = torch.optim.Adam([p for q in critics for p in q.parameters()], lr=2e-3)
    alpha_adam = torch.optim.Adam([log_alpha], lr=1e-2)

    def normal(s):
        mean, log_std = policy(s).chunk(2, -1)
        return Normal(mean, log_std.exp())

    for count, batch in enumerate(batches):
        s, a, r, discount, s2 = doubles(batch)
        random = Recorded(count)
        first_noise, noise = (random.normal(a.shape).double() for _ in range(2))
        moves = random.uniform((3, 1, 3)).double()
        next_noise = random.normal(a.shape).double()
        q_moves, ood_moves = (random.uniform((3, 1, 3)).double() for _ in range(2))
        ood_noise = random.normal((3, *a.shape)).double()

        descend(-log_alpha * (squashed(policy(s), first_noise)[1].mean().item() - 2), alpha_adam)
        alpha = log_alpha.exp().item()
        pi, log_pi = squashed(policy(s), noise)
        q = torch.stack([value_of(net, s, pi) for net in critics])
        soft = (q - alpha * log_pi) if config else (q.min(0).values - alpha * log_pi)
        climbed = soft.mean(0) - 4 * soft.std(0) if config else soft
        changes = []
        for n in range(3):
            here, there = normal(s), normal(s + 0.2 * (2 * moves[n] - 1))
            both = kl_divergence(here, there) + kl_divergence(there, here)
            changes.append(both.sum(-1))
        policy_loss = -climbed.mean() + 0.4 * torch.stack(changes).max(0).values.mean()
        if config:
            policy_loss = policy_loss + 2 * torch.nn.functional.mse_loss(pi, a)
        descend(policy_loss, policy_adam)

        with torch.no_grad():
            a2, log_pi2 = squashed(policy(s2), next_noise)
            q2 = torch.stack([value_of(net, s2, a2) for net in targets])
            q2 = q2 if config else q2.min(0, keepdim=True).values
            y = (r + discount * (q2 - alpha * log_pi2)).expand(4, -1)
        q = torch.stack([value_of(net, s, a) for net in critics])
        td = ((q - y) ** 2).mean(1).sum()
        changes = []
        for n in range(3):
            near = s + 0.3 * (2 * q_moves[n] - 1)
            change = torch.stack([value_of(net, near, a) for net in critics]) - q
            share = torch.where(change > 0, 0.8, 0.2)
            changes.append((share * change**2).mean(0))
        smooth = torch.stack(changes).max(0).values.mean()
        unsure = []
        for n in range(3):
            near = s + 0.1 * (2 * ood_moves[n] - 1)
            with torch.no_grad():
                pi, _ = squashed(policy(near), ood_noise[n])
            q_ood = torch.stack([value_of(net, near, pi) for net in critics])
            goal = q_ood - [2.0, 1.0, 0.7][count] * q_ood.std(0)
            unsure.append(((q_ood - goal.detach()) ** 2).mean())
        uncertainty = sum(unsure) / 3
        descend(td + 0.5 * smooth + 0.3 * uncertainty, critic_adam)
        follow(targets, critics, 0.1)

    assert_same(state, "policy", policy, policy_adam, prefix="trunk.")
    for k in range(4):
        assert_same(state, "critic", critics[k], critic_adam, member=k)
        assert_same(state, "critic_target", targets[k], member=k)
    close(metrics["policy_loss"], policy_loss)
    close(metrics["critic_loss"], td)
    close(metrics["smoothness"], smooth)
    close(metrics["uncertainty"], uncertainty)


def test_the_symmetric_divergence_is_torchs_in_both_directions():
    a, b = ([torch.randn(5, 2, dtype=torch.float64) for _ in "ms"] for _ in "ab")
    p, q = (Normal(mean, log_std.exp()) for mean, log_std in (a, b))
    both = (kl_divergence(p, q) + kl_divergence(q, p)).sum(-1)
    torch.testing.assert_close(jeffreys_divergence(tuple(a), tuple(b)), both)


def test_without_perturbations_the_smoothness_losses_are_zero():
    none = {"q_noise": 0.0, "policy_noise": 0.0, "num_samples": 2}
    _, metrics = advance(start(RO2O, num_critics=3, **none, **SMALL), made_batch())
    assert metrics["smoothness"] == 0
    assert metrics["uncertainty"] > 0


def test_more_perturbations_are_at_least_as_bad():
    """The worst of a set is at least the worst of a subset."""
    state, moves = start(RO2O, num_critics=3, **SMALL), torch.rand(8, 1, 3) - 0.5

    def smoothness(count):
        state.algorithm.perturb = lambda _, s, size: s + moves[:count]
        y = torch.zeros(32)
        return state.algorithm.critic_loss(state.critic, state, made_batch(), y)[1]["smoothness"]

    assert smoothness(1) < smoothness(3) < smoothness(8)


@pytest.mark.parametrize("values", [[1.0, 2.0, 4.0], [2.0, 2.0, 2.0]])
def test_uncertainty_lowers_critics_where_they_disagree_and_only_there(values):
    """The gradient is 2 depth std / 3 in each critic if critics are constant."""
    table = torch.tensor(values, requires_grad=True)

    def critic(s, a):
        return table.view(-1, *[1] * (s.dim() - 1)).expand(-1, *s.shape[:-1])

    def gradient(uncertainty):
        config = {"num_critics": 3, "num_samples": 2, "pessimism": 1.5, "uncertainty": uncertainty}
        state = start(RO2O, **config, **SMALL)
        loss, _ = state.algorithm.critic_loss(critic, state, made_batch(), torch.zeros(32))
        return torch.autograd.grad(loss, table)[0]

    expected = torch.full((3,), 2 * 1.5 * float(np.std(values, ddof=1)) / 3)
    torch.testing.assert_close(gradient(1.0) - gradient(0.0), expected)


def test_bootstraps_after_a_truncation_but_not_after_a_termination():
    assert target_after(RO2O, terminated=True, num_critics=3, **SMALL) == 1
    assert target_after(RO2O, terminated=False, num_critics=3, **SMALL) != 1
