"""The state of a running episode under a policy that predicts chunks of actions.

    time                 t-1    t  | t+1    t+2    t+3    t+4  …
    n_obs_steps = 2       o      o |
    chunk_size = 4               a |  a      a      a
    n_action_steps = 3           a |  a      a   |  next chunk at t+3

With temporal ensembling a chunk is predicted at every step, and all predictions for a step are
averaged (Zhao et al., arXiv:2304.13705, section IV-A).

The module needs numpy only. It serves the stacked policies of an evaluation, bundles and robots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from policies import channels, noise
from policies.channels import Observations
from policies.policy import BundlePolicy

# (observations [R, n_obs_steps, *obs], noise [R, *noise_shape], episode indices [R]) -> chunks
# [R, chunk_size, A] that begin with the present action
Plan = Callable[[Observations, np.ndarray, np.ndarray], np.ndarray]
# attributes that `state` saves, [B, …] each
STATE = ("seeds", "decisions", "_taken", "_new", "_chunks", "_sums", "_counts")


class Queue:
    """Observation history and current chunk of B episodes. Calls `plan` when a chunk is used up.

    `reset` starts episodes. After it, call `step` once per environment step. Or call `observe` once
    per step, and `predict_chunk` whenever a new chunk is wanted.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        n_obs_steps: int,
        n_action_steps: int,
        noise_shape: tuple[int, ...] = (),
        temporal_ensemble_coeff: float | None = None,
    ) -> None:
        """Create a queue without episodes.

        n_action_steps: actions of each chunk that are executed.
        noise_shape: shape of the noise of one chunk; () for a deterministic policy.
        temporal_ensemble_coeff: m of temporal ensembling; None turns it off. The i-th prediction
        for a step, counted from the oldest, has the weight exp(-m i).
        """
        self.plan, self.n_obs_steps, self.n_action_steps = plan, n_obs_steps, n_action_steps
        self.temporal_ensemble_coeff = temporal_ensemble_coeff
        self.noise_shape = noise_shape or (0,)
        self.seeds = np.zeros(0, np.int64)  # [B], one for each episode
        self.decisions = np.zeros(0, np.int64)  # [B], chunks predicted in the episode so far
        self._taken = np.zeros(0, np.int64)  # [B], executed actions of the current chunk
        self._new = np.zeros(0, bool)  # [B], True before the first observation
        self._history: Observations | None = None  # [B, n_obs_steps, *obs]
        self._chunks = np.zeros(0, np.float32)  # [B, n_action_steps, A]
        self._sums = np.zeros((0, 0, 0))  # [B, chunk_size, A], weighted sums for the next steps
        self._counts = np.zeros((0, 0), np.int64)  # [B, chunk_size], predictions in these sums

    @classmethod
    def from_policy(cls, policy: BundlePolicy) -> Queue:
        """Return the queue of a policy that keeps no memory of its own."""
        return cls(
            lambda observations, noise, _rows: policy.plan(observations, noise),
            n_obs_steps=policy.spec.n_obs_steps,
            n_action_steps=policy.spec.n_action_steps,
            noise_shape=policy.noise_shape,
            temporal_ensemble_coeff=policy.spec.temporal_ensemble_coeff,
        )

    def reset(self, seeds: np.ndarray, rows: np.ndarray | None = None) -> None:
        """Start one episode for each of `seeds`. With `rows`, restart these episodes only."""
        seeds = np.asarray(seeds, np.int64)
        if rows is None:
            rows = np.arange(len(seeds))
            self.seeds, self.decisions = np.empty_like(seeds), np.empty_like(seeds)
            self._taken, self._new = np.empty_like(seeds), np.empty(len(seeds), bool)
            self._history, self._chunks = None, np.zeros((len(seeds), 0), np.float32)
            self._sums = np.zeros((len(seeds), 0, 0))
            self._counts = np.zeros((len(seeds), 0), np.int64)
        self.seeds[rows], self.decisions[rows] = seeds, 0
        self._taken[rows], self._new[rows] = self.n_action_steps, True
        self._sums[rows], self._counts[rows] = 0, 0

    def state(self, rows: slice) -> dict[str, np.ndarray]:
        """Return copies of the state of the episodes `rows`, without empty arrays."""
        arrays = {name: getattr(self, name) for name in STATE}
        if self._history is not None:
            arrays |= channels.flatten({"seen": self._history})
        return {name: x[rows].copy() for name, x in arrays.items() if x[rows].size}

    def load(self, rows: slice, state: Mapping[str, np.ndarray]) -> None:
        """Restore a result of `state`, after `reset`."""
        for name in STATE:
            if (values := state.get(name)) is None:
                continue
            array = getattr(self, name)
            if array.shape[1:] != values.shape[1:]:
                array = np.zeros((len(self.seeds), *values.shape[1:]), values.dtype)
                setattr(self, name, array)
            array[rows] = values
        if (history := channels.get(state, "seen")) is None:
            return
        if self._history is None:
            self._history = channels.map_channels(
                lambda x: np.zeros((len(self.seeds), *x.shape[1:]), x.dtype), history
            )
        channels.assign(self._history, rows, history)

    def observe(self, observations: Observations, rows: np.ndarray | None = None) -> None:
        """Append the present observations [B, *obs] to the observation histories.

        The first observation of an episode fills its whole history.
        rows: [R], episodes that make a step; `observations` are theirs. Default: all.
        """
        rows = np.arange(len(self.seeds)) if rows is None else rows
        if self._history is None:
            self._history = channels.map_channels(
                lambda x: np.zeros((len(self.seeds), self.n_obs_steps, *x.shape[1:]), x.dtype),
                observations,
            )
        present = channels.map_channels(lambda x: x[:, None], observations)
        history = channels.map_channels(
            lambda old, x: np.concatenate([old[:, 1:], x], 1),
            channels.take(self._history, rows),
            present,
        )
        new = self._new[rows]
        channels.assign(history, new, channels.take(present, new))
        channels.assign(self._history, rows, history)
        self._new[rows] = False

    def predict_chunk(self, rows: np.ndarray) -> np.ndarray:
        """Predict new chunks [R, chunk_size, A] for the episodes `rows` [R].

        With temporal ensembling, call it exactly once per step.
        """
        numbers = noise.normal(self.seeds[rows], self.decisions[rows], self.noise_shape)
        self.decisions[rows] += 1
        chunks = self.plan(channels.take(self._history, rows), numbers, rows)
        if self.temporal_ensemble_coeff is None:
            return chunks
        return self._ensemble(chunks, rows, self.temporal_ensemble_coeff)

    def _ensemble(self, chunks: np.ndarray, rows: np.ndarray, m: float) -> np.ndarray:
        """Average new chunks with the earlier predictions for the same steps."""
        count, chunk_size, _ = chunks.shape
        if self._sums.shape[1:] != chunks.shape[1:]:
            self._sums = np.zeros((len(self.seeds), *chunks.shape[1:]))
            self._counts = np.zeros((len(self.seeds), chunk_size), np.int64)
        weights, last = np.exp(-m * np.arange(chunk_size)), np.zeros((count, 1), np.int64)
        sums = np.concatenate([self._sums[rows, 1:], np.zeros_like(chunks[:, :1])], 1)
        counts = np.concatenate([self._counts[rows, 1:], last], 1)  # one step has passed
        sums += weights[counts][..., None] * chunks
        self._sums[rows], self._counts[rows] = sums, counts + 1
        averages: np.ndarray = sums / weights.cumsum()[counts][..., None]
        return averages.astype(chunks.dtype)

    def step(self, observations: Observations, rows: np.ndarray | None = None) -> np.ndarray:
        """Return the actions [B, A] to execute after the present observations [B, *obs].

        rows: see `observe`.
        """
        rows = np.arange(len(self.seeds)) if rows is None else rows
        self.observe(observations, rows)
        due = rows[self._taken[rows] >= self.n_action_steps]
        if len(due):
            chunks = self.predict_chunk(due)[:, : self.n_action_steps]
            if self._chunks.shape[1:] != chunks.shape[1:]:
                self._chunks = np.zeros((len(self.seeds), *chunks.shape[1:]), chunks.dtype)
            self._chunks[due], self._taken[due] = chunks, 0
        actions = self._chunks[rows, self._taken[rows]]
        self._taken[rows] += 1
        return actions
