"""What heads of chunks share: the data's range of each action is [-1, 1] to the network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from policies.normaliser import centre_and_extent


class Scaled(nn.Module):
    """Actions scaled by given ends; never by their deviation, since samplers clip at the ends."""

    def __init__(
        self, actions: int, low: Sequence[float] | None, high: Sequence[float] | None
    ) -> None:
        """low, high: [A], default -1 and 1."""
        super().__init__()
        low, high = [*(low or [-1.0] * actions)], [*(high or [1.0] * actions)]
        self.arguments: dict[str, Any] = {"actions": actions, "action_low": low}
        self.arguments["action_high"] = high
        ranges = [centre_and_extent(*ends) for ends in zip(low, high, strict=True)]
        self.centre, self.extent = ([pair[k] for pair in ranges] for k in (0, 1))

    def unit(self, actions: Tensor) -> Tensor:
        """[..., A] -> as the network sees them."""
        return (actions - actions.new_tensor(self.centre)) / actions.new_tensor(self.extent)

    def raw(self, chunk: Tensor) -> Tensor:
        """The inverse of `unit`."""
        return chunk * chunk.new_tensor(self.extent) + chunk.new_tensor(self.centre)
