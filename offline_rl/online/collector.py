"""Learning from an environment: one stream of experience for each stacked seed."""

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

MISHAPS = 5  # episodes in a row that an environment may break


class GivenUp(UserError):
    """An environment that broke once too often; what was learned stands where it did before."""


Columns = Callable[[Dataset], Mapping[str, np.ndarray]]


def told(names: Iterable[str], step: Step) -> dict[str, np.ndarray]:
    """Return those of a buffer's columns `names` that the environment gives at every step, [B].

    Raises UserError if it gives no such info.
    """
    found = dict[str, np.ndarray]()
    for name in names:
        if name not in STEP_INFOS:
            continue
        if STEP_INFOS[name] not in step.infos:
            raise UserError(
                f"the environment gives no info {STEP_INFOS[name]!r} at its steps, and the algorithm "
                f"learns from {name}: add it to the environment's info"
            )
        found[name] = step.infos[STEP_INFOS[name]].astype(np.float32)
    return found


def sound(step: Step, names: Iterable[str]) -> Step:
    """Return `step`. names: a buffer's columns.

    Raises Broken if an observation, a reward, or an info that `told` gives is not finite.
    """
    check_finite("step", step.observations, step.rewards)
    for info in (STEP_INFOS[name] for name in names if name in STEP_INFOS):
        if not np.isfinite(step.infos.get(info, 0)).all():
            raise Broken(f"step answers a {info} that is no number")
    return step


