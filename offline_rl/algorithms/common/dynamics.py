"""A learned model of what comes next: an ensemble of networks that tell a change and its spread.

Each member answers with a normal distribution, whose variance shows what is uncertain in itself;
that members differ shows what the data does not tell. A fifth of the episodes, of which none
learns, says which of them are the elites, and whether the model fits at all.

Chua et al., NeurIPS 2018, arXiv:1805.12114; elites: Janner et al., NeurIPS 2019, arXiv:1906.08253.
There each member learns from a sample of its own of the data, here all from the same batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from offline_rl.algorithms.common.base import Metrics, Network, State, minimize_with
from policies.networks.mlp import MLP

FOLLOWS = 0.02  # share of a batch's error in the running one
NARROW = 0.01  # weight of the distance between the bounds of the variance


class Ensemble(nn.Module):
    """E networks: inputs -> mean and log variance of a change, between learned soft bounds."""

    def __init__(self, inputs: int, outputs: int, hidden: Sequence[int], members: int) -> None:
        super().__init__()
        self.net = MLP(inputs, 2 * outputs, hidden, activation="silu", ensemble=members)
        self.most = nn.Parameter(torch.full((outputs,), 0.5))  # of the log variance
        self.least = nn.Parameter(torch.full((outputs,), -10.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[..., inputs] -> [E, ..., outputs] each."""
        mean, log_variance = self.net(x).chunk(2, -1)
        log_variance = self.most - softplus(self.most - log_variance)
        return mean, self.least + softplus(log_variance - self.least)

    def width(self) -> Tensor:
        """Of the bounds, all outputs together; 0-d."""
        return (self.most - self.least).sum()


class Fit(nn.Module):
    """How well each member tells what it did not learn from; written by `fitted`."""

    def __init__(self, members: int) -> None:
        super().__init__()
        self.error = nn.Parameter(torch.ones(members))

    def forward(self) -> Tensor:
        """[E]: squared errors by the changes' variance; 1 is no better than their mean."""
        return self.error


def update_dynamics(
    state: State, x: Tensor, change: Tensor, held_out: Tensor
) -> tuple[State, Metrics]:
    """One step of `dynamics` on the likelihood of changes, and `fit` moved toward its errors.

    x: [B, inputs].  change: [B, outputs].  held_out: [B], 1 in rows that are not learned from.
    """
    learned = 1 - held_out

    def loss(dynamics: Network) -> tuple[Tensor, Tensor]:
        mean, log_variance = dynamics(x)  # [E, B, outputs]
        error = (mean - change).square()
        surprise = (error * (-log_variance).exp() + log_variance).mean(-1)  # [E, B]
        own = (surprise * learned).sum(-1) / learned.sum().clamp(min=1)  # [E]
        return own.sum() + NARROW * dynamics.width(), error.sum(-1)

    state, value, error = minimize_with(state, "dynamics", loss)
    count, variance = held_out.sum(), change.var(0).sum()
    found = (error * held_out).sum(-1) / count.clamp(min=1) / variance.clamp(min=1e-12)  # [E]
    before = state.params["fit"]["error"]
    moved = torch.where(count > 0, torch.lerp(before, found, FOLLOWS), before)
    state = replace(state, params={**state.params, "fit": {"error": moved}})
    return state, {"dynamics_loss": value, "held_out_error": moved.min()}


def elite_members(state: State, count: int) -> Tensor:
    """The numbers of the members with the least errors, [count]."""
    return state.fit().argsort()[:count]


def sample_change(state: State, x: Tensor, member: Tensor, noise: Tensor) -> Tensor:
    """Changes [B, outputs] as each row's `member` [B] draws them with `noise` [B, outputs]."""
    mean, log_variance = state.dynamics(x)
    own: Any = (member, torch.arange(len(x), device=x.device))
    drawn: Tensor = mean[own] + (0.5 * log_variance[own]).exp() * noise
    return drawn
