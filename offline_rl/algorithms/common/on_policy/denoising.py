"""Denoising steps as actions: sampling of chains and the log density of each step.

    step          0   …   K-K'-1 | K-K'  …  K-1
    network       pretrained     | fine-tuned
    chain                      x_0  …  x_K'-1  x_K'       the last is the chunk

A step samples x_k+1 around a mean given by its sampler-table row and the network's prediction. The
standard deviation is the table's, but at least a floor: in the last step of DDPM and DDIM the table
has 0. Sampling and log density have separate floors (Ren et al., arXiv:2409.00588, section 5.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from policies.heads.schedules import DenoisingStep, Table

Predict = Callable[[Tensor, Tensor], Tensor]  # (x [..., B, T, A], times [..., B]) -> shape of x


def table_rows(table: Table, tuned: int, like: Tensor) -> Tensor:
    """Return the last `tuned` rows of a sampler table, [K', 8]."""
    numbers = [float(number) for row in table[-tuned:] for number in row]
    return like.new_tensor(numbers).unflatten(0, (tuned, len(DenoisingStep._fields)))


def transition_params(predict: Predict, rows: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean [..., B, T, A] and standard deviation [..., B, 1, 1] of a denoising step.

    rows: [..., B, 8], the sampler-table row of each element, see `table_rows`.
    """
    columns: Any = [column[..., None, None] for column in rows.unbind(-1)]
    r: Any = DenoisingStep(*columns)
    f = predict(r.input_scale * x, rows[..., 0])
    x0 = (r.x0_from_x * x + r.x0_from_f * f).clip(-1, 1)
    return r.x_weight * x + r.f_weight * f + r.x0_weight * x0, r.noise_std


def normal_log_prob(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return the log density of a normal distribution, elementwise."""
    z = (x - mean) / std
    return -0.5 * z.square() - std.log() - 0.5 * math.log(2 * math.pi)


def sample_chain(
    table: Table,
    base: Predict,
    predict: Predict,
    noise: Tensor,
    *,
    tuned: int,
    floor: float | Tensor,
    ceiling: float = math.inf,
    cut: float,
) -> Tensor:
    """Sample denoising chains [B, K'+1, T, A] from noise [B, K+1, T, A], clipped to +-`cut`.

    base: predicts in all but the last `tuned` steps.  floor, ceiling: of the standard deviation.
    """
    rows = table_rows(table, len(table), noise)  # [K, 8]
    x, chain = noise[:, 0], []
    for k in range(len(table)):
        is_tuned = k >= len(table) - tuned
        chain += [x] if is_tuned else []
        network = predict if is_tuned else base
        mean, std = transition_params(network, rows[k].expand(len(x), -1), x)
        x = mean + clamp_std(std, floor, ceiling) * noise[:, k + 1].clamp(-cut, cut)
    return torch.stack([*chain, x], 1)


def clamp_std(std: Tensor, floor: float | Tensor, ceiling: float) -> Tensor:
    """Return a standard deviation, at least `floor` and at most `ceiling`."""
    std = std.clamp(min=floor)
    return std if ceiling == math.inf else std.clamp(max=ceiling)


def replay_log_prob(
    table: Table,
    predict: Predict,
    chain: Tensor,
    floor: float | Tensor,
    ceiling: float = math.inf,
) -> Tensor:
    """Return elementwise log densities [B, K', T, A] of each step of chains [B, K'+1, T, A]."""
    rows = table_rows(table, chain.shape[1] - 1, chain)
    densities = []
    for k in range(len(rows)):  # one after another, to store the activations of one step only
        mean, std = transition_params(predict, rows[k].expand(len(chain), -1), chain[:, k])
        densities.append(normal_log_prob(chain[:, k + 1], mean, clamp_std(std, floor, ceiling)))
    return torch.stack(densities, 1)


def mean_over_executed(values: Tensor, executed: Tensor, first: int) -> Tensor:
    """Return the mean of values [B, T, A] over the executed actions, [B].

    executed: [B, H], of the actions from the current step on, which is index `first` of the
    horizon.
    """
    weights = executed.to(values.dtype)
    means = values[:, first : first + executed.shape[-1]].mean(-1)
    return (means * weights).sum(-1) / weights.sum(-1).clamp(min=1)
