"""VAE: its bound against torch's distributions, and its samples."""

import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from offline_rl.algorithms.common.models.vae import VAE


class Numbers:
    """Random source for tests."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, shape):
        return torch.randn(tuple(shape), generator=self.generator)


def vae_and_batch() -> tuple[VAE, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return VAE(3, 2, (16, 16)), torch.randn(5, 3), torch.rand(5, 2)


def test_its_terms_are_the_evidence_lower_bound():
    """A decoder of variance beta / 4 gives -ELBO = (2 / beta) sum error + sum KL + constant.

    Times beta / (2 |A|), this is the mean error plus beta times the mean KL, as |z| = 2 |A|.
    """
    (vae, s, a), beta, actions = vae_and_batch(), 0.5, 2
    error, kl = vae.terms(s, a, Numbers())
    mean, log_std = vae.encode(s, a)
    z = Normal(mean, log_std.exp())
    decoded = vae.decode(s, mean + log_std.exp() * Numbers().normal(mean.shape))
    torch.testing.assert_close(kl, kl_divergence(z, Normal(0.0, 1.0)))
    bound = Normal(decoded, math.sqrt(beta / 4)).log_prob(a).sum(-1)
    bound = bound - kl_divergence(z, Normal(0.0, 1.0)).sum(-1)
    constant = actions * math.log(math.sqrt(beta / 4) * math.sqrt(2 * math.pi))
    ours = error.mean(-1) + beta * kl.mean(-1)
    theirs = beta / (2 * actions) * (-bound - constant)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_the_kl_term_vanishes_for_the_prior_alone():
    vae, s, a = vae_and_batch()
    for weight, bias in zip(vae.encoder.weights, vae.encoder.biases, strict=True):
        weight.data.zero_()
        bias.data.zero_()
    assert vae.terms(s, a, Numbers())[1].abs().max() == 0
    vae.encoder.biases[-1].data[:4] = 1.0  # the mean
    torch.testing.assert_close(vae.terms(s, a, Numbers())[1], torch.full((5, 4), 0.5))


def test_samples_use_a_clipped_prior():
    """Samples never exceed tanh(0.5) if one decoder weight leads from z to the action."""
    vae = VAE(1, 1, ())
    vae.decoder.weights[0].data = torch.tensor([[0.0], [1.0], [0.0]])
    vae.decoder.biases[0].data.zero_()
    sampled = vae.sample(torch.zeros(4, 1), Numbers(), 500)
    assert sampled.shape == (500, 4, 1)
    assert sampled.abs().max().item() == pytest.approx(math.tanh(0.5))
    assert (sampled.abs() < 0.99 * math.tanh(0.5)).float().mean() == pytest.approx(0.38, abs=0.03)


def test_it_separates_seen_from_unseen_actions():
    """The data has actions +-0.5 in one state: 0, their mean, is unlikely."""
    torch.manual_seed(0)
    vae, random = VAE(1, 1, (32, 32)), Numbers()
    adam = torch.optim.Adam(vae.parameters(), lr=1e-2)
    s = torch.zeros(64, 1)
    a = torch.where(torch.arange(64) % 2 == 0, 0.5, -0.5)[:, None]
    for _ in range(250):
        error, kl = vae.terms(s, a, random)
        adam.zero_grad()
        (error.mean() + 0.05 * kl.mean()).backward()
        adam.step()

    def unlikely(action: float) -> float:
        s = torch.zeros(500, 1)
        with torch.no_grad():
            error, kl = vae.terms(s, s + action, random)
        return (error.mean() + 0.05 * kl.mean()).item()

    seen = max(unlikely(0.5), unlikely(-0.5))
    assert unlikely(0.0) > 2 * seen
    assert unlikely(0.9) > 2 * seen
    assert unlikely(-0.9) > 2 * seen
