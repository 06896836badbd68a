"""Learned transition model: an ensemble of probabilistic networks (PETS).

Each member predicts a normal distribution of the state change; its variance is the noise of the
transition. Disagreement between members shows what the data does not determine. A part of the data
is held out; on it the elites are selected, and the fit of the model is measured.

Chua et al., NeurIPS 2018, arXiv:1805.12114; elites: Janner et al., NeurIPS 2019, arXiv:1906.08253.
Unlike in these papers, `update_dynamics` trains all members on the same batches instead of
bootstrap samples. `fitting` uses bootstrap samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from offline_rl.algorithms.common.base import Metrics, Network, State, minimize
from policies.networks.init import Init, torch_init, xavier_init
from policies.networks.mlp import MLP, Activation

ERROR_RATE = 0.02  # update rate of the running error
WIDTH_WEIGHT = 0.01  # loss weight of the width of the variance bounds


class Ensemble(nn.Module):
    """E networks that map inputs to mean and log variance of a change, within learned bounds."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        hidden: Sequence[int],
        members: int,
        *,
        scale_inputs: bool = False,
        init: Init = torch_init,
    ) -> None:
        """Create the networks.

        scale_inputs: standardize inputs with `input_mean` and `input_std`, which are not trained.
        """
        super().__init__()
        self.net = MLP(inputs, 2 * outputs, hidden, activation="silu", ensemble=members, init=init)
        self.most = nn.Parameter(torch.full((outputs,), 0.5))  # upper bound of the log variance
        self.least = nn.Parameter(torch.full((outputs,), -10.0))
        self.scale_inputs = scale_inputs
        if scale_inputs:
            self.input_mean = nn.Parameter(torch.zeros(inputs))
            self.input_std = nn.Parameter(torch.ones(inputs))

    def forward(
        self, x: Tensor, *, per_member: bool = False, members: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return mean and log variance, [E, ..., outputs], for [..., inputs].

        per_member, members: see `MLP.forward`.
        """
        if self.scale_inputs:
            x = (x - self.input_mean) / self.input_std
        outputs = self.net(x, per_member=per_member, members=members)
        mean, log_variance = outputs.chunk(2, -1)
        log_variance = self.most - softplus(self.most - log_variance)
        return mean, self.least + softplus(log_variance - self.least)

    def width(self) -> Tensor:
        """Return the sum over outputs of the width of the variance bounds, 0-d."""
        return (self.most - self.least).sum()

    def weight_penalty(self, decay: Sequence[float]) -> Tensor:
        """Return the L2 penalty: half the sum of decay * weight^2 over all members, 0-d.

        decay: factor of each layer, or a single factor for all layers.
        """
        squares = [weight.square().sum() for weight in self.net.weights]
        decay = [*decay] * (len(squares) if len(decay) == 1 else 1)
        return 0.5 * torch.stack([d * x for d, x in zip(decay, squares, strict=True)]).sum()


class MeanDynamics(nn.Module):
    """A deterministic network that predicts the next observation."""

    def __init__(
        self,
        observations: int,
        actions: int,
        hidden: Sequence[int],
        *,
        activation: Activation = "relu",
        predict_change: bool = True,
    ) -> None:
        """Create the network, with Xavier's initialization.

        predict_change: the output of the MLP is the change of the observation.
        """
        super().__init__()
        self.predict_change = predict_change
        options: dict[str, Any] = {"activation": activation, "init": xavier_init}
        self.net = MLP(observations + actions, observations, hidden, **options)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return the next observations [..., O] for observations [..., O] and actions [..., A]."""
        output = self.net(torch.cat([observations, actions], -1))
        return observations + output if self.predict_change else output


class Fit(nn.Module):
    """Running held-out error of each member, updated by `update_dynamics`."""

    def __init__(self, members: int) -> None:
        super().__init__()
        self.error = nn.Parameter(torch.ones(members))

    def forward(self) -> Tensor:
        """Return squared errors relative to the variance of changes, [E].

        A prediction of the mean change has the error 1.
        """
        return self.error


def update_dynamics(
    state: State, x: Tensor, change: Tensor, held_out: Tensor
) -> tuple[State, Metrics]:
    """Update `dynamics` on the likelihood of changes, and `fit` on the held-out rows.

    x: [B, inputs].  change: [B, outputs].  held_out: [B], 1 in rows that are excluded from
    training.
    """
    trained = 1 - held_out

    def loss(dynamics: Network) -> tuple[Tensor, Tensor]:
        mean, log_variance = dynamics(x)  # [E, B, outputs]
        error = (mean - change).square()
        nll = (error * (-log_variance).exp() + log_variance).mean(-1)  # [E, B]
        member_loss = (nll * trained).sum(-1) / trained.sum().clamp(min=1)  # [E]
        return member_loss.sum() + WIDTH_WEIGHT * dynamics.width(), error.sum(-1)

    state, value, error = minimize(state, "dynamics", loss)
    count, variance = held_out.sum(), change.var(0).sum()
    batch_error = (error * held_out).sum(-1) / count.clamp(min=1) / variance.clamp(min=1e-12)  # [E]
    old_error = state.params["fit"]["error"]
    new_error = torch.where(count > 0, torch.lerp(old_error, batch_error, ERROR_RATE), old_error)
    state = replace(state, params={**state.params, "fit": {"error": new_error}})
    return state, {"dynamics_loss": value, "held_out_error": new_error.min()}


def elite_members(state: State, count: int) -> Tensor:
    """Return the indices of the members with the lowest held-out errors, [count]."""
    return state.fit().argsort()[:count]


def sample_change(state: State, x: Tensor, member: Tensor, noise: Tensor) -> Tensor:
    """Return sampled changes [B, outputs].

    member: [B], the ensemble member of each row.  noise: [B, outputs].
    """
    mean, log_variance = state.dynamics(x)
    rows: Any = (member, torch.arange(len(x), device=x.device))
    change: Tensor = mean[rows] + (0.5 * log_variance[rows]).exp() * noise
    return change


def mixture_log_prob(mean: Tensor, log_variance: Tensor, y: Tensor, is_elite: Tensor) -> Tensor:
    """Return the log density of y [B, Y] under the mixture of the elites' predictions, [B].

    mean, log_variance: [E, B, Y].  is_elite: [E].
    """
    squares = (mean - y).square() * (-log_variance).exp()
    log_density = -0.5 * (squares + log_variance + math.log(2 * math.pi)).sum(-1)  # [E, B]
    of_elites = torch.where(is_elite[:, None], log_density, -math.inf)
    return of_elites.logsumexp(0) - is_elite.to(mean).sum().log()
