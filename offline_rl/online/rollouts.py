"""Rollouts of the present policies: so many decisions of so many environments of each seed."""

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
from offline_rl.engine.engine import Drawn, Engine
from offline_rl.online.collector import MISHAPS, Columns, sound, told
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.columns import STEP_INFOS
from offline_rl.replay.rollouts import Rollouts
from offline_rl.utils import seeds
from offline_rl.utils.errors import UserError, close_quietly
from policies import noise

COUNTS = ("added", "sizes", "hidden")  # of a buffer's rows, by seed


class RolloutCollector:
    """Takes each decision of all environments together, and its actions one after another.

    Where an episode ends within a decision, the rest of its actions are not taken, and the next
    decision is an episode's first. What an environment does depends on its episode's seed and the
    policy alone. Where one raises, or answers what is no number, its episode ends before that
    decision, of which no action counts, and the environments are made anew.
    """

    def __init__(
        self,
        engine: Engine,
        make: Callable[[int], VectorEnv],
        rollouts: Rollouts,
        transform: Transform,
        kept: ReplayBuffer | None = None,
        columns: Columns | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        """make(n): n environments. engine: of an algorithm with `decide` and `noise_shape`.

        kept: where whole episodes are kept, if they are to be; columns: what it further needs, of
        an episode. say: told of every mishap.
        """
        self.engine, self.buffer, self.transform = engine, rollouts, transform
        self.make, self.kept, self.further, self.say = make, kept, columns, say
        algorithm: Any = engine.at(ONLINE)[0]
        cfg, (_, self.each) = algorithm.cfg, rollouts.size
        self.n_action_steps, self.shape = cfg.n_action_steps, (len(engine.seeds), self.each)
        self.noise_shape, count = algorithm.noise_shape, len(engine.seeds) * self.each
        self.env = make(count)
        try:
            self._prepare(cfg, count)
        except BaseException:
            close_quietly(self)
            raise

    def _prepare(self, cfg: Any, count: int) -> None:
        """Room for the episodes of `count` environments, which begin."""
        rollouts, kept = self.buffer, self.kept
        if self.n_action_steps > self.env.max_episode_steps:
            raise UserError(
                f"n_action_steps={self.n_action_steps}: an episode here has {self.env.max_episode_steps} "
                "steps, fewer than a decision; clone with fewer actions executed"
            )
        longest, each = self.env.max_episode_steps, rollouts.size[0] * self.n_action_steps
        if kept is not None and each < longest:
            raise UserError(
                f"algorithm.decisions={cfg.decisions} in algorithm.environments={cfg.environments} "
                f"are {each} steps of each, fewer than an episode's {longest}: only those that end "
                "early, as successes do, would be new data; give fewer environments"
            )
        self.steps = 0  # of each seed's environments, had no episode ended within a decision
        self.episodes = np.zeros(len(self.engine.seeds), int)  # begun, of each seed
        self.broken = set[int]()  # streams whose policy gave no number; they get 0 in its place
        self.finished: list[list[float]] = [[] for _ in self.engine.seeds]  # returns
        self.success: list[list[bool]] = [
            [] for _ in self.engine.seeds
        ]  # where the environment tells
        self._returns = np.zeros(count)
        self._succeeded = np.zeros(count, bool)  # at any step of the running episode
        self._seen = np.zeros((count, cfg.n_obs_steps, *self.env.observation_shape), np.float32)
        self._number = np.zeros(count, np.int64)  # of the running episode
        self._seeds = np.zeros(count, np.int64)  # its seed
        self._decisions = np.zeros(count, np.int64)  # in it, so far
        self._lengths = np.zeros(count, np.int64)
        self.mishaps = np.zeros(count, np.int64)  # broken episodes since the last whole one
        self._played = np.zeros((count, longest, self.env.action_dim), np.float32)
        self._paid = np.zeros((count, longest), np.float32)
        self._watched = np.zeros((count, longest + 1, *self.env.observation_shape), np.float32)
        names = kept.columns.keys() & STEP_INFOS.keys() if kept is not None else ()
        self._told = {name: np.zeros((count, longest), np.float32) for name in names}
        for name in ("_number", "_decisions", "_lengths", "_played", "mishaps"):
            own = torch.from_numpy(getattr(self, name))  # the same memory
            rollouts.checkpoint_extras[name.lstrip("_")] = own.unflatten(0, self.shape)
        rollouts.checkpoint_extras["episodes"] = torch.from_numpy(self.episodes)
        if kept is not None:
            counts = {name: torch.from_numpy(getattr(kept, name)) for name in COUNTS}
            rollouts.checkpoint_extras |= {f"kept_{k}": v for k, v in (kept.data | counts).items()}
        self._begin(np.arange(count))

    def _begin(self, rows: np.ndarray) -> None:
        """The next episodes, in the order of the environments."""
        for row in rows:
            s = row // self.each
            self._number[row] = self.episodes[s]
            self.episodes[s] += 1
        self._decisions[rows] = self._lengths[rows] = 0
        self._returns[rows] = self._succeeded[rows] = 0
        self._start(rows)

    def _start(self, rows: np.ndarray) -> None:
        """Their first observations; the next episode where one breaks at once."""
        try:
            self._reset(rows)
        except Broken as error:
            if len(rows) == 1:
                self._mishap(int(rows[0]), error)
                self._begin(rows)
                return
            for row in rows:  # which of them is it that breaks?
                self._start(np.array([row]))

    def _reset(self, rows: np.ndarray) -> None:
        self._seeds[rows] = [
            seeds.training_episode_seed(self.engine.seeds[row // self.each], int(self._number[row]))
            for row in rows
        ]
        first = self.transform.normalizer(self.env.reset(self._seeds[rows].tolist(), rows))
        check_finite("reset", first)
        self._seen[rows] = first[:, None]
        self._watched[rows, 0] = first

    def _take(self, rows: np.ndarray, actions: np.ndarray, step: Step, place: Any) -> None:
        """Notes what came of an action in each of `rows`, an episode's number `place`."""
        new = self.transform.normalizer(step.observations)
        self._played[rows, place] = actions
        self._paid[rows, place] = self.transform.rewards(step.rewards)
        self._watched[rows, place + 1] = new
        self._returns[rows] += step.rewards
        for name, values in told(self._told, step).items():
            self._told[name][rows, place] = values
        for success in (v for k, v in step.infos.items() if k in SUCCESS):
            self._succeeded[rows] |= np.asarray(success, bool)
        self._seen[rows] = np.concatenate([self._seen[rows, 1:], new[:, None]], 1)

    def _stepped(
        self, actions: np.ndarray, rows: np.ndarray
    ) -> tuple[Step | None, np.ndarray, dict[int, Exception]]:
        """What came of an action in each of `rows`: of the sound ones, and how the others broke."""
        try:
            return sound(self.env.step(actions, rows), self._told), rows, {}
        except Exception:
            return self._again(actions, rows)

    def _again(
        self, actions: np.ndarray, rows: np.ndarray
    ) -> tuple[Step | None, np.ndarray, dict[int, Exception]]:
        """The same in new environments, one after another: which of them is it that breaks?"""
        self.env.close()
        self.env = self.make(len(self._number))
        found, faults = dict[int, Step](), dict[int, Exception]()
        for action, row in zip(actions, rows, strict=True):
            alone = np.array([row])
            try:
                self.env.reset([int(self._seeds[row])], alone)
                for played in self._played[row, : self._lengths[row]]:
                    self.env.step(played[None], alone)
                found[int(row)] = sound(self.env.step(action[None], alone), self._told)
            except Exception as error:
                faults[int(row)] = error
        left = np.array([*found], np.int64)
        return (joined([*found.values()]) if found else None), left, faults

    def _mishap(self, row: int, error: Exception) -> None:
        """Says so, and gives up where it is one too many."""
        self.mishaps[row] += 1
        seed, length = self.engine.seeds[row // self.each], int(self._lengths[row])
        why = error if isinstance(error, Broken) else repr(error)
        what = f"seed {seed}: the environment broke in step {length} of an episode ({why})"
        if self.mishaps[row] >= MISHAPS:
            raise UserError(f"{what}, for the {MISHAPS}th time in a row") from error
        self.say(f"{what}; the episode is dropped and the next begins")

    def fill(self, work: Fill) -> None:
        """All decisions by what the algorithm's `fill` makes of a batch of the data."""
        drawn = Drawn(work.states, work.rows)
        self.buffer.set_columns(self.engine.apply("fill", drawn, work.phase), self.engine.updates)

    def step(self, *, adds: bool = False) -> None:
        """One decision of every environment. adds: episodes that end in it are kept."""
        seen = self._seen.copy()
        drawn = noise.normal(self._seeds, self._decisions, self.noise_shape)
        given = {"observations": seen, "noise": drawn}
        inputs = {k: torch.from_numpy(v).unflatten(0, self.shape) for k, v in given.items()}
        inputs = {k: v.to(self.engine.device) for k, v in inputs.items()}
        decided = self.engine.apply("decide", inputs, ONLINE)
        actions = decided.pop("actions").flatten(0, 1).cpu().numpy()  # [S E, n_action_steps, A]
        if not np.isfinite(actions).all():  # a diverged seed must not stop its neighbors
            wrong = np.flatnonzero(~np.isfinite(actions).all((1, 2)))
            self.broken.update((wrong // self.each).tolist())
            actions = np.nan_to_num(actions, nan=0, posinf=0, neginf=0)
        row = {"rewards": np.zeros(actions.shape[:2], np.float32)}
        row |= {"executed": np.zeros(actions.shape[:2], np.float32)}
        row |= {name: np.zeros(len(actions), np.float32) for name in ("terminated", "truncated")}
        running = np.arange(len(actions))
        for j in range(self.n_action_steps):
            if not len(running):
                break
            step, running, faults = self._stepped(actions[running, j], running)
            for fault, error in faults.items():
                self._mishap(fault, error)
                row["rewards"][fault] = row["executed"][fault] = 0
                row["truncated"][fault], self._seen[fault] = 1, seen[fault]
            if step is None:
                break
            self._take(running, actions[running, j], step, self._lengths[running])
            row["rewards"][running, j] = self._paid[running, self._lengths[running]]
            row["executed"][running, j] = 1
            self._lengths[running] += 1
            for name in ("terminated", "truncated"):
                row[name][running] = getattr(step, name)
            ended = step.terminated | step.truncated
            known = any(k in SUCCESS for k in step.infos)
            for k in np.flatnonzero(ended):
                self._whole(running[k], bool(step.terminated[k]), adds)
                s = running[k] // self.each
                self.success[s] += [bool(self._succeeded[running[k]])] if known else []
            running = running[~ended]
        row |= {"observations": seen, "next_observations": self._seen.copy()}
        rows = {k: v.reshape(*self.shape, *v.shape[1:]) for k, v in row.items()}
        self.buffer.append(rows | {k: v.cpu().numpy() for k, v in decided.items()})
        self._decisions += 1
        self.steps += self.each * self.n_action_steps
        over = np.flatnonzero((row["terminated"] + row["truncated"]) > 0)
        if len(over):
            self._begin(over)
        if self.buffer.is_full:
            made = self.engine.apply("compute_advantages", self.buffer.tensors(), ONLINE)
            self.buffer.set_columns(made, self.engine.updates)

    def _whole(self, row: int, terminated: bool, adds: bool) -> None:
        """An episode has ended."""
        s, length = int(row // self.each), int(self._lengths[row])
        self.finished[s].append(float(self._returns[row]))
        self.mishaps[row] = 0
        if not adds:
            return
        assert self.kept is not None
        assert self.further is not None
        last = np.arange(length) == length - 1
        rows = {"observations": self._watched[row, :length], "actions": self._played[row, :length]}
        rows |= {"next_observations": self._watched[row, 1 : length + 1]}
        rows |= {"rewards": self._paid[row, :length]}
        rows |= {"terminated": last & terminated, "truncated": last & (not terminated)}
        rows |= {name: values[row, :length] for name, values in self._told.items()}
        self.kept.append(s, rows)
        if self.kept.awaits_ends:
            self.kept.release(s, self.further(self.kept.newest(s, length)))

    def close(self) -> None:
        """The environments."""
        self.env.close()

    def state(self, s: int) -> dict[str, Any]:
        """What `restore` needs of seed s beside the rollouts."""
        return {"steps": self.steps}

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Continues where each seed's state was taken: replays running episodes' actions."""
        self.steps = states[0]["steps"]
        rows = np.arange(len(self._number))
        self._reset(rows)
        self._returns[:] = self._succeeded[:] = 0
        for j in range(int(self._lengths.max())):
            running = rows[self._lengths > j]
            actions = self._played[running, j]
            self._take(running, actions, self.env.step(actions, running), j)


def joined(steps: list[Step]) -> Step:
    """Steps of one environment each, side by side."""
    infos = {k: np.concatenate([step.infos[k] for step in steps]) for k in steps[0].infos}
    parts = [np.concatenate(part) for part in list(zip(*steps, strict=True))[:4]]
    return Step(parts[0], parts[1], parts[2], parts[3], infos)
