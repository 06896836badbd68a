"""Schedule of a chunk's actions, and the target between two of them.

      observation         arrives                                      end of the plan
    ------ t_o ------------- now ---------------------------------------- | ------->
           |  a0     a1     a2 |  a3     a4     a5     a6     a7    (+ 1 step)
             late: dropped     |  the plan: from the start state through these actions

Action i of a chunk is due at t_o + (i + offset) / rate, where t_o is the timestamp of the
*observation*. An action is late if it was due in the past, is due now, or is due in less than a
quarter of a step. Late actions are dropped and counted. A chunk whose observation is older than
`plan_age_s` is dropped completely, even if some of its actions are not late.

A cubic Hermite spline connects the remaining actions. It is monotone where the actions are monotone
(Fritsch and Butland, SIAM J. Sci. Stat. Comput. 5, 1984). If there is a plan already, the spline
starts at the present target and velocity of that plan. Otherwise it starts at the last goal. It
does not start at the measured position, which lags behind the goal: the target would step backward.

After the last action, the target stays for one more step. Then the plan has ended. Nothing is
extrapolated or repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from real_robot.safety.limits import Rules

AHEAD = 0.25  # fraction of a step; an action that is due sooner than this is late


@dataclass(frozen=True)
class Chunk:
    """Action chunk of a policy for one observation. Its actions are joint positions."""

    seq: int  # number of the chunk, from 0
    observed_ns: int  # timestamp of the oldest measurement in the observation
    completed_ns: int  # time at which inference ended
    actions: np.ndarray  # [H, J] rad or m
    is_backup: bool = False  # True if the backup policy predicted it
    # robustness of the formula that selects the policy, at the observation; NaN without a backup
    margin: float = float("nan")


@dataclass(frozen=True)
class Timing:
    """Timing of a policy's chunks."""

    rate_hz: float  # actions per second
    chunk_size: int  # actions per chunk
    # steps from the observation to the time at which the first action is due. None: 0 for chunks of
    # several actions; a chunk of one action is due one step after its arrival
    offset: float | None = None
    command_latency_s: float = 0.0  # measured delay from a command to the motion, >= 0
    max_age_s: float = Rules.plan_age_s  # maximum age of the observation when the chunk arrives


@dataclass
class Counts:
    """Counts of used and dropped chunks."""

    chunks: int = 0  # used chunks
    late_actions: int = 0  # actions that were dropped because they were late
    late_chunks: int = 0  # chunks dropped because all actions were late or the observation too old
    disordered_chunks: int = 0  # chunks dropped because a newer one, or the same, came before


