"""A conditional variational auto-encoder: which actions does the data have in such a state?

It learns a latent z of 2 |A| numbers for each action in its state. What it reconstructs badly, or
only by an unlikely z, is not like the data; what it decodes from a likely z is. As in BCQ
(Fujimoto, Meger, Precup, ICML 2019, arXiv:1812.02900; sfujim/BCQ:continuous_BCQ/BCQ.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from policies.networks.dropout import Random
from policies.networks.mlp import MLP


class VAE(nn.Module):
    """q(z | s, a) normal, p(z) standard normal, the decoder's action tanh(MLP)."""

    def __init__(self, observations: int, actions: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.latent = 2 * actions
        self.encoder = MLP(observations + actions, 2 * self.latent, hidden)
        self.decoder = MLP(observations + self.latent, actions, hidden)

    def encode(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """[..., O], [..., A] -> mean and log deviation of z, [..., 2 A] each."""
        mean, log_std = self.encoder(torch.cat([observations, actions], -1)).chunk(2, -1)
        return mean, log_std.clamp(-4, 15)

    def decode(self, observations: Tensor, z: Tensor) -> Tensor:
        """[..., O], [..., 2 A] -> [..., A] in [-1, 1]."""
        return self.decoder(torch.cat([observations, z], -1)).tanh()

    def terms(self, observations: Tensor, actions: Tensor, random: Random) -> tuple[Tensor, Tensor]:
        """The parts of the evidence lower bound, from one sample of z.

        [..., O], [..., A] -> the squared error of each number of the decoded action [..., A], and
        KL(q(z | s, a), N(0, 1)) for each number of z [..., 2 A].
        """
        mean, log_std = self.encode(observations, actions)
        z = mean + log_std.exp() * random.normal(mean.shape)
        error = (self.decode(observations, z) - actions).square()
        return error, 0.5 * (mean.square() + (2 * log_std).exp() - 1) - log_std

    def sample(self, observations: Tensor, random: Random, samples: int) -> Tensor:
        """[B, O] -> [N, B, A]: actions like the data's, from z within 0.5 of its middle (BCQ)."""
        z = random.normal((samples, *observations.shape[:-1], self.latent)).clamp(-0.5, 0.5)
        return self.decode(observations.expand(samples, *observations.shape), z)
