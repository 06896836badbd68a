"""Collection of on-policy rollouts, with several environments for each seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from envs import Broken, VectorEnv
from envs.adapters import SUCCESS
from envs.faults import check_finite
from envs.vector import Step
from offline_rl.algorithms.common.schedule import ONLINE, Fill
from offline_rl.data.transform import Transform
from offline_rl.engine.engine import Engine, SampleRequest
from offline_rl.online.collector import MAX_FAILURES, Columns, check_step, info_columns
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.columns import STEP_INFOS
from offline_rl.replay.rollouts import Rollouts
from offline_rl.utils import seeds
from offline_rl.utils.errors import UserError, close_quietly
from policies import noise

COUNTS = ("added", "sizes", "hidden")  # row counts of a buffer, per seed


class RolloutCollector:
    """Collector of rollouts. A decision is a chunk of actions, made for all environments together.

    If an episode ends within a decision, the remaining actions are not executed, and the next
    decision starts a new episode. An environment's behavior depends only on the episode's seed and
    the policy. If an environment raises, or returns NaN or infinity, the actions of that decision
    do not count, its episode ends before the decision, and all environments are created again.
    """

    def __init__(
        self,
        engine: Engine,
        make: Callable[[int], VectorEnv],
        rollouts: Rollouts,
        transform: Transform,
        replay: ReplayBuffer | None = None,
        columns: Columns | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        """Create the collector and its environments.

        make: creates n environments. engine: of an algorithm with `decide` and `noise_shape`.
        replay: buffer for complete episodes, if they are stored. columns: computes the extra
        columns of `replay` from an episode. say: called with a message for every failure.
        """
        self.engine, self.buffer, self.transform = engine, rollouts, transform
        self.make, self.replay, self.extra_columns, self.say = make, replay, columns, say
        algorithm: Any = engine.for_phase(ONLINE)[0]
        cfg, (_, self.envs_per_seed) = algorithm.cfg, rollouts.size
        self.n_action_steps = cfg.n_action_steps
        self.shape = len(engine.seeds), self.envs_per_seed
        self.noise_shape, count = algorithm.noise_shape, len(engine.seeds) * self.envs_per_seed
        self.env = make(count)
        try:
            self._prepare(cfg, count)
        except BaseException:
            close_quietly(self)
            raise

    def _prepare(self, cfg: Any, count: int) -> None:
        """Allocate the state of `count` environments and start their first episodes."""
        rollouts, replay = self.buffer, self.replay
        longest = self.env.max_episode_steps
        if self.n_action_steps > longest:
            raise UserError(
                f"n_action_steps={self.n_action_steps} is more than the {longest} steps of an "
                "episode. Train the policy with a lower n_action_steps."
            )
        steps = rollouts.size[0] * self.n_action_steps
        if replay is not None and steps < longest:
            raise UserError(
                f"algorithm.decisions={cfg.decisions} in algorithm.environments={cfg.environments} "
                f"are {steps} steps per environment, fewer than the {longest} steps of an episode. "
                "Only episodes that end early, such as successes, would become new data. Lower "
                "algorithm.environments."
            )
        self.steps = 0  # per seed; counts every decision as n_action_steps in each environment
        self.episodes = np.zeros(len(self.engine.seeds), int)  # started episodes, per seed
        # seeds whose policy returned NaN or infinity; these numbers are replaced by 0
        self.broken = set[int]()
        self.finished: list[list[float]] = [[] for _ in self.engine.seeds]  # returns, per seed
        # per seed, if the environment reports success
        self.success: list[list[bool]] = [[] for _ in self.engine.seeds]
        # state of the running episode of each environment; the names in the loop below are keys of
        # checkpoints
        self._returns = np.zeros(count)
        self._succeeded = np.zeros(count, bool)  # success at any step
        self._history = np.zeros((count, cfg.n_obs_steps, *self.env.observation_shape), np.float32)
        self._number = np.zeros(count, np.int64)  # index of the episode
        self._seeds = np.zeros(count, np.int64)
        self._decisions = np.zeros(count, np.int64)
        self._lengths = np.zeros(count, np.int64)
        self.mishaps = np.zeros(count, np.int64)  # failed episodes since the last complete one
        self._played = np.zeros((count, longest, self.env.action_dim), np.float32)  # actions
        self._rewards = np.zeros((count, longest), np.float32)
        self._observations = np.zeros((count, longest + 1, *self.env.observation_shape), np.float32)
        names = replay.columns.keys() & STEP_INFOS.keys() if replay is not None else ()
        self._infos = {name: np.zeros((count, longest), np.float32) for name in names}
        for name in ("_number", "_decisions", "_lengths", "_played", "mishaps"):
            array = torch.from_numpy(getattr(self, name))  # a view: it shares the array's memory
            rollouts.checkpoint_extras[name.lstrip("_")] = array.unflatten(0, self.shape)
        rollouts.checkpoint_extras["episodes"] = torch.from_numpy(self.episodes)
        if replay is not None:
            counts = {name: torch.from_numpy(getattr(replay, name)) for name in COUNTS}
            extras = {f"kept_{k}": v for k, v in (replay.data | counts).items()}
            rollouts.checkpoint_extras |= extras
        self._start_episodes(np.arange(count))

    def _start_episodes(self, rows: np.ndarray) -> None:
        """Start the next episode in each of the environments `rows`, in this order."""
        for row in rows:
            s = row // self.envs_per_seed
            self._number[row] = self.episodes[s]
            self.episodes[s] += 1
        self._decisions[rows] = self._lengths[rows] = 0
        self._returns[rows] = self._succeeded[rows] = 0
        self._try_reset(rows)

    def _try_reset(self, rows: np.ndarray) -> None:
        """Reset the environments `rows`. An environment that fails skips to its next episode."""
        try:
            self._reset(rows)
        except Broken as error:
            if len(rows) == 1:
                self._report_failure(int(rows[0]), error)
                self._start_episodes(rows)
                return
            for row in rows:  # one by one, to find the one that fails
                self._try_reset(np.array([row]))

    def _reset(self, rows: np.ndarray) -> None:
        self._seeds[rows] = [
            seeds.training_episode_seed(
                self.engine.seeds[row // self.envs_per_seed], int(self._number[row])
            )
            for row in rows
        ]
        first = self.transform.normalizer(self.env.reset(self._seeds[rows].tolist(), rows))
        check_finite("reset", first)
        self._history[rows] = first[:, None]
        self._observations[rows, 0] = first

    def _record(self, rows: np.ndarray, actions: np.ndarray, step: Step, t: Any) -> None:
        """Store the result of one action in each of the environments `rows`.

        t: index of the action in its episode, for each row.
        """
        new = self.transform.normalizer(step.observations)
        self._played[rows, t] = actions
        self._rewards[rows, t] = self.transform.apply_to_rewards(step.rewards)
        self._observations[rows, t + 1] = new
        self._returns[rows] += step.rewards
        for name, values in info_columns(self._infos, step).items():
            self._infos[name][rows, t] = values
        for success in (v for k, v in step.infos.items() if k in SUCCESS):
            self._succeeded[rows] |= np.asarray(success, bool)
        self._history[rows] = np.concatenate([self._history[rows, 1:], new[:, None]], 1)

    def _step_envs(
        self, actions: np.ndarray, rows: np.ndarray
    ) -> tuple[Step | None, np.ndarray, dict[int, Exception]]:
        """Step the environments `rows`.

        Returns the joined steps, the rows that did not fail, and the errors of the failed rows.
        """
        try:
            return check_step(self.env.step(actions, rows), self._infos), rows, {}
        except Exception:
            return self._step_new_envs(actions, rows)

    def _step_new_envs(
        self, actions: np.ndarray, rows: np.ndarray
    ) -> tuple[Step | None, np.ndarray, dict[int, Exception]]:
        """Repeat a failed step in new environments, one by one, to find those that fail."""
        self.env.close()
        self.env = self.make(len(self._number))
        steps, faults = dict[int, Step](), dict[int, Exception]()
        for action, row in zip(actions, rows, strict=True):
            index = np.array([row])
            try:
                self.env.reset([int(self._seeds[row])], index)
                for played in self._played[row, : self._lengths[row]]:
                    self.env.step(played[None], index)
                steps[int(row)] = check_step(self.env.step(action[None], index), self._infos)
            except Exception as error:
                faults[int(row)] = error
        running = np.array([*steps], np.int64)
        return (join_steps([*steps.values()]) if steps else None), running, faults

    def _report_failure(self, row: int, error: Exception) -> None:
        """Report a failed episode. Raises UserError after MAX_FAILURES failures in a row."""
        self.mishaps[row] += 1
        seed, length = self.engine.seeds[row // self.envs_per_seed], int(self._lengths[row])
        why = error if isinstance(error, Broken) else repr(error)
        what = f"seed {seed}: the environment failed in step {length} of an episode ({why})"
        if self.mishaps[row] >= MAX_FAILURES:
            raise UserError(f"{what}, for the {MAX_FAILURES}th time in a row") from error
        self.say(f"{what}; the episode is dropped and the next one starts")

    def fill(self, work: Fill) -> None:
        """Fill the rollouts with decisions that the algorithm's `fill` computes from the data."""
        request = SampleRequest(work.states, work.rows)
        self.buffer.set_columns(self.engine.apply("fill", request, work.phase), self.engine.updates)

    def step(self, *, adds: bool = False) -> None:
        """Execute one decision in every environment. adds: store the episodes that end in it."""
        observed = self._history.copy()
        noise_rows = noise.normal(self._seeds, self._decisions, self.noise_shape)
        arrays = {"observations": observed, "noise": noise_rows}
        inputs = {k: torch.from_numpy(v).unflatten(0, self.shape) for k, v in arrays.items()}
        inputs = {k: v.to(self.engine.device) for k, v in inputs.items()}
        decisions = self.engine.apply("decide", inputs, ONLINE)
        actions = decisions.pop("actions").flatten(0, 1).cpu().numpy()  # [S E, n_action_steps, A]
        if not np.isfinite(actions).all():  # a diverged seed must not stop the others
            non_finite = np.flatnonzero(~np.isfinite(actions).all((1, 2)))
            self.broken.update((non_finite // self.envs_per_seed).tolist())
            actions = np.nan_to_num(actions, nan=0, posinf=0, neginf=0)
        row = {"rewards": np.zeros(actions.shape[:2], np.float32)}
        row |= {"executed": np.zeros(actions.shape[:2], np.float32)}
        row |= {name: np.zeros(len(actions), np.float32) for name in ("terminated", "truncated")}
        running = np.arange(len(actions))
        for j in range(self.n_action_steps):
            if not len(running):
                break
            step, running, faults = self._step_envs(actions[running, j], running)
            for fault, error in faults.items():
                self._report_failure(fault, error)
                row["rewards"][fault] = row["executed"][fault] = 0
                row["truncated"][fault], self._history[fault] = 1, observed[fault]
            if step is None:
                break
            self._record(running, actions[running, j], step, self._lengths[running])
            row["rewards"][running, j] = self._rewards[running, self._lengths[running]]
            row["executed"][running, j] = 1
            self._lengths[running] += 1
            for name in ("terminated", "truncated"):
                row[name][running] = getattr(step, name)
            ended = step.terminated | step.truncated
            reports_success = any(k in SUCCESS for k in step.infos)
            for k in np.flatnonzero(ended):
                self._end_episode(running[k], bool(step.terminated[k]), adds)
                s = running[k] // self.envs_per_seed
                self.success[s] += [bool(self._succeeded[running[k]])] if reports_success else []
            running = running[~ended]
        row |= {"observations": observed, "next_observations": self._history.copy()}
        rows = {k: v.reshape(*self.shape, *v.shape[1:]) for k, v in row.items()}
        self.buffer.append(rows | {k: v.cpu().numpy() for k, v in decisions.items()})
        self._decisions += 1
        self.steps += self.envs_per_seed * self.n_action_steps
        ended = np.flatnonzero((row["terminated"] + row["truncated"]) > 0)
        if len(ended):
            self._start_episodes(ended)
        if self.buffer.is_full:
            computed = self.engine.apply("compute_advantages", self.buffer.tensors(), ONLINE)
            self.buffer.set_columns(computed, self.engine.updates)

    def _end_episode(self, row: int, terminated: bool, adds: bool) -> None:
        """Record the return of a complete episode. adds: store it in the buffer `replay`."""
        s, length = int(row // self.envs_per_seed), int(self._lengths[row])
        self.finished[s].append(float(self._returns[row]))
        self.mishaps[row] = 0
        if not adds:
            return
        assert self.replay is not None
        assert self.extra_columns is not None
        last = np.arange(length) == length - 1
        rows = {"observations": self._observations[row, :length]}
        rows |= {"actions": self._played[row, :length]}
        rows |= {"next_observations": self._observations[row, 1 : length + 1]}
        rows |= {"rewards": self._rewards[row, :length]}
        rows |= {"terminated": last & terminated, "truncated": last & (not terminated)}
        rows |= {name: values[row, :length] for name, values in self._infos.items()}
        self.replay.append(s, rows)
        if self.replay.waits_for_episode_end:
            self.replay.release(s, self.extra_columns(self.replay.newest(s, length)))

    def close(self) -> None:
        """Close the environments."""
        self.env.close()

    def state(self, s: int) -> dict[str, Any]:
        """Return the state of seed s that `restore` needs in addition to the rollouts."""
        return {"steps": self.steps}

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Restore each seed's state by replaying the actions of the running episodes."""
        self.steps = states[0]["steps"]
        rows = np.arange(len(self._number))
        self._reset(rows)
        self._returns[:] = self._succeeded[:] = 0
        for j in range(int(self._lengths.max())):
            running = rows[self._lengths > j]
            actions = self._played[running, j]
            self._record(running, actions, self.env.step(actions, running), j)


def join_steps(steps: list[Step]) -> Step:
    """Join steps of one environment each to one step of all environments."""
    infos = {k: np.concatenate([step.infos[k] for step in steps]) for k in steps[0].infos}
    parts = [np.concatenate(part) for part in list(zip(*steps, strict=True))[:4]]
    return Step(parts[0], parts[1], parts[2], parts[3], infos)
