"""One row of fixed size for every tick: what was seen, wanted, sent, and when."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from real_robot.robot import RobotSpec


class Mode(IntEnum):
    """Who moves the robot."""

    NOBODY = 0
    POLICY = 1
    PERSON = 2


def row_type(spec: RobotSpec) -> np.dtype:
    """All times are monotonic nanoseconds but `wall_ns`; [J] in the order of `spec.joints`."""
    joints = (len(spec.joints),)
    return np.dtype(
        [
            ("tick", "<u8"),  # the place in the grid of deadlines: a gap is a missed deadline
            ("deadline_ns", "<i8"),
            ("wake_ns", "<i8"),
            ("read_ns", "<i8"),  # the reading's request,
            ("measured_ns", "<i8"),  # when its values were true,
            ("channels_ns", "<i8"),  # and those of its channels; of the oldest
            ("read_done_ns", "<i8"),  # and its end
            ("sent_ns", "<i8"),
            ("end_ns", "<i8"),  # of the tick before this one: its own is not known yet
            ("wall_ns", "<i8"),  # beside wake_ns: a pair of both clocks
            ("state", "u1"),  # safety.states.State, after the tick
            ("latched", "i1"),  # Reason; -1: none
            ("culprits", "<u8"),  # the joints in which its cause lies, a bit each; 0: in none
            ("stop", "u1"),  # 0 free, 1 soft, 2 hard
            ("mode", "u1"),  # Mode
            ("intervention", "u1"),  # 1: a person moved it though a policy was to
            ("reasons", "<u4"),  # bits of Reason, found in this tick
            ("missed", "<u4"),  # deadlines since the beginning
            ("code", "u1"),  # of the reading; robot.Code
            ("reading_seq", "<i8"),
            ("age_ns", "<i8"),  # of the reading, when it was used
            ("episode", "<u4"),
            ("chunk_seq", "<i8"),  # -1: no plan
            ("chunk_index", "<i4"),  # of the action that is being gone toward
            ("observed_ns", "<i8"),  # what that chunk was inferred from
            ("inference_ns", "<i8"),  # and how long that took
            ("q", "<f8", joints),
            ("dq", "<f8", joints),
            ("current_a", "<f8", joints),
            ("status", "<u2", joints),  # bits of robot.Status
            ("action", "<f8", joints),  # the policy's or person's own, NaN where there is none
            ("target", "<f8", joints),  # the plan at this tick, NaN where there is none
            ("sent", "<f8", joints),  # what left the host; NaN where nothing did
            ("clips", "u1", joints),  # safety.limiter: why it is not the target
            *((f"channel.{name}", "<f8", c.shape) for name, c in spec.channels.items()),
        ]
    )
