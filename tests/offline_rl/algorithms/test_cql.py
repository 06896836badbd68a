"""CQL: updates by hand for every variant, and properties of its penalty."""

import math
from dataclasses import replace

import pytest
import torch
from by_hand import (
    Recorded,
    action,
    advance,
    assert_same,
    assert_same_number,
    close,
    doubles,
    made_batch,
    plain,
    start,
    target_after,
    two_actions,
)
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from offline_rl.algorithms.cal_ql import CalQL
from offline_rl.algorithms.cql import CQL, sample_proposals, soft_maximum
from policies.heads.gaussian import TanhGaussianActor
from policies.spec import Spec

SMALL = {"policy_hidden": (16, 16), "critic_hidden": (16, 16), "num_samples": 4}
KUMAR = {"gap": 2.0, "gap_after_weight": True}


def normal(outputs, affine):
    """Return torch's distribution of the policy, with its mean and standard deviation."""
    mean, log_std = outputs.chunk(2, -1)
    std = (affine[0] * log_std + affine[1]).exp()
    return TransformedDistribution(Normal(mean, std), TanhTransform(cache_size=1)), mean, std


def sample(outputs, affine, noise):
    pi, mean, std = normal(outputs, affine)
    a = (mean + std * noise).tanh()
    return a, pi.log_prob(a).sum(-1)


def plain_soft_maximum(variant, t, uniform, here, there, data):
    """Return Z of one critic, [B]. Each argument: Q [N, B] (data: [B]), log densities [N, B]."""
    if variant == "H":
        (q_u, _), (q_h, log_h), (q_n, log_n) = uniform, here, there
        logits = torch.cat([q_u + 2 * math.log(2), q_h - log_h, q_n - log_n])
        return t * torch.logsumexp(logits / t, 0)
    if variant == "H-raw":
        everything = torch.cat([uniform[0], here[0], there[0], data[None]])
        return t * torch.logsumexp(everything / t, 0)
    weights = torch.softmax(here[0].detach() / t, 0)
    return (weights * here[0]).sum(0)