class Schedule:
    """Plan that the robot follows: a spline through a chunk's actions. Times are monotonic ns."""

    def __init__(self, timing: Timing, joints: int) -> None:
        self.timing = timing
        self.counts = Counts()
        self.chunk: Chunk | None = None  # chunk of the plan; None: there is no plan
        self.index = -1  # index of the action that the target moves toward
        self._seq, self._observed_ns = -1, -1
        room = timing.chunk_size + 1
        self._at = [0] * room  # times of the knots, ns
        self._q = [[0.0] * joints for _ in range(room)]
        self._v = [[0.0] * joints for _ in range(room)]
        self._knots, self._segment, self._first, self._end_ns = 0, 0, 0, 0
        self._target = [0.0] * joints
        self._not_finite, self._nan = False, [float("nan")] * joints

    def offer(self, chunk: Chunk, now_ns: int, q: Sequence[float], v: Sequence[float]) -> bool:
        """Replace the plan by `chunk`. Return False if the chunk was dropped.

        q, v: [J], the last goal and its velocity. If any number of the chunk is not finite, the
        target is NaN from now on, because the other numbers cannot be trusted either.
        """
        if chunk.seq <= self._seq or chunk.observed_ns < self._observed_ns:
            self.counts.disordered_chunks += 1
            return False
        self._seq, self._observed_ns = chunk.seq, chunk.observed_ns
        if now_ns - chunk.observed_ns > self.timing.max_age_s * 1e9:
            self.counts.late_chunks += 1
            return False
        if not self._not_finite and self.target(now_ns) is not None:
            q, v = list(self._target), self._velocity(now_ns)
        now_ns += int(self.timing.command_latency_s * 1e9)
        step_ns = 1e9 / self.timing.rate_hz
        count = len(chunk.actions)
        if self.timing.offset is None and count == 1:
            start, offset = now_ns, 1.0
        else:
            start, offset = chunk.observed_ns, self.timing.offset or 0.0
        knot, first = 0, count
        for i in range(count):
            due = start + round((i + offset) * step_ns)
            if due <= now_ns + step_ns * AHEAD:
                continue
            knot, first = knot + 1, min(first, i)
            self._at[knot] = due
            self._q[knot][:] = chunk.actions[i].tolist()
        if not np.isfinite(chunk.actions).all():
            self._not_finite = True
        self.counts.late_actions += first
        if knot == 0:
            self.counts.late_chunks += 1
            return False
        self._at[0] = now_ns
        self._q[0][:], self._v[0][:] = q, v
        self._knots, self._segment, self._first = knot + 1, 0, first
        self._end_ns = self._at[knot] + round(step_ns)
        self._fit_velocities()
        self.chunk, self.counts.chunks = chunk, self.counts.chunks + 1
        return True

    def clear(self) -> None:
        """Remove the plan."""
        self.chunk, self.index, self._knots, self._not_finite = None, -1, 0, False

    def target(self, now_ns: int) -> Sequence[float] | None:
        """Return the target at `now_ns`, [J]; None: no plan. The next call overwrites the list."""
        if self._not_finite:
            return self._nan
        now_ns += int(self.timing.command_latency_s * 1e9)
        if self._knots == 0 or now_ns > self._end_ns:
            return None
        while self._segment + 2 < self._knots and now_ns >= self._at[self._segment + 1]:
            self._segment += 1
        k = self._segment
        self.index = self._first + k
        h = (self._at[k + 1] - self._at[k]) * 1e-9
        u = min(1.0, max(0.0, (now_ns - self._at[k]) * 1e-9 / h))
        p0, p1, v0, v1 = self._q[k], self._q[k + 1], self._v[k], self._v[k + 1]
        for i in range(len(self._target)):
            rise = p1[i] - p0[i]
            a, b = v0[i] * h - rise, v1[i] * h - rise
            self._target[i] = p0[i] + u * (rise + (1 - u) * ((1 - u) * a - u * b))
        return self._target

    def _velocity(self, now_ns: int) -> list[float]:
        """Return the velocity of the plan at `now_ns`, [J]. Call `target` with this time before."""
        now_ns += int(self.timing.command_latency_s * 1e9)
        k = self._segment
        h = (self._at[k + 1] - self._at[k]) * 1e-9
        u = (now_ns - self._at[k]) * 1e-9 / h
        if u >= 1:
            return [0.0] * len(self._target)
        velocity = []
        for p0, p1, v0, v1 in zip(*self._q[k : k + 2], *self._v[k : k + 2], strict=True):
            a, b = v0 - (p1 - p0) / h, v1 - (p1 - p0) / h
            velocity.append((p1 - p0) / h + (1 - u) * (1 - 3 * u) * a + u * (3 * u - 2) * b)
        return velocity

    def _fit_velocities(self) -> None:
        """Compute the velocity at every knot except the first, whose velocity is given."""
        last = self._knots - 1
        for i in range(len(self._target)):
            for k in range(1, last + 1):
                h0 = (self._at[k] - self._at[k - 1]) * 1e-9
                s0 = (self._q[k][i] - self._q[k - 1][i]) / h0
                if k == last:
                    self._v[k][i] = s0
                    continue
                h1 = (self._at[k + 1] - self._at[k]) * 1e-9
                s1 = (self._q[k + 1][i] - self._q[k][i]) / h1
                share = (h0 + 2 * h1) / (3 * (h0 + h1))
                same = s0 * s1 > 0
                self._v[k][i] = s0 * s1 / (share * s1 + (1 - share) * s0) if same else 0.0
