"""Base class of chunk heads, which encodes observations and normalizes actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from policies.networks.dropout import Random
from policies.networks.encoders import ObservationEncoder
from policies.normalizer import center_and_half_width

ObservationSizes = int | Mapping[str, Sequence[int]]  # size of a single vector, or channel shapes


class ChunkHead(nn.Module):
    """A head with an observation encoder and min-max normalized actions.

    Actions are normalized by their range, because samplers clip chunks to this range.
    """

    def __init__(
        self,
        observations: ObservationSizes,
        actions: int,
        low: Sequence[float] | None,
        high: Sequence[float] | None,
        encoder: Mapping[str, Any] | None,
    ) -> None:
        """Create the observation encoder and the action normalization.

        A single vector needs no encoder.
        low, high: [A], range of the actions in the data; default -1 and 1.
        encoder: options of `ImageEncoder`.
        """
        super().__init__()
        low, high = [*(low or [-1.0] * actions)], [*(high or [1.0] * actions)]
        self.arguments: dict[str, Any] = {"actions": actions, "action_low": low}
        self.arguments["action_high"] = high
        self.observation_encoder: ObservationEncoder | None = None
        if isinstance(observations, Mapping):
            shapes = {k: [*shape] for k, shape in observations.items()}
            options = dict(encoder or {})
            self.arguments |= {"observations": shapes, "encoder": options}
            self.observation_encoder = ObservationEncoder(shapes, **options)
            self.features = self.observation_encoder.features  # size of an encoded observation
        else:
            self.arguments["observations"] = self.features = observations
        ranges = [center_and_half_width(*bounds) for bounds in zip(low, high, strict=True)]
        self.center, self.half_width = ([pair[k] for pair in ranges] for k in (0, 1))

    def encode(self, observations: Any, random: Random | None = None) -> Tensor:
        """Encode observations to features [B, n_obs_steps, F].

        observations: [B, n_obs_steps, *obs], or channels of this shape by name.
        random: source of random numbers for image crops, in training only.
        """
        if self.observation_encoder is None:
            flat: Tensor = observations.flatten(2)
            return flat
        return self.observation_encoder(observations, random)

    def normalize_actions(self, actions: Tensor) -> Tensor:
        """Scale actions [..., A] from their range in the data to [-1, 1]."""
        return (actions - actions.new_tensor(self.center)) / actions.new_tensor(self.half_width)

    def denormalize_actions(self, chunk: Tensor) -> Tensor:
        """Scale actions [..., A] back: the inverse of `normalize_actions`."""
        return chunk * chunk.new_tensor(self.half_width) + chunk.new_tensor(self.center)
