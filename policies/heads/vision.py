"""Heads for observations of several channels, which may include images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from policies.heads.head import Head, Memory, load_kinds
from policies.networks.dropout import Random
from policies.networks.encoders import ObservationEncoder


class VisionHead(Head):
    """A head on top of an `ObservationEncoder`, which maps all channels to one vector."""

    def __init__(
        self,
        channels: Mapping[str, Sequence[int]],
        head: str,
        head_arguments: Mapping[str, Any],
        encoder: Mapping[str, Any],
    ) -> None:
        """Create the encoder and the head.

        channels: shape of each channel.
        head: class name in `policies.heads`.  head_arguments: arguments of this class except
        `observations`.
        encoder: options of `ImageEncoder`.
        """
        super().__init__()
        self.arguments = {
            "channels": {name: [*shape] for name, shape in channels.items()},
            "head": head,
            "head_arguments": dict(head_arguments),
            "encoder": dict(encoder),
        }
        self.observation_encoder = ObservationEncoder(channels, **encoder)
        features = self.observation_encoder.features
        self.head: Head = load_kinds()[head](features, **head_arguments)
        self.n_obs_steps, self.chunk_size = self.head.n_obs_steps, self.head.chunk_size
        self.n_action_steps, self.noise_shape = self.head.n_action_steps, self.head.noise_shape
        self.temporal_ensemble_coeff = self.head.temporal_ensemble_coeff

    def forward(self, observations: Mapping[str, Tensor], random: Any = None, *rest: Any) -> Tensor:
        """Return the head's output for the observations {channel: [..., *shape]}.

        random: source of random numbers for crops and dropout, in training only.
        rest: passed to the head.
        """
        return self.head(self.observation_encoder(observations, random), random, *rest)

    def initial_memory(self, batch: int) -> Memory:
        """See `Head.initial_memory`."""
        return self.head.initial_memory(batch)

    def decide(self, observations: Any, memory: Memory, noise: Tensor) -> tuple[Tensor, Memory]:
        """See `Head.decide`."""
        return self.head.decide(self.observation_encoder(observations), memory, noise)

    def explore(
        self, observations: Any, memory: Memory, noise: Tensor, random: Random
    ) -> tuple[Tensor, Memory]:
        """See `Head.explore`."""
        return self.head.explore(self.observation_encoder(observations), memory, noise, random)

    def residual_action(self, observations: Mapping[str, Tensor], random: Any = None) -> Tensor:
        """Return the residual action. The head must be a `ResidualActor`."""
        head: Any = self.head
        action: Tensor = head.residual_action(self.observation_encoder(observations, random))
        return action
