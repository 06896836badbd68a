"""tanh of a perceptron that answers with a whole chunk."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from policies.networks.dropout import Random
from policies.networks.mlp import MLP, Activation


class ChunkActor(nn.Module):
    """The mean of a Gaussian over chunks, from a history: a `heads.head.Planner`."""

    noise_shape: tuple[int, ...] = ()

    def __init__(
        self,
        observations: int,
        actions: int,
        hidden: Sequence[int],
        *,
        window: int,
        executed: int,
        history: int = 1,
        activation: Activation = "relu",
    ) -> None:
        """window: actions of a chunk, of which `executed` are taken."""
        super().__init__()
        self.arguments = {"observations": observations, "actions": actions, "hidden": [*hidden]}
        self.arguments |= {"window": window, "executed": executed, "history": history}
        self.arguments |= {"activation": activation}
        self.history, self.horizon, self.executed = history, window, executed
        sizes = history * observations, window * actions
        self.trunk = MLP(*sizes, hidden, activation=activation)

    def forward(self, observations: Tensor, random: Random | None = None) -> Tensor:
        """[B, history, *obs] -> [B, window, A]; random: is not drawn from."""
        return self.trunk(observations.flatten(1)).unflatten(-1, (self.horizon, -1)).tanh()

    def plan(self, observations: Tensor, noise: Tensor) -> Tensor:
        """See `Planner`."""
        return self(observations)
