"""Proximal policy optimization: generalized advantages, clipped loss, reward scaling.

Schulman et al., arXiv:1707.06347 and arXiv:1506.02438. Rollouts are [T, E]: T decisions in order,
in E parallel environments.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

MAX_REWARD = 10.0  # bound on the magnitude of a scaled reward
FIRST_COUNT = 1e-4  # weight of the initial variance, 1


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    discount: Tensor,
    ended: Tensor,
    trace: float | Tensor,
) -> Tensor:
    """Return generalized advantages, [T, E], like all arguments.

    next_values: values of the observation after each decision, even if the episode ended there.
    discount: gamma**n after n steps, or 0 where the episode terminated. A time-out bootstraps.
    ended: 1 where the episode terminated or was truncated. The sum over later decisions stops
    there, and at the end of the rollout.
    trace: lambda.
    """
    td_error = rewards + discount * next_values - values
    return reverse_scan(td_error, trace * discount * (1 - ended))


def reverse_scan(values: Tensor, factors: Tensor) -> Tensor:
    """Return y[t] = values[t] + factors[t] y[t + 1] along axis 0, in log2 T passes."""
    shift = 1
    while shift < len(values):
        padding = torch.zeros_like(values[:shift])
        values = values + factors * torch.cat([values[shift:], padding])
        factors = factors * torch.cat([factors[shift:], padding])
        shift *= 2
    return values


def clip_range(
    step: Tensor,
    steps: int,
    widest: float | Tensor,
    narrowest: float | Tensor,
    rate: float | Tensor,
) -> Tensor:
    """Return the PPO clip of each denoising step; step 0 is the noisiest.

    It rises from `narrowest` to `widest` at the last step; with a single step it is `widest` (Ren
    et al., arXiv:2409.00588, appendix C).
    """
    share = step / (steps - 1) if steps > 1 else torch.ones_like(step, dtype=torch.float32)
    whole = rate.expm1() if isinstance(rate, Tensor) else math.expm1(rate)
    weight = (rate * share).expm1() / whole
    return narrowest + (widest - narrowest) * weight


class Clipped(NamedTuple):
    """Clipped loss and its metrics, 0-d each."""

    loss: Tensor
    divergence: Tensor  # KL estimate to the old policy in nats: mean of r - 1 - log r
    share: Tensor  # share of ratios outside the clip range


def clipped_loss(log_ratio: Tensor, advantages: Tensor, clip: float | Tensor) -> Clipped:
    """Return the negative of eq. 7 of arXiv:1707.06347. Arguments are [B]; clip also a number."""
    ratio = log_ratio.exp()
    bounded = ratio.clamp(1 - clip, 1 + clip)  # type: ignore[arg-type]  # no overload for the union
    loss = torch.maximum(-advantages * ratio, -advantages * bounded).mean()
    share = ((ratio - 1).abs() > clip).float().mean()
    return Clipped(loss, (ratio - 1 - log_ratio).mean(), share)


def standardize(values: Tensor) -> Tensor:
    """Return values with mean 0 and standard deviation 1."""
    return (values - values.mean()) / (values.std() + 1e-8)


def running_returns(rewards: Tensor, ended: Tensor, previous: Tensor, discount: Tensor) -> Tensor:
    """Return discounted sums of the rewards so far in each episode, [T, E].

    previous: sums at the end of the last rollout, [E], 0 where an episode ended.
    """
    continues = torch.cat([torch.ones_like(ended[:1]), 1 - ended[:-1]])
    inputs = torch.cat([rewards[:1] + discount[:1] * previous, rewards[1:]])
    factor = torch.cat([torch.zeros_like(ended[:1]), continues[1:] * discount[1:]])
    return reverse_scan(inputs.flip(0), factor.flip(0)).flip(0)


def update_moments(moments: Tensor, values: Tensor) -> Tensor:
    """Return count, mean and variance [3] after adding `values` (Chan et al.)."""
    count, mean, variance = moments.unbind()
    size, delta = values.numel(), values.mean() - mean
    total = count + size
    squares = variance * count + values.var(correction=0) * size
    squares = squares + delta.square() * count * size / total
    return torch.stack([total, mean + delta * size / total, squares / total])


def normalize_rewards(rewards: Tensor, moments: Tensor) -> Tensor:
    """Return rewards divided by the standard deviation of returns, clipped to +-MAX_REWARD."""
    return (rewards * (moments[2] + 1e-8).rsqrt()).clamp(-MAX_REWARD, MAX_REWARD)
