"""A recording's goals, handed to the loop as chunks of some seconds when they are due.

The time begins when a person starts it, and so does the way from where the robot then is to the
first of the goals. So it may wait as long as it likes; and no tick has more to do than a window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from real_robot.control.schedule import Chunk

STEPS = 25  # after which the next window is handed out
WINDOW = 2 * STEPS  # actions
SHARE = 0.25  # of the limit of velocity, on the way to the first goal


class Playback:
    """goals: [N, J] rad or m, N >= 2, `rate_hz` of them a second. velocity: [J], the limits.

    here() -> [J], where the robot is told to be.
    """

    def __init__(
        self,
        goals: np.ndarray,
        rate_hz: float,
        velocity: Sequence[float],
        here: Callable[[], Sequence[float]],
    ) -> None:
        self._goals, self._rate_hz = goals, rate_hz
        self._speed, self._here = SHARE * np.array(velocity), here
        self._way = goals[:0]
        self._begun_ns, self._seq = 0, -1
        self._step, self._end = 0, 0  # the next window's first; how far windows went

    def chunk(self, now_ns: int, starting: bool) -> Chunk | None:
        """The next window, where one is due. starting: from the beginning."""
        if starting:
            self._way = self._to_first()
            self._begun_ns, self._step, self._end = now_ns, 0, 0
        count = len(self._way) + len(self._goals)
        due_ns = self._begun_ns + round(self._step / self._rate_hz * 1e9)
        if self._begun_ns == 0 or self._end == count or now_ns < due_ns:
            return None
        first, self._end = self._step, min(self._step + WINDOW, count)
        way = len(self._way)
        rest = self._goals[max(first - way, 0) : max(self._end - way, 0)]
        self._step, self._seq = first + STEPS, self._seq + 1
        return Chunk(self._seq, due_ns, now_ns, np.concatenate([self._way[first:][:WINDOW], rest]))

    @property
    def handed_out(self) -> bool:
        """True once the recording's last window has been handed out."""
        return self._begun_ns > 0 and self._end == len(self._way) + len(self._goals)

    def _to_first(self) -> np.ndarray:
        """[N, J], from rest to rest."""
        here = np.array(self._here())
        seconds = float((np.abs(self._goals[0] - here) / self._speed).max())
        steps = math.ceil(seconds * self._rate_hz) + 1
        share = np.linspace(0, 1, steps, endpoint=False)[:, None]
        return here + share * share * (3 - 2 * share) * (self._goals[0] - here)
