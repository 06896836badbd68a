"""CPQ: updates by hand with corrected and released rules, and the cost of unlikely actions."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from by_hand import (
    Recorded,
    advance,
    assert_same_leaves,
    close,
    doubles,
    follow_leaves,
    leaves,
    made_batch,
    perceptron,
    start,
    step,
    taught,
)
from torch.distributions import Normal, kl_divergence

from offline_rl.algorithms.cpq import CPQ
from offline_rl.data.dataset import Dataset

SMALL = {"hidden": (16, 16), "vae_hidden": (16, 16)}
LIMIT = {"target_cost": 20.0, "episode_steps": 100}
KAPPA = 20.0 / 100 * sum(0.95**t for t in range(100))  # of an even spender, with discount 0.95


def with_costs(seed):
    batch = made_batch(seed)
    return replace(batch, costs=(torch.rand(len(batch.rewards)) * 3).floor())


def near_the_limit(state):
    """Return a state whose cost critics differ strongly between actions, around the limit."""
    own, batch = {k: 3 * v for k, v in state.params["cost_critic"].items()}, made_batch(0)
    x = torch.cat([batch.observations, batch.actions], 1)
    means = torch.stack([perceptron(own, "net.", x, k).mean() for k in (0, 1)])
    own["net.biases.2"] = own["net.biases.2"] - means[:, None, None] + KAPPA
    params = {**state.params, "cost_critic": own, "cost_critic_target": own}
    return replace(state, params=params)


@pytest.mark.parametrize("released", [False, True])
def test_updates_equal_plain_pytorch(released):
    """Order: VAE, critics, cost critics, multiplier, policy, targets."""
    rates = {"actor_lr": 1e-3, "critic_lr": 2e-3, "vae_lr": 3e-3, "multiplier_lr": 0.05, "tau": 0.1}
    rules = {"num_samples": 4, "likely_share": 0.6, "ood_limit": 1.3, "cost_discount": 0.95}
    rules |= {"as_released": released, "kl_weight": 0.4}
    first = near_the_limit(start(CPQ, **rates, **rules, **LIMIT, **SMALL))
    batches = [with_costs(seed) for seed in (1, 2)]
    state, metrics = advance(first, *batches)

    names = "policy", "critic", "critic", "cost_critic", "cost_critic", "vae"
    policy, critic, slow, cost, slow_cost, vae = (leaves(first.params[name]) for name in names)
    adams = {
        name: torch.optim.Adam(own.values(), lr=rates[f"{rate}_lr"])
        for name, rate, own in (
            ("policy", "actor", policy),
            ("critic", "critic", critic),
            ("cost", "critic", cost),
            ("vae", "vae", vae),
        )
    }
    log_alpha, safe_shares = 0.0, []

    def value(own, s, a):
        s = s.expand(*a.shape[:-1], 3)
        pairs = [perceptron(own, "net.", torch.cat([s, a], -1), k)[..., 0] for k in (0, 1)]
        return torch.stack(pairs)

    def worst(q):
        return q.min(0).values if released else q.max(0).values

    def sample(s, noise):
        mean, log_std = perceptron(policy, "trunk.", s).chunk(2, -1)
        return mean + log_std.clip(-20, 2).exp() * noise

    def encode(s, a):
        mean, log_std = perceptron(vae, "encoder.", torch.cat([s, a], -1)).chunk(2, -1)
        return Normal(mean, log_std.clip(-4, 15).exp())

    for count, batch in enumerate(batches):
        (s, a, r, discount, s2), random = doubles(batch), Recorded(count)
        q_z = encode(s, a)
        z = q_z.mean + q_z.stddev * random.normal((32, 4)).double()
        decoded = perceptron(vae, "decoder.", torch.cat([s, z], 1)).tanh()
        vae_loss = ((decoded - a) ** 2).mean()
        vae_loss = vae_loss + 0.4 * kl_divergence(q_z, Normal(0.0, 1.0)).mean()
        step(adams["vae"], vae_loss)

        with torch.no_grad():
            a2 = sample(s2, random.normal(a.shape).double()).tanh()
            safe = (worst(value(slow_cost, s2, a2)) <= KAPPA).double()
            y = r + discount * safe * value(slow, s2, a2).min(0).values
        safe_shares.append(safe.mean())
        critic_loss = ((value(critic, s, a) - y) ** 2).mean(1).sum()
        step(adams["critic"], critic_loss)

        with torch.no_grad():
            a2 = sample(s2, random.normal(a.shape).double()).tanh()
            goes_on = 1.0 if released else batch.bootstrap_mask.double()
            y = batch.costs.double() + 0.95 * goes_on * worst(value(slow_cost, s2, a2))
            actions = sample(s, random.normal((4, *a.shape)).double())  # before the tanh
            actions = actions if released else actions.tanh()
            kl = kl_divergence(encode(s.expand(4, 32, 3), actions), Normal(0.0, 1.0)).mean(-1)
            data = kl_divergence(encode(s, a), Normal(0.0, 1.0)).mean(-1)
            unlikely = kl >= np.quantile((kl if released else data).numpy(), 0.6)
        error = ((value(cost, s, a) - y) ** 2).mean(1).sum()
        if released:  # a constant for the cost critics
            ood = torch.where(unlikely, value(slow_cost, s, actions).min(0).values, 0.0)
            excess = ood.mean().item() - 1.3 * KAPPA
            loss = error
        else:
            ood = value(cost, s, actions)[:, unlikely] - 1.3 * KAPPA
            assert (ood > 0).any()
            assert (ood < 0).any()
            excess = ood.mean().item()
            loss = error - np.exp(log_alpha) * ood[ood < 0].sum() / unlikely.sum()
        step(adams["cost"], loss)
        log_alpha -= 0.05 * np.exp(log_alpha) * excess
        log_alpha = min(max(log_alpha, -5.0), 5.0)

        pi = sample(s, random.normal(a.shape).double()).tanh()
        q_cost = worst(value(cost, s, pi))
        safe = q_cost <= KAPPA
        safe_shares.append(safe.double().mean())
        unsafe = 0 * q_cost if released else -q_cost
        policy_loss = -torch.where(safe, value(critic, s, pi).min(0).values, unsafe).mean()
        step(adams["policy"], policy_loss)
        follow_leaves(slow, critic, 0.1)
        follow_leaves(slow_cost, cost, 0.1)

    assert all(0 < share < 1 for share in safe_shares), safe_shares
    assert_same_leaves(state, "vae", vae, adams["vae"])
    assert_same_leaves(state, "critic", critic, adams["critic"])
    assert_same_leaves(state, "cost_critic", cost, adams["cost"])
    assert_same_leaves(state, "policy", policy, adams["policy"])
    assert_same_leaves(state, "critic_target", slow)
    assert_same_leaves(state, "cost_critic_target", slow_cost)
    close(state.params["log_multiplier"]["value"], log_alpha)
    expected = {"vae_loss": vae_loss, "critic_loss": critic_loss, "policy_loss": policy_loss}
    expected |= {"cost_critic_loss": error, "ood_excess": excess, "cost_target": y.mean()}
    expected |= {"safe_share": safe_shares[-1], "multiplier": np.exp(log_alpha)}
    for name, number in expected.items():
        close(metrics[name], number)


def test_the_multiplier_stays_between_exp_minus_5_and_exp_5():
    for limit, bound in ((0.0, -5.0), (1e6, 5.0)):
        first = start(CPQ, multiplier_lr=1e3, target_cost=limit, episode_steps=100, **SMALL)
        params = {**first.params, "log_multiplier": {"value": torch.tensor(0.0)}}
        cost = {
            k: v + (50.0 if k == "net.biases.2" else 0) for k, v in params["cost_critic"].items()
        }
        state, _ = advance(replace(first, params={**params, "cost_critic": cost}), with_costs(1))
        assert state.params["log_multiplier"]["value"] == bound


@pytest.mark.parametrize("released", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_actions_unlike_the_data_become_unsafe_unless_the_rules_are_the_released_ones(released):
    """The data have actions in +-0.2 without any cost. The limit is one cost per episode."""
    torch.manual_seed(0)
    actions, zeros = torch.rand(256, 1) * 0.4 - 0.2, np.zeros(256, np.float32)
    data = Dataset.from_arrays(
        zeros[:, None], actions.numpy(), zeros, zeros == 0, extras={"costs": zeros}
    )
    rates = {"critic_lr": 1e-2, "vae_lr": 1e-2, "kl_weight": 0.05, "multiplier_lr": 1e-2}
    limit = {"target_cost": 1.0, "episode_steps": 1, "as_released": released}
    state = taught(CPQ, data, num_updates=100, **rates, **limit, **SMALL)
    a = torch.tensor([[0.0], [0.9], [-0.9]])
    costs = state.cost_critic(torch.zeros(3, 1), a).amax(0)
    assert costs[0].abs() < 0.3
    assert (costs[1:] < 0.3).all() if released else (costs[1:] > 1).all()
