"""Densities, samples and actions of the MLP heads."""

import math

import pytest
import torch
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from policies.heads.chunk import ChunkActor
from policies.heads.deterministic import DeterministicActor
from policies.heads.gaussian import GaussianActor, TanhGaussianActor
from policies.networks.dropout import dropout

HEADS = [DeterministicActor, GaussianActor, TanhGaussianActor]


class Numbers:
    """A source of random numbers for heads."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, shape, groups=1):
        return torch.randn(tuple(shape), generator=self.generator)

    def uniform(self, shape, groups=1):
        return torch.rand(tuple(shape), generator=self.generator)


def make_actor(kind, actions=2, **options):
    torch.manual_seed(0)
    return kind(3, actions, (16, 16), **options)


OBSERVATIONS = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))


def test_a_squashed_density_integrates_to_one():
    actor = make_actor(TanhGaussianActor, actions=1).double()
    a = torch.linspace(-1 + 1e-6, 1 - 1e-6, 200_001, dtype=torch.float64)
    for observation in OBSERVATIONS.double():
        density = actor.log_prob(observation.expand(len(a), 3), a[:, None]).exp()
        assert torch.trapezoid(density, a).item() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("affine", [None, (0.5, -1.0)])
def test_squashed_densities_equal_those_of_torch(affine):
    actor = make_actor(TanhGaussianActor, affine=affine).double()
    mean, log_std = actor.trunk(OBSERVATIONS.double()).chunk(2, -1)
    if affine:
        log_std = 0.5 * log_std - 1
    pi = TransformedDistribution(Normal(mean, log_std.exp()), TanhTransform(cache_size=1))
    a, log_pi = actor.sample(OBSERVATIONS.double(), Numbers(), 7)
    assert (a.shape, log_pi.shape) == ((7, 5, 2), (7, 5))
    torch.testing.assert_close(log_pi, pi.log_prob(a).sum(-1))
    torch.testing.assert_close(actor.log_prob(OBSERVATIONS.double(), a), log_pi)


def test_samples_have_the_density_they_claim():
    """Compare the share of samples below each of nine actions with the integral of the density."""
    actor = make_actor(TanhGaussianActor, actions=1)
    a, _ = actor.sample(OBSERVATIONS[:1], Numbers(), 50_000)
    mean, log_std = actor(OBSERVATIONS[:1])
    for bound in torch.linspace(-0.8, 0.8, 9):
        below = Normal(mean, log_std.exp()).cdf(bound.atanh()).item()
        assert (a < bound).float().mean().item() == pytest.approx(below, abs=0.012)


def test_a_saturated_sample_has_a_finite_density_and_gradient():
    actor = make_actor(TanhGaussianActor)
    with torch.no_grad():
        actor.trunk.biases[-1][:2] = 40.0  # tanh is 1 in float32 from about 9
    a, log_pi = actor.sample(OBSERVATIONS, Numbers())
    assert (a == 1).all()
    assert log_pi.isfinite().all()
    assert actor.log_prob(OBSERVATIONS, a).isfinite().all()
    log_pi.sum().backward()
    assert all(p.grad.isfinite().all() for p in actor.parameters())


def test_log_std_stays_in_its_range():
    for low, high in ((-20.0, 2.0), (-5.0, -4.0)):
        actor = make_actor(TanhGaussianActor, log_std_range=(low, high))
        _, log_std = actor(1000 * OBSERVATIONS)
        assert low <= log_std.min() <= log_std.max() <= high


def test_an_unsquashed_density_is_that_of_a_normal_distribution():
    actor = make_actor(GaussianActor)
    with torch.no_grad():
        actor.log_std[:] = torch.tensor([-9.0, 0.3])  # the first is below the range
    a = torch.rand(5, 2) * 2 - 1
    pi = Normal(actor(OBSERVATIONS), torch.tensor([-5.0, 0.3]).exp())
    torch.testing.assert_close(actor.log_prob(OBSERVATIONS, a), pi.log_prob(a).sum(-1))


@pytest.mark.parametrize("kind", [DeterministicActor, GaussianActor])
def test_dropout_is_used_in_training_only_and_preserves_the_mean(kind):
    actor = make_actor(kind, dropout_rate=0.25)
    assert torch.equal(actor(OBSERVATIONS), actor.act(OBSERVATIONS))
    assert not torch.equal(actor(OBSERVATIONS, Numbers()), actor.act(OBSERVATIONS))
    dropped = dropout(torch.ones(100_000), 0.25, Numbers())
    assert set(dropped.tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert dropped.mean().item() == pytest.approx(1, abs=0.01)
    plain = make_actor(kind)
    assert torch.equal(plain(OBSERVATIONS, Numbers()), plain.act(OBSERVATIONS))


@pytest.mark.parametrize("kind", HEADS)
def test_heads_act_within_the_box_and_explore_around_it(kind):
    actor = make_actor(kind)
    acts, explores = actor.act(100 * OBSERVATIONS), actor.explore_action(OBSERVATIONS, Numbers())
    assert acts.shape == explores.shape == (5, 2)
    assert acts.abs().max() <= 1
    assert explores.abs().max() <= 1
    assert torch.equal(actor.act(OBSERVATIONS), actor.act(OBSERVATIONS))
    assert not torch.equal(actor.explore_action(OBSERVATIONS, Numbers(1)), explores)


@pytest.mark.parametrize("kind", HEADS)
def test_heads_are_rebuilt_from_their_arguments(kind):
    """A policy bundle stores arguments and weights. They give the same actions."""
    actor = make_actor(kind)
    with torch.no_grad():
        for p in actor.parameters():
            p += 0.01
    copy = kind(**actor.arguments)
    copy.load_state_dict(actor.state_dict())
    assert torch.equal(copy.act(OBSERVATIONS), actor.act(OBSERVATIONS))


def test_a_mean_without_tanh_is_the_networks_output_also_after_a_rebuild():
    """The policy of AWAC is a normal distribution; only its actions are clipped."""
    actor = make_actor(GaussianActor, tanh_mean=False)
    with torch.no_grad():
        for p in actor.parameters():
            p += 1.0
    copy = GaussianActor(**actor.arguments)
    copy.load_state_dict(actor.state_dict())
    mean = actor.trunk(OBSERVATIONS)
    assert (mean > 1).any()
    a = torch.zeros(5, 2)
    for net in (actor, copy):
        assert torch.equal(net(OBSERVATIONS), mean)
        assert torch.equal(net.act(OBSERVATIONS), mean.clamp(-1, 1))
        density = Normal(mean, net.log_std.exp()).log_prob(a).sum(-1)
        torch.testing.assert_close(net.log_prob(OBSERVATIONS, a), density)


def test_exploration_noise_has_the_requested_standard_deviation():
    for noise in (0.1, 0.3):
        actor = make_actor(DeterministicActor, noise=noise)
        many = OBSERVATIONS[:1].expand(20_000, 3)
        difference = actor.explore_action(many, Numbers()) - actor.act(many)
        assert difference.std().item() == pytest.approx(noise, rel=0.03)
        assert abs(difference.mean().item()) < 5 * noise / math.sqrt(20_000)


def test_each_action_of_a_chunk_has_exploration_noise_of_its_own():
    torch.manual_seed(0)
    actor = ChunkActor(3, 2, [8], horizon=4, n_action_steps=4, noise=0.1)
    many = OBSERVATIONS[:1, None].expand(20_000, 1, 3)
    nothing = torch.zeros(20_000, 0)
    explored, _ = actor.explore(many, {}, nothing, Numbers())
    difference = (explored - actor.decide(many, {}, nothing)[0]).flatten(1)  # [20000, 8]
    expected = 0.01 * torch.eye(8)
    torch.testing.assert_close(torch.cov(difference.T), expected, atol=5e-4, rtol=0)
