"""Differentiable robustness of formulas in torch, for training through known dynamics.

The minimum of a set x is replaced by -log(sum(exp(-k x))) / k, and the maximum by its mirror image
(Leung et al., arXiv:2008.00097; Meng and Fan, arXiv:2309.05131). The smooth minimum is at most the
minimum, and lower by at most log(n) / k for n values. The smooth maximum is at least the maximum.
Thus a positive smooth robustness proves a formula that contains minima only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from policies.stl.formula import (
    Always,
    And,
    Eventually,
    Formula,
    Node,
    Not,
    Or,
    Predicate,
    Signal,
    Until,
    Window,
)

INFINITE = 1e9  # robustness over a window without steps; a finite number keeps gradients finite


def smooth_robustness(
    formula: Formula, values: Mapping[Signal, Tensor], *, sharpness: float | None
) -> Tensor:
    """Return the smooth robustness at every step, [..., T].

    values: [..., T] by signal. sharpness: factor k; larger is closer to the exact robustness. None:
    exact minima and maxima, with the gradient of the smallest or largest value.
    """
    return Smooth(sharpness).evaluate(formula.root, values)


@dataclass(frozen=True)
class Smooth:
    """Rules for the smooth robustness of all operators."""

    sharpness: float | None  # factor k; None: exact

    def evaluate(self, node: Node, values: Mapping[Signal, Tensor]) -> Tensor:
        """Return the robustness of a node at every step, [..., T]."""
        match node:
            case Predicate(terms, constant, _):
                return torch.stack([c * values[s] for s, c in terms]).sum(0) + constant
            case Not(part):
                return -self.evaluate(part, values)
            case And(parts):
                return self.minimum(torch.stack([self.evaluate(x, values) for x in parts], -1))
            case Or(parts):
                return -self.minimum(-torch.stack([self.evaluate(x, values) for x in parts], -1))
            case Always(part, window):
                return self.minimum_over(self.evaluate(part, values), window)
            case Eventually(part, window):
                return -self.minimum_over(-self.evaluate(part, values), window)
            case Until(left, right, window):
                return self.until(self.evaluate(left, values), self.evaluate(right, values), window)

    def minimum(self, x: Tensor) -> Tensor:
        """Return the smooth minimum over the last axis."""
        if self.sharpness is None:
            return x.amin(-1)
        return -torch.logsumexp(-self.sharpness * x, -1) / self.sharpness

    def minimum_over(self, x: Tensor, window: Window) -> Tensor:
        """Return the smooth minimum of x [..., T] over the window from each step, [..., T]."""
        end, steps = window_end(window, x), range(x.shape[-1])
        parts = [x[..., t + window.start : t + end] for t in steps]
        empty = torch.full_like(x[..., 0], INFINITE)
        return torch.stack([self.minimum(part) if part.shape[-1] else empty for part in parts], -1)

    def until(self, left: Tensor, right: Tensor, window: Window) -> Tensor:
        """Return the smooth robustness of `left until right` at every step, [..., T]."""
        end, count, results = window_end(window, left), left.shape[-1], list[Tensor]()
        for t in range(count):
            options = [
                self.minimum(torch.cat([right[..., k, None], left[..., t : k + 1]], -1))
                for k in range(t + window.start, min(t + end, count))
            ]
            empty = torch.full_like(left[..., 0], -INFINITE)
            results.append(-self.minimum(-torch.stack(options, -1)) if options else empty)
        return torch.stack(results, -1)


def window_end(window: Window, x: Tensor) -> int:
    """Return the number of steps from now to the end of a window, exclusive."""
    return x.shape[-1] if window.stop is None else window.stop + 1
