"""Exact robustness of formulas on recorded signals (Donze and Maler, FORMATS 2010).

Robustness is the margin of a formula: positive where it holds, negative where it does not. At the
end of an episode, windows are cut to the recorded steps. Over a window without any recorded step,
always has the robustness inf and eventually has -inf.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

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

Values = Mapping[Signal, np.ndarray]  # [..., T] by signal: one value per step


def robustness(formula: Formula, values: Values) -> np.ndarray:
    """Return the robustness at every step, [..., T] float64."""
    return evaluate(formula.root, values)


def is_satisfied(formula: Formula, values: Values) -> np.ndarray:
    """Return True where the formula holds, [..., T].

    The sign of the robustness gives the same answer, unless the robustness is 0: x <= 0 holds for
    x = 0, and x < 0 does not.
    """
    return evaluate(formula.root, values, signs=True) > 0


def evaluate(node: Node, values: Values, *, signs: bool = False) -> np.ndarray:
    """Return the robustness at every step. signs: of predicates, use 1 if true, otherwise -1."""
    match node:
        case Predicate(terms, constant, strict):
            margin = np.asarray(
                sum((c * np.asarray(values[s], np.float64) for s, c in terms), start=constant)
            )
            if signs:
                return np.where(margin > 0 if strict else margin >= 0, 1.0, -1.0)
            return margin
        case Not(part):
            return -evaluate(part, values, signs=signs)
        case And(parts):
            return np.minimum.reduce([evaluate(part, values, signs=signs) for part in parts])
        case Or(parts):
            return np.maximum.reduce([evaluate(part, values, signs=signs) for part in parts])
        case Always(part, window):
            return minimum_over(evaluate(part, values, signs=signs), window)
        case Eventually(part, window):
            return -minimum_over(-evaluate(part, values, signs=signs), window)
        case Until(left, right, window):
            held = evaluate(left, values, signs=signs)
            return until(held, evaluate(right, values, signs=signs), window)


def minimum_over(x: np.ndarray, window: Window) -> np.ndarray:
    """Return the minimum of x [..., T] over the window that starts at each step, [..., T]."""
    if window.stop is None or window.stop >= x.shape[-1] - 1:
        return advanced(np.minimum.accumulate(x[..., ::-1], axis=-1)[..., ::-1], window.start)
    # minima over 1, 2, 4, … steps; the last two of them cover the window
    size, width = 1, window.stop - window.start + 1
    while 2 * size <= width:
        x, size = np.minimum(x, advanced(x, size)), 2 * size
    return advanced(np.minimum(x, advanced(x, width - size)), window.start)


def until(left: np.ndarray, right: np.ndarray, window: Window) -> np.ndarray:
    """Return the robustness of `left until right` at every step, [..., T]."""
    if window.stop is None:  # backward in time; then the steps before the window need only `left`
        result = np.minimum(left, right)
        for t in range(left.shape[-1] - 2, -1, -1):
            later = np.minimum(left[..., t], result[..., t + 1])
            result[..., t] = np.maximum(result[..., t], later)
        held = minimum_over(left, Window(0, window.start))
        return np.minimum(held, advanced(result, window.start, -np.inf))
    held, result = np.full_like(left, np.inf), np.full_like(left, -np.inf)
    for k in range(min(window.stop, left.shape[-1] - 1) + 1):
        held = np.minimum(held, advanced(left, k))
        if k >= window.start:
            result = np.maximum(result, np.minimum(held, advanced(right, k, -np.inf)))
    return result


def advanced(x: np.ndarray, steps: int, fill: float = np.inf) -> np.ndarray:
    """Return x [..., T] moved `steps` steps to the left, with `fill` beyond the last step."""
    result = np.full_like(x, fill)
    if steps < x.shape[-1]:
        result[..., : x.shape[-1] - steps] = x[..., steps:]
    return result
