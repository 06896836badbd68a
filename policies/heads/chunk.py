"""A deterministic MLP head that predicts a chunk of actions."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from policies.networks.dropout import Random
from policies.networks.mlp import MLP, Activation


class ChunkActor(nn.Module):
    """The chunk tanh(MLP(observation history)). The class implements `heads.head.Planner`."""

    noise_shape: tuple[int, ...] = ()

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
    ) -> None:
        """Create the head.

        horizon: number of actions in a chunk.
        n_action_steps: number of executed actions per chunk.
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
        sizes = n_obs_steps * observations, horizon * actions
        self.trunk = MLP(*sizes, hidden, activation=activation)

    def forward(self, observations: Tensor, random: Random | None = None) -> Tensor:
        """Return chunks [B, horizon, A] for observations [B, n_obs_steps, *obs].

        random: unused.
        """
        return self.trunk(observations.flatten(1)).unflatten(-1, (self.chunk_size, -1)).tanh()

    def plan(self, observations: Tensor, noise: Tensor) -> Tensor:
        """See `Planner`."""
        return self(observations)
