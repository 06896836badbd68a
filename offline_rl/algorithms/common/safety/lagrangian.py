"""Lagrange multiplier of a cost limit, by PID control or dual ascent.

The multiplier is a network named `multiplier` without an optimizer, so its state is checkpointed
and stacked like that of every other network. The error is the cost in excess of the limit, such
as the mean of the cost critic minus `costs.discounted_limit`.

    def networks(self): return {..., "multiplier": Multiplier()}
    state, multiplier = pid(state, cost_excess)

PID control: Stooke et al., ICML 2020, arXiv:2007.03964, with the rules of liuzuxin/OSRL.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common.config import Rate
from offline_rl.algorithms.common.safety.costs import CostConfig
from offline_rl.utils.options import NonNegative, Positive, frozen

if TYPE_CHECKING:
    from offline_rl.algorithms.common.base import State

LOWEST = 1e-3  # lower bound of dual ascent. Factors cannot change a multiplier of 0.


@frozen
class PIDConfig(CostConfig):
    """Options of a multiplier by PID control. Defaults: liuzuxin/OSRL's."""

    proportional_gain: NonNegative = 0.1  # KP, factor of the present cost in excess of the limit
    integral_gain: NonNegative = 0.003  # KI, factor of the sum of all excess costs so far
    derivative_gain: NonNegative = 0.001  # KD, factor of the increase of the excess cost
    max_multiplier: Positive = 1000.0  # upper bound of the multiplier; the sum stops growing there


@frozen
class DualAscentConfig(CostConfig):
    """Options of a multiplier by dual ascent on its logarithm."""

    multiplier_lr: Rate = 1e-3  # learning rate of the logarithm of the multiplier
    max_multiplier: Positive = 1000.0  # upper bound of the multiplier


class Multiplier(nn.Module):
    """State of a Lagrange multiplier. Call it for the multiplier, 0-d."""

    def __init__(self, initial: float = 0.0) -> None:
        """Create the state. initial: first value; above 0 for dual ascent."""
        super().__init__()
        self.value = nn.Parameter(torch.tensor(float(initial)))
        self.integral = nn.Parameter(torch.zeros(()))  # sum of the errors, at least 0
        self.previous_error = nn.Parameter(torch.zeros(()))

    def forward(self) -> Tensor:
        return self.value


def pid(state: State, error: Tensor) -> tuple[State, Tensor]:
    """Return the state after one step of PID control, and the multiplier, 0-d.

    error: cost in excess of the limit, 0-d. The config is a `PIDConfig`. While the integral term
    alone exceeds `max_multiplier`, the integral does not grow, so that the multiplier falls as soon
    as the cost is below its limit.
    """
    cfg, old, error = state.algorithm.cfg, state.params["multiplier"], error.detach()
    grown = (old["integral"] + error).relu()
    is_capped = cfg.integral_gain * grown > cfg.max_multiplier
    integral = torch.where(is_capped, torch.minimum(old["integral"], grown), grown)
    value = cfg.proportional_gain * error.relu() + cfg.integral_gain * integral
    value = value + cfg.derivative_gain * (error - old["previous_error"]).relu()
    value = value.clamp(max=cfg.max_multiplier)
    new = {"value": value, "integral": integral, "previous_error": error}
    return _store(state, new), value


def dual_ascent(state: State, error: Tensor) -> tuple[State, Tensor]:
    """Return the state after a gradient step on the log of the multiplier, and the multiplier, 0-d.

    error: cost in excess of the limit, 0-d. The config is a `DualAscentConfig`. The Lagrangian is
    multiplier * error, whose gradient by the logarithm is divided by the multiplier, so that a
    small multiplier grows as fast as a large one. The multiplier is at least 0.001.
    """
    cfg, old, error = state.algorithm.cfg, state.params["multiplier"], error.detach()
    value = (old["value"] * (cfg.multiplier_lr * error).exp()).clamp(min=LOWEST)
    value = value.clamp(max=cfg.max_multiplier)
    return _store(state, {**old, "value": value, "previous_error": error}), value


def _store(state: State, multiplier: dict[str, Tensor]) -> State:
    return replace(state, params={**state.params, "multiplier": multiplier})
