"""A recurrent head with a stochastic latent, the acting part of a world model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from policies.heads.head import Head, Memory
from policies.networks.mlp import MLP, Activation
from policies.networks.sequences.history import GRUCell

MIN_STD = 0.1  # minimum standard deviation of the latent


class RecurrentModel(nn.Module):
    """A recurrent state-space model without its prior (Hafner et al., arXiv:1811.04551).

    A state is the concatenation of the GRU state h and the latent z, [..., recurrent + latent].
    """

    def __init__(self, embedding: int, actions: int, recurrent: int, latent: int) -> None:
        """Create the model.

        embedding: size of an encoded observation.  recurrent: size of h.  latent: size of z.
        """
        super().__init__()
        self.sizes = [recurrent, latent]
        self.gru = GRUCell(latent + actions, recurrent)
        self.posterior = MLP(recurrent + embedding, 2 * latent, (recurrent,), activation="elu")

    def step(
        self, state: Tensor, action: Tensor, embedding: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the next state, and mean and standard deviation of its latent.

            h = GRU([z, action], h)
            z = mean + std * noise, where mean and std depend on h and the embedding

        state: [..., recurrent + latent], before the action.  action: [..., A], the action that led
        to the observation.  embedding: [..., embedding], the encoded observation.
        noise: [..., latent].
        """
        h, z = state.split(self.sizes, -1)
        h = self.gru(torch.cat([z, action], -1), h)
        mean, std = self.posterior(torch.cat([h, embedding], -1)).chunk(2, -1)
        std = softplus(std) + MIN_STD
        return torch.cat([h, mean + std * noise], -1), mean, std


class RecurrentActor(Head):
    """A policy on the states of a recurrent model. Its action is tanh(actor(state)).

    The memory holds the state of the model and the previous action. At the start of an episode,
    both are zero.
    """

    def __init__(
        self,
        observations: int,
        actions: int,
        hidden: Sequence[int],
        *,
        embedding: int = 64,
        recurrent: int = 64,
        latent: int = 16,
        activation: Activation = "elu",
    ) -> None:
        """Create encoder, model and actor.

        hidden: hidden layers of the encoder and of the actor.
        embedding, recurrent, latent: see `RecurrentModel`.
        """
        super().__init__()
        self.arguments = {"observations": observations, "actions": actions, "hidden": [*hidden]}
        self.arguments |= {"embedding": embedding, "recurrent": recurrent, "latent": latent}
        self.arguments |= {"activation": activation}
        self.actions, self.size, self.noise_shape = actions, recurrent + latent, (latent,)
        self.encoder = MLP(observations, embedding, hidden, activation=activation)
        self.model = RecurrentModel(embedding, actions, recurrent, latent)
        self.actor = MLP(self.size, actions, hidden, activation=activation)

    def step(
        self, state: Tensor, action: Tensor, embedding: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `RecurrentModel.step`. embedding: output of `encoder`."""
        return self.model.step(state, action, embedding, noise)

    def initial_memory(self, batch: int) -> Memory:
        """See `Head.initial_memory`."""
        return {"state": torch.zeros(batch, self.size), "action": torch.zeros(batch, self.actions)}

    def decide(self, observations: Tensor, memory: Memory, noise: Tensor) -> tuple[Tensor, Memory]:
        """See `Head.decide`."""
        embedding = self.encoder(observations[:, -1])
        state, _, _ = self.step(memory["state"], memory["action"], embedding, noise)
        action = self.actor(state).tanh()
        return action[:, None], {"state": state, "action": action}
