"""MLP heads that predict a chunk of actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from policies.heads.head import Head, Memory
from policies.networks.dropout import Random
from policies.networks.init import xavier_init
from policies.networks.mlp import MLP, Activation


class ChunkActor(Head):
    """The chunk tanh(MLP(observation history))."""

    def __init__(
        self,
        observations: int,
        actions: int,
        hidden: Sequence[int],
        *,
        horizon: int,
        n_action_steps: int,
        n_obs_steps: int = 1,
        activation: Activation = "relu",
        noise: float = 0.1,
    ) -> None:
        """Create the head.

        horizon: number of actions in a chunk.
        n_action_steps: number of executed actions per chunk.
        noise: standard deviation of the exploration noise.
        """
        super().__init__()
        self.arguments = {"observations": observations, "actions": actions, "hidden": [*hidden]}
        self.arguments |= {
            "horizon": horizon,
            "n_action_steps": n_action_steps,
            "n_obs_steps": n_obs_steps,
        }
        self.arguments |= {"activation": activation}
        self.n_obs_steps, self.chunk_size, self.n_action_steps = (
            n_obs_steps,
            horizon,
            n_action_steps,
        )
        self.noise = noise
        sizes = n_obs_steps * observations, horizon * actions
        self.trunk = MLP(*sizes, hidden, activation=activation)

    def forward(self, observations: Tensor, random: Random | None = None) -> Tensor:
        """Return chunks [B, horizon, A] for observations [B, n_obs_steps, *obs].

        random: unused.
        """
        return self.trunk(observations.flatten(1)).unflatten(-1, (self.chunk_size, -1)).tanh()

    def decide(self, observations: Tensor, memory: Memory, noise: Tensor) -> tuple[Tensor, Memory]:
        """See `Head.decide`."""
        return self(observations), memory

    def explore(
        self, observations: Tensor, memory: Memory, noise: Tensor, random: Random
    ) -> tuple[Tensor, Memory]:
        """See `Head.explore`. Add Gaussian noise to each action, clipped to [-1, 1]."""
        chunks = self(observations)
        return (chunks + self.noise * random.normal(chunks.shape)).clamp(-1, 1), memory


class OneStepActor(Head):
    """The chunk clip(MLP(observation, z), -1, 1) for standard normal noise z.

    Park, Li, Levine, ICML 2025, arXiv:2502.02538 (FQL).
    """

    def __init__(
        self,
        observations: int,
        actions: int,
        hidden: Sequence[int],
        *,
        horizon: int = 1,
        activation: Activation = "gelu_tanh",
    ) -> None:
        """Create the head, with Xavier's initialization.

        horizon: number of actions in a chunk. All of them are executed.
        """
        super().__init__()
        self.arguments = {"observations": observations, "actions": actions, "hidden": [*hidden]}
        self.arguments |= {"horizon": horizon, "activation": activation}
        self.chunk_size = self.n_action_steps = horizon
        self.noise_shape, size = (horizon, actions), horizon * actions
        options: dict[str, Any] = {"activation": activation, "init": xavier_init}
        self.trunk = MLP(observations + size, size, hidden, **options)

    def forward(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Return the chunks before clipping, [B, horizon, A].

        observations: [B, 1, O] or [B, O].  noise: [B, horizon, A].
        """
        inputs = torch.cat([observations.flatten(1), noise.flatten(1)], -1)
        return self.trunk(inputs).unflatten(-1, self.noise_shape)

    def decide(self, observations: Tensor, memory: Memory, noise: Tensor) -> tuple[Tensor, Memory]:
        """See `Head.decide`."""
        return self(observations, noise).clip(-1, 1), memory
