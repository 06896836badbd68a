"""Denoising as decisions: what each of a sampler's rounds draws, and how probable that was.

    round         0   …   K-K'-1 | K-K'  …  K-1
    network       the base's     | the one that is fine-tuned
    chain                      x_0  …  x_K'-1  x_K'       the last is the chunk

A round draws x_k+1 around a mean that its table and the network's answer give, with the table's
deviation or a floor's, whichever is larger: the last round of DDPM and DDIM has none of its own.
Sampling and log density have floors apart (Ren et al., arXiv:2409.00588, section 5.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from policies.heads.schedules import Round, Table

Predict = Callable[[Tensor, Tensor], Tensor]  # x [..., B, T, A], times [..., B] -> as x


def table_rows(table: Table, tuned: int, like: Tensor) -> Tensor:
    """The last `tuned` rounds' numbers, [K', 8]."""
    numbers = [float(number) for row in table[-tuned:] for number in row]
    return like.new_tensor(numbers).unflatten(0, (tuned, len(Round._fields)))


def transition_params(answer: Predict, numbers: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """What a round draws around, [..., B, T, A], and its own deviation, [..., B, 1, 1].

    numbers: [..., B, 8], of each row's round, as `rounds_of` has them.
    """
    columns: Any = [column[..., None, None] for column in numbers.unbind(-1)]
    r: Any = Round(*columns)
    f = answer(r.scale * x, numbers[..., 0])
    guess = (r.guess_x * x + r.guess_f * f).clip(-1, 1)
    return r.keep * x + r.follow * f + r.trust * guess, r.spread


def normal_log_prob(x: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Of a normal distribution, elementwise."""
    far = (x - mean) / deviation
    return -0.5 * far.square() - deviation.log() - 0.5 * math.log(2 * math.pi)


def sample_chain(
    table: Table,
    base: Predict,
    answer: Predict,
    noise: Tensor,
    *,
    tuned: int,
    floor: float | Tensor,
    ceiling: float = math.inf,
    cut: float,
) -> Tensor:
    """Chains [B, K'+1, T, A] out of noise [B, K+1, T, A], which is cut at +-`cut`.

    base: asked in all but the last `tuned` rounds.  floor, ceiling: of the deviation.
    """
    numbers = table_rows(table, len(table), noise)  # [K, 8]
    x, chain = noise[:, 0], []
    for k in range(len(table)):
        late = k >= len(table) - tuned
        chain += [x] if late else []
        rows = numbers[k].expand(len(x), -1)
        mean, spread = transition_params(answer if late else base, rows, x)
        x = mean + clamp_std(spread, floor, ceiling) * noise[:, k + 1].clamp(-cut, cut)
    return torch.stack([*chain, x], 1)


def clamp_std(spread: Tensor, floor: float | Tensor, ceiling: float) -> Tensor:
    """A deviation, not below `floor` nor above `ceiling`."""
    least = spread.clamp(min=floor)
    return least if ceiling == math.inf else least.clamp(max=ceiling)


def replay_log_prob(
    table: Table,
    answer: Predict,
    chain: Tensor,
    floor: float | Tensor,
    ceiling: float = math.inf,
) -> Tensor:
    """Log density of each round of chains [B, K'+1, T, A], elementwise: [B, K', T, A]."""
    numbers = table_rows(table, chain.shape[1] - 1, chain)
    found = []
    for k in range(len(numbers)):  # one after another: memory for one round's activations
        mean, spread = transition_params(answer, numbers[k].expand(len(chain), -1), chain[:, k])
        found.append(normal_log_prob(chain[:, k + 1], mean, clamp_std(spread, floor, ceiling)))
    return torch.stack(found, 1)


def mean_over_executed(values: Tensor, executed: Tensor, first: int) -> Tensor:
    """Of values [B, T, A] over the actions that were taken: [B].

    executed: [B, H], of those from the present one, the window's number `first`, on.
    """
    taken = executed.to(values.dtype)
    own = values[:, first : first + executed.shape[-1]].mean(-1)
    return (own * taken).sum(-1) / taken.sum(-1).clamp(min=1)
