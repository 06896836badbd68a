"""Any head, on what is seen in several channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from policies.heads.head import kinds
from policies.networks.encoders import Sees


class Seeing(nn.Module):
    """A head whose observation is the vector that `Sees` makes of the channels."""

    def __init__(
        self,
        channels: Mapping[str, Sequence[int]],
        head: str,
        head_arguments: Mapping[str, Any],
        encoder: Mapping[str, Any],
    ) -> None:
        """channels: the shape of each.  head: a class of `policies.heads`, without `observations`.

        encoder: options of `PictureEncoder`.
        """
        super().__init__()
        self.arguments = {
            "channels": {name: [*shape] for name, shape in channels.items()},
            "head": head,
            "head_arguments": dict(head_arguments),
            "encoder": dict(encoder),
        }
        self.eyes = Sees(channels, **encoder)
        self.head: Any = kinds()[head](self.eyes.features, **head_arguments)

    def forward(self, observations: Mapping[str, Tensor], random: Any = None, *rest: Any) -> Tensor:
        """{channel: [..., *shape]} -> what the head answers; with `random`, as in training.

        rest: whatever else the head is told.
        """
        return self.head(self.eyes(observations, random), random, *rest)

    def act(self, observations: Mapping[str, Tensor]) -> Tensor:
        """See `heads.head`."""
        return self.head.act(self.eyes(observations))

    def explore(self, observations: Mapping[str, Tensor], random: Any) -> Tensor:
        """See `heads.head`."""
        return self.head.explore(self.eyes(observations), random)

    def correction(self, observations: Mapping[str, Tensor], random: Any = None) -> Tensor:
        """Of a `ResidualActor`."""
        return self.head.correction(self.eyes(observations, random))


class SeeingPlanner(Seeing):
    """And one that answers with chunks: a `heads.head.Planner`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Of `Seeing`."""
        super().__init__(*arguments, **options)
        self.n_obs_steps, self.chunk_size = self.head.n_obs_steps, self.head.chunk_size
        self.n_action_steps, self.noise_shape = self.head.n_action_steps, self.head.noise_shape

    def plan(self, observations: Mapping[str, Tensor], noise: Tensor) -> Tensor:
        """See `Planner`."""
        return self.head.plan(self.eyes(observations), noise)
