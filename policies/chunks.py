"""Execution of policies that predict chunks of actions.

    time                 t-1    t  | t+1    t+2    t+3    t+4  …
    n_obs_steps = 2       o      o |
    chunk_size = 4               a |  a      a      a
    n_action_steps = 3           a |  a      a   |  next chunk at t+3

With temporal ensembling, the policy predicts a chunk at every step, and the action is an average
of all predictions for that step (Zhao et al., arXiv:2304.13705, section IV-A).

The module needs numpy only. Evaluations, policy bundles and robots use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from policies import channels, noise
from policies.channels import Observations
from policies.policy import BundlePolicy

# (observations [R, n_obs_steps, *obs], noise [R, *noise_shape], episode indices [R]) -> chunks
# [R, chunk_size, A]; the first action of a chunk is for the present step
Plan = Callable[[Observations, np.ndarray, np.ndarray], np.ndarray]
# names of the arrays [B, …] that `state` returns; checkpoints store them under these names
STATE = ("seeds", "decisions", "_taken", "_new", "_chunks", "_sums", "_counts")


class ChunkExecutor:
    """Executor of a chunk policy in B episodes, one action per step.

    For each episode, the executor stores the observation history, the current chunk, the number of
    predicted chunks, which determines the noise, and the sums of temporal ensembling. It calls
    `plan` when all `n_action_steps` actions of a chunk are executed.

    `reset` starts episodes. After `reset`, call `step` once per environment step. Alternatively,
    call `observe` once per step, and `predict_chunk` whenever you need a new chunk.
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
        """Create an executor without episodes.

        n_action_steps: number of executed actions per chunk.
        noise_shape: shape of the noise for one chunk; () for a deterministic policy.
        temporal_ensemble_coeff: coefficient m of temporal ensembling; None turns it off. Prediction
        i for a step has the weight exp(-m i); i = 0 is the oldest prediction.
        """
        self.plan, self.n_obs_steps, self.n_action_steps = plan, n_obs_steps, n_action_steps
        self.temporal_ensemble_coeff = temporal_ensemble_coeff
        self.noise_shape = noise_shape or (0,)
        self.seeds = np.zeros(0, np.int64)  # [B], one per episode
        self.decisions = np.zeros(0, np.int64)  # [B], chunks predicted so far in the episode
        self._taken = np.zeros(0, np.int64)  # [B], number of executed actions of the chunk
        self._new = np.zeros(0, bool)  # [B], True before the first observation
        self._history: Observations | None = None  # [B, n_obs_steps, *obs]
        self._chunks = np.zeros(0, np.float32)  # [B, n_action_steps, A]
        # weighted sums of the predictions for the next steps, and the number of predictions
        self._sums = np.zeros((0, 0, 0))  # [B, chunk_size, A]
        self._counts = np.zeros((0, 0), np.int64)  # [B, chunk_size]

    @classmethod
    def from_policy(cls, policy: BundlePolicy) -> ChunkExecutor:
        """Create the executor of a policy that is not recurrent."""
        return cls(
            lambda observations, noise, _rows: policy.plan(observations, noise),
            n_obs_steps=policy.spec.n_obs_steps,
            n_action_steps=policy.spec.n_action_steps,
            noise_shape=policy.noise_shape,
            temporal_ensemble_coeff=policy.spec.temporal_ensemble_coeff,
        )

    def reset(self, seeds: np.ndarray, rows: np.ndarray | None = None) -> None:
        """Start one episode per seed. With `rows`, restart only the episodes at these indices."""
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
        """Return a copy of the state of the episodes `rows`, without empty arrays."""
        arrays = {name: getattr(self, name) for name in STATE}
        if self._history is not None:
            arrays |= channels.flatten({"seen": self._history})
        return {name: x[rows].copy() for name, x in arrays.items() if x[rows].size}

    def load(self, rows: slice, state: Mapping[str, np.ndarray]) -> None:
        """Restore the output of `state`. Call `reset` first."""
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

        The first observation of an episode fills its complete history.
        rows: [R], indices of the episodes that make a step. Then `observations` is [R, *obs], for
        these episodes. Default: all episodes.
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

        With temporal ensembling, call this method exactly once per step.
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
