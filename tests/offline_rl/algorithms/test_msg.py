"""MSG: updates by hand, independent critics, and its lower bound."""

from dataclasses import replace

import numpy as np
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
    descend,
    doubles,
    follow,
    made_batch,
    plain,
    squashed,
    start,
    target_after,
    two_actions,
    value_of,
)

from offline_rl.algorithms.msg import MSG
from policies.spec import Spec


@pytest.mark.parametrize("phase", ["update", "clone"])
@pytest.mark.parametrize("random_weights", [True, False])
def test_updates_equal_plain_pytorch(phase, random_weights):
    """All losses use the old parameters; each critic has its own target and actions."""
    rates = {"actor_lr": 1e-3, "critic_lr": 2e-3, "alpha_lr": 1e-2}
    config = {"beta": -3.0, "conservatism": 0.7, "target_entropy": 0.5, "tau": 0.1}
    first = start(MSG, num_critics=3, random_weights=random_weights, **config, **rates, **SMALL)
    batches = made_batch(1), made_batch(2)
    state, metrics = advance(first, *batches, phase=phase)

    policy = plain(first.params["policy"], "trunk.")
    critics, targets = ([plain(first.params["critic"], "net.", k) for k in range(3)] for _ in "ct")
    log_alpha = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    policy_adam = torch.optim.Adam(policy.parameters(), lr=1e-3)
    critic_adam = torch.optim.Adam([p for q in critics for p in q.parameters()], lr=2e-3)
    alpha_adam = torch.optim.Adam([log_alpha], lr=1e-2)
    for count, batch in enumerate(batches):
        s, a, r, discount, s2 = doubles(batch)
        random = Recorded(count)
        next_noise, noise = (random.normal((3, *a.shape)).double() for _ in range(2))
        weights = 2 * random.uniform((3, 32)).double() if random_weights else torch.ones(3, 32)
        own_noise = None if phase == "clone" else random.normal(a.shape).double()
        critic_loss = td = 0
        for k in range(3):
            with torch.no_grad():
                pi, _ = squashed(policy(s), noise[k])
                a2, _ = squashed(policy(s2), next_noise[k])
                y = r + discount * value_of(targets[k], s2, a2)
            q = value_of(critics[k], s, a)
            critic_loss += (weights[k] * (q - y) ** 2).mean() / 2
            critic_loss += 0.7 * (value_of(critics[k], s, pi) - q).mean()
            td += ((q - y) ** 2).mean()
        if phase == "clone":
            mean, log_std = policy(s).chunk(2, -1)
            u = a.atanh()
            normal = torch.distributions.Normal(mean, log_std.exp()).log_prob(u)
            log_pi = (normal - torch.log(1 - a**2)).sum(-1)
            policy_loss = -log_pi.mean()
        else:
            pi, log_pi = squashed(policy(s), own_noise)
            values = torch.stack([value_of(net, s, pi) for net in critics])
            bound = values.mean(0) - 3 * values.var(0, correction=0).sqrt()
            policy_loss = (log_alpha.exp().item() * log_pi - bound).mean()
        # the temperature is clearly the old one in both
        descend(policy_loss, policy_adam)
        descend(critic_loss, critic_adam)
        if phase != "clone":
            descend(-log_alpha * (log_pi.mean().item() + 0.5), alpha_adam)
        follow(targets, critics, 0.1)

    assert_same(state, "policy", policy, policy_adam, prefix="trunk.")
    for k in range(3):
        assert_same(state, "critic", critics[k], critic_adam, member=k)
        assert_same(state, "critic_target", targets[k], member=k)
    if phase == "clone":
        assert state.log_alpha() == 0
    else:
        assert_same_number(state, "log_alpha", log_alpha, alpha_adam)
    close(metrics["critic_loss"], td)
    close(metrics["policy_loss"], policy_loss)


def test_a_critics_update_is_independent_of_the_others():
    """Critics are independent; a shared target would break this."""
    first = start(MSG, num_critics=3, **SMALL)
    raised = {
        name: {k: torch.cat([v[:1], v[1:] + 1]) for k, v in first.params[name].items()}
        for name in ("critic", "critic_target")
    }
    other = replace(first, params={**first.params, **raised})
    once, _ = advance(first, made_batch())
    again, _ = advance(other, made_batch())
    for name, value in once.params["critic"].items():
        torch.testing.assert_close(again.params["critic"][name][0], value[0])
        assert not torch.equal(again.params["critic"][name][1] - 1, value[1])


def test_the_bound_is_mean_plus_beta_standard_deviations():
    q = np.random.default_rng(0).normal(size=(5, 8))
    bound = start(MSG, num_critics=5, beta=-2.0, **SMALL).algorithm.lower_bound(torch.from_numpy(q))
    np.testing.assert_allclose(bound, q.mean(0) - 2 * q.std(0))


def test_its_preliminary_phase_is_the_authors():
    assert MSG(Spec((3,), 2), MSG.Config(num_critics=2, **SMALL)).phases == {"clone": 50_000}
    assert MSG(Spec((3,), 2), MSG.Config(num_critics=2, bc_updates=0, **SMALL)).phases == {}


def test_prefers_the_better_of_two_demonstrated_actions():
    rates = {"actor_lr": 1e-2, "critic_lr": 1e-2, "alpha_lr": 3e-2, "beta": -1.0}
    config = {"num_critics": 4, "conservatism": 0.3, "target_entropy": -1.0}
    state = start(MSG, spec=Spec((1,), 1), **rates, **config, **SMALL)
    state, _ = advance(state, *[two_actions()] * 120)
    assert action(state) > 0.3


def test_bootstraps_after_a_truncation_but_not_after_a_termination():
    assert target_after(MSG, terminated=True, num_critics=2, **SMALL) == 1
    assert target_after(MSG, terminated=False, num_critics=2, **SMALL) != 1
