"""Running episodes of several environments: all steps since the first observation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from envs import VectorEnv
from envs.adapters import SUCCESS
from envs.vector import Step
from offline_rl.data.transform import Transform
from offline_rl.replay.columns import COLUMNS
from offline_rl.utils.errors import UserError
from policies import channels
from policies.channels import Observations


class Episodes:
    """Running episodes of R environments, in arrays [R, …].

    Observations and rewards are those of the algorithm: normalized and transformed.
    """

    def __init__(
        self, count: int, env: VectorEnv, transform: Transform, info_columns: Sequence[str]
    ) -> None:
        """Allocate `count` episodes in environments like `env`.

        info_columns: columns that the environment reports at every step.
        """
        self.transform, longest = transform, env.max_episode_steps
        self.numbers = np.zeros(count, np.int64)  # index of the episode in the run of its seed
        self.seeds = np.zeros(count, np.int64)
        self.lengths = np.zeros(count, np.int64)  # steps so far
        self.mishaps = np.zeros(count, np.int64)  # failed episodes since the last complete one
        self.returns, self.costs = np.zeros((2, count))  # sums of raw rewards and of costs
        self.succeeded = np.zeros(count, np.int8)  # 1: at any step, 0: never, -1: not reported
        self.observations = channels.map_channels(
            lambda shape: np.zeros((count, longest + 1, *shape), channels.dtype(shape)),
            env.observation_shape,
        )
        self.actions = np.zeros((count, longest, env.action_dim), np.float32)
        self.rewards = np.zeros((count, longest), np.float32)
        self.infos = {name: np.zeros((count, longest), np.float32) for name in info_columns}
        self.decided = np.zeros(count, np.int64)  # lengths at the start of the last decision
        self.last_rewards = np.zeros(count, np.float32)  # raw, of the last decision
        self.last_costs = np.zeros(count, np.float32)  # likewise
        self.reports_costs = True  # False if the last step reported no costs
        self.terminated, self.truncated = np.zeros((2, count), bool)  # by the last decision

    def begin_decision(self) -> None:
        """Start a decision: store where it starts, and reset what its steps report."""
        self.decided = self.lengths.copy()
        self.terminated[:] = self.truncated[:] = False
        self.last_rewards[:] = self.last_costs[:] = 0

    def start(self, rows: np.ndarray, observations: Observations) -> None:
        """Store the first raw observations of the episodes of `rows`."""
        channels.assign(self.observations, (rows, 0), self.transform.normalizer(observations))
        self.returns[rows], self.costs[rows], self.succeeded[rows] = 0, 0, -1

    def record(self, rows: np.ndarray, t: int | np.ndarray, steps: Sequence[Step]) -> None:
        """Store the results of the actions `t` of the episodes of `rows`.

        steps: together, they contain all `rows` in this order. Raises UserError if an environment
        does not report a required info.
        """
        observations = channels.concatenate([step.observations for step in steps])
        channels.assign(self.observations, (rows, t + 1), self.transform.normalizer(observations))
        rewards = np.concatenate([step.rewards for step in steps])
        self.rewards[rows, t] = self.transform.apply_to_rewards(rewards)
        self.returns[rows] += rewards
        self.last_rewards[rows] = rewards
        self.reports_costs = all("cost" in step.infos for step in steps)
        if self.reports_costs:
            self.last_costs[rows] = np.concatenate([step.infos["cost"] for step in steps])
            self.costs[rows] += self.last_costs[rows]
        self.terminated[rows] = np.concatenate([step.terminated for step in steps])
        self.truncated[rows] = np.concatenate([step.truncated for step in steps])
        success = np.concatenate([success_of(step) for step in steps])
        self.succeeded[rows] = np.maximum(self.succeeded[rows], success)
        for name, values in self.infos.items():
            values[rows, t] = np.concatenate([required_info(step, name) for step in steps])

    def history(self, n_obs_steps: int) -> Observations:
        """Return the last observations, [R, n_obs_steps, *obs]; the first one is repeated."""
        t = (self.lengths[:, None] + np.arange(1 - n_obs_steps, 1)).clip(0)
        return channels.take(self.observations, (np.arange(len(t))[:, None], t))

    def transitions(self, rows: int | np.ndarray, t: np.ndarray) -> dict[str, Any]:
        """Return the columns of a batch, [K, …] each, for the steps `t` [K] of episodes `rows`.

        The info columns are included, such as `steps`, the environment steps of each transition.
        """
        is_last = t == self.lengths[rows] - 1
        return {
            "observations": channels.take(self.observations, (rows, t)),
            "actions": self.actions[rows, t],
            "rewards": self.rewards[rows, t],
            "terminated": self.terminated[rows] & is_last,
            "truncated": self.truncated[rows] & is_last,
            "next_observations": channels.take(self.observations, (rows, t + 1)),
            **{name: values[rows, t] for name, values in self.infos.items()},
        }


def success_of(step: Step) -> np.ndarray:
    """Return the success that a step reports, [B]: 1, 0, or -1 if it reports none."""
    reported = [np.asarray(v, bool) for k, v in step.infos.items() if k in SUCCESS]
    return np.any(reported, axis=0) if reported else np.full(len(step.rewards), -1, np.int8)


def required_info(step: Step, column: str) -> np.ndarray:
    """Return the info that becomes the batch column `column`, [B].

    Raises UserError if it is missing, or if a cost is negative.
    """
    if (info := COLUMNS[column].info) not in step.infos:
        raise UserError(
            f"the environment returns no info {info!r}, but the algorithm learns from {column}. "
            "Add it to the info of every step."
        )
    if column == "costs" and (lowest := step.infos[info].min()) < 0:
        raise UserError(
            f"the environment returned a cost of {lowest:g}. A cost is at least 0. Correct the "
            f"info {info!r}."
        )
    return step.infos[info]
