"""ReCOIL: updates by hand, the density ratio of its objective, and whom it imitates."""

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
from prepared import prepare
from small_data import save_small
from torch.distributions import Normal

from offline_rl.algorithms.recoil import ReCOIL, bounded_loss, mixture_loss
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import checksum
from policies.spec import Spec


@pytest.mark.parametrize("objective", ["bounded", "mixture"])
def test_updates_equal_plain_pytorch(objective):
    config = {"temperature": 0.7, "max_clip": 0.1, "discount": 0.9, "tau": 0.1}
    config |= {"mixture": 0.3} if objective == "mixture" else {}
    rates = {"actor_lr": 1e-3, "critic_lr": 2e-3, "value_lr": 3e-3, "decay_actor_lr": False}
    first = start(ReCOIL, objective=objective, **config, **rates, **SMALL)
    batches = [
        replace(made_batch(k), discount=0.9 * (made_batch(k).discount > 0)) for k in range(4)
    ]
    pairs = [replace(batches[k], expert=batches[k + 2]) for k in (0, 1)]
    state, metrics = advance(first, *pairs)

    policy, value = plain(first.params["policy"], "trunk."), plain(first.params["value"], "net.")
    critics, targets = ([plain(first.params["critic"], "net.", k) for k in (0, 1)] for _ in "ct")
    log_std = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    policy_adam = torch.optim.Adam([*policy.parameters(), log_std], lr=1e-3)
    critic_adam = torch.optim.Adam([p for q in critics for p in q.parameters()], lr=2e-3)
    value_adam, clipped = torch.optim.Adam(value.parameters(), lr=3e-3), 0
    for count, batch in enumerate(pairs):
        s, a, _, discount, s2 = doubles(batch)
        s_E, a_E, _, discount_E, s2_E = doubles(batch.expert)
        q, q_E = (
            torch.minimum(*[value_of(net, *pair) for net in targets]).detach()
            for pair in ((s, a), (s_E, a_E))
        )
        u, u_E = q - value(s)[:, 0], q_E - value(s_E)[:, 0]
        z = (u / 0.7).clip(max=0.1)
        clipped += int((z == 0.1).sum())
        top = max(z.max().item(), (u_E / 0.7).clip(max=0.1).max().item(), -1)
        value_loss = (z.exp() - z - 1).mean() / math.exp(top)
        descend(value_loss, value_adam)

        with torch.no_grad():
            weight = torch.exp(3 * (q - value(s)[:, 0])).clip(max=100)
            next_v, next_v_E = value(s2)[:, 0], value(s2_E)[:, 0]
            noise = Recorded(count).normal(a.shape).double()
            pi = (policy(s).tanh() + log_std.exp() * noise).clip(-1, 1)
        log_pi = Normal(policy(s).tanh(), log_std.exp()).log_prob(a).sum(1)
        policy_loss = -(weight * log_pi).mean()
        critic_loss = 0
        for net in critics:
            q, q_E, q_pi = value_of(net, s, a), value_of(net, s_E, a_E), value_of(net, s, pi)
            if objective == "bounded":  # 2 / (1 - 0.9) = 20
                y = torch.where(discount > 0, -2 + 0.9 * next_v, -2 - 0.9 * 20)
                critic_loss += ((q_E - 20) ** 2).mean() / 2 + ((q - y) ** 2).mean() / 2
            else:
                y, y_E = discount * next_v, discount_E * next_v_E
                critic_loss += 0.3 * (q_pi.mean() - q_E.mean())
                critic_loss += 0.3 * ((y_E - q_E) ** 2).mean() / 4
                critic_loss += 0.7 * ((y - q) ** 2).mean() / 4
        descend(policy_loss, policy_adam)
        descend(critic_loss, critic_adam)
        follow(targets, critics, 0.1)

    assert_same(state, "value", value, value_adam)
    assert_same(state, "policy", policy, policy_adam, prefix="trunk.")
    for k in (0, 1):
        assert_same(state, "critic", critics[k], critic_adam, member=k)
        assert_same(state, "critic_target", targets[k], member=k)
    close(metrics["critic_loss"], critic_loss)
    close(metrics["target"], y.mean())
    assert clipped


