"""How far a result had come, and how sure it is: small functions of numbers.

Values form slowly: a critic that meets its goal at once, r + discount * target, whose target moves
by the share `tau` each update, comes nearer to its fixed point by tau * (1 - discount) an update of
the target. Before most of the way is gone a score says what the first updates do, and little else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

FORMED = 0.9  # of their way that values must have gone for a result to be compared
NORMAL = 1.959964  # 97.5 % of the normal distribution lie below


def formed(target_updates: float, tau: float, discount: float) -> float:
    """The share to which values have formed: 1 - (1 - tau (1 - discount))^target_updates."""
    return 1 - (1 - tau * (1 - discount)) ** target_updates


def formed_share(hyper: Mapping[str, Any], updates: int) -> float | None:
    """`formed` after `updates` updates of a run with these hyper-parameters.

    None where nothing bootstraps: no discount, or no target that follows, as of values that are
    learned from rollouts (by a trace).
    """
    if hyper.get("tau") is None or hyper.get("discount") is None or "trace" in hyper:
        return None
    return formed(updates / hyper.get("policy_delay", 1), hyper["tau"], hyper["discount"])


def formed_text(share: float | None) -> str:
    """In per cent rounded down, and whether that is too little; nothing without values."""
    if share is None:
        return ""
    return f"{math.floor(100 * share)} %" + ("" if share >= FORMED else ", unfinished")


def evaluation_error(returns: np.ndarray) -> float | None:
    """Standard error of the mean over episodes, returns [S, E]; None of fewer than two episodes.

    Episode e of every seed begins alike, so the seeds' mean is what differs from start to start.
    """
    means = np.asarray(returns, np.float64).mean(0)
    return float(means.std(ddof=1) / math.sqrt(len(means))) if len(means) > 1 else None


def last_mean(curve: Mapping[int, float], count: int = 5) -> float | None:
    """The mean of the last `count` evaluations, those before the first update left out."""
    values = [value for updates, value in sorted(curve.items()) if updates][-count:]
    return float(np.mean(values)) if values else None


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a probability from `successes` in `trials`."""
    p, z = successes / trials, NORMAL
    center = (p + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z / (1 + z**2 / trials) * math.sqrt(p * (1 - p) / trials + z**2 / (4 * trials**2))
    return max(center - half, 0.0), min(center + half, 1.0)  # rounded, an end passes 0 or 1
