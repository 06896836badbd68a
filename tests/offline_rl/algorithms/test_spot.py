"""SPOT: both phases by hand, and properties of its density penalty."""

from dataclasses import replace

import pytest
import torch
from by_hand import (
    Recorded,
    action,
    advance,
    assert_same_leaves,
    close,
    doubles,
    follow_leaves,
    hill,
    leaves,
    made_batch,
    one_step,
    opinionated,
    perceptron,
    start,
    step,
    target_after,
    taught,
    two_actions,
)
from torch.distributions import Normal, kl_divergence

from offline_rl.algorithms.spot import SPOT

SMALL = {"hidden": (16, 16), "vae_hidden": (16, 16)}


def unlikelihood(own, s, a, noise, beta):
    """Return beta / (2 |A|) times the negative bound of a decoder with variance beta / 4."""
    mean, log_std = perceptron(own, "encoder.", torch.cat([s, a], 1)).chunk(2, 1)
    std = log_std.clip(-4, 15).exp()
    decoded = perceptron(own, "decoder.", torch.cat([s, mean + std * noise], 1)).tanh()
    bound = -2 / beta * ((decoded - a) ** 2).sum(1)
    bound = bound - kl_divergence(Normal(mean, std), Normal(0.0, 1.0)).sum(1)
    return -beta / 4 * bound


def test_the_preliminary_phase_equals_plain_pytorch():
    first = start(SPOT, vae_lr=1e-3, kl_weight=0.3, **SMALL)
    batches = made_batch(1), made_batch(2)
    state, metrics = advance(first, *batches, phase="fit_vae")
    vae = leaves(first.params["vae"])
    adam = torch.optim.Adam(vae.values(), lr=1e-3)
    for count, batch in enumerate(batches):
        s, a = batch.observations.double(), batch.actions.double()
        noise = Recorded(count).normal((len(s), 4)).double()
        loss = unlikelihood(vae, s, a, noise, 0.3).mean()
        step(adam, loss)
    assert_same_leaves(state, "vae", vae, adam)
    close(metrics["vae_loss"], loss)
    for name in ("policy", "critic", "policy_target", "critic_target"):
        for key, value in first.params[name].items():
            assert torch.equal(value, state.params[name][key])


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_two_periods_equal_plain_pytorch_and_do_not_change_the_vae(dropout):
    config = {"actor_lr": 1e-3, "critic_lr": 1e-3, "tau": 0.1, "support_weight": 0.6}
    first = opinionated(start(SPOT, dropout=dropout, **config, **SMALL))
    batches = [made_batch(seed) for seed in range(4)]
    state, metrics = advance(first, *batches)

    policy, policy_target = (leaves(first.params["policy"]) for _ in range(2))
    critic, critic_target = (leaves(first.params["critic"]) for _ in range(2))
    vae = leaves(first.params["vae"])
    policy_adam = torch.optim.Adam(policy.values(), lr=1e-3)
    critic_adam = torch.optim.Adam(critic.values(), lr=1e-3)

    def act(own, s, random):
        for layer in (0, 1):
            s = (s @ own[f"trunk.weights.{layer}"] + own[f"trunk.biases.{layer}"]).clip(min=0)
            if dropout:
                s = s * (random.uniform(s.shape).double() >= dropout) / (1 - dropout)
        return (s @ own["trunk.weights.2"] + own["trunk.biases.2"]).tanh()

    def value(own, k, s, a):
        return perceptron(own, "net.", torch.cat([s, a], 1), k)[:, 0]

    for count, batch in enumerate(batches):
        s, a, r, discount, s2 = doubles(batch)
        random = Recorded(count)
        noise = (0.2 * random.normal(a.shape).double()).clip(-0.5, 0.5)
        with torch.no_grad():  # the target policy has its dropout as well
            a2 = (act(policy_target, s2, random) + noise).clip(-1, 1)
            y = r + discount * torch.minimum(*[value(critic_target, k, s2, a2) for k in (0, 1)])
        losses = [((value(critic, k, s, a) - y) ** 2).mean() for k in (0, 1)]
        step(critic_adam, sum(losses))
        if count % 2 == 0:
            continue
        pi = act(policy, s, random)
        q = value(critic, 0, s, pi)
        z = random.normal((len(s), 4)).double()
        unlikely = unlikelihood(vae, s, pi, z, 0.5).mean()
        loss = 0.6 * unlikely - q.mean() / q.abs().mean().item()
        step(policy_adam, loss)
        follow_leaves(policy_target, policy, 0.1)
        follow_leaves(critic_target, critic, 0.1)
        assert (q > 0).any()
        assert (q < 0).any()

    assert_same_leaves(state, "policy", policy, policy_adam)
    assert_same_leaves(state, "policy_target", policy_target)
    assert_same_leaves(state, "critic", critic, critic_adam)
    assert_same_leaves(state, "critic_target", critic_target)
    for key, old in first.params["vae"].items():
        assert torch.equal(old, state.params["vae"][key])
    close(metrics["critic_loss"], sum(losses))
    close(metrics["policy_loss"], loss)
    close(metrics["unlikelihood"], unlikely)


def test_the_policy_update_is_independent_of_the_scale_of_q():
    """Q is divided by its mean magnitude: a critic a thousand times larger gives the same step."""
    state, batch = start(SPOT, critic_lr=0.0, **SMALL), made_batch()
    critic = dict(state.params["critic"])
    larger = critic | {k: 1000 * v for k, v in critic.items() if k.endswith(".2")}
    other = replace(state, params={**state.params, "critic": larger})
    (a, _), (b, _) = (advance(s, batch, batch) for s in (state, other))
    for name, value in a.optimizer["policy"]["first"].items():
        torch.testing.assert_close(value, b.optimizer["policy"]["first"][name])


QUICK = {"actor_lr": 3e-3, "critic_lr": 3e-3, "vae_lr": 3e-3, "dropout": 0.0, "kl_weight": 0.05}


def trained(data, **config):
    sizes = {"hidden": (32, 32), "vae_hidden": (32, 32)}
    return taught(SPOT, data, num_updates=300, pretrain_updates=500, **sizes, **QUICK, **config)


def test_it_takes_the_better_of_two_actions_and_not_their_mean():
    """Actions +-0.5 with rewards 1 and 0: the policy is near the better one, not between them."""
    batch = two_actions()
    state = trained(one_step(batch.actions, batch.rewards), support_weight=5.0)
    assert action(state) == pytest.approx(0.5, abs=0.12)


def test_within_the_support_of_the_data_it_maximizes_q():
    """All uniform actions are likely, so the reward, best at 0.3, decides."""
    batches = [hill(k) for k in range(10)]
    actions, rewards = (torch.cat([getattr(b, k) for b in batches]) for k in ("actions", "rewards"))
    state = trained(one_step(actions, rewards), support_weight=0.05)
    assert action(state) == pytest.approx(0.3, abs=0.1)


def test_small_outputs_are_small():
    state = start(SPOT, small_outputs=True, **SMALL)
    for name, last, bound in (("policy", "trunk", 1e-3), ("critic", "net", 3e-3)):
        for kind in ("weights", "biases"):
            assert bound / 100 < state.params[name][f"{last}.{kind}.2"].abs().max() <= bound


def test_bootstraps_after_a_truncation_but_not_after_a_termination():
    assert target_after(SPOT, terminated=True, **SMALL) == 1
    assert target_after(SPOT, terminated=False, **SMALL) != 1
