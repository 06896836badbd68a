"""A GRU cell, and encoders that map an observation history to one vector."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from policies.networks.mlp import MLP, LayerNorm

Kind = Literal["mlp", "gru"]


class GRUCell(nn.Module):
    """One step of a GRU, with layer normalization and an update bias of -1, as in DreamerV2.

    The bias makes the state change slowly at the start of training (Hafner et al.,
    arXiv:2010.02193).
    """

    def __init__(self, inputs: int, size: int) -> None:
        """Create the cell.  inputs: size of the input.  size: size of the state."""
        super().__init__()
        self.linear = MLP(inputs + size, 3 * size, (), inner=True)
        self.norm = LayerNorm(3 * size)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        """Return the next state [..., size] for inputs [..., I] and states [..., size]."""
        parts = self.norm(self.linear(torch.cat([x, state], -1)))
        reset, candidate, update = parts.chunk(3, -1)
        update = (update - 1).sigmoid()
        return update * (reset.sigmoid() * candidate).tanh() + (1 - update) * state


class HistoryEncoder(nn.Module):
    """An encoder of observation histories: an MLP of the stacked observations, or a GRU.

    mlp: one hidden ReLU layer of the size of the features, then a linear layer, layer normalization
    and tanh, as in SAC-AE (Yarats et al., arXiv:1910.01741).
    gru: the state after the newest observation, from a state of zero before the oldest one.
    Both are bounded. Values of unbounded features can diverge, because the critics' loss trains the
    features of their own targets.
    """

    def __init__(
        self, observations: int, *, n_obs_steps: int, features: int, kind: Kind = "mlp"
    ) -> None:
        """Create the encoder.

        n_obs_steps: length of a history.  features: size F of an encoded history.
        """
        super().__init__()
        self.arguments: dict[str, Any] = {"observations": observations, "kind": kind}
        self.arguments |= {"n_obs_steps": n_obs_steps, "features": features}
        self.n_obs_steps, self.features, self.kind = n_obs_steps, features, kind
        if kind == "gru":
            self.cell = GRUCell(observations, features)
        else:
            self.trunk = MLP(n_obs_steps * observations, features, (features,), inner=True)
            self.norm = LayerNorm(features)

    def forward(self, observations: Tensor) -> Tensor:
        """Return the features [..., F] of histories [..., n_obs_steps, O], the newest last."""
        if self.kind == "mlp":
            return self.norm(self.trunk(observations.flatten(-2))).tanh()
        state = observations.new_zeros(*observations.shape[:-2], self.features)
        for x in observations.unbind(-2):
            state = self.cell(x, state)
        return state
