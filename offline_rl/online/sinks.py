"""Destinations of collected experience: a replay buffer, or a store of on-policy rollouts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offline_rl.algorithms.common.schedule import ONLINE, Online
from offline_rl.data import Dataset
from offline_rl.engine.engine import Engine
from offline_rl.online.episodes import Episodes
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.columns import reported
from offline_rl.replay.rollouts import Rollouts
from offline_rl.utils.errors import UserError
from policies import channels, noise

Columns = Callable[[Dataset], Mapping[str, np.ndarray]]


class Sink(ABC):
    """Destination of the experience of R environments, sorted by seed. It chooses the actions.

    A decision is a chunk of `n_action_steps` actions in every environment.
    """

    n_action_steps = 1
    appends_steps = False  # steps are in the replay buffer before their episode ends
    buffer: Any  # the algorithm's source of batches

    def __init__(
        self, engine: Engine, envs_per_seed: int, replay: ReplayBuffer | None, columns: Columns
    ) -> None:
        """Create a sink.

        replay: buffer for complete episodes. columns: computes its extra columns from an episode.
        """
        self.engine, self.replay, self.columns = engine, replay, columns
        self.envs_per_seed, self.shape = envs_per_seed, (len(engine.seeds), envs_per_seed)
        self.info_columns = [*reported({} if replay is None else replay.columns)]

    def check(self, longest: int) -> None:  # noqa: B027 (most sinks accept any length)
        """Raise UserError if episodes of `longest` steps are too short or too long."""

    def start_episodes(self, episodes: Episodes, rows: np.ndarray) -> None:  # noqa: B027
        """Start the episodes of `rows`, before their first observation."""

    @abstractmethod
    def decide(self, episodes: Episodes, env_steps: int) -> np.ndarray:
        """Return actions [R, n_action_steps, A]. env_steps: steps per seed so far."""

    @abstractmethod
    def end_decision(self, episodes: Episodes) -> None:
        """Store the steps of the last decision. Failed environments have executed no step."""

    def end_episode(self, episodes: Episodes, row: int) -> None:
        """Append a complete episode to the replay buffer, if there is one."""
        if self.replay is None:
            return
        s, length = row // self.envs_per_seed, int(episodes.lengths[row])
        if not self.appends_steps:
            self.replay.append(s, episodes.transitions(row, np.arange(length)))
        if self.replay.waits_for_episode_end:
            self.replay.release(s, self.columns(self.replay.newest(s, length)))

    def drop_episode(self, episodes: Episodes, row: int) -> None:  # noqa: B027
        """Remove the stored steps of an episode that failed."""

    @abstractmethod
    def tensors(self, s: int) -> dict[str, Tensor]:
        """Return the tensors of seed s for a checkpoint, under `buffer/` and `memory/`."""

    @abstractmethod
    def load(self, s: int, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `tensors` returned."""


