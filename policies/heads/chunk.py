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
        horizon: int,
        n_action_steps: int,
        n_obs_steps: int = 1,
        activation: Activation = "relu",
    ) -> None:
        """window: actions of a chunk, of which `n_action_steps` are taken."""
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
        """[B, n_obs_steps, *obs] -> [B, horizon, A]; random: is not drawn from."""
        return self.trunk(observations.flatten(1)).unflatten(-1, (self.chunk_size, -1)).tanh()

    def plan(self, observations: Tensor, noise: Tensor) -> Tensor:
        """See `Planner`."""
        return self(observations)