@pytest.mark.parametrize("learner", [CQL, CalQL])
@pytest.mark.parametrize("variant", ["H", "H-raw", "rho"])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"gap": 3.0, "temperature": 2.0, "max_target_backup": True},
        {**KUMAR, "backup_entropy": True, "clip_diff_min": 0.5, "clip_diff_max": 4.0},
        {"max_target_backup": True, "backup_entropy": True, "bc_updates": 1},
    ],
)
def test_updates_equal_plain_pytorch(learner, variant, config):
    config = {"weight": 10.0, "max_target_backup": False} | config
    first = start(
        learner, variant=variant, tau=0.1, policy_lr=1e-3, critic_lr=2e-3, **config, **SMALL
    )
    returns = torch.linspace(-1, 1, 32)
    cfg, batches = (
        first.algorithm.cfg,
        [replace(made_batch(seed), mc_returns=returns) for seed in (1, 2)],
    )
    clone = bool(cfg.bc_updates)
    state, metrics = advance(first, *batches, phase="clone" if clone else "update")

    policy = plain(first.params["policy"], "trunk.")
    critics, targets = ([plain(first.params["critic"], "net.", k) for k in (0, 1)] for _ in "ct")
    affine, log_alpha, log_multiplier = (
        torch.tensor(x, dtype=torch.float64, requires_grad=True)
        for x in ([1.0, -1.0], 0.0, 0.0 if cfg.gap_after_weight else 1.0)
    )
    policy_adam = torch.optim.Adam([*policy.parameters(), affine], lr=1e-3)
    alpha_adam = torch.optim.Adam([log_alpha], lr=1e-3)
    critic_adam = torch.optim.Adam([p for q in critics for p in q.parameters()], lr=2e-3)
    multiplier_adam = torch.optim.Adam([log_multiplier], lr=2e-3)
    count = cfg.num_samples if cfg.max_target_backup else 1
    for update, batch in enumerate(batches):
        s, a, r, discount, s2 = doubles(batch)
        random = Recorded(update)
        shape = (cfg.num_samples, *a.shape)
        noise = random.normal(a.shape).double()
        target_noise = random.normal((count, *a.shape)).double()
        noise_here = random.normal(shape).double()
        noise_there = random.normal(shape).double() if variant != "rho" else noise_here
        uniform = 2 * random.uniform(shape).double() - 1

        def q(net, actions, observations):
            observations = observations.expand(*actions.shape[:-1], 3)
            return net(torch.cat([observations, actions], -1))[..., 0]

        def bounded(q):  # Cal-QL: for the policy's actions, and for those alone
            return q.maximum(returns.double()) if learner is CalQL else q

        alpha = log_alpha.exp().item()
        pi, log_pi = sample(policy(s), affine, noise)
        if clone:
            gain = normal(policy(s), affine)[0].log_prob(a).sum(-1)
        else:
            gain = torch.minimum(*[q(net, pi, s) for net in critics])
        policy_loss = (alpha * log_pi - gain).mean()
        alpha_loss = -(log_alpha * (log_pi.detach() - 2)).mean()

        with torch.no_grad():
            a2, log_pi2 = sample(policy(s2), affine, target_noise)
            q2, best = torch.minimum(*[q(net, a2, s2) for net in targets]).max(0)
            if cfg.backup_entropy:
                q2 = q2 - alpha * log_pi2[best, torch.arange(len(best))]
            y = r + discount * q2
            here, log_here = sample(policy(s), affine, noise_here)
            there, log_there = sample(policy(s2), affine, noise_there)
        td, penalties = [], []
        for net in critics:
            data, t = q(net, a, s), cfg.temperature
            z = plain_soft_maximum(
                variant,
                t,
                (q(net, uniform, s), None),
                (bounded(q(net, here, s)), log_here),
                (bounded(q(net, there, s)), log_there),
                data,
            )
            td.append((data - y).pow(2).mean())
            penalties.append((z - data).clip(cfg.clip_diff_min, cfg.clip_diff_max).mean())
        if cfg.gap is None:
            critic_loss, multiplier_loss = sum(td) + 10 * sum(penalties), None
        else:
            if cfg.gap_after_weight:
                terms = [10 * penalty - cfg.gap for penalty in penalties]
            else:
                terms = [10 * (penalty - cfg.gap) for penalty in penalties]
            multiplier = log_multiplier.exp().clip(0, 1e6)
            critic_loss = sum(td) + multiplier.item() * sum(terms)
            multiplier_loss = -0.5 * multiplier * sum(term.item() for term in terms)

        adams = [policy_adam, alpha_adam, critic_adam]
        for adam in (*adams, multiplier_adam):
            adam.zero_grad()
        policy_gradient = torch.autograd.grad(policy_loss, [*policy.parameters(), affine])
        for p, gradient in zip([*policy.parameters(), affine], policy_gradient, strict=True):
            p.grad = gradient
        alpha_loss.backward()
        critic_loss.backward()
        if multiplier_loss is not None:
            multiplier_loss.backward()
            adams.append(multiplier_adam)
        for adam in adams:
            adam.step()
        for net, slow in zip(critics, targets, strict=True):
            for p, old in zip(net.parameters(), slow.parameters(), strict=True):
                old.data = 0.9 * old.data + 0.1 * p.data

    assert_same(state, "policy", policy, policy_adam, prefix="trunk.")
    assert_same_number(state, "policy", affine, policy_adam, key="affine")
    for k in (0, 1):
        assert_same(state, "critic", critics[k], critic_adam, member=k)
        assert_same(state, "critic_target", targets[k], member=k)
    assert_same_number(state, "log_alpha", log_alpha, alpha_adam)
    if cfg.gap is not None:
        assert_same_number(state, "log_multiplier", log_multiplier, multiplier_adam)
    close(metrics["policy_loss"], policy_loss)
    close(metrics["critic_loss"], sum(td))
    close(metrics["penalty"], sum(penalties) / 2)
    close(metrics["target"], y.mean())


@pytest.fixture
def uniform_policy(monkeypatch):
    """Return a policy of uniform density: log pi = -|A| log 2."""

    def sample(self, observations, random, samples=None):
        rows = observations.shape[:-1] if samples is None else (samples, *observations.shape[:-1])
        a = 2 * random.uniform((*rows, 2)) - 1
        gradient = 0 * self.act(observations).sum()  # so that there is one
        return a + gradient, torch.full(rows, -2 * math.log(2)) + gradient

    monkeypatch.setattr(TanhGaussianActor, "sample", sample)


def without_opinion(**config):
    """Return a state whose critics are 0 everywhere."""
    state = start(CQL, **config, **SMALL)
    zeros = {k: torch.zeros_like(v) for k, v in state.params["critic"].items()}
    return replace(state, params={**state.params, "critic": zeros, "critic_target": zeros})


@pytest.mark.parametrize(
    ("config", "penalty"),
    [
        ({}, 2 * math.log(2) + math.log(3 * 4)),  # 3N samples of density 1/4
        ({"variant": "H-raw"}, math.log(3 * 4 + 1)),  # and the data's action
        ({"variant": "rho"}, 0.0),  # an average of equal values
        ({"clip_diff_max": 1.5}, 1.5),
        ({"clip_diff_min": 9.0}, 9.0),
    ],
)
@pytest.mark.usefixtures("uniform_policy")
def test_penalty_of_a_constant_critic_and_a_uniform_policy(config, penalty):
    _, metrics = advance(without_opinion(**config), made_batch())
    assert metrics["penalty"].item() == pytest.approx(penalty, rel=1e-5)


