"""Collection of online experience, with one or more environments for each stacked seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from envs import Broken, VectorEnv
from envs.faults import check_finite
from envs.vector import Step
from offline_rl.data.transform import Transform
from offline_rl.engine.engine import Engine
from offline_rl.online.composed import BaseFault
from offline_rl.online.episodes import Episodes
from offline_rl.online.sinks import Sink, add_prefix, strip_prefix
from offline_rl.replay.columns import reported
from offline_rl.utils import seeds
from offline_rl.utils.errors import UserError, close_quietly

MAX_FAILURES = 5  # failed episodes in a row, after which training stops
RUNNING = "buffer/running/"  # names of the running episodes' arrays in a checkpoint
COUNTS = ("numbers", "lengths", "mishaps")  # arrays of `Episodes` in a checkpoint


class RepeatedFailure(UserError):
    """Error after an environment has failed MAX_FAILURES times in a row.

    The training state is consistent and can be saved.
    """


class Collector:
    """Collector of experience from B environments per seed, into a sink.

    All environments execute a decision together. If an episode ends within it, the next decision
    starts a new one. An environment that raises, or returns NaN or infinity, is created again, and
    its episode is dropped.

    With B = 1, every seed has an environment of its own. With B > 1, all environments are one
    `VectorEnv`. If a step fails, it is repeated in a new one, one environment after the other. An
    episode is dropped only if its environment fails again.
    """

    def __init__(
        self,
        engine: Engine,
        make: Callable[[int], VectorEnv],
        sink: Sink,
        transform: Transform,
        say: Callable[[str], None] = print,
        overlap: bool = False,
    ) -> None:
        """Create the collector and its environments.

        make: creates n environments. sink: chooses actions and stores their results. say: called
        with a message for every failure. overlap: step the environments in a thread.
        """
        self.engine, self.make, self.sink, self.say = engine, make, sink, say
        self.steps = 0  # environment steps per seed
        self.should_stop: Callable[[], bool] = lambda: False  # True once a stop is requested
        self._steps_per_call = 1  # environment steps of one call of `VectorEnv.step`
        # each thread has its own setting; replayed steps must give the same results
        flush = partial(torch.set_flush_denormal, True)
        self._thread = ThreadPoolExecutor(1, initializer=flush) if overlap else None
        self._pending: Future[dict[int, Exception]] | None = None
        self._failure: RepeatedFailure | None = None  # raised when the decision is complete
        count = len(engine.seeds) * sink.envs_per_seed
        self._size = 1 if sink.envs_per_seed == 1 else count  # environments in a VectorEnv
        self._envs = list[VectorEnv | None]()  # None: failed, and not created again yet
        try:
            while len(self._envs) * self._size < count:
                self._envs.append(make(self._size))
            self._steps_per_call = self._env(0).steps_per_decision
            sink.check(self._env(0).max_episode_steps)
            self.episodes = Episodes(count, self._env(0), transform, sink.info_columns)
            self.started = np.zeros(len(engine.seeds), int)  # episodes, per seed
            # seeds whose policy returned NaN or infinity; these numbers are replaced by 0
            self.broken = set[int]()
            self.finished: list[list[float]] = [[] for _ in engine.seeds]  # returns, per seed
            # success and costs of finished episodes, per seed, if the environment reports them
            self.success: list[list[bool]] = [[] for _ in engine.seeds]
            self.costs: list[list[float]] = [[] for _ in engine.seeds]
            self._start_episodes(np.arange(count))
        except BaseException:
            close_quietly(self)
            raise

    @property
    def buffer(self) -> Any:
        """The replay buffer or the rollouts."""
        return self.sink.buffer

    @property
    def steps_per_decision(self) -> int:
        """Environment steps per seed that a decision counts as, even if episodes end within it."""
        return self.sink.envs_per_seed * self.sink.n_action_steps * self._steps_per_call

    def step(self, *, adds: bool = True) -> None:
        """Execute one decision in every environment. adds: see `end`."""
        self.begin()
        self.end(adds=adds)

    def begin(self) -> None:
        """Decide, and start to execute the decision. With overlap it runs in a thread."""
        actions = self.sink.decide(self.episodes, self.steps)
        if not np.isfinite(actions).all():  # a diverged seed must not stop the others
            rows = np.flatnonzero(~np.isfinite(actions).all((1, 2)))
            self.broken.update((rows // self.sink.envs_per_seed).tolist())
            actions = np.nan_to_num(actions, nan=0, posinf=0, neginf=0)
        self.episodes.begin_decision()
        if self._thread is None:
            self._pending = Future()
            self._pending.set_result(self._execute(actions))
        else:
            self._pending = self._thread.submit(self._execute, actions)

    def end(self, *, adds: bool = True) -> None:
        """Wait for the decision that `begin` started, and store it.

        adds: append the episodes that end in it to the replay buffer. Raises RepeatedFailure, after
        everything is stored, if an environment has failed too often.
        """
        assert self._pending is not None
        errors, self._pending, episodes = self._pending.result(), None, self.episodes
        for row, error in errors.items():
            self._drop_episode(row, error)
        self.sink.end_decision(episodes)
        self.steps += self.steps_per_decision
        ended = np.flatnonzero(episodes.terminated | episodes.truncated)
        if not len(ended):
            return
        executed = (episodes.lengths - episodes.decided)[ended]
        in_order = ended[
            np.argsort(executed, kind="stable")
        ]  # the episode that ended first is first
        for row in in_order.tolist():
            if row not in errors:
                self._end_episode(row, adds)
        self._start_episodes(ended)

    def _execute(self, actions: np.ndarray) -> dict[int, Exception]:
        """Execute actions [R, n_action_steps, A], in each row until its episode ends.

        Returns the errors of the environments that failed. Their episodes count as truncated.
        """
        episodes, errors, rows = self.episodes, dict[int, Exception](), np.arange(len(actions))
        for j in range(actions.shape[1]):
            episodes.actions[rows, episodes.lengths[rows]] = actions[rows, j]
            groups = [
                pair
                for g, env_rows in self._by_env(rows)
                for pair in self._step(g, env_rows, errors)
            ]
            if not groups:
                break
            rows = np.concatenate([env_rows for env_rows, _ in groups])
            episodes.record(rows, episodes.lengths[rows], [step for _, step in groups])
            episodes.lengths[rows] += 1
            rows = rows[~(episodes.terminated | episodes.truncated)[rows]]
        episodes.truncated[[*errors]] = True
        return errors

    def _by_env(self, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the index of each VectorEnv that contains any of `rows`, with these rows."""
        if self._size == 1:
            yield from ((int(row), rows[k : k + 1]) for k, row in enumerate(rows))
        elif len(rows):
            yield 0, rows

    def _step(
        self, g: int, rows: np.ndarray, errors: dict[int, Exception], *, repeated: bool = False
    ) -> list[tuple[np.ndarray, Step]]:
        """Execute the next stored action in environments of the g-th VectorEnv.

        Returns the steps, each with its rows. Adds the errors of failed environments to `errors`.
        """
        try:
            return [(rows, self._take_action(g, rows, self.episodes.lengths[rows]))]
        except Exception as error:
            if self._size == 1 or repeated:
                errors[int(rows[0])] = error
                return []
            self._discard(g)
            errors |= self._reset(rows)
            single_rows = [np.array([row]) for row in rows if row not in errors]
            steps = [self._step(g, row, errors, repeated=True) for row in single_rows]
            return [pair for pairs in steps for pair in pairs]

    def _take_action(self, g: int, rows: np.ndarray, t: int | np.ndarray) -> Step:
        """Execute the stored actions of step `t` in environments of the g-th VectorEnv.

        Raises Broken if an observation, a reward or a required info is NaN or infinite.
        """
        step = self._env(g).step(self.episodes.actions[rows, t], rows - g * self._size)
        check_finite("step", step.observations, step.rewards)
        for info in reported(self.sink.info_columns).values():
            if not np.isfinite(step.infos.get(info, 0)).all():
                raise Broken(f"step returned a {info} that is NaN or infinite")
        return step

    def _end_episode(self, row: int, adds: bool) -> None:
        """Report a complete episode. adds: append it to the replay buffer."""
        episodes, s = self.episodes, row // self.sink.envs_per_seed
        if adds:
            self.sink.end_episode(episodes, row)
        self.finished[s].append(float(episodes.returns[row]))
        self.success[s] += [bool(episodes.succeeded[row])] if episodes.succeeded[row] >= 0 else []
        self.costs[s] += [float(episodes.costs[row])] if episodes.reports_costs else []
        episodes.mishaps[row] = 0

    def _start_episodes(self, rows: np.ndarray) -> None:
        """Start the next episode in each of the environments `rows`, in this order.

        An environment whose reset fails skips to its next episode. Raises RepeatedFailure if an
        environment has failed too often, after all others have started.
        """
        episodes = self.episodes
        while len(rows):
            episodes.lengths[rows] = 0
            rows = rows[episodes.mishaps[rows] < MAX_FAILURES]
            for row in rows:
                s = row // self.sink.envs_per_seed
                episodes.numbers[row] = self.sink.next_number(int(self.started[s]))
                self.started[s] += 1
            errors = self._reset(rows)
            self.sink.start_episodes(episodes, rows)
            for row, error in errors.items():
                self._drop_episode(row, error)
            rows = np.array([*errors], int)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _reset(self, rows: np.ndarray) -> dict[int, Exception]:
        """Reset the environments `rows`, and replay the stored actions of their episodes.

        Returns the errors of the environments that failed.
        """
        errors = dict[int, Exception]()
        for g, env_rows in self._by_env(rows):
            try:
                self._replay(g, env_rows)
            except Exception as error:
                if len(env_rows) == 1:
                    errors[int(env_rows[0])] = error
                    continue
                for row in env_rows:  # one by one, to identify those that fail
                    errors |= self._reset(np.array([row]))
        return errors

    def _replay(self, g: int, rows: np.ndarray) -> None:
        """Reset environments of the g-th VectorEnv, and replay the stored actions."""
        episodes = self.episodes
        for row in rows:
            seed = self.engine.seeds[row // self.sink.envs_per_seed]
            number = int(episodes.numbers[row])
            episodes.seeds[row] = seeds.training_episode_seed(seed, number)
        observations = self._env(g).reset(episodes.seeds[rows].tolist(), rows - g * self._size)
        check_finite("reset", observations)
        episodes.start(rows, observations)
        for t in range(episodes.lengths[rows].max()):
            running = rows[episodes.lengths[rows] > t]
            episodes.record(running, t, [self._take_action(g, running, t)])

    def _drop_episode(self, row: int, error: Exception) -> None:
        """Report a failed episode, and drop its stored steps and those of the last decision."""
        episodes, length = self.episodes, int(self.episodes.lengths[row])
        episodes.lengths[row] = min(length, episodes.decided[row])
        self.sink.drop_episode(episodes, row)
        episodes.mishaps[row] += 1
        if self._size == 1:
            self._discard(row)
        seed = self.engine.seeds[row // self.sink.envs_per_seed]
        culprit = "the base policy" if isinstance(error, BaseFault) else "the environment"
        why = error if isinstance(error, Broken) else repr(error)
        problem = f"seed {seed}: {culprit} failed in step {length} of an episode ({why})"
        if episodes.mishaps[row] < MAX_FAILURES:
            self.say(f"{problem}; the episode is dropped and the next one starts")
        elif self._failure is None:
            self._failure = RepeatedFailure(f"{problem}, for the {MAX_FAILURES}th time in a row")
            self._failure.__cause__ = error

    def _env(self, g: int) -> VectorEnv:
        """Return the g-th VectorEnv. If it failed, create it again."""
        if (env := self._envs[g]) is None:
            env = self._envs[g] = self.make(self._size)
        return env

    def _discard(self, g: int) -> None:
        """Close a VectorEnv that failed. Closing it may fail too."""
        close_quietly(self._envs[g])
        self._envs[g] = None

    def can_sample(self, batch_size: int) -> bool:
        """Return True if updates can start: after enough steps, if every seed has rows.

        Enough means `batch_size` steps. If the buffer adds rows only at the end of an episode, it
        also means the maximum length of an episode. A seed may then still have fewer rows than a
        batch. A seed has no rows only if all its episodes failed.
        """
        waits = self.buffer.waits_for_episode_end or not self.sink.appends_steps
        longest = self.episodes.rewards.shape[1] * self.sink.envs_per_seed * self._steps_per_call
        return self.steps >= max(batch_size, longest if waits else 0) and min(self.buffer.sizes) > 0

    def metrics(self) -> dict[str, float]:
        """Return further metrics of the collection since the last call, by name."""
        return {}

    def saved(self) -> None:
        """Note that the newest checkpoint contains all stored experience."""

    def close(self) -> None:
        """Close the environments."""
        if self._thread is not None:
            self._thread.shutdown()
        with ExitStack() as environments:  # closes the others even if one fails to close
            for env in self._envs:
                if env is not None:
                    environments.callback(env.close)

    def state(self, s: int) -> dict[str, Any]:
        """Return the counts of seed s, which `restore` needs in addition to `tensors`."""
        return {"steps": self.steps, "episodes": int(self.started[s])}

    def tensors(self, s: int) -> dict[str, Tensor]:
        """Return the tensors of seed s for a checkpoint, under `buffer/` and `memory/`."""
        rows = self._rows(s)
        arrays = {name: getattr(self.episodes, name)[rows] for name in COUNTS}
        arrays["actions"] = self.episodes.actions[rows, : arrays["lengths"].max()]
        running = {name: torch.from_numpy(values.copy()) for name, values in arrays.items()}
        return self.sink.tensors(s) | add_prefix(RUNNING, running)

    def restore(
        self, states: Sequence[Mapping[str, Any]], tensors: Sequence[Mapping[str, Tensor]]
    ) -> None:
        """Restore each seed's `state` and `tensors`, and replay the running episodes.

        The policy's memory is stored. It cannot be recomputed, because the parameters may have
        changed within the episode.
        """
        episodes = self.episodes
        if "credit" in states[0]:
            raise UserError(
                "the run was started with actors=, whose episodes continue in no other process. "
                "Continue with actors=1 or more, or give the new run another name=…"
            )
        for s, state in enumerate(states):
            rows, running = self._rows(s), strip_prefix(RUNNING, tensors[s])
            self.steps, self.started[s] = state["steps"], state["episodes"]
            for name in COUNTS:
                getattr(episodes, name)[rows] = running[name].numpy()
            episodes.actions[rows, : running["actions"].shape[1]] = running["actions"].numpy()
        errors = self._reset(np.arange(len(episodes.lengths)))
        for s, stored in enumerate(tensors):
            self.sink.load(s, {k: v for k, v in stored.items() if not k.startswith(RUNNING)})
        episodes.decided = episodes.lengths.copy()
        for row, error in errors.items():
            self._drop_episode(row, error)
        self._start_episodes(np.array([*errors], int))

    def _rows(self, s: int) -> slice:
        """Return the environments of seed s."""
        return slice(s * self.sink.envs_per_seed, (s + 1) * self.sink.envs_per_seed)
