"""Check of a compiled update against the graph that it was compiled from.

Compilers have bugs, and a wrong update can go unnoticed if its numbers are finite. One call on the
same inputs is enough to detect it, because the outputs depend on all of the compiled code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# Two correct programs round differently. A small error in a gradient can flip the sign of a step of
# Adam, so no fixed tolerance fits all parameters. Therefore the graph also runs with parameters
# that have artificial rounding errors, which shows how much correct results can differ.
ROUNDING = {"fp32": 2.0**-18, "tf32": 2.0**-10, "bf16": 2.0**-8}  # relative errors of parameters
# The artificial error of a parameter is proportional to sin(frequency * parameter). The graph runs
# once for each frequency.
FREQUENCIES = (1.2e4, 3.4e4)
FACTOR = 4.0  # allowed error / largest difference that the artificial rounding errors cause
FILL_SIZE = 0.02  # magnitude of the numbers that replace zero parameters
# Additional allowed error, relative to the norm of the output. Rounding can change which action is
# sampled or which element is the maximum.
TOLERANCE = 0.2
# Allowed norm of an output that is 0 in all runs of the graph. In the compiled update, terms that
# cancel may leave a rounding error.
CANCELED = 1e-6


class Outputs(NamedTuple):
    """Results of one call of an update."""

    changes: list[Tensor]  # change of each leaf of the state, [S, ...]; new value if integer
    metrics: Tensor  # [S, metrics]


def call(
    run: Callable[[list[Tensor], list[Tensor]], Tensor],
    leaves: list[Tensor],
    inputs: list[Tensor],
) -> Outputs:
    """Return the results of `run` on the state `leaves`; restore the state afterward."""
    saved = [x.clone() for x in leaves]
    try:
        metrics = run(leaves, inputs).clone()
        changes = [
            x - old if x.is_floating_point() else x.clone()
            for x, old in zip(leaves, saved, strict=True)
        ]
    finally:
        for x, old in zip(leaves, saved, strict=True):
            x.copy_(old)
    return Outputs(changes, metrics)


def fill_zeros(leaves: list[Tensor], parameters: Sequence[int]) -> None:
    """Replace parameter tensors that are all zero by small numbers, in place.

    If an output layer is zero, the gradients of the layers before it are zero, and wrong code for
    them would go unnoticed. A number depends only on its position in the tensor, so equal tensors
    stay equal.
    """
    for x in (leaves[k] for k in parameters):
        if not x.any():
            positions = torch.arange(1, x[0].numel() + 1, device=x.device, dtype=x.dtype)
            x.copy_(FILL_SIZE * positions.sin().view_as(x[0]))


def call_with_rounding_errors(
    run: Callable[[list[Tensor], list[Tensor]], Tensor],
    leaves: list[Tensor],
    inputs: list[Tensor],
    parameters: Sequence[int],
    size: float,
) -> list[Outputs]:
    """Return the results of `run` for parameters with relative errors of `size`.

    The error of a parameter depends only on its value, so equal parameters, such as those of a new
    target network, stay equal. No random numbers are used.
    """
    results = []
    saved = [leaves[k].clone() for k in parameters]
    try:
        for frequency in FREQUENCIES:
            for k, x in zip(parameters, saved, strict=True):
                leaves[k].copy_(x * (1 + size * (frequency * x).sin()))
            results.append(call(run, leaves, inputs))
    finally:
        for k, x in zip(parameters, saved, strict=True):
            leaves[k].copy_(x)
    return results


def difference(
    expected: Outputs, actual: Outputs, rounded: Sequence[Outputs], names: Sequence[str]
) -> str | None:
    """Describe the first wrong output in `actual`; return None if all outputs are right.

    rounded: correct results with rounding errors. names: of the leaves, then of the metrics.
    """

    def columns(outputs: Outputs) -> list[Tensor]:
        return [*outputs.changes, *outputs.metrics.unbind(1)]

    rows = zip(columns(expected), columns(actual), *map(columns, rounded), strict=True)
    for name, (right, value, *variants) in zip(names, rows, strict=True):
        if not right.is_floating_point():
            if not torch.equal(right, value):
                return f"{name} is wrong"
            continue
        finite = right.isfinite()
        if not torch.equal(finite, value.isfinite()):
            return f"{name} is not finite"

        def norm(x: Tensor, finite: Tensor = finite) -> Tensor:  # per seed, [S]
            usable = torch.where(finite & x.isfinite(), x, 0.0)
            rows = usable.flatten(1) if x.dim() > 1 else usable[:, None]
            return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)

        error, size = norm(value - right), torch.maximum(norm(right), norm(value))
        noise = torch.stack([norm(x - right) for x in variants]).amax(0)
        allowed = TOLERANCE * size + FACTOR * noise
        allowed = torch.where((norm(right) == 0) & (noise == 0), CANCELED, allowed)
        if (error > allowed).any():
            share = (error / size).nan_to_num().max()  # a seed without error may have size 0
            return f"{name} differs by {100 * share.item():.0f} %"
    return None
