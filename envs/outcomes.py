"""Termination and reward of a transition as functions, for rollouts of a dynamics model.

The functions work on numpy arrays and torch tensors alike, so a simulator and a model rollout share
one formula. On tensors, they never read a value or branch on it, so they can be traced, vectorized
(`torch.func.vmap`) and captured in a CUDA graph.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

# (observations [..., O], actions [..., A] in [-1, 1], next observations [..., O]) -> [...]
# Observations are in the task's units, not normalized.
Function = Callable[[Any, Any, Any], Any]
# (observations, actions, rewards [...], next observations) -> costs [...]. The files of
# envs/suites have a table `COSTS`, from which data sets without costs get them.
CostFunction = Callable[[Any, Any, Any, Any], Any]
NUMPY = (np.ndarray, np.generic)


@dataclass(frozen=True)
class Outcomes:
    """Termination and reward as functions of a transition.

    Each file in `envs/suites` has a table `OUTCOMES` for its environments.
    """

    # True where a transition terminates the episode (time limits do not count). Keys:
    #   task: the environment's rule, as far as observations determine it
    #   published: the rule of published model-based code, if it differs
    ends: Mapping[str, Function]
    # the environment's reward; None if the transition does not determine it
    reward: Function | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.ends, Mapping) or not {*self.ends} <= {"task", "published"}:
            given = [*self.ends] if isinstance(self.ends, Mapping) else type(self.ends).__name__
            raise ValueError(
                f"ends is {given}. Use a dict of functions with the keys task or published, such "
                'as {"task": is_end}.'
            )
        for name, function in {**self.ends, "reward": self.reward}.items():
            if not callable(function) and (name != "reward" or function is not None):
                raise ValueError(f"{name} is {type(function).__name__}. Use a function.")

    def end_rule(self, rule: str) -> str:
        """Return the key of `ends` for a rule: without a published rule, it is the task's."""
        return "task" if rule == "published" and rule not in self.ends else rule


def library(array: Any) -> Any:
    """Return the module whose functions apply to `array`: numpy or torch."""
    if isinstance(array, NUMPY):
        return np
    import torch

    return torch


def never(s: Any, a: Any, s2: Any) -> Any:
    """Return False everywhere: no transition terminates the episode."""
    return abs(s2[..., 0]) < 0  # false for NaN too


def out_of_bounds(s: Any, a: Any, s2: Any) -> Any:
    """True where an observed number is not strictly between -100 and 100 (NaN included)."""
    return ~(abs(s2) < 100).all(-1)


def finite(array: Any) -> Any:
    """True where all numbers [..., N] are finite."""
    return library(array).isfinite(array).all(-1)
