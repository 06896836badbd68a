"""A head on an encoder of observation histories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from policies.heads.head import Head, Memory, load_kinds
from policies.networks.dropout import Random
from policies.networks.sequences.history import HistoryEncoder


class HistoryActor(Head):
    """The head `policy` on the features of an observation history instead of an observation."""

    def __init__(
        self,
        encoder_arguments: Mapping[str, Any],
        policy: str,
        policy_arguments: Mapping[str, Any],
    ) -> None:
        """Create the encoder and the head.

        encoder_arguments: arguments of `HistoryEncoder`.
        policy: class name in `policies.heads`.  policy_arguments: arguments of this class, whose
        `observations` is the size of the features.
        """
        super().__init__()
        self.arguments = {
            "encoder_arguments": dict(encoder_arguments),
            "policy": policy,
            "policy_arguments": dict(policy_arguments),
        }
        self.encoder = HistoryEncoder(**encoder_arguments)
        self.policy: Head = load_kinds()[policy](**policy_arguments)
        self.n_obs_steps, self.chunk_size = self.encoder.n_obs_steps, self.policy.chunk_size
        self.n_action_steps, self.noise_shape = self.policy.n_action_steps, self.policy.noise_shape

    def initial_memory(self, batch: int) -> Memory:
        """See `Head.initial_memory`."""
        return self.policy.initial_memory(batch)

    def decide(self, observations: Tensor, memory: Memory, noise: Tensor) -> tuple[Tensor, Memory]:
        """See `Head.decide`."""
        return self.policy.decide(self.encoder(observations)[:, None], memory, noise)

    def explore(
        self, observations: Tensor, memory: Memory, noise: Tensor, random: Random
    ) -> tuple[Tensor, Memory]:
        """See `Head.explore`."""
        features = self.encoder(observations)[:, None]
        return self.policy.explore(features, memory, noise, random)
