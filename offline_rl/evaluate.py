"""Scores: whole episodes of deterministic policies, all seeds and episodes side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from envs import VectorEnv
from policies.normaliser import Normaliser

EVALUATION_SEED = 1_000_000_000  # episode k of every evaluation starts from this + k
Act = Callable[[np.ndarray], np.ndarray]  # normalised observations [B, *obs] -> actions [B, A]


class Episodes(NamedTuple):
    """What B episodes came to."""

    returns: np.ndarray  # [B] float64, undiscounted raw rewards
    lengths: np.ndarray  # [B] int
    success: np.ndarray | None  # [B] bool, where the environment tells
    seeds: np.ndarray  # [B] int


def rollout(env: VectorEnv, act: Act, normaliser: Normaliser, seeds: np.ndarray) -> Episodes:
    """One episode in each environment from each seed; those that ended wait for the rest."""
    observations = env.reset([int(seed) for seed in seeds])
    returns, lengths = np.zeros(env.num_envs), np.zeros(env.num_envs, int)
    success, told = np.zeros(env.num_envs, bool), False
    running = np.arange(env.num_envs)
    while len(running):
        actions = act(normaliser(observations))
        step = env.step(actions[running], running)
        returns[running] += step.rewards
        lengths[running] += 1
        for key in ("success", "is_success"):
            if key in step.infos:
                told = True
                success[running] |= step.infos[key].astype(bool)
        observations[running] = step.observations
        running = running[~(step.terminated | step.truncated)]
    return Episodes(returns, lengths, success if told else None, np.asarray(seeds))
