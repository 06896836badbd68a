"""Row of fixed size for every tick: measurements, plan, command and times."""

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

    Times are monotonic nanoseconds, except `wall_ns`. [J] is in the order of `spec.joints`.
    """
    joints = (len(spec.joints),)
    return np.dtype(
        [
            ("tick", "<u8"),  # number of the deadline: a gap is a missed deadline
            ("deadline_ns", "<i8"),
            ("wake_ns", "<i8"),
            ("read_ns", "<i8"),  # start of the reading
            ("measured_ns", "<i8"),  # time of its measurements
            ("channels_ns", "<i8"),  # time of its oldest channel
            ("read_done_ns", "<i8"),  # end of the reading
            ("sent_ns", "<i8"),
            ("end_ns", "<i8"),  # end of the previous tick: this one has not ended yet
            ("wall_ns", "<i8"),  # wall clock at wake_ns
            ("state", "u1"),  # safety.states.State, after the tick
            ("latched", "i1"),  # Reason; -1: none
            ("culprits", "<u8"),  # joints that caused it, one bit each; 0: none
            ("stop", "u1"),  # 0 free, 1 soft, 2 hard
            ("mode", "u1"),  # Mode
            ("intervention", "u1"),  # 1: an operator moved it instead of the policy
            ("reasons", "<u4"),  # reasons to stop in this tick: bits of Reason
            ("missed", "<u4"),  # missed deadlines so far
            ("code", "u1"),  # code of the reading: robot.Code
            ("reading_seq", "<i8"),
            ("age_ns", "<i8"),  # age of the reading when it was used
            ("episode", "<u4"),
            ("chunk_seq", "<i8"),  # -1: no plan
            ("chunk_index", "<i4"),  # index of the action that the goal moves toward
            ("observed_ns", "<i8"),  # time of the chunk's observation
            ("inference_ns", "<i8"),  # from that observation to the chunk
            ("q", "<f8", joints),
            ("dq", "<f8", joints),
            ("current_a", "<f8", joints),
            ("status", "<u2", joints),  # bits of robot.Status
            ("action", "<f8", joints),  # action of the chunk; NaN: none
            ("target", "<f8", joints),  # target at this tick; NaN: none
            ("sent", "<f8", joints),  # goals that were sent; NaN: none
            ("clips", "u1", joints),  # why the goal is not the target: bits of safety.limiter
            *((f"channel.{name}", "<f8", c.shape) for name, c in spec.channels.items()),
        ]
    )
