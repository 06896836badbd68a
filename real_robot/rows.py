"""Row of fixed size for every tick: measurements, plan, command and times.

Four positions per joint, all in rad or m, lead from the policy to the servo:

- action: one action of the policy's chunk, converted to a joint position.
- target: the position that the plan requests at this tick. A spline through the actions gives it.
- goal: the position after the safety check. It differs from the target if that exceeds a limit.
- sent: the goal as the adapter sent it, rounded to the servo's resolution.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from real_robot.robot import RobotSpec


class Mode(IntEnum):
    """Source of the robot's motion."""

    NOBODY = 0
    POLICY = 1
    OPERATOR = 2


def row_type(spec: RobotSpec) -> np.dtype:
    """Return the type of a row.

    Times are in ns of CLOCK_MONOTONIC, except `wall_ns`. Arrays over joints are in the order of
    `spec.joints`.
    """
    joints = (len(spec.joints),)
    return np.dtype(
        [
            ("tick", "<u8"),  # number of the deadline: a gap is a missed deadline
            ("deadline_ns", "<i8"),
            ("wake_ns", "<i8"),
            ("read_ns", "<i8"),  # start of the reading
            ("measured_ns", "<i8"),  # time of the joint measurements
            ("channels_ns", "<i8"),  # time of the oldest channel
            ("read_done_ns", "<i8"),  # end of the reading
            ("sent_ns", "<i8"),  # time at which the command was sent
            ("end_ns", "<i8"),  # end of the previous tick: the row is written before this tick ends
            ("wall_ns", "<i8"),  # wall clock at wake_ns
            ("state", "u1"),  # safety.states.State, after the tick
            ("latched", "i1"),  # Reason; -1: none
            ("culprits", "<u8"),  # joints that caused the latched reason, one bit each; 0: none
            ("stop", "u1"),  # kind of stop: 0 none, 1 soft, 2 hard
            ("mode", "u1"),  # Mode
            ("intervention", "u1"),  # 1: an operator moved the robot instead of the policy
            ("reasons", "<u4"),  # reasons to stop in this tick: bits of Reason
            ("missed", "<u4"),  # missed deadlines so far
            ("code", "u1"),  # code of the reading: robot.Code
            ("reading_seq", "<i8"),
            ("age_ns", "<i8"),  # age of the reading when it was used
            ("episode", "<u4"),
            ("chunk_seq", "<i8"),  # number of the chunk; -1: no plan
            ("chunk_index", "<i4"),  # index in the chunk of the action below
            ("observed_ns", "<i8"),  # time of the chunk's observation
            ("is_backup", "u1"),  # 1: the backup policy predicted the chunk
            ("margin", "<f8"),  # robustness that selected the chunk's policy; NaN: no backup policy
            ("inference_ns", "<i8"),  # duration from that observation to the arrival of the chunk
            ("q", "<f8", joints),
            ("dq", "<f8", joints),
            ("current_a", "<f8", joints),
            ("status", "<u2", joints),  # bits of robot.Status
            ("action", "<f8", joints),  # action toward which the target moves; NaN: none
            ("target", "<f8", joints),  # NaN: none
            ("sent", "<f8", joints),  # goals as sent; NaN: none
            ("clips", "u1", joints),  # why the goal differs from the target: bits of safety.limiter
            *((f"channel.{name}", "<f8", c.shape) for name, c in spec.channels.items()),
        ]
    )
