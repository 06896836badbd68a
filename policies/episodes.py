"""Execution of a policy in parallel episodes: history, memory, noise and chunks of actions.

    time                 t-1    t  | t+1    t+2    t+3    t+4  …
    n_obs_steps = 2       o      o |
    chunk_size = 4               a |  a      a      a
    n_action_steps = 3           a |  a      a   |  next decision at t+3

With temporal ensembling, the policy predicts a chunk at every step, and the action is an average
of all predictions for that step (Zhao et al., arXiv:2304.13705, section IV-A).

The module needs numpy only. Training, evaluations, policy bundles and robots use it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np

from policies import channels, noise
from policies.channels import Observations

Memory = Mapping[str, Any]  # arrays or tensors [R, …] by name; see `policies.heads.head`
# entries of the memory: [R], sum of the raw rewards or costs since the last decision
REWARDS, COSTS = "rewards", "costs"
EXECUTED = "executed"  # entry of the memory: [R], number of steps since the last decision
PLAN = "plan"  # entry of the memory: [R, chunk_size, A], the actions since the last decision
# (observations [R, n_obs_steps, *obs], memory, noise [R, *noise_shape], episode indices [R]) ->
# chunks [R, chunk_size, A], whose first action is for the present step, and the next memory
Decide = Callable[
    [Observations, Memory, np.ndarray, np.ndarray], tuple[np.ndarray, Mapping[str, Any]]
]
# names of the arrays [B, …] that `state` returns; checkpoints store them under these names
STATE = (
    *("seeds", "decisions", "rewards", "costs", "executed", "is_new"),
    *("_taken", "_chunks", "_sums", "_counts"),
)
HISTORY, MEMORY = "observations", "memory"  # names of the other entries of `state`


class RunningEpisodes:
    """B running episodes of a policy, which takes one action per step.

    For each episode, the object stores the observation history, the policy's memory, the current
    chunk, the number of decisions, which determines the noise, and the sums of temporal ensembling.
    It calls `decide` when all `n_action_steps` actions of a chunk are executed.

    `reset` starts episodes. After `reset`, call `step` once per environment step. Alternatively,
    call `observe` once per step, and `predict_chunk` whenever you need a new chunk.
    """

    interrupted = False  # True if the last observation requires a new chunk immediately

    def __init__(
        self,
        decide: Decide,
        initial_memory: Callable[[int], Memory] = lambda count: {},
        *,
        n_obs_steps: int = 1,
        n_action_steps: int = 1,
        noise_shape: tuple[int, ...] = (),
        temporal_ensemble_coeff: float | None = None,
    ) -> None:
        """Create the object without episodes.

        initial_memory: function that returns the memory at the start of a number of episodes.
        n_action_steps: number of executed actions per chunk.
        noise_shape: shape of the noise for one decision; () for a deterministic policy.
        temporal_ensemble_coeff: coefficient m of temporal ensembling; None turns it off. Prediction
        i for a step has the weight exp(-m i); i = 0 is the oldest prediction.
        """
        self.decide, self.initial_memory = decide, initial_memory
        self.n_obs_steps, self.n_action_steps = n_obs_steps, n_action_steps
        self.temporal_ensemble_coeff = temporal_ensemble_coeff
        self.noise_shape = noise_shape or (0,)
        self.reset(np.zeros(0, np.int64))

    def reset(self, seeds: np.ndarray, rows: np.ndarray | None = None) -> None:
        """Start one episode per seed. With `rows`, restart only the episodes at these indices."""
        seeds, count = np.asarray(seeds, np.int64), len(seeds)
        if rows is None:
            rows = self._all = np.arange(count)
            self.seeds = np.empty(count, np.int64)  # [B], one per episode
            self.decisions = np.empty(count, np.int64)  # [B], decisions so far in the episode
            # [B], sums since the last decision
            self.rewards, self.costs = np.empty(count, np.float32), np.empty(count, np.float32)
            self.executed = np.empty(count, np.float32)  # [B], steps since the last decision
            self.is_new = np.empty(count, bool)  # [B], True before the first observation
            self.memory: Memory = {}  # [B, …] by name
            self._history: Observations | None = None  # [B, n_obs_steps, *obs]
            self._taken = np.empty(count, np.int64)  # [B], number of executed actions of the chunk
            self._chunks = np.zeros((count, 0), np.float32)  # [B, n_action_steps, A]
            # weighted sums of the predictions for the next steps, and the number of predictions
            self._sums = np.zeros((count, 0, 0))  # [B, chunk_size, A]
            self._counts = np.zeros((count, 0), np.int64)  # [B, chunk_size]
        self._store_memory(self.initial_memory(count), rows)
        self.seeds[rows], self.decisions[rows] = seeds, 0
        self.rewards[rows] = self.costs[rows] = self.executed[rows] = 0
        self._taken[rows], self.is_new[rows] = self.n_action_steps, True
        self._sums[rows], self._counts[rows] = 0, 0

    def fork(self) -> Self:
        """Return a copy that can make steps of all episodes without changing this object."""
        episodes = copy.copy(self)  # such a step replaces the history and the memory
        for name in STATE:
            setattr(episodes, name, getattr(self, name).copy())
        return episodes

    def state(self, rows: np.ndarray) -> dict[str, Any]:
        """Return a copy of the state of the episodes `rows` [R], without empty arrays.

        The sum of costs and the number of steps are included if the policy reads them.
        """
        columns = {name: getattr(self, name) for name in STATE} | {MEMORY: self.memory}
        for name in (COSTS, EXECUTED):
            if name not in self.memory:
                del columns[name]
        columns |= {} if self._history is None else {HISTORY: self._history}
        flat = channels.flatten(columns)
        return {name: x[rows] for name, x in flat.items() if np.prod(x.shape[1:])}

    def load(self, rows: np.ndarray, state: Mapping[str, Any]) -> None:
        """Restore the output of `state`. Call `reset` first."""
        for name in STATE:
            if (values := state.get(name)) is None:
                continue
            array = getattr(self, name)
            if array.shape[1:] != values.shape[1:]:
                array = np.zeros((len(self.seeds), *values.shape[1:]), values.dtype)
                setattr(self, name, array)
            array[rows] = values
        self._store_memory(channels.get(state, MEMORY) or {}, rows)
        if (history := channels.get(state, HISTORY)) is not None:
            self._store_history(history, rows)

    def add_rewards(self, rewards: np.ndarray, rows: np.ndarray | None = None) -> None:
        """Add the raw rewards [R] of the last actions. New episodes ignore them."""
        rows = self._all if rows is None else rows
        self.rewards[rows] += np.where(self.is_new[rows], 0, rewards)

    def add_costs(self, costs: np.ndarray, rows: np.ndarray | None = None) -> None:
        """Add the raw costs [R] of the last actions. New episodes ignore them."""
        rows = self._all if rows is None else rows
        self.costs[rows] += np.where(self.is_new[rows], 0, costs)

    def observe(self, observations: Observations, rows: np.ndarray | None = None) -> None:
        """Append the present observations [B, *obs] to the observation histories.

        The first observation of an episode fills its complete history.
        rows: [R], indices of the episodes that make a step. Then `observations` is [R, *obs], for
        these episodes. Default: all episodes.
        """
        rows = self._all if rows is None else rows
        new = self.is_new[rows]
        history = first = channels.map_channels(
            lambda x: np.repeat(x[:, None], self.n_obs_steps, 1), observations
        )
        if self.n_obs_steps > 1 and not new.all():
            history = channels.map_channels(
                lambda old, x: np.concatenate([old[:, 1:], x[:, -1:]], 1),
                channels.map_channels(lambda x: self._select(x, rows), self._history),
                first,
            )
            channels.assign(history, new, channels.take(first, new))
        self._store_history(history, rows)
        self.executed[rows] += ~new
        self.is_new[rows] = False

    def replan(self, rows: np.ndarray) -> None:
        """Discard the remaining actions of the chunks of the episodes `rows` [R]."""
        self._taken[rows] = self.n_action_steps

    def draw_noise(self, rows: np.ndarray) -> np.ndarray:
        """Return the noise for the next decision of the episodes `rows` [R], [R, *noise_shape]."""
        return noise.normal(self.seeds[rows], self.decisions[rows], self.noise_shape)

    def predict_chunk(
        self, rows: np.ndarray | None = None, noise: np.ndarray | None = None
    ) -> np.ndarray:
        """Predict new chunks [R, chunk_size, A] for the episodes `rows` [R], by default all.

        noise: [R, *noise_shape], by default `draw_noise`. With temporal ensembling, call this
        method exactly once per step.
        """
        rows = self._all if rows is None else rows
        numbers = self.draw_noise(rows) if noise is None else noise
        observations = channels.map_channels(lambda x: self._select(x, rows), self._history)
        memory = {name: self._select(x, rows) for name, x in self.memory.items()}
        sums = {REWARDS: self.rewards, COSTS: self.costs, EXECUTED: self.executed}
        memory |= {name: values[rows] for name, values in sums.items() if name in memory}
        chunks, next_memory = self.decide(observations, memory, numbers, rows)
        self._store_memory(next_memory, rows)
        self.decisions[rows] += 1
        self.rewards[rows] = self.costs[rows] = self.executed[rows] = 0
        if self.temporal_ensemble_coeff is None:
            return chunks
        return self._ensemble(chunks, rows, self.temporal_ensemble_coeff)

    def _select(self, values: Any, rows: np.ndarray) -> Any:
        return values if rows is self._all else values[rows]

    def _store_memory(self, memory: Memory, rows: np.ndarray) -> None:
        """Replace the memory of the episodes `rows`."""
        if rows is not self._all:
            merged = {name: x[self._all] for name, x in self.memory.items()}  # copies
            for name, x in memory.items():
                merged[name][rows] = x
            memory = merged
        self.memory = memory

    def _store_history(self, history: Observations, rows: np.ndarray) -> None:
        """Replace the observation histories of the episodes `rows`."""
        if rows is self._all:
            self._history = history
            return
        if self._history is None:
            self._history = channels.map_channels(
                lambda x: np.zeros((len(self.seeds), *x.shape[1:]), x.dtype), history
            )
        channels.assign(self._history, rows, history)

    def _ensemble(self, chunks: np.ndarray, rows: np.ndarray, m: float) -> np.ndarray:
        """Average new chunks with the earlier predictions for the same steps."""
        count, chunk_size, _ = chunks.shape
        if self._sums.shape[1:] != chunks.shape[1:]:
            self._sums = np.zeros((len(self.seeds), *chunks.shape[1:]))
            self._counts = np.zeros((len(self.seeds), chunk_size), np.int64)
        weights, no_predictions = np.exp(-m * np.arange(chunk_size)), np.zeros((count, 1), np.int64)
        # shift by one step
        sums = np.concatenate([self._sums[rows, 1:], np.zeros_like(chunks[:, :1])], 1)
        counts = np.concatenate([self._counts[rows, 1:], no_predictions], 1)
        sums += weights[counts][..., None] * chunks
        self._sums[rows], self._counts[rows] = sums, counts + 1
        averages: np.ndarray = sums / weights.cumsum()[counts][..., None]
        return averages.astype(chunks.dtype)

    def step(self, observations: Observations, rows: np.ndarray | None = None) -> np.ndarray:
        """Return the actions [B, A] to execute after the present observations [B, *obs].

        rows: see `observe`.
        """
        rows = self._all if rows is None else rows
        self.observe(observations, rows)
        is_due = self._taken[rows] >= self.n_action_steps
        if is_due.any():
            due = rows if is_due.all() else rows[is_due]
            chunks = self.predict_chunk(due)[:, : self.n_action_steps]
            if self._chunks.shape[1:] != chunks.shape[1:]:
                self._chunks = np.zeros((len(self.seeds), *chunks.shape[1:]), chunks.dtype)
            self._chunks[due], self._taken[due] = chunks, 0
        actions = self._chunks[rows, self._taken[rows]]
        self._taken[rows] += 1
        return actions
