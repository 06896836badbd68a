"""Check of a compiled update against the graph that it was compiled from.

Compilers have faults, and a wrong update can go unnoticed: its numbers may be finite, and training
goes on. One call on the same inputs is enough to see it, because every output depends on all that
was compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# Two correct programs round differently. A small error of one gradient can turn the sign of one
# step of Adam, so no fixed tolerance fits parameters. The graph itself, run with parameters that
# differ by rounding errors, shows how far a correct result may lie from another one.
ROUNDING = {"fp32": 2.0**-18, "tf32": 2.0**-10, "bf16": 2.0**-8}  # relative, of the parameters
FREQUENCIES = (1.2e4, 3.4e4)  # one run with such rounding errors for each
FACTOR = 4.0  # allowed difference, in units of the largest difference between those runs
FILLED = 0.02  # size of parameters in place of zeros
TOLERANCE = 0.2  # allowed on top of it, relative to the output: a sample or a maximum may change


CANCELLED = 1e-6  # allowed where all runs of the graph give 0: terms may cancel to a rounding error


class Outputs(NamedTuple):
    """Results of one call of an update."""

    changes: list[Tensor]  # of the state's leaves, [S, ...]; integers: their new values
    metrics: Tensor  # [S, metrics]


def call(
    run: Callable[[list[Tensor], list[Tensor]], Tensor],
    leaves: list[Tensor],
    inputs: list[Tensor],
) -> Outputs:
    """Return what `run` computes from the state `leaves`, which is put back afterward."""
    before = [x.clone() for x in leaves]
    try:
        metrics = run(leaves, inputs).clone()
        changes = [
            x - old if x.is_floating_point() else x.clone()
            for x, old in zip(leaves, before, strict=True)
        ]
    finally:
        for x, old in zip(leaves, before, strict=True):
            x.copy_(old)
    return Outputs(changes, metrics)


def fill_zeros(leaves: list[Tensor], parameters: Sequence[int]) -> None:
    """Replace parameters that are all zero by small numbers, in place.

    Behind an output layer that starts at zero all gradients are zero, and a wrong program for them
    would go unnoticed. The numbers depend on the place alone, so equal parameters stay equal.
    """
    for x in (leaves[k] for k in parameters):
        if not x.any():
            places = torch.arange(1, x[0].numel() + 1, device=x.device, dtype=x.dtype)
            x.copy_(FILLED * places.sin().view_as(x[0]))


def rounded(
    run: Callable[[list[Tensor], list[Tensor]], Tensor],
    leaves: list[Tensor],
    inputs: list[Tensor],
    parameters: Sequence[int],
    size: float,
) -> list[Outputs]:
    """Return what `run` computes from parameters with errors of `size`, relative.

    The errors are a function of the value alone: equal parameters, as those of a new target
    network, stay equal. No random numbers are drawn.
    """
    found = []
    before = [leaves[k].clone() for k in parameters]
    try:
        for frequency in FREQUENCIES:
            for k, x in zip(parameters, before, strict=True):
                leaves[k].copy_(x * (1 + size * (frequency * x).sin()))
            found.append(call(run, leaves, inputs))
    finally:
        for k, x in zip(parameters, before, strict=True):
            leaves[k].copy_(x)
    return found


def difference(
    expected: Outputs, found: Outputs, others: Sequence[Outputs], names: Sequence[str]
) -> str | None:
    """Return a phrase about the first output that is wrong; None if all are right.

    others: results that would be right too. names: of the leaves, then of the metrics.
    """

    def columns(outputs: Outputs) -> list[Tensor]:
        return [*outputs.changes, *outputs.metrics.unbind(1)]

    rows = zip(columns(expected), columns(found), *map(columns, others), strict=True)
    for name, (right, own, *more) in zip(names, rows, strict=True):
        if not right.is_floating_point():
            if not torch.equal(right, own):
                return f"{name} is wrong"
            continue
        sound = right.isfinite()
        if not torch.equal(sound, own.isfinite()):
            return f"{name} is not finite"

        def norm(x: Tensor, sound: Tensor = sound) -> Tensor:  # of each seed, [S]
            usable = torch.where(sound & x.isfinite(), x, 0.0)
            rows = usable.flatten(1) if x.dim() > 1 else usable[:, None]
            return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)

        error, size = norm(own - right), torch.maximum(norm(right), norm(own))
        noise = torch.stack([norm(x - right) for x in more]).amax(0)
        allowed = TOLERANCE * size + FACTOR * noise
        allowed = torch.where((norm(right) == 0) & (noise == 0), CANCELLED, allowed)
        if (error > allowed).any():
            share = (error / size).nan_to_num().max()  # a seed without error may have size 0
            return f"{name} differs by {100 * share.item():.0f} %"
    return None
