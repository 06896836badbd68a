"""What heads of chunks share: what they see as one vector, actions by their range in the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from policies.networks.dropout import Random
from policies.networks.encoders import Sees
from policies.normalizer import center_and_extent

Seen = int | Mapping[str, Sequence[int]]  # numbers in the one vector, or each channel's shape


class Scaled(nn.Module):
    """Actions scaled by given ends; never by their deviation, since samplers clip at the ends."""

    def __init__(
        self,
        observations: Seen,
        actions: int,
        low: Sequence[float] | None,
        high: Sequence[float] | None,
        encoder: Mapping[str, Any] | None,
    ) -> None:
        """low, high: [A], default -1 and 1.  encoder: options of `PictureEncoder`, for channels."""
        super().__init__()
        low, high = [*(low or [-1.0] * actions)], [*(high or [1.0] * actions)]
        self.arguments: dict[str, Any] = {"actions": actions, "action_low": low}
        self.arguments["action_high"] = high
        self.eyes: Sees | None = None
        if isinstance(observations, Mapping):
            shapes, how = {k: [*shape] for k, shape in observations.items()}, dict(encoder or {})
            self.arguments |= {"observations": shapes, "encoder": how}
            self.eyes = Sees(shapes, **how)
            self.features = self.eyes.features  # numbers in an encoded observation
        else:
            self.arguments["observations"] = self.features = observations
        ranges = [center_and_extent(*ends) for ends in zip(low, high, strict=True)]
        self.center, self.extent = ([pair[k] for pair in ranges] for k in (0, 1))

    def encode(self, observations: Any, random: Random | None = None) -> Tensor:
        """[B, n_obs_steps, *obs], or such channels by name -> [B, n_obs_steps, F].

        With `random`, pieces of pictures are cut out as in training.
        """
        if self.eyes is None:
            flat: Tensor = observations.flatten(2)
            return flat
        return self.eyes(observations, random)

    def unit(self, actions: Tensor) -> Tensor:
        """[..., A] -> as the network sees them."""
        return (actions - actions.new_tensor(self.center)) / actions.new_tensor(self.extent)

    def raw(self, chunk: Tensor) -> Tensor:
        """The inverse of `unit`."""
        return chunk * chunk.new_tensor(self.extent) + chunk.new_tensor(self.center)
