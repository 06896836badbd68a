"""Facts of a task and its data, in the units of training, for rollouts of a dynamics model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Function = Callable[[Tensor, Tensor, Tensor], Tensor]  # (s, a, s') -> [...]; in raw units


@dataclass(frozen=True)
class Facts:
    """Facts in the units of training: normalized observations and scaled rewards.

    center, width: an observation x of training is the raw observation center + width * x.
    low, high: range of the data's observations; empty without data.
    """

    center: Sequence[float]
    width: Sequence[float]
    reward_scale: float = 1.0
    reward_shift: float = 0.0
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    ends: Mapping[str, Function] = field(default_factory=dict)  # by name; see `envs.Outcomes`
    reward: Function | None = None

    def raw(self, observations: Tensor) -> Tensor:
        """Return raw observations [..., O]."""
        return (
            constant(self.center, observations) + constant(self.width, observations) * observations
        )

    def is_end(self, rule: str, s: Tensor, a: Tensor, s2: Tensor) -> Tensor:
        """Return a mask of the transitions that end the episode, [...]. rule: key of `ends`."""
        if rule == "never":
            return torch.zeros_like(s2[..., 0], dtype=torch.bool)
        return self.ends[rule](self.raw(s), a, self.raw(s2))

    def task_reward(self, s: Tensor, a: Tensor, s2: Tensor) -> Tensor:
        """Return the task's reward in the units of training, [...]."""
        assert self.reward is not None
        return self.reward(self.raw(s), a, self.raw(s2)) * self.reward_scale + self.reward_shift

    def clamp(self, observations: Tensor) -> Tensor:
        """Return the observations [..., O], clipped to the range of the data."""
        low, high = constant(self.low, observations), constant(self.high, observations)
        return observations.clamp(low, high)

    def is_outside(self, observations: Tensor) -> Tensor:
        """Return a mask of the observations [..., O] far outside the data, [...].

        An observation is far outside if its distance to the range of the data exceeds the width of
        that range, in any dimension that is not constant in the data. NaN is far outside.
        """
        low, high = constant(self.low, observations), constant(self.high, observations)
        margin = torch.where(high > low, high - low, math.inf)
        inside = (observations >= low - margin) & (observations <= high + margin)
        return ~inside.all(-1)


def constant(values: Sequence[float], like: Tensor) -> Tensor:
    """Return the values as a tensor of the type and device of `like`."""
    return torch.tensor([*values], dtype=like.dtype, device=like.device)
