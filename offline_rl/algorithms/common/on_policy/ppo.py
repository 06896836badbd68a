"""Proximal policy optimization: advantages of rollouts, a clipped step, a scale for rewards.

Schulman et al., arXiv:1707.06347 and arXiv:1506.02438. Rollouts are [T, E]: decisions of E
environments side by side, in the order in which they were made.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

MOST = 10.0  # a scaled reward's size, at most
FIRST_COUNT = 1e-4  # of a variance that nothing was seen of, which is 1


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    discount: Tensor,
    ended: Tensor,
    trace: float | Tensor,
) -> Tensor:
    """Generalized advantages, all [T, E].

    next_values: of what was seen behind each decision, also where the episode ended there.
    discount: gamma**n after n steps, 0 where it terminated; so a time-out bootstraps. ended: either
    way, or the last decision of all: nothing behind it is this episode's. trace: lambda.
    """
    surprise = rewards + discount * next_values - values
    return reverse_scan(surprise, trace * discount * (1 - ended))


def reverse_scan(values: Tensor, factors: Tensor) -> Tensor:
    """y[t] = values[t] + factors[t] y[t + 1], along the first axis, in log2 T passes over it."""
    shift = 1
    while shift < len(values):
        nothing = torch.zeros_like(values[:shift])
        values = values + factors * torch.cat([values[shift:], nothing])
        factors = factors * torch.cat([factors[shift:], nothing])
        shift *= 2
    return values


def clip_range(
    step: Tensor, steps: int, widest: float | Tensor, narrowest: float | Tensor, rate: float
) -> Tensor:
    """How far a ratio may go from 1 in each denoising step, 0 the noisiest.

    It widens from `narrowest` to `widest`, at the last, and is that where there is only one (Ren et
    al., arXiv:2409.00588, appendix C).
    """
    share = step / (steps - 1) if steps > 1 else torch.ones_like(step, dtype=torch.float32)
    grown = (rate * share).expm1() / math.expm1(rate)
    return narrowest + (widest - narrowest) * grown


class Clipped(NamedTuple):
    """A step's loss, and what it tells; 0-d each."""

    loss: Tensor
    divergence: Tensor  # from the old policy, in nats: the mean of r - 1 - log r
    share: Tensor  # of ratios beyond the clip


def clipped_loss(log_ratio: Tensor, advantages: Tensor, clip: float | Tensor) -> Clipped:
    """Eq. 7 of arXiv:1707.06347, negative; all [B], or one clip for all."""
    ratio = log_ratio.exp()
    bounded = ratio.clamp(1 - clip, 1 + clip)  # type: ignore[arg-type]  # each kind alone is known
    loss = torch.maximum(-advantages * ratio, -advantages * bounded).mean()
    beyond = ((ratio - 1).abs() > clip).float().mean()
    return Clipped(loss, (ratio - 1 - log_ratio).mean(), beyond)


def standardize(values: Tensor) -> Tensor:
    """Mean 0, deviation 1."""
    return (values - values.mean()) / (values.std() + 1e-8)


def running_returns(rewards: Tensor, ended: Tensor, before: Tensor, discount: Tensor) -> Tensor:
    """Discounted sums of the rewards so far in each episode, [T, E].

    before: those at the end of the last rollout, [E], 0 where an episode was over.
    """
    start = torch.cat([torch.ones_like(ended[:1]), 1 - ended[:-1]])  # goes on from the row before
    first = torch.cat([rewards[:1] + discount[:1] * before, rewards[1:]])
    factor = torch.cat([torch.zeros_like(ended[:1]), start[1:] * discount[1:]])
    return reverse_scan(first.flip(0), factor.flip(0)).flip(0)


def update_moments(moments: Tensor, values: Tensor) -> Tensor:
    """Count, mean and variance [3] of what was seen before, with `values` too (Chan et al.)."""
    count, mean, variance = moments.unbind()
    size, own = values.numel(), values.mean()
    total, apart = count + size, own - mean
    squares = variance * count + values.var(correction=0) * size
    squares = squares + apart.square() * count * size / total
    return torch.stack([total, mean + apart * size / total, squares / total])


def normalize_rewards(rewards: Tensor, moments: Tensor) -> Tensor:
    """Rewards by the deviation of returns, between -MOST and MOST."""
    return (rewards * (moments[2] + 1e-8).rsqrt()).clamp(-MOST, MOST)
