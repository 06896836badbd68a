"""Conditional variational autoencoder: a model of the data's actions in each state.

A latent z of 2 |A| numbers is learned for each action in its state. An action is unlike the data if
it is reconstructed badly or only from an unlikely z. Actions decoded from a likely z are like the
data's. The model is that of BCQ (Fujimoto, Meger, Precup, ICML 2019, arXiv:1812.02900;
sfujim/BCQ:continuous_BCQ/BCQ.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common.base import Network, State, minimize
from policies.networks.dropout import Random
from policies.networks.mlp import MLP


class VAE(nn.Module):
    """VAE with normal q(z | s, a), standard normal p(z), and decoded action tanh(MLP)."""

    def __init__(self, observations: int, actions: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.latent = 2 * actions
        self.encoder = MLP(observations + actions, 2 * self.latent, hidden)
        self.decoder = MLP(observations + self.latent, actions, hidden)

    def encode(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation of z, [..., 2 A], for [..., O] and [..., A]."""
        mean, log_std = self.encoder(torch.cat([observations, actions], -1)).chunk(2, -1)
        return mean, log_std.clamp(-4, 15)

    def decode(self, observations: Tensor, z: Tensor) -> Tensor:
        """Return actions [..., A] in [-1, 1] for [..., O] and z [..., 2 A]."""
        return self.decoder(torch.cat([observations, z], -1)).tanh()

    def terms(self, observations: Tensor, actions: Tensor, random: Random) -> tuple[Tensor, Tensor]:
        """Return the parts of the evidence lower bound, from one sample of z.

        The first is the squared error of each dimension of the decoded action, [..., A]. The second
        is KL(q(z | s, a), N(0, 1)) of each dimension of z, [..., 2 A].
        """
        mean, log_std = self.encode(observations, actions)
        z = mean + log_std.exp() * random.normal(mean.shape)
        error = (self.decode(observations, z) - actions).square()
        return error, divergence(mean, log_std)

    def unlikelihood(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return KL(q(z | s, a), N(0, 1)), mean over the dimensions of z, [...]."""
        return divergence(*self.encode(observations, actions)).mean(-1)

    def sample(self, observations: Tensor, random: Random, samples: int) -> Tensor:
        """Sample actions like the data's, [B, O] -> [N, B, A], with z clipped to +-0.5 (BCQ)."""
        z = random.normal((samples, *observations.shape[:-1], self.latent)).clamp(-0.5, 0.5)
        return self.decode(observations.expand(samples, *observations.shape), z)


def divergence(mean: Tensor, log_std: Tensor) -> Tensor:
    """Return the KL divergence of normal distributions from N(0, 1), elementwise."""
    return 0.5 * (mean.square() + (2 * log_std).exp() - 1) - log_std


def fit_vae(
    state: State, observations: Tensor, actions: Tensor, kl_weight: float | Tensor
) -> tuple[State, Tensor]:
    """Return the state after one update of the network `vae`, and the loss, 0-d.

    The squared error and the KL divergence are averaged over their dimensions, as in BCQ.
    """

    def vae_loss(vae: Network) -> Tensor:
        error, kl = vae.terms(observations, actions, state.random)
        return error.mean() + kl_weight * kl.mean()

    return minimize(state, "vae", vae_loss)
