"""Playback of a recording: its positions are passed to the loop in chunks as they become due.

Playback begins when the operator types `start`. It first moves the robot from its present position
to the recording's first position. One tick never processes more than one chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from real_robot.control.schedule import Chunk

STEPS = 25  # steps after which the next chunk is due
CHUNK_SIZE = 2 * STEPS  # actions per chunk
APPROACH_SPEED = 0.25  # fraction of the velocity limit on the way to the first position


class Playback:
    """Playback of joint positions.

    Args:
        goals: recorded positions, [N, J] rad or m, N >= 2, at `rate_hz`.
        velocity: [J], the velocity limits.
        position: function that returns the robot's last goal, [J].
    """

    def __init__(
        self,
        goals: np.ndarray,
        rate_hz: float,
        velocity: Sequence[float],
        position: Callable[[], Sequence[float]],
    ) -> None:
        self._goals, self._rate_hz = goals, rate_hz
        self._speed, self._position = APPROACH_SPEED * np.array(velocity), position
        self._approach = goals[:0]
        self._start_ns, self._seq = 0, -1
        self._step, self._end = 0, 0  # first step of the next chunk; end of the last chunk

    def chunk(self, now_ns: int, starting: bool) -> Chunk | None:
        """Return the next chunk if one is due. starting: restart with the first position."""
        if starting:
            self._approach = self._approach_first_goal()
            self._start_ns, self._step, self._end = now_ns, 0, 0
        count = len(self._approach) + len(self._goals)
        due_ns = self._start_ns + round(self._step / self._rate_hz * 1e9)
        if self._start_ns == 0 or self._end == count or now_ns < due_ns:
            return None
        first, self._end = self._step, min(self._step + CHUNK_SIZE, count)
        approach_len = len(self._approach)
        goals = self._goals[max(first - approach_len, 0) : max(self._end - approach_len, 0)]
        self._step, self._seq = first + STEPS, self._seq + 1
        return Chunk(
            self._seq, due_ns, now_ns, np.concatenate([self._approach[first:][:CHUNK_SIZE], goals])
        )

    @property
    def has_ended(self) -> bool:
        """True once the recording's last chunk has been returned."""
        return self._start_ns > 0 and self._end == len(self._approach) + len(self._goals)

    def _approach_first_goal(self) -> np.ndarray:
        """Return the motion from the present to the first recorded position, [N, J].

        It begins and ends at rest.
        """
        position = np.array(self._position())
        seconds = float((np.abs(self._goals[0] - position) / self._speed).max())
        steps = math.ceil(seconds * self._rate_hz) + 1
        share = np.linspace(0, 1, steps, endpoint=False)[:, None]
        return position + share * share * (3 - 2 * share) * (self._goals[0] - position)