@pytest.mark.parametrize(
    ("config", "rises"),
    [
        ({"gap": 3.8}, True),  # the penalty is 3.87, by the test above
        ({"gap": 3.9}, False),
        ({"gap": 38.0, "gap_after_weight": True}, True),  # ten times that
        ({"gap": 39.0, "gap_after_weight": True}, False),
    ],
)
@pytest.mark.usefixtures("uniform_policy")
def test_the_multiplier_rises_when_the_penalty_exceeds_the_gap(config, rises):
    first = without_opinion(**config)
    state, metrics = advance(first, made_batch())
    assert (state.log_multiplier() > first.log_multiplier()).item() is rises
    started = 1 if config.get("gap_after_weight") else math.e
    assert metrics["multiplier"].item() == pytest.approx(started, rel=1e-6)


def test_h_estimates_the_log_integral_over_actions():
    """The log of the integral of exp(Q) is log((e^3 - e^-3) / 3) for Q = 3a on [-1, 1]."""
    spec, batch = Spec((3,), 1), made_batch(size=4)
    batch = replace(batch, actions=batch.actions[:, :1])
    state = start(CQL, spec=spec, **SMALL)
    wide = {**state.params["policy"], "affine": torch.tensor([1.0, 0.3])}  # reaches all actions
    state = replace(state, params={**state.params, "policy": wide})
    actions, log_density = sample_proposals(state, batch, 20_000, "H")
    q = torch.cat([3 * actions[..., 0], batch.actions.T]).expand(2, -1, -1)
    estimate = soft_maximum(q, log_density, "H", 1.0) - math.log(len(actions))
    # a third of the samples comes from each density, which is unbiased for each of them
    expected = math.log((math.exp(3) - math.exp(-3)) / 3)
    torch.testing.assert_close(estimate, torch.full((2, 4), expected), atol=0.05, rtol=0)


def test_rho_is_the_gradient_of_a_soft_maximum_over_the_policy():
    """max_mu E_mu[Q] - t KL(mu, pi) = t log E_pi[exp(Q / t)], so E_mu[Q] has its gradient."""
    q = torch.randn(2, 9, 5, dtype=torch.float64, requires_grad=True)
    pushed = soft_maximum(q, torch.zeros(8, 5), "rho", 0.7)
    (ours,) = torch.autograd.grad(pushed.sum(), q)
    (exact,) = torch.autograd.grad(0.7 * torch.logsumexp(q[:, :-1] / 0.7, 1).sum(), q)
    torch.testing.assert_close(ours, exact)


@pytest.mark.parametrize(("log_pi", "rises"), [(2.1, True), (1.9, False)])
def test_the_temperature_rises_when_entropy_is_below_its_target(log_pi, rises, monkeypatch):
    """The target entropy of two action dimensions is -2, which is a log density of 2."""

    def sample(self, observations, random, samples=None):
        pi = self.act(observations)
        pi = pi if samples is None else pi.expand(samples, *pi.shape)
        return pi, 0 * pi.sum(-1) + log_pi

    monkeypatch.setattr(TanhGaussianActor, "sample", sample)
    state, _ = advance(start(CQL, **SMALL), made_batch())
    assert (state.log_alpha() > 0).item() is rises


@pytest.mark.parametrize("variant", ["H", "H-raw", "rho"])
def test_prefers_the_better_of_two_demonstrated_actions(variant):
    rates = {"policy_lr": 3e-3, "critic_lr": 3e-3, "weight": 1.0}
    state = start(CQL, spec=Spec((1,), 1), variant=variant, **rates, **SMALL)
    state, _ = advance(state, *[two_actions()] * 250)
    assert action(state) == pytest.approx(0.5, abs=0.25)


def test_preliminary_updates_imitate():
    """Rewarded actions are at +0.5, but imitation of both leaves the mean between them."""
    state = start(CQL, spec=Spec((1,), 1), policy_lr=3e-3, bc_updates=150, **SMALL)
    assert state.algorithm.phases == {"clone": 150}
    state, _ = advance(state, *[two_actions()] * 150, phase="clone")
    assert action(state) == pytest.approx(0, abs=0.15)


def test_bootstraps_after_a_truncation_but_not_after_a_termination():
    assert target_after(CQL, terminated=True, **SMALL) == 1
    assert target_after(CQL, terminated=False, **SMALL) != 1


def test_gap_after_weight_without_a_gap_is_refused():
    with pytest.raises(ValueError, match="no effect without a gap"):
        CQL.Config(gap_after_weight=True)
