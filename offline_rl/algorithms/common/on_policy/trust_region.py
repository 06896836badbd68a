"""The natural-gradient step of trust-region methods, for H policies at once.

Schulman et al., arXiv:1502.05477, appendix C. Parameters have the leading axis H, one policy for
each step of the episode. Each policy has a separate step size. No control flow depends on tensor
values: the numbers of iterations and of line-search trials are fixed, and masks select the results.
Both are `scan` loops in the graph of the update, so its size does not depend on these numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from offline_rl.algorithms.common.base import Params
from offline_rl.algorithms.common.scan import scan

Objective = Callable[[Params], Tensor]  # parameters -> one number for each policy, [H]
TOLERANCE = 1e-10  # squared residual below which conjugate gradients stop
ITERATIONS, TRIALS = 10, 10
ACCEPTED = 0.1  # minimum improvement, as a share of the expected one


class NaturalStep(NamedTuple):
    """Result of `natural_step`."""

    params: dict[str, Tensor]
    direction: dict[str, Tensor]  # natural gradient, from conjugate gradients
    accepted: Tensor  # [H], 1 where the line search found a step, else 0


def natural_step(
    params: Params,
    loss: Objective,
    kl: Objective,
    *,
    max_kl: float | Tensor,
    damping: float | Tensor,
) -> NaturalStep:
    """Return parameters after a step that lowers `loss` and increases `kl` by about max_kl.

    kl: KL divergence from the policies of `params`. Its Hessian is the Fisher matrix.
    """
    before = loss(params)
    descent = {k: -g for k, g in grad(lambda p: loss(p).sum())(params).items()}

    def fisher(v: Params) -> dict[str, Tensor]:
        point = {k: value.view_as(value) for k, value in params.items()}  # see `scan`
        slope = grad(lambda p: dot(grad(lambda q: kl(q).sum())(p), v).sum())(point)
        return {k: x + damping * v[k] for k, x in slope.items()}

    x = conjugate_gradients(fisher, descent)
    curvature = 0.5 * dot(x, fisher(x))
    size = torch.where(curvature > 0, (max_kl / curvature.clamp(min=1e-30)).sqrt(), 0)
    full, expected = scaled(x, size), size * dot(descent, x)

    def search(carry: Any, share: Tensor) -> tuple[Any, Tensor]:
        result, accepted = carry
        new = {k: value + share * full[k] for k, value in params.items()}
        gain = before - loss(new)
        is_good = (gain > ACCEPTED * share * expected) & (gain > 0) & (accepted == 0)
        result = {
            k: torch.where(along(is_good, value), new[k], value) for k, value in result.items()
        }
        return (result, torch.where(is_good, 1.0, accepted)), gain

    shares = 0.5 ** torch.arange(TRIALS, dtype=before.dtype, device=before.device)
    (result, accepted), _ = scan(search, (dict(params), torch.zeros_like(before)), shares)
    return NaturalStep(result, x, accepted)


def conjugate_gradients(product: Callable[[Params], Params], b: Params) -> dict[str, Tensor]:
    """Return an approximate solution x of product(x) = b, for H systems at once."""
    square = dot(b, b)
    start = {k: torch.zeros_like(value) for k, value in b.items()}, dict(b), dict(b), square

    def iterate(carry: Any, _: Tensor) -> tuple[Any, Tensor]:
        x, residual, direction, square, active = carry
        image = product(direction)
        curvature = dot(direction, image)
        alpha = torch.where(active > 0, square / torch.where(active > 0, curvature, 1), 0)
        x = add(x, scaled(direction, alpha))
        residual = add(residual, scaled(image, -alpha))
        new_square = dot(residual, residual)
        beta = torch.where(active > 0, new_square / torch.where(active > 0, square, 1), 0)
        direction = add(residual, scaled(direction, beta))
        active = active * (new_square >= TOLERANCE)
        return (x, residual, direction, new_square, active), new_square

    carry, _ = scan(iterate, (*start, (square > 0).to(square)), square.new_zeros(ITERATIONS))
    return carry[0]


def dot(a: Params, b: Params) -> Tensor:
    """Return the inner products of H pairs of vectors, [H]."""
    return torch.stack([(a[k] * b[k]).flatten(1).sum(1) for k in a]).sum(0)


def add(a: Params, b: Params) -> dict[str, Tensor]:
    """Return the sum of two trees."""
    return {k: value + b[k] for k, value in a.items()}


def scaled(tree: Mapping[str, Tensor], factors: Tensor) -> dict[str, Tensor]:
    """Return each of H vectors times a factor. factors: [H]."""
    return {k: along(factors, value) * value for k, value in tree.items()}


def along(values: Tensor, like: Tensor) -> Tensor:
    """Return values [H] with axes of size 1 for the other axes of `like` [H, ...]."""
    return values.reshape(-1, *[1] * (like.dim() - 1))
