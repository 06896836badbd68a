"""Value functions: what an observation, or one with an action, is worth; and what teaches them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common.base import Metrics, Network, State, minimize
from offline_rl.replay.batch import Batch
from policies.networks.init import Init, torch_init
from policies.networks.mlp import MLP, Activation


class Critic(nn.Module):
    """E independent Q(s, a) as one batched product, each initialized by its own fan-in."""

    def __init__(
        self,
        observations: int,
        actions: int,
        hidden: Sequence[int],
        *,
        activation: Activation = "relu",
        ensemble: int = 2,
        layer_norm: bool = False,
        norm_after_activation: bool = False,
        init: Init = torch_init,
    ) -> None:
        super().__init__()
        self.net = MLP(
            observations + actions,
            1,
            hidden,
            activation=activation,
            ensemble=ensemble,
            layer_norm=layer_norm,
            norm_after_activation=norm_after_activation,
            init=init,
        )

    def forward(
        self, observations: Tensor, actions: Tensor, members: Tensor | None = None
    ) -> Tensor:
        """[..., O], [..., A] -> [E, ...]; of some members [K] alone: [K, ...]."""
        return self.net(torch.cat([observations, actions], -1), members=members).squeeze(-1)

    def each(self, observations: Tensor, actions: Tensor) -> Tensor:
        """[E, ..., O], [E, ..., A] -> [E, ...]: member i values the i-th slice alone."""
        return self.net(torch.cat([observations, actions], -1), own_rows=True).squeeze(-1)


class Value(nn.Module):
    """V(s)."""

    def __init__(
        self,
        observations: int,
        hidden: Sequence[int],
        *,
        activation: Activation = "relu",
        layer_norm: bool = False,
        init: Init = torch_init,
    ) -> None:
        super().__init__()
        options: dict[str, Any] = {"activation": activation, "layer_norm": layer_norm}
        self.net = MLP(observations, 1, hidden, init=init, **options)

    def forward(self, observations: Tensor) -> Tensor:
        """[..., O] -> [...]."""
        return self.net(observations).squeeze(-1)


def some(state: State, ensemble: int, count: int | None) -> Tensor | None:
    """`count` members [K] of an ensemble, perhaps one of them twice; None for all.

    One draw for the whole batch.
    """
    if count is None:
        return None
    return (ensemble * state.random.uniform((count,))).long()


def different(state: State, ensemble: int, count: int) -> Tensor:
    """`count` members [K] of an ensemble, none of them twice; one draw for the whole batch."""
    return state.random.uniform((ensemble,)).topk(count).indices


def sampled_q(state: State, q: Tensor, count: int | None) -> Tensor:
    """Values of `some` critics, [E, ...] -> [K, ...]; of all where count is None.

    Gradients of a critic that is drawn twice are summed in a fixed order, which an index would not
    do on a GPU.
    """
    members = some(state, len(q), count)
    if members is None:
        return q
    is_drawn = members[:, None] == torch.arange(len(q), device=q.device)  # [K, E]
    return torch.where(is_drawn.reshape(*is_drawn.shape, *[1] * (q.dim() - 1)), q, 0).sum(1)


def regress(state: State, batch: Batch, target: Tensor) -> tuple[State, Metrics]:
    """The critics' step toward `target` [B]: squared error, mean over B, sum over the ensemble."""

    def critic_loss(critic: Network) -> Tensor:  # [E, B] - [B]
        return (critic(batch.observations, batch.actions) - target).square().mean(1).sum()

    state, value = minimize(state, "critic", critic_loss)
    return state, {"critic_loss": value, "target": target.mean()}
