"""MCQ: updates by hand, pseudo targets, and the value of unseen actions."""

import math
from dataclasses import replace

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
    one_step,
    opinionated,
    perceptron,
    start,
    step,
    target_after,
    taught,
    two_actions,
)
from torch.distributions import Normal, TanhTransform, TransformedDistribution, kl_divergence

from offline_rl.algorithms.mcq import MCQ
from policies.spec import Spec

SMALL = {"policy_hidden": (16, 16), "critic_hidden": (16, 16), "vae_hidden": (16, 16)}


def sample_actions(own, s, noise):
    """Return actions and log densities of torch's distribution."""
    mean, log_std = perceptron(own, "trunk.", s).chunk(2, -1)
    std = log_std.clip(-5, 2).exp()
    pi = TransformedDistribution(Normal(mean, std), TanhTransform(cache_size=1))
    a = (mean + std * noise).tanh()
    return a, pi.log_prob(a).sum(-1)


@pytest.mark.parametrize("alpha", [None, 0.2])
def test_updates_equal_plain_pytorch(alpha):
    """Order: VAE, temperature, critics, policy. Pseudo targets use the online critics."""
    config = {"num_samples": 5, "num_policy_samples": 3, "bellman_share": 0.6, "tau": 0.1}
    rates = {"actor_lr": 1e-3, "critic_lr": 2e-3, "vae_lr": 3e-3}
    first = opinionated(start(MCQ, alpha=alpha, **config, **rates, **SMALL))
    batches = made_batch(1), made_batch(2)
    state, metrics = advance(first, *batches)

    policy, vae = leaves(first.params["policy"]), leaves(first.params["vae"])
    critic, critic_target = (leaves(first.params["critic"]) for _ in range(2))
    log_alpha = torch.zeros((), dtype=torch.float64, requires_grad=True)
    adams = [
        torch.optim.Adam(p, lr=lr)
        for p, lr in (
            (vae.values(), 3e-3),
            ([log_alpha], 1e-3),
            (critic.values(), 2e-3),
            (policy.values(), 1e-3),
        )
    ]

    def value(own, k, s, a):
        s = s.expand(*a.shape[:-1], s.shape[-1])
        return perceptron(own, "net.", torch.cat([s, a], -1), k)[..., 0]

    for count, batch in enumerate(batches):
        s, a, r, discount, s2 = doubles(batch)
        random, size = Recorded(count), len(batch.rewards)

        def numbers(*shape, random=random):
            return random.normal(shape).double()

        mean, log_std = perceptron(vae, "encoder.", torch.cat([s, a], 1)).chunk(2, 1)
        std = log_std.clip(-4, 15).exp()
        z = mean + std * numbers(size, 4)
        decoded = perceptron(vae, "decoder.", torch.cat([s, z], 1)).tanh()
        kl = kl_divergence(Normal(mean, std), Normal(0.0, 1.0))
        vae_loss = (((decoded - a) ** 2).sum(1) + kl.sum(1)).mean()
        step(adams[0], vae_loss)

        temperature = 0.2
        if alpha is None:
            with torch.no_grad():
                log_pi = sample_actions(policy, s, numbers(size, 2))[1]
            step(adams[1], -(log_alpha * (log_pi - 2)).mean())
            temperature = log_alpha.exp().item()

        with torch.no_grad():
            a2, log_pi2 = sample_actions(policy, s2, numbers(size, 2))
            q2 = torch.minimum(*[value(critic_target, k, s2, a2) for k in (0, 1)])
            y = r + discount * (q2 - temperature * log_pi2)
            both = torch.cat([s, s2])
            own = sample_actions(policy, both, numbers(3, 2 * size, 2))[0]
            z = numbers(5, 2 * size, 4).clip(-0.5, 0.5)
            like = torch.cat([both.expand(5, -1, -1), z], -1)
            proposed = perceptron(vae, "decoder.", like).tanh()
            pseudo = torch.minimum(*[value(critic, k, both, proposed).max(0)[0] for k in (0, 1)])
        td = [((value(critic, k, s, a) - y) ** 2).mean() for k in (0, 1)]
        away = [((value(critic, k, both, own) - pseudo) ** 2).mean() for k in (0, 1)]
        step(adams[2], 0.6 * sum(td) + 0.4 * sum(away))

        pi, log_pi = sample_actions(policy, s, numbers(size, 2))
        q = torch.minimum(*[value(critic, k, s, pi) for k in (0, 1)])
        policy_loss = (temperature * log_pi - q).mean()
        step(adams[3], policy_loss)
        follow_leaves(critic_target, critic, 0.1)

    assert_same_leaves(state, "vae", vae, adams[0])
    if alpha is None:
        assert_same_leaves(state, "log_alpha", {"value": log_alpha}, adams[1])
    assert_same_leaves(state, "critic", critic, adams[2])
    assert_same_leaves(state, "policy", policy, adams[3])
    assert_same_leaves(state, "critic_target", critic_target)
    close(metrics["vae_loss"], vae_loss)
    close(metrics["critic_loss"], sum(td))
    close(metrics["pseudo_loss"], sum(away))
    close(metrics["pseudo_target"], pseudo.mean())
    close(metrics["policy_loss"], policy_loss)
    close(metrics["alpha"], temperature)


