"""SAC-N: updates by hand, and the minimum over equal and unequal critics."""

from dataclasses import replace

import pytest
import torch
from by_hand import (
    SMALL,
    Recorded,
    advance,
    assert_same,
    assert_same_number,
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

from offline_rl.algorithms.sac_n import SACN


def test_updates_equal_plain_pytorch():
    """Order: temperature, policy, critics, target, each with the parameters updated before."""
    rates = {"actor_lr": 1e-3, "critic_lr": 2e-3, "alpha_lr": 1e-2}
    first = start(SACN, num_critics=5, init="fan_out", tau=0.1, **rates, **SMALL)
    batches = made_batch(1), made_batch(2)
    state, metrics = advance(first, *batches)

    policy = plain(first.params["policy"], "trunk.")
    critics, targets = ([plain(first.params["critic"], "net.", k) for k in range(5)] for _ in "ct")
    log_alpha = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    policy_adam = torch.optim.Adam(policy.parameters(), lr=1e-3)
    critic_adam = torch.optim.Adam([p for q in critics for p in q.parameters()], lr=2e-3)
    alpha_adam = torch.optim.Adam([log_alpha], lr=1e-2)
    for count, batch in enumerate(batches):
        s, a, r, discount, s2 = doubles(batch)
        random = Recorded(count)
        first_noise, noise, next_noise = (random.normal(a.shape).double() for _ in range(3))
        log_pi = squashed(policy(s), first_noise)[1].mean().item()
        descend(-log_alpha * (log_pi - 2), alpha_adam)
        alpha = log_alpha.exp().item()
        pi, log_pi = squashed(policy(s), noise)
        q_min = torch.stack([value_of(q, s, pi) for q in critics]).min(0).values
        policy_loss = (alpha * log_pi - q_min).mean()
        descend(policy_loss, policy_adam)
        with torch.no_grad():
            a2, log_pi2 = squashed(policy(s2), next_noise)
            q2 = torch.stack([value_of(q, s2, a2) for q in targets]).min(0).values
            y = r + discount * (q2 - alpha * log_pi2)
        critic_loss = sum((value_of(q, s, a) - y).pow(2).mean() for q in critics)
        descend(critic_loss, critic_adam)
        follow(targets, critics, 0.1)

    assert_same(state, "policy", policy, policy_adam, prefix="trunk.")
    for k in range(5):
        assert_same(state, "critic", critics[k], critic_adam, member=k)
        assert_same(state, "critic_target", targets[k], member=k)
    assert_same_number(state, "log_alpha", log_alpha, alpha_adam)
    close(metrics["critic_loss"], critic_loss)
    close(metrics["policy_loss"], policy_loss)
    close(metrics["entropy"], -log_pi.mean())


def test_equal_critics_give_no_pessimism():
    """Four copies of one critic act and bootstrap like two."""
    params = start(SACN, num_critics=2, **SMALL).params
    found = []
    for count in (2, 4):
        copies = {k: v[:1].expand(count, *v.shape[1:]) for k, v in params["critic"].items()}
        state = start(SACN, num_critics=count, **SMALL)
        own = {**params, "critic": copies, "critic_target": copies}
        found.append(advance(replace(state, params=own), made_batch()))
    (two, few), (four, many) = found
    for name, value in two.params["policy"].items():
        torch.testing.assert_close(four.params["policy"][name], value)
    torch.testing.assert_close(many["target"], few["target"])
    torch.testing.assert_close(many["critic_loss"], 2 * few["critic_loss"])
    assert many["disagreement"] < 1e-6


def test_refuses_a_single_critic():
    with pytest.raises(ValueError, match="num_critics=1 is not at least 2"):
        SACN.Config(num_critics=1)


def test_the_minimum_over_critics_follows_order_statistics():
    """E[min of N standard normals] is about -1.16 for 5 and -2.51 for 100 (tables of Harter)."""
    from offline_rl.algorithms.common.entropy import ensemble_min

    q = torch.randn(100, 40_000, generator=torch.Generator().manual_seed(0))
    assert ensemble_min(q[:5]).mean().item() == pytest.approx(-1.163, abs=0.02)
    assert ensemble_min(q).mean().item() == pytest.approx(-2.508, abs=0.02)


def test_networks_are_initialized_like_edacs():
    """Hidden biases are 0.1, outputs nearly 0, and each critic has its own fan-in."""
    params = start(SACN, num_critics=50, hidden=(32, 32)).params
    for name, bound in (("policy", 1e-3), ("critic", 3e-3)):
        weights = [v for k, v in params[name].items() if "weights" in k]
        biases = [v for k, v in params[name].items() if "biases" in k]
        assert all((b == 0.1).all() for b in biases[:-1])
        assert weights[-1].abs().max() <= bound
        assert biases[-1].abs().max() <= bound
        assert 0.95 * 32**-0.5 < weights[1].abs().max() <= 32**-0.5
    assert len(params["critic"]["net.weights.0"].unique(dim=0)) == 50


def test_bootstraps_after_a_truncation_but_not_after_a_termination():
    assert target_after(SACN, terminated=True, **SMALL) == 1
    assert target_after(SACN, terminated=False, **SMALL) != 1
