"""Critic convergence, standard errors and confidence intervals.

Critic convergence states how close the critic can be to its fixed point. It assumes that the critic
always equals r + discount * target. Each target update moves the target network toward the critic
by the fraction tau. This reduces the distance to the fixed point by the fraction
tau * (1 - discount). A score that is measured at low convergence describes the first updates and
little else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

MIN_CONVERGENCE = 0.9  # below it a result is marked unfinished and not compared
NORMAL = 1.959964  # 97.5 % quantile of the standard normal distribution


def critic_convergence(target_updates: float, tau: float, discount: float) -> float:
    """Return the critic convergence, 1 - (1 - tau (1 - discount))^target_updates, in [0, 1]."""
    return 1 - (1 - tau * (1 - discount)) ** target_updates


def convergence_after(hyper: Mapping[str, Any], updates: int) -> float | None:
    """Return the critic convergence of a run with these hyper-parameters after `updates` updates.

    None if no critic bootstraps from a target network: `hyper` has no discount or no tau, or the
    values are learned from rollouts (`trace`).
    """
    if hyper.get("tau") is None or hyper.get("discount") is None or "trace" in hyper:
        return None
    return critic_convergence(
        updates / hyper.get("policy_delay", 1), hyper["tau"], hyper["discount"]
    )


def convergence_text(share: float | None) -> str:
    """Return a convergence in per cent, rounded down. Low values are marked as unfinished."""
    if share is None:
        return ""
    return f"{math.floor(100 * share)} %" + ("" if share >= MIN_CONVERGENCE else ", unfinished")


def evaluation_error(returns: np.ndarray) -> float | None:
    """Return the standard error of the mean over episodes; None for fewer than two episodes.

    returns: [S, E]. Episode e has the same initial state for every seed. Therefore the error is
    computed from the E means over seeds.
    """
    means = np.asarray(returns, np.float64).mean(0)
    return float(means.std(ddof=1) / math.sqrt(len(means))) if len(means) > 1 else None


def last_mean(curve: Mapping[int, float], count: int = 5) -> float | None:
    """Return the mean of the last `count` evaluations after the first update; None without any."""
    values = [value for updates, value in sorted(curve.items()) if updates][-count:]
    return float(np.mean(values)) if values else None


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a probability from `successes` in `trials`."""
    p, z = successes / trials, NORMAL
    center = (p + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z / (1 + z**2 / trials) * math.sqrt(p * (1 - p) / trials + z**2 / (4 * trials**2))
    return max(center - half, 0.0), min(center + half, 1.0)  # rounding can exceed 0 and 1