def plain_vae(params):
    """Return a VAE whose first latent dimension decodes to tanh z, within +-0.46."""
    vae = params["vae"]
    for value in vae.values():
        value.zero_()
    vae["decoder.weights.0"][..., 1, :2] = torch.tensor([1.0, -1.0])
    vae["decoder.weights.1"][..., :2, :2] = torch.eye(2)
    vae["decoder.weights.2"][..., :2, 0] = torch.tensor([1.0, -1.0])


def test_pseudo_target_is_the_minimum_over_critics_of_the_maximum_over_actions():
    """The minimum of maxima is 0.46 for Q1 = a, Q2 = -a; the maximum of minima is below 0."""
    config = {**SMALL, "critic_hidden": (), "num_samples": 50}
    state = start(MCQ, spec=Spec((1,), 1), **config)
    plain_vae(state.params)
    critic = {
        "net.weights.0": torch.tensor([[[0.0], [1.0]], [[0.0], [-1.0]]]),
        "net.biases.0": torch.zeros(2, 1, 1),
    }
    state = replace(state, params={**state.params, "critic": critic})
    found = state.algorithm.pseudo_target(state, torch.zeros(1, 1))
    assert found.item() == pytest.approx(math.tanh(0.5))


@pytest.mark.parametrize("share", [1.0, pytest.param(0.5, marks=pytest.mark.slow)])
def test_unseen_actions_are_valued_like_the_best_action_in_the_data(share):
    """One state, +-0.5 with rewards 1 and 0; the policy acts at -0.96, outside the data."""
    config = {"num_policy_samples": 4, "bellman_share": share, "alpha": 0.5}
    rates = {"actor_lr": 0.0, "critic_lr": 3e-3, "vae_lr": 0.0}
    data = one_step(two_actions().actions, two_actions().rewards)

    def frozen(params):
        plain_vae(params)
        for value in params["policy"].values():
            value.zero_()
        params["policy"]["trunk.biases.2"] += torch.tensor([-2.0, -3.0])  # before the tanh

    state = taught(MCQ, data, frozen, num_updates=400, **config, **rates, **SMALL)
    actions = torch.tensor([[0.5], [-0.5], [-0.96]])
    best, worst, unseen = state.critic(torch.zeros(3, 1), actions).amin(0).tolist()
    assert (best, worst) == pytest.approx((1, 0), abs=0.1)
    if share == 1:  # nobody asks: what extrapolation makes of it
        assert unseen < 0.1
    else:
        pseudo = state.algorithm.pseudo_target(state, torch.zeros(1, 1)).item()
        assert unseen == pytest.approx(pseudo, abs=0.1)
        assert unseen > 0.8


def test_bootstraps_after_a_truncation_but_not_after_a_termination():
    assert target_after(MCQ, terminated=True, **SMALL) == 1
    assert target_after(MCQ, terminated=False, **SMALL) != 1