class ReplaySink(Sink):
    """Sink into a replay buffer. The exploring policy acts, and executes its chunks itself.

    With one environment per seed, each step is appended immediately. With several, each episode is
    appended at its end, so that its rows are adjacent.
    """

    def __init__(
        self,
        engine: Engine,
        buffer: ReplayBuffer,
        online: Online,
        columns: Columns,
        envs_per_seed: int = 1,
    ) -> None:
        super().__init__(engine, envs_per_seed, buffer, columns)
        self.buffer, self.online, self.appends_steps = buffer, online, envs_per_seed == 1
        self.policy = engine.stacked_policy(envs_per_seed, explore=True)
        needs_start = self.policy.has_memory and not self.policy.module.memory_starts_anywhere
        if needs_start and online.warmup_steps and online.warmup_policy == "random":
            raise UserError(
                "online.warmup_policy=random does not work with a "
                f"{type(self.policy.module).__name__}, whose memory must contain its own actions. "
                "Use online.warmup_policy=policy."
            )

    def check(self, longest: int) -> None:
        steps = self.policy.module.n_action_steps
        if steps > longest:
            raise UserError(
                f"A chunk of {steps} executed actions is longer than an episode of at most "
                f"{longest} steps. Lower algorithm.horizon or algorithm.n_action_steps."
            )

    def start_episodes(self, episodes: Episodes, rows: np.ndarray) -> None:
        self.policy.reset(episodes.seeds[rows], rows)

    def decide(self, episodes: Episodes, env_steps: int) -> np.ndarray:
        rows = np.arange(len(episodes.lengths))
        observations = channels.take(episodes.observations, (rows, episodes.lengths))
        if env_steps < self.online.warmup_steps:
            size, warmup_actions = episodes.actions.shape[-1], list[np.ndarray]()
            for row in rows.tolist():
                seed = self.engine.seeds[row // self.envs_per_seed]
                random = np.random.default_rng((seed, env_steps + row % self.envs_per_seed))
                action = self.online.warmup_action(random, channels.take(observations, row), size)
                warmup_actions += [] if action is None else [action]
            if warmup_actions:
                return np.asarray(warmup_actions, np.float32)[:, None]
        batch = channels.map_channels(
            lambda x: torch.from_numpy(x).unflatten(0, self.shape).to(self.engine.device),
            observations,
        )
        return self.policy(batch, env_steps).flatten(0, 1).cpu().numpy()[:, None]

    def end_decision(self, episodes: Episodes) -> None:
        rows = np.flatnonzero(episodes.lengths > episodes.decided)
        if self.appends_steps and len(rows):
            self.buffer.append(rows, episodes.transitions(rows, episodes.decided[rows]))
        if self.policy.has_memory:
            rewards, costs = (
                torch.from_numpy(x.copy()).unflatten(0, self.shape).to(self.engine.device)
                for x in (episodes.last_rewards, episodes.last_costs)
            )
            self.policy.observe(rewards, costs if episodes.reports_costs else None)

    def drop_episode(self, episodes: Episodes, row: int) -> None:
        if self.appends_steps:
            self.buffer.drop(row, int(episodes.lengths[row]))

    def tensors(self, s: int) -> dict[str, Tensor]:
        memory = add_prefix("memory/", self.policy.memory(s))
        return add_prefix("buffer/", self.buffer.stream_state(s)) | memory

    def load(self, s: int, tensors: Mapping[str, Tensor]) -> None:
        self.buffer.load(s, strip_prefix("buffer/", tensors))
        if memory := strip_prefix("memory/", tensors):
            self.policy.restore_memory(s, memory)


class RolloutSink(Sink):
    """Sink into on-policy rollouts. The algorithm's `decide` acts.

    If an episode ends within a decision, its remaining actions are not executed. If an environment
    fails, its episode is truncated before the decision.
    """

    def __init__(
        self,
        engine: Engine,
        rollouts: Rollouts,
        columns: Columns,
        replay: ReplayBuffer | None = None,
    ) -> None:
        """Create a sink. engine: of an algorithm with `decide` and `noise_shape`."""
        super().__init__(engine, rollouts.size[1], replay, columns)
        algorithm: Any = engine.for_phase(ONLINE)[0]
        self.buffer, self.cfg, self.noise_shape = rollouts, algorithm.cfg, algorithm.noise_shape
        self.n_action_steps = self.cfg.n_action_steps
        self._observed = np.zeros(0, np.float32)  # [R, n_obs_steps, O]
        self._decision: dict[str, Tensor] = {}  # further columns of the decision, [S, E, …]

    def check(self, longest: int) -> None:
        if self.n_action_steps > longest:
            raise UserError(
                f"n_action_steps={self.n_action_steps} is more than the {longest} steps of an "
                "episode. Train the policy with a lower n_action_steps."
            )
        steps, cfg = self.buffer.size[0] * self.n_action_steps, self.cfg
        if self.replay is not None and steps < longest:
            raise UserError(
                f"algorithm.decisions={cfg.decisions} in algorithm.environments={cfg.environments} "
                f"are {steps} steps per environment, fewer than the {longest} steps of an episode. "
                "Only episodes that end early, such as successes, would become new data. Lower "
                "algorithm.environments."
            )

    def decide(self, episodes: Episodes, env_steps: int) -> np.ndarray:
        self._observed = episodes.history(self.cfg.n_obs_steps)
        decisions = episodes.lengths // self.n_action_steps  # in each episode so far
        noise_rows = noise.normal(episodes.seeds, decisions, self.noise_shape)
        arrays = {"observations": self._observed, "noise": noise_rows}
        arrays["timesteps"] = episodes.lengths.astype(np.float32)
        inputs = {k: torch.from_numpy(v).unflatten(0, self.shape) for k, v in arrays.items()}
        inputs = {k: v.to(self.engine.device) for k, v in inputs.items()}
        self._decision = self.engine.apply("decide", inputs, ONLINE)
        actions: np.ndarray = self._decision.pop("actions").flatten(0, 1).cpu().numpy()
        return actions

    def end_decision(self, episodes: Episodes) -> None:
        t = episodes.decided[:, None] + np.arange(self.n_action_steps)
        executed = t < episodes.lengths[:, None]
        rewards = np.zeros(t.shape, np.float32)
        rewards[executed] = episodes.rewards[np.nonzero(executed)[0], t[executed]]
        row = {"rewards": rewards, "executed": executed, "observations": self._observed}
        row |= {name: getattr(episodes, name) for name in ("terminated", "truncated")}
        row["next_observations"] = episodes.history(self.cfg.n_obs_steps)
        rows = {k: v.reshape(*self.shape, *v.shape[1:]) for k, v in row.items()}
        self.buffer.append(rows | {k: v.cpu().numpy() for k, v in self._decision.items()})
        if self.buffer.is_full:
            computed = self.engine.apply("compute_advantages", self.buffer.tensors(), ONLINE)
            self.buffer.write(computed, self.engine.state["counters"]["update"])

    def tensors(self, s: int) -> dict[str, Tensor]:
        tensors = add_prefix("buffer/", self.buffer.stream_state(s))
        if self.replay is not None:
            tensors |= add_prefix("buffer/replay/", self.replay.stream_state(s))
        return tensors

    def load(self, s: int, tensors: Mapping[str, Tensor]) -> None:
        self.buffer.load(s, strip_prefix("buffer/", tensors))
        if self.replay is not None:
            self.replay.load(s, strip_prefix("buffer/replay/", tensors))


def add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors on the CPU, with `prefix` before every name."""
    return {f"{prefix}{name}": value.cpu().contiguous() for name, value in tensors.items()}


def strip_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names start with `prefix`, without it."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