class Collector:
    """Steps an environment of each seed with the exploring policy and appends to the buffer.

    An environment that raises, or answers what is no number, is made anew and begins its next
    episode; the broken one leaves the buffer.
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
        """make: one environment. columns: what the buffer further needs, of a whole episode.

        say: told of every mishap. overlap: the environments step in a thread of their own.
        """
        self.engine, self.make, self.buffer, self.transform = engine, make, buffer, transform
        self.online, self.columns, self.say, self.steps = online, columns, say, 0
        self._act = engine.stacked_policy(1, explore=True)
        if self._act.remembers and online.warmup_steps and online.warmup_policy == "random":
            raise UserError(
                f"online.warmup_policy=random: a {type(self._act.module).__name__} remembers its "
                "episode, and random actions are not its own; use online.warmup_policy=policy"
            )
        count = len(engine.seeds)
        flush = partial(torch.set_flush_denormal, True)  # as in the thread that replays them
        self._aside = ThreadPoolExecutor(1, initializer=flush) if overlap else None
        self._begun: tuple[Observations, np.ndarray, Future[list[Step | Exception]]] | None = None
        self.envs = list[VectorEnv]()
        try:
            self._open(count)
        except BaseException:
            close_quietly(self)
            raise

    def _open(self, count: int) -> None:
        """An environment of each of `count` streams, at its first episode's beginning."""
        for _ in range(count):
            self.envs.append(self.make())
        self.episodes = np.zeros(count, int)
        self.lengths = np.zeros(count, int)  # of the running episodes
        self.mishaps = np.zeros(count, int)  # broken episodes since the last whole one
        self._returns = np.zeros(count)
        self._succeeded: list[bool | None] = [None] * count  # in the running episode, if it is told
        self.broken = set[int]()  # streams whose policy gave no number; they get 0 in its place
        self.finished: list[list[float]] = [[] for _ in range(count)]  # returns, per seed
        self.success: list[list[bool]] = [[] for _ in range(count)]  # where the environment tells
        self._observations = channels.map_channels(
            lambda shape: np.zeros((count, *shape), channels.dtype(shape)),
            self.envs[0].observation_shape,
        )
        for s in range(count):
            self._begin(s)

    def _reset(self, s: int) -> None:
        seed = seeds.training_episode_seed(self.engine.seeds[s], int(self.episodes[s]))
        first = self.envs[s].reset([seed])
        check_finite("reset", first)
        channels.assign(self._observations, [s], first)
        self._act.reset(np.array([seed]), np.array([s]))
        self._returns[s], self.lengths[s], self._succeeded[s] = 0, 0, None

    def _actions(self, observations: Observations) -> np.ndarray:
        """[S, *obs] normalized -> [S, A]."""
        if self.steps < self.online.warmup_steps:
            size, draws = self.envs[0].action_dim, list[np.ndarray]()
            for s, seed in enumerate(self.engine.seeds):
                random = np.random.default_rng((seed, self.steps))
                own = self.online.warmup_action(random, channels.take(observations, s), size)
                draws += [] if own is None else [own]
            if draws:
                return np.asarray(draws, np.float32)
        batch = channels.map_channels(
            lambda x: torch.from_numpy(x[:, None]).to(self.engine.device), observations
        )
        actions = self._act(batch, self.steps)[:, 0].cpu().numpy()
        if not np.isfinite(actions).all():  # a diverged seed must not stop its neighbors
            self.broken.update(np.flatnonzero(~np.isfinite(actions).all(1)).tolist())
            actions = np.nan_to_num(actions, nan=0, posinf=0, neginf=0)
        return actions

    def step(self) -> None:
        """One environment step of every stream."""
        self.begin()
        self.end()

    def begin(self) -> None:
        """Chooses each stream's action by its policy as it is; with overlap they step meanwhile."""
        observations = self.transform.normalizer(self._observations)
        actions, answers = self._actions(observations), Future[list[Step | Exception]]()
        if self._aside is None:
            answers.set_result(self._stepped(actions))
        else:
            answers = self._aside.submit(self._stepped, actions)
        self._begun = observations, actions, answers

    def _stepped(self, actions: np.ndarray) -> list[Step | Exception]:
        """What each environment answers, or how it broke."""
        answers = list[Step | Exception]()
        for s, env in enumerate(self.envs):
            try:
                answers.append(sound(env.step(actions[[s]]), self.buffer.columns))
            except Exception as error:
                answers.append(error)
        return answers

    def end(self) -> None:
        """Takes what `begin` led to into the buffer."""
        assert self._begun is not None
        observations, actions, answers = self._begun
        streams, steps, self._begun = list[int](), list[Step](), None
        for s, answer in enumerate(answers.result()):
            if isinstance(answer, Exception):
                self._mishap(s, answer)
            else:
                streams.append(s)
                steps.append(answer)
        if streams:
            self._append(np.asarray(streams), steps, observations, actions)
        if self._act.remembers:
            rewards = np.zeros((len(self.envs), 1), np.float32)
            for s, step in zip(streams, steps, strict=True):
                rewards[s] = step.rewards
            self._act.observe(torch.from_numpy(rewards).to(self.engine.device))
        self.steps += 1
        for s, step in zip(streams, steps, strict=True):
            self._note(s, step)
            self.lengths[s] += 1
            channels.assign(self._observations, [s], step.observations)
        gone: GivenUp | None = None
        for s, step in zip(streams, steps, strict=True):
            if step.terminated[0] or step.truncated[0]:
                try:
                    self._end(s)
                except GivenUp as error:  # the other streams' episodes end none the less
                    gone = gone or error
        if gone is not None:
            raise gone

    def _append(
        self,
        streams: np.ndarray,
        steps: list[Step],
        observations: Observations,
        actions: np.ndarray,
    ) -> None:
        after = channels.concatenate([step.observations for step in steps])
        rewards = np.concatenate([step.rewards for step in steps])
        rows = {
            "observations": channels.take(observations, streams),
            "actions": actions[streams],
            "rewards": self.transform.rewards(rewards),
            "terminated": np.concatenate([step.terminated for step in steps]),
            "truncated": np.concatenate([step.truncated for step in steps]),
            "next_observations": self.transform.normalizer(after),
        }
        given = [told(self.buffer.columns, step) for step in steps]
        rows |= {name: np.concatenate([columns[name] for columns in given]) for name in given[0]}
        self.buffer.append(streams, rows)

    def _note(self, s: int, step: Step) -> None:
        """Adds its reward to the episode's return; who succeeds at any step has succeeded."""
        self._returns[s] += step.rewards[0]
        success = [bool(v[0]) for k, v in step.infos.items() if k in SUCCESS]
        if success:
            self._succeeded[s] = any(success) or bool(self._succeeded[s])

    def _end(self, s: int) -> None:
        """An episode is whole."""
        if self.buffer.awaits_ends:
            self.buffer.release(s, self.columns(self.buffer.newest(s, int(self.lengths[s]))))
        self.finished[s].append(float(self._returns[s]))
        succeeded = self._succeeded[s]
        self.success[s] += [] if succeeded is None else [succeeded]
        self.mishaps[s] = 0
        self._next(s)

    def _mishap(self, s: int, error: Exception) -> None:
        """Drops the running episode and begins the next in a new environment."""
        seed, length = self.engine.seeds[s], int(self.lengths[s])
        self.mishaps[s] += 1
        who = "the base policy" if isinstance(error, BaseFault) else "the environment"
        why = error if isinstance(error, Broken) else repr(error)
        what = f"seed {seed}: {who} broke in step {length} of an episode ({why})"
        if self.mishaps[s] >= MISHAPS:
            raise GivenUp(f"{what}, for the {MISHAPS}th time in a row") from error
        self.say(f"{what}; the episode is dropped and the next begins")
        self.buffer.drop(s, length)
        close_quietly(self.envs[s])  # what is broken may not even close
        try:
            self.envs[s] = self.make()
        except Exception as again:
            self.lengths[s] = 0
            self._mishap(s, again)
        else:
            self._next(s)

    def _next(self, s: int) -> None:
        """The next episode."""
        self.lengths[s] = 0
        self.episodes[s] += 1
        self._begin(s)

    def _begin(self, s: int) -> None:
        """An episode's beginning, which may break at once."""
        try:
            self._reset(s)
        except Exception as error:
            self._mishap(s, error)

    def ready(self, batch_size: int) -> bool:
        """Whether every stream has rows to learn from: of a batch's steps, or an episode's.

        The latter where an episode's rows come when it ends. So that no seed waits for another's,
        they may be fewer than a batch; it does wait where another has none, all being broken.
        """
        longest = self.envs[0].max_episode_steps if self.buffer.awaits_ends else 0
        return self.steps >= max(batch_size, longest) and min(self.buffer.sizes) > 0

    def close(self) -> None:
        """The environments."""
        if self._aside is not None:
            self._aside.shutdown()
        with ExitStack() as others:  # are closed too where one fails to
            for env in self.envs:
                others.callback(env.close)

    def state(self, s: int) -> dict[str, Any]:
        """What `restore` needs of stream s beside the buffer."""
        counts = ("episodes", "lengths", "mishaps")
        return {"steps": self.steps} | {name: int(getattr(self, name)[s]) for name in counts}

    def memory(self, s: int) -> dict[str, torch.Tensor]:
        """What the policy remembers of stream s's running episode, if it keeps a memory."""
        return self._act.memory(s)

    def restore(
        self,
        states: Sequence[dict[str, Any]],
        memories: Sequence[Mapping[str, torch.Tensor]] | None = None,
    ) -> None:
        """Continues where each stream's state was taken: replays running episodes' actions.

        memories: each stream's `memory` then, which earlier parameters may have made.
        Raises ValueError where one is of a group of other streams.
        """
        for s, stored in enumerate(states):
            state = alone(stored, s, len(states))
            self.steps, length = state["steps"], state["lengths"]
            self.episodes[s], self.mishaps[s] = state["episodes"], state.get("mishaps", 0)
            try:
                self._replay(s, length)
                if memories is not None and memories[s]:
                    self._act.recall(s, memories[s])
            except Exception as error:
                self.lengths[s] = length
                self._mishap(s, error)

    def _replay(self, s: int, length: int) -> None:
        """The running episode, as far as it had come."""
        self._reset(s)
        for action in self.buffer.newest(s, length).actions if length else ():
            step = self.envs[s].step(action[None])
            self._note(s, step)
            channels.assign(self._observations, [s], step.observations)
        self.lengths[s] = length


def alone(state: dict[str, Any], s: int, count: int) -> dict[str, Any]:
    """Stream s's part of what a checkpoint holds: earlier ones hold all `count` streams' counts."""
    if "began" in state:  # before format 3
        state = state | {"lengths": [state["steps"] - began for began in state["began"]]}
    if not isinstance(state["episodes"], list):
        return state
    if len(state["episodes"]) != count:
        raise ValueError(f"it holds {len(state['episodes'])} seeds, which go on together or not")
    return {name: v[s] if isinstance(v, list) else v for name, v in state.items()}
