"""Policies that answer with a chunk of actions: what is remembered from one step to the next.

    time              t-1    t  | t+1    t+2    t+3    t+4  …
    history of 2       o      o |
    chunk, horizon 4          a |  a      a      a
    executed 3                a |  a      a   |  asked again at t+3

Asked at every step, chunks may be blended: what they all say of a step is averaged (Zhao et al.,
arXiv:2304.13705, section IV-A).

Numpy alone, so that it serves the stacked policies of an evaluation, a bundle and a robot alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from policies import channels, noise
from policies.channels import Observations

# observations [R, n_obs_steps, *obs], noise [R, *noise_shape], which rows these are [R] -> chunks
# [R, chunk_size, A] that begin with the present action
Plan = Callable[[Observations, np.ndarray, np.ndarray], np.ndarray]
STATE = ("seeds", "decisions", "_taken", "_new", "_chunks", "_sums", "_counts")  # [B, …] each


class Queue:
    """History and running chunk of B episodes; asks `plan` only where a chunk is used up.

    `reset` begins episodes. Then, at each step of them, either `step`, or `see` and, wherever the
    user wants a new chunk, `decide`.
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
        """executed: actions of a chunk that are taken.  noise_shape: of a decision; () for none.

        blending: m, where chunks are blended: the i-th decision of a step, the oldest being 0, has
        the weight exp(-m i).
        """
        self.plan, self.n_obs_steps, self.n_action_steps = plan, n_obs_steps, n_action_steps
        self.temporal_ensemble_coeff = temporal_ensemble_coeff
        self.noise_shape = noise_shape or (0,)
        self.seeds = np.zeros(0, np.int64)  # [B], of the episodes
        self.decisions = np.zeros(0, np.int64)  # [B], made in them so far
        self._taken = np.zeros(0, np.int64)  # [B], actions of the running chunk
        self._new = np.zeros(0, bool)  # [B], nothing was seen yet
        self._seen: Observations | None = None
        self._chunks = np.zeros(0, np.float32)
        self._sums = np.zeros((0, 0, 0))  # [B, chunk_size, A], weighted, of the steps from here on
        self._counts = np.zeros((0, 0), np.int64)  # [B, chunk_size], decisions in them

    def reset(self, seeds: np.ndarray, rows: np.ndarray | None = None) -> None:
        """Begins an episode from each of `seeds`: as many as there are, or anew in `rows` alone."""
        seeds = np.asarray(seeds, np.int64)
        if rows is None:
            rows = np.arange(len(seeds))
            self.seeds, self.decisions = np.empty_like(seeds), np.empty_like(seeds)
            self._taken, self._new = np.empty_like(seeds), np.empty(len(seeds), bool)
            self._seen, self._chunks = None, np.zeros((len(seeds), 0), np.float32)
            self._sums = np.zeros((len(seeds), 0, 0))
            self._counts = np.zeros((len(seeds), 0), np.int64)
        self.seeds[rows], self.decisions[rows] = seeds, 0
        self._taken[rows], self._new[rows] = self.n_action_steps, True
        self._sums[rows], self._counts[rows] = 0, 0

    def state(self, rows: slice) -> dict[str, np.ndarray]:
        """Return copies of everything that `rows` are continued from, but for empty arrays."""
        arrays = {name: getattr(self, name) for name in STATE}
        if self._seen is not None:
            arrays |= channels.flat({"seen": self._seen})
        return {name: x[rows].copy() for name, x in arrays.items() if x[rows].size}

    def load(self, rows: slice, state: Mapping[str, np.ndarray]) -> None:
        """Put back what `state` gave, after `reset`."""
        for name in STATE:
            if (values := state.get(name)) is None:
                continue
            own = getattr(self, name)
            if own.shape[1:] != values.shape[1:]:
                own = np.zeros((len(self.seeds), *values.shape[1:]), values.dtype)
                setattr(self, name, own)
            own[rows] = values
        if (seen := channels.of(state, "seen")) is None:
            return
        if self._seen is None:
            self._seen = channels.each(
                lambda x: np.zeros((len(self.seeds), *x.shape[1:]), x.dtype), seen
            )
        channels.put(self._seen, rows, seen)

    def see(self, observations: Observations, rows: np.ndarray | None = None) -> None:
        """Takes in the present ones, [B, *obs]; before an episode's first they were all like it.

        rows: of these episodes alone, [R]; the others stand still.
        """
        rows = np.arange(len(self.seeds)) if rows is None else rows
        if self._seen is None:
            self._seen = channels.each(
                lambda x: np.zeros((len(self.seeds), self.n_obs_steps, *x.shape[1:]), x.dtype),
                observations,
            )
        now = channels.each(lambda x: x[:, None], observations)
        seen = channels.each(
            lambda seen, x: np.concatenate([seen[:, 1:], x], 1),
            channels.take(self._seen, rows),
            now,
        )
        new = self._new[rows]
        channels.put(seen, new, channels.take(now, new))
        channels.put(self._seen, rows, seen)
        self._new[rows] = False

    def decide(self, rows: np.ndarray) -> np.ndarray:
        """New chunks [R, chunk_size, A] for `rows` [R], after what was seen last.

        Where chunks are blended it is to be asked once a step.
        """
        drawn = noise.normal(self.seeds[rows], self.decisions[rows], self.noise_shape)
        self.decisions[rows] += 1
        chunks = self.plan(channels.take(self._seen, rows), drawn, rows)
        return (
            chunks
            if self.temporal_ensemble_coeff is None
            else self._blended(chunks, rows, self.temporal_ensemble_coeff)
        )

    def _blended(self, chunks: np.ndarray, rows: np.ndarray, m: float) -> np.ndarray:
        """The average of new chunks and of what those before them say of the same steps."""
        count, chunk_size, _ = chunks.shape
        if self._sums.shape[1:] != chunks.shape[1:]:
            self._sums = np.zeros((len(self.seeds), *chunks.shape[1:]))
            self._counts = np.zeros((len(self.seeds), chunk_size), np.int64)
        weights, last = np.exp(-m * np.arange(chunk_size)), np.zeros((count, 1), np.int64)
        sums = np.concatenate([self._sums[rows, 1:], np.zeros_like(chunks[:, :1])], 1)
        before = np.concatenate([self._counts[rows, 1:], last], 1)  # a step is over
        sums += weights[before][..., None] * chunks
        self._sums[rows], self._counts[rows] = sums, before + 1
        blended: np.ndarray = sums / weights.cumsum()[before][..., None]
        return blended.astype(chunks.dtype)

    def step(self, observations: Observations, rows: np.ndarray | None = None) -> np.ndarray:
        """The present observations [B, *obs] -> the actions to take [B, A]; `rows` as of `see`."""
        rows = np.arange(len(self.seeds)) if rows is None else rows
        self.see(observations, rows)
        due = rows[self._taken[rows] >= self.n_action_steps]
        if len(due):
            fresh = self.decide(due)[:, : self.n_action_steps]
            if self._chunks.shape[1:] != fresh.shape[1:]:
                self._chunks = np.zeros((len(self.seeds), *fresh.shape[1:]), fresh.dtype)
            self._chunks[due], self._taken[due] = fresh, 0
        actions = self._chunks[rows, self._taken[rows]]
        self._taken[rows] += 1
        return actions
