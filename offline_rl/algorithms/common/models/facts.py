"""Termination, reward and observation range of a task, for rollouts of a dynamics model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from offline_rl.algorithms.common.safety.guardian import is_outside
from policies.runtimes.guardian import Guardian

Function = Callable[[Tensor, Tensor, Tensor], Tensor]  # (s, a, s') -> [...]; raw observations


@dataclass(frozen=True)
class Facts:
    """Facts about a task and its data, for normalized observations and scaled rewards.

    center, width: a normalized observation x is the raw observation center + width * x.
    low, high: range of the data's normalized observations; empty without data.
    """

    center: Sequence[float]
    width: Sequence[float]
    reward_scale: float = 1.0
    reward_shift: float = 0.0
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    ends: Mapping[str, Function] = field(default_factory=dict)  # by name; see `envs.Outcomes`
    reward: Function | None = None
    guardian: Guardian | None = None  # of the data's pairs; it ends predicted episodes
    ood_penalty: float = 0.0  # loss of reward with such an end, in the units of training

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

    def guard(self, s: Tensor, a: Tensor, rewards: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
        """Return rewards [B] and ends [B] of transitions that the guardian has judged.

        s: states [B, O].  a: actions [B, A].
        """
        if self.guardian is None:
            return rewards, ends
        outside = is_outside(self.guardian, self.raw(s), a)
        return rewards - self.ood_penalty * outside, ends | outside

    def clamp(self, observations: Tensor) -> Tensor:
        """Return the observations [..., O], clipped to the range of the data."""
        low, high = constant(self.low, observations), constant(self.high, observations)
        return observations.clamp(low, high)

    def is_outside(self, observations: Tensor) -> Tensor:
        """Return a mask of the observations [..., O] far outside the data, [...].

        An observation is far outside if, in any dimension that is not constant in the data, its
        distance from the range of the data exceeds the width of that range. NaN is far outside.
        """
        low, high = constant(self.low, observations), constant(self.high, observations)
        margin = torch.where(high > low, high - low, math.inf)
        inside = (observations >= low - margin) & (observations <= high + margin)
        return ~inside.all(-1)


def constant(values: Sequence[float], like: Tensor) -> Tensor:
    """Return the values as a tensor of the type and device of `like`."""
    return torch.tensor([*values], dtype=like.dtype, device=like.device)
