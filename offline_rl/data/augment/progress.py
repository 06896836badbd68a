"""Rewards of task progress for demonstrations, and falls of progress within a window of steps.

From GR-RL (arXiv:2512.01801). The progress of a frame is the expected discounted success,
gamma^(steps until the end of the task).
"""

from dataclasses import replace

import numpy as np

from offline_rl.data.augment.join import join
from offline_rl.data.dataset import NO_REWARDS, Dataset
from offline_rl.utils.errors import UserError

ROUNDING = 1e-6  # rewards above `success_reward` minus this are successes


def find_successes(data: Dataset, success_reward: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Return which episodes succeed, [E] bool, and the row in which the task of each ends, [E].

    An episode succeeds if its last reward is at least `success_reward`. Its task ends in the first
    row from which on all rewards are at least `success_reward`. If `success_reward` is None, every
    episode succeeds in its last row. Raises UserError if no episode succeeds.
    """
    ends = data.episode_ends.copy()
    if success_reward is None:
        return np.ones(len(ends), bool), ends
    high = data.rewards >= success_reward - ROUNDING
    success = high[ends]
    if not success.any():
        raise UserError(
            f"{data.path or data.name}: no episode ends with a reward of at least "
            f"{success_reward:g}. Set algorithm.success_reward to the reward of a success."
        )
    last_low = np.maximum.accumulate(np.where(high, -1, np.arange(data.num_rows)))
    first_high = np.maximum(last_low[ends] + 1, data.episode_starts)
    return success, np.where(success, first_high, ends)


def label_progress(
    data: Dataset, success_reward: float | None = None, retries: str | None = None
) -> Dataset:
    """Return the data with reward 1 at the end of each successful episode, and 0 elsewhere.

    Every episode terminates. Rows after the end of the task are left out. The value of the
    data's actions is then gamma^(steps until the end) in successful episodes, and 0 in others.

    retries: extra column that is nonzero in frames in which the operator starts a second attempt.
    The part of a successful episode up to such a frame is added as a failed episode (hindsight
    failures). Raises UserError if the column does not exist; see also `find_successes`.
    """
    success, ends = find_successes(data, success_reward)
    starts = data.episode_starts
    keep = np.concatenate([np.arange(a, b + 1) for a, b in zip(starts, ends, strict=True)])
    parts = [finish_episodes(data.take(keep), success)]
    if retries is not None:
        if retries not in data.extras:
            known = ", ".join(data.extras) or "no extra columns"
            raise UserError(
                f"{data.path or data.name} has no column {retries!r}, only {known}. Correct "
                "algorithm.retries."
            )
        for a, b in zip(starts[success], ends[success], strict=True):
            for frame in a + np.flatnonzero(data.extras[retries][a:b]):
                prefix = data.take(np.arange(a, frame + 1))
                parts.append(finish_episodes(prefix, np.zeros(1, bool)))
    return parts[0] if len(parts) == 1 else join(parts)


def finish_episodes(data: Dataset, success: np.ndarray) -> Dataset:
    """Return episodes that terminate, with reward 1 in the last row if they succeed, else 0.

    success: [E] bool.
    """
    rewards, last = np.zeros(data.num_rows, np.float32), np.zeros(data.num_rows, bool)
    rewards[data.episode_ends], last[data.episode_ends] = success, True
    index = np.where(last & (data.next_index < 0), np.arange(data.num_rows), data.next_index)
    return replace(
        data,
        rewards=rewards,
        terminated=last,
        truncated=np.zeros_like(last),
        next_index=index,  # the next row of a terminated row is never used: its discount is 0
        notes=tuple(note for note in data.notes if note != NO_REWARDS),
        sha256=None,
    )


def largest_falls(progress: np.ndarray, data: Dataset, window: int) -> np.ndarray:
    """Return the largest fall of progress within the next `window` steps of each row, [N].

    A fall is the difference between a value and a later one, both within the window and the
    episode. It is 0 if progress never falls. progress: [N].
    """
    last = np.repeat(data.episode_ends, data.episode_lengths())
    rows, peak = np.arange(data.num_rows), progress.copy()
    falls = np.zeros_like(progress)
    for _ in range(window):
        rows = np.minimum(rows + 1, last)
        falls = np.maximum(falls, peak - progress[rows])
        peak = np.maximum(peak, progress[rows])
    return falls