def test_mixture_objective_without_a_future_gives_the_density_ratio():
    """Chi-square has f'(w) = 2 (w - 1), and the dual's residual is 0 - Q, so Q = 2 (1 - w).

    w = (beta d_pi + (1 - beta) d_S) / (beta d_E + (1 - beta) d_S), without a discriminator.
    """
    beta, counts = 0.3, torch.tensor([[1, 4, 3, 2], [5, 0, 1, 4], [2, 2, 6, 0]])  # S, E, pi
    rows = [torch.arange(4).repeat_interleave(c) for c in counts]
    d_S, d_E, d_pi = counts / 10
    w = (beta * d_pi + (1 - beta) * d_S) / (beta * d_E + (1 - beta) * d_S)
    table = (2 * (1 - w)).requires_grad_()
    q, q_expert, q_policy = (table[r] for r in rows)
    nothing = torch.zeros(10)
    loss = mixture_loss(q, q_expert, q_policy, nothing, nothing, beta)
    (gradient,) = torch.autograd.grad(loss, table)
    torch.testing.assert_close(gradient, torch.zeros(4), atol=1e-6, rtol=0)


def test_bounded_objective_weights_both_data_sets_by_their_size():
    """The minimum is at Q = (d_E bound + d_S y) / (d_E + d_S)."""
    counts, y = torch.tensor([[1, 4, 5], [5, 1, 4]]), torch.tensor([-3.0, 1.0, 2.0])  # S, E
    rows = [torch.arange(3).repeat_interleave(c) for c in counts]
    d_S, d_E = counts / 10
    table = ((d_E * 20 + d_S * y) / (d_E + d_S)).requires_grad_()
    loss = bounded_loss(table[rows[0]], table[rows[1]], y[rows[0]], 20)
    (gradient,) = torch.autograd.grad(loss, table)
    torch.testing.assert_close(gradient, torch.zeros(3), atol=1e-5, rtol=0)


@pytest.mark.parametrize("objective", ["bounded", "mixture"])
def test_imitates_the_expert_and_not_the_majority_of_the_data(objective):
    """One state: the expert's action is +0.5; three quarters of the other data have -0.5."""
    expert = two_actions()
    expert = replace(expert, actions=torch.full_like(expert.actions, 0.5))
    few = (torch.arange(32) % 4 == 0).float()[:, None] - 0.5
    batch = replace(two_actions(), actions=few, rewards=-few[:, 0], expert=expert)
    rates = {"actor_lr": 1e-2, "critic_lr": 1e-2, "value_lr": 1e-2, "tau": 0.1}
    config = {"discount": 0.5, "temperature": 1.0}
    config |= {"mixture": 0.5} if objective == "mixture" else {}
    state = start(ReCOIL, 1000, spec=Spec((1,), 1), objective=objective, **config, **rates, **SMALL)
    state, _ = advance(state, *[batch] * 100)
    assert action(state) > 0.2


@pytest.mark.parametrize(("objective", "name"), [("bounded", "mixture"), ("mixture", "reward_gap")])
def test_options_that_the_objective_does_not_use_are_refused(objective, name):
    with pytest.raises(ValueError, match=f"{name} is not used with objective={objective}"):
        ReCOIL.Config(objective=objective, **{name: 0.4})


def test_rewards_do_not_matter():
    batch = replace(made_batch(1), expert=made_batch(2))
    first = start(ReCOIL, **SMALL)
    once, _ = advance(first, batch)
    other, _ = advance(first, replace(batch, rewards=7 * batch.rewards + 3))
    for name, value in once.params["critic"].items():
        assert torch.equal(value, other.params["critic"][name])


def test_termination_has_the_lowest_value():
    """The target is -2 - 0.99 * 200 = -200, unless the episode was only truncated."""
    assert target_after(ReCOIL, terminated=True, **SMALL) == pytest.approx(-200)
    assert target_after(ReCOIL, terminated=False, **SMALL) > -100


def test_refuses_to_train_without_an_expert_or_with_one_of_another_task(tmp_path):
    data, other = save_small(tmp_path / "a.npz"), save_small(tmp_path / "b.npz", obs=4)
    keys = {"algorithm": "recoil", "task": "none", "dataset": str(data)}
    with pytest.raises(UserError, match=r"needs expert demonstrations. Set expert_dataset="):
        prepare(keys)
    with pytest.raises(UserError, match=r"b.npz has \[4\] and 2"):
        prepare({**keys, "expert_dataset": str(other)})
    plan = prepare({**keys, "expert_dataset": str(data)})
    assert plan.expert is not None
    assert plan.run.method.cfg.batch_size == 1024
    assert plan.run.config()["expert_data"] == checksum(data)


def test_the_bound_follows_the_discount():
    assert start(ReCOIL, **SMALL).algorithm.bound == pytest.approx(200)
    assert start(ReCOIL, discount=0.9, reward_gap=1.0, **SMALL).algorithm.bound == pytest.approx(10)
