"""Collection of online experience, with one environment for each stacked seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch

from envs import Broken, VectorEnv
from envs.adapters import SUCCESS
from envs.faults import check_finite
from envs.vector import Step
from offline_rl.algorithms.common.schedule import Online
from offline_rl.data import Dataset
from offline_rl.data.transform import Transform
from offline_rl.engine.engine import Engine
from offline_rl.online.with_base import BaseFault
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.columns import STEP_INFOS
from offline_rl.utils import seeds
from offline_rl.utils.errors import UserError, close_quietly
from policies import channels
from policies.channels import Observations

MAX_FAILURES = 5  # failed episodes in a row, after which training stops


class RepeatedFailure(UserError):
    """Error of an environment that failed MAX_FAILURES times in a row.

    The training state is consistent and can be saved.
    """


Columns = Callable[[Dataset], Mapping[str, np.ndarray]]


def info_columns(names: Iterable[str], step: Step) -> dict[str, np.ndarray]:
    """Return those of the buffer's columns `names` that a step's infos contain, as arrays [B].

    Raises UserError if the environment does not return a needed info.
    """
    columns = dict[str, np.ndarray]()
    for name in names:
        if name not in STEP_INFOS:
            continue
        if STEP_INFOS[name] not in step.infos:
            raise UserError(
                f"the environment returns no info {STEP_INFOS[name]!r}, but the algorithm learns "
                f"from {name}. Add it to the info of every step."
            )
        columns[name] = step.infos[STEP_INFOS[name]].astype(np.float32)
    return columns


def check_step(step: Step, names: Iterable[str]) -> Step:
    """Return `step` unchanged, or raise Broken if it contains NaN or infinity.

    Observations, rewards and the infos that `info_columns` uses are checked. names: the buffer's
    columns.
    """
    check_finite("step", step.observations, step.rewards)
    for info in (STEP_INFOS[name] for name in names if name in STEP_INFOS):
        if not np.isfinite(step.infos.get(info, 0)).all():
            raise Broken(f"step returned a {info} that is NaN or infinite")
    return step


class Collector:
    """Collector that steps one environment per seed with the exploring policy.

    The transitions are appended to the buffer. If an environment raises, or returns NaN or
    infinity, a new one is created and starts the next episode. The failed episode is removed from
    the buffer.
    """

    def __init__(
        self,
        engine: Engine,
        make: Callable[[], VectorEnv],
        buffer: ReplayBuffer,
        transform: Transform,
        online: Online,
        columns: Columns,
        say: Callable[[str], None] = print,
        overlap: bool = False,
    ) -> None:
        """Create the collector and its environments.

        make: creates one environment. columns: computes the extra columns of the buffer from a
        complete episode. say: called with a message for every failure. overlap: step the
        environments in a thread.
        """
        self.engine, self.make, self.buffer, self.transform = engine, make, buffer, transform
        self.online, self.columns, self.say, self.steps = online, columns, say, 0
        self._act = engine.stacked_policy(1, explore=True)
        if self._act.is_recurrent and online.warmup_steps and online.warmup_policy == "random":
            raise UserError(
                "online.warmup_policy=random does not work with a "
                f"{type(self._act.module).__name__}, whose memory must contain its own actions. "
                "Use online.warmup_policy=policy."
            )
        count = len(engine.seeds)
        # the setting is per thread; replayed steps must give the same results
        flush = partial(torch.set_flush_denormal, True)
        self._thread = ThreadPoolExecutor(1, initializer=flush) if overlap else None
        self._pending: tuple[Observations, np.ndarray, Future[list[Step | Exception]]] | None = None
        self.envs = list[VectorEnv]()
        try:
            self._open(count)
        except BaseException:
            close_quietly(self)
            raise

    def _open(self, count: int) -> None:
        """Create one environment for each of `count` seeds and start their first episodes."""
        for _ in range(count):
            self.envs.append(self.make())
        self.episodes = np.zeros(count, int)
        self.lengths = np.zeros(count, int)  # steps of the running episodes
        self.mishaps = np.zeros(count, int)  # failed episodes since the last complete one
        self._returns = np.zeros(count)
        # success in the running episode; None: not reported
        self._succeeded: list[bool | None] = [None] * count
        # seeds whose policy returned NaN or infinity; these numbers are replaced by 0
        self.broken = set[int]()
        self.finished: list[list[float]] = [[] for _ in range(count)]  # returns, per seed
        # success of finished episodes, per seed, if the environment reports it
        self.success: list[list[bool]] = [[] for _ in range(count)]
        self._observations = channels.map_channels(
            lambda shape: np.zeros((count, *shape), channels.dtype(shape)),
            self.envs[0].observation_shape,
        )
        for s in range(count):
            self._start_episode(s)

    def _reset(self, s: int) -> None:
        seed = seeds.training_episode_seed(self.engine.seeds[s], int(self.episodes[s]))
        first = self.envs[s].reset([seed])
        check_finite("reset", first)
        channels.assign(self._observations, [s], first)
        self._act.reset(np.array([seed]), np.array([s]))
        self._returns[s], self.lengths[s], self._succeeded[s] = 0, 0, None

    def _actions(self, observations: Observations) -> np.ndarray:
        """Return the actions, [S, A], for normalized observations, [S, *obs]."""
        if self.steps < self.online.warmup_steps:
            size, warmup_actions = self.envs[0].action_dim, list[np.ndarray]()
            for s, seed in enumerate(self.engine.seeds):
                random = np.random.default_rng((seed, self.steps))
                action = self.online.warmup_action(random, channels.take(observations, s), size)
                warmup_actions += [] if action is None else [action]
            if warmup_actions:
                return np.asarray(warmup_actions, np.float32)
        batch = channels.map_channels(
            lambda x: torch.from_numpy(x[:, None]).to(self.engine.device), observations
        )
        actions = self._act(batch, self.steps)[:, 0].cpu().numpy()
        if not np.isfinite(actions).all():  # a diverged seed must not stop the others
            self.broken.update(np.flatnonzero(~np.isfinite(actions).all(1)).tolist())
            actions = np.nan_to_num(actions, nan=0, posinf=0, neginf=0)
        return actions

    def step(self) -> None:
        """Take one environment step of every seed."""
        self.begin()
        self.end()

    def begin(self) -> None:
        """Choose every seed's action and start the step. With overlap it runs in a thread."""
        observations = self.transform.normalizer(self._observations)
        actions, results = self._actions(observations), Future[list[Step | Exception]]()
        if self._thread is None:
            results.set_result(self._step_envs(actions))
        else:
            results = self._thread.submit(self._step_envs, actions)
        self._pending = observations, actions, results

    def _step_envs(self, actions: np.ndarray) -> list[Step | Exception]:
        """Step every environment and return its result or error."""
        results = list[Step | Exception]()
        for s, env in enumerate(self.envs):
            try:
                results.append(check_step(env.step(actions[[s]]), self.buffer.columns))
            except Exception as error:
                results.append(error)
        return results

    def end(self) -> None:
        """Wait for the step that `begin` started and append it to the buffer."""
        assert self._pending is not None
        observations, actions, results = self._pending
        streams, steps, self._pending = list[int](), list[Step](), None
        for s, result in enumerate(results.result()):
            if isinstance(result, Exception):
                self._drop_episode(s, result)
            else:
                streams.append(s)
                steps.append(result)
        if streams:
            self._append(np.asarray(streams), steps, observations, actions)
        if self._act.is_recurrent:
            rewards = np.zeros((len(self.envs), 1), np.float32)
            for s, step in zip(streams, steps, strict=True):
                rewards[s] = step.rewards
            self._act.observe(torch.from_numpy(rewards).to(self.engine.device))
        self.steps += 1
        for s, step in zip(streams, steps, strict=True):
            self._note(s, step)
            self.lengths[s] += 1
            channels.assign(self._observations, [s], step.observations)
        failure: RepeatedFailure | None = None
        for s, step in zip(streams, steps, strict=True):
            if step.terminated[0] or step.truncated[0]:
                try:
                    self._end_episode(s)
                except RepeatedFailure as error:  # raised after the other seeds' episodes end
                    failure = failure or error
        if failure is not None:
            raise failure

    def _append(
        self,
        streams: np.ndarray,
        steps: list[Step],
        observations: Observations,
        actions: np.ndarray,
    ) -> None:
        """Append one transition for each seed in `streams` to the buffer."""
        after = channels.concatenate([step.observations for step in steps])
        rewards = np.concatenate([step.rewards for step in steps])
        rows = {
            "observations": channels.take(observations, streams),
            "actions": actions[streams],
            "rewards": self.transform.apply_to_rewards(rewards),
            "terminated": np.concatenate([step.terminated for step in steps]),
            "truncated": np.concatenate([step.truncated for step in steps]),
            "next_observations": self.transform.normalizer(after),
        }
        infos = [info_columns(self.buffer.columns, step) for step in steps]
        rows |= {name: np.concatenate([columns[name] for columns in infos]) for name in infos[0]}
        self.buffer.append(streams, rows)

    def _note(self, s: int, step: Step) -> None:
        """Add the reward to the return. An episode with success at any step is a success."""
        self._returns[s] += step.rewards[0]
        success = [bool(v[0]) for k, v in step.infos.items() if k in SUCCESS]
        if success:
            self._succeeded[s] = any(success) or bool(self._succeeded[s])

    def _end_episode(self, s: int) -> None:
        """Record a complete episode and start the next one."""
        if self.buffer.waits_for_episode_end:
            self.buffer.release(s, self.columns(self.buffer.newest(s, int(self.lengths[s]))))
        self.finished[s].append(float(self._returns[s]))
        succeeded = self._succeeded[s]
        self.success[s] += [] if succeeded is None else [succeeded]
        self.mishaps[s] = 0
        self._next_episode(s)

    def _drop_episode(self, s: int, error: Exception) -> None:
        """Drop the running episode, create a new environment and start the next episode in it.

        Raises RepeatedFailure after MAX_FAILURES failures in a row.
        """
        seed, length = self.engine.seeds[s], int(self.lengths[s])
        self.mishaps[s] += 1
        who = "the base policy" if isinstance(error, BaseFault) else "the environment"
        why = error if isinstance(error, Broken) else repr(error)
        what = f"seed {seed}: {who} failed in step {length} of an episode ({why})"
        if self.mishaps[s] >= MAX_FAILURES:
            raise RepeatedFailure(f"{what}, for the {MAX_FAILURES}th time in a row") from error
        self.say(f"{what}; the episode is dropped and the next one starts")
        self.buffer.drop(s, length)
        close_quietly(self.envs[s])  # closing a broken environment may fail too
        try:
            self.envs[s] = self.make()
        except Exception as next_error:
            self.lengths[s] = 0
            self._drop_episode(s, next_error)
        else:
            self._next_episode(s)

    def _next_episode(self, s: int) -> None:
        """Start the next episode."""
        self.lengths[s] = 0
        self.episodes[s] += 1
        self._start_episode(s)

    def _start_episode(self, s: int) -> None:
        """Reset the environment. If that fails, drop the episode."""
        try:
            self._reset(s)
        except Exception as error:
            self._drop_episode(s, error)

    def can_sample(self, batch_size: int) -> bool:
        """Return True if updates can start: after enough steps, if every seed has rows.

        Enough means `batch_size` steps. If the buffer adds rows only at the end of an episode, it
        also means the maximum length of an episode. A seed may then still have fewer rows than a
        batch. A seed has no rows only if all its episodes failed.
        """
        longest = self.envs[0].max_episode_steps if self.buffer.waits_for_episode_end else 0
        return self.steps >= max(batch_size, longest) and min(self.buffer.sizes) > 0

    def close(self) -> None:
        """Close the environments."""
        if self._thread is not None:
            self._thread.shutdown()
        with ExitStack() as environments:  # closes the others even if one fails to close
            for env in self.envs:
                environments.callback(env.close)

    def state(self, s: int) -> dict[str, Any]:
        """Return the state of seed s that `restore` needs in addition to the buffer."""
        counts = ("episodes", "lengths", "mishaps")
        return {"steps": self.steps} | {name: int(getattr(self, name)[s]) for name in counts}

    def memory(self, s: int) -> dict[str, torch.Tensor]:
        """Return the policy's memory of the running episode of seed s; empty without a memory."""
        return self._act.memory(s)

    def restore(
        self,
        states: Sequence[dict[str, Any]],
        memories: Sequence[Mapping[str, torch.Tensor]] | None = None,
    ) -> None:
        """Restore each seed's state by replaying the actions of its running episode.

        memories: each seed's stored `memory`. It cannot be recomputed, because the parameters may
        have changed within the episode. Raises ValueError if a state is of another group of seeds.
        """
        for s, stored in enumerate(states):
            state = state_of_seed(stored, s, len(states))
            self.steps, length = state["steps"], state["lengths"]
            self.episodes[s], self.mishaps[s] = state["episodes"], state.get("mishaps", 0)
            try:
                self._replay(s, length)
                if memories is not None and memories[s]:
                    self._act.restore_memory(s, memories[s])
            except Exception as error:
                self.lengths[s] = length
                self._drop_episode(s, error)

    def _replay(self, s: int, length: int) -> None:
        """Replay the first `length` steps of the running episode."""
        self._reset(s)
        for action in self.buffer.newest(s, length).actions if length else ():
            step = self.envs[s].step(action[None])
            self._note(s, step)
            channels.assign(self._observations, [s], step.observations)
        self.lengths[s] = length


def state_of_seed(state: dict[str, Any], s: int, count: int) -> dict[str, Any]:
    """Return the state of seed s. Older checkpoints contain the counts of all `count` seeds."""
    if "began" in state:  # checkpoints before format 3
        state = state | {"lengths": [state["steps"] - began for began in state["began"]]}
    if not isinstance(state["episodes"], list):
        return state
    if len(state["episodes"]) != count:
        raise ValueError(
            f"it contains {len(state['episodes'])} seeds, which must be resumed together"
        )
    return {name: v[s] if isinstance(v, list) else v for name, v in state.items()}
