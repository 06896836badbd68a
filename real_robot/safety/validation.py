"""Validation of an adapter's return values.

An adapter is third-party code. It may return a list instead of an array, a wrong length, NaN, or a
timestamp of another clock, or it may raise an exception. The robot must then stop with a message.
The loop must neither crash nor continue with wrong readings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from offline_rl.utils.errors import UserError
from real_robot.control.clock import AHEAD_NS
from real_robot.robot import Code, Limits, Reading, RobotSpec, Sent

INTEGER = (int, np.integer)
TEXT = 200  # maximum number of characters quoted from an adapter's exception


def failure(error: Exception) -> str:
    """Return the exception of an adapter as one line of text."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:TEXT]}"


def call(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a method of an adapter. Convert any exception to a UserError.

    Not for `read` and `command` of an armed robot: an exception must not end the control loop.
    """
    try:
        return function(*arguments)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"the adapter's {name}() failed: {failure(error)}") from error


def reading_fault(spec: RobotSpec, reading: Any) -> str | None:
    """Describe the fault in a return value of `read` or `arm`. None: it is a valid `Reading`."""
    if not isinstance(reading, Reading):
        return f"it is {_kind(reading)}, expected a Reading"
    count = len(spec.joints)
    for name in ("q", "dq", "current_a", "status"):
        value = getattr(reading, name)
        kind = "iu" if name == "status" else "f"
        if type(value) is not np.ndarray or value.shape != (count,) or value.dtype.kind not in kind:
            element_type = "integers" if name == "status" else "floats"
            return f"{name} is {_kind(value)}, expected an array of {count} {element_type}"
    for name in ("seq", "request_ns", "middle_ns", "end_ns"):
        if not isinstance(getattr(reading, name), INTEGER):
            return f"{name} is {_kind(getattr(reading, name))}, expected an integer"
    if not isinstance(reading.code, Code):
        return f"code is {reading.code!r}, expected a Code"
    if reading.code is Code.OK:
        for name in ("q", "dq"):
            value = getattr(reading, name)
            if not np.dot(value, value) < np.inf:
                return f"{name} is {value.tolist()}, expected finite numbers because code is OK"
    if reading.channels_ns is not None and not isinstance(reading.channels_ns, INTEGER):
        return f"channels_ns is {_kind(reading.channels_ns)}, expected an integer or None"
    nothing = type(reading.channels) is dict and not reading.channels
    return None if nothing else _channel_fault(spec, reading.channels)


def _channel_fault(spec: RobotSpec, channels: Any) -> str | None:
    if not hasattr(channels, "items"):
        return f"channels is {_kind(channels)}, expected a mapping"
    for name, value in channels.items():
        if name not in spec.channels:
            return f"channel {name!r} is not declared in the robot's file"
        shape = spec.channels[name].shape
        if type(value) is not np.ndarray or value.shape != shape or value.dtype.kind not in "fi":
            return f"channel {name} is {_kind(value)}, expected an array of shape {shape}"
    return None


def stamp_fault(reading: Reading, now_ns: int) -> str | None:
    """Describe the fault in a reading's timestamp. None: it fits the clock of the loop."""
    if reading.middle_ns - now_ns > AHEAD_NS:
        return (
            f"middle_ns is {(reading.middle_ns - now_ns) * 1e-9:.3g} s ahead: use times of "
            "time.monotonic_ns()"
        )
    return None


def sent_fault(spec: RobotSpec, sent: Any) -> str | None:
    """Describe the fault in a return value of `command`. None: it is a valid `Sent`."""
    if not isinstance(sent, Sent):
        return f"it is {_kind(sent)}, expected a Sent"
    if not isinstance(sent.code, Code):
        return f"code is {sent.code!r}, expected a Code"
    q = sent.q
    if type(q) is not np.ndarray or q.shape != (len(spec.joints),) or q.dtype.kind != "f":
        return f"q is {_kind(q)}, expected an array of {len(spec.joints)} floats"
    return None


def hold_by_adapter(spec: RobotSpec, hold: Callable[[str], Any], reason: str) -> Sequence[str]:
    """Call the adapter's `hold`. Return the joints that it missed; all joints if it failed."""
    try:
        missed = hold(reason)
    except Exception:  # the caller reports all joints as not reached; nothing else can hold them
        return spec.joints
    is_valid = isinstance(missed, (list, tuple)) and all(isinstance(joint, str) for joint in missed)
    return missed if is_valid else spec.joints


def spec_fault(spec: Any) -> str | None:
    """Describe the fault in an adapter's `spec`. None: it is a valid `RobotSpec`."""
    if not isinstance(spec, RobotSpec):
        return f"it is {_kind(spec)}, expected a RobotSpec"
    count = len(spec.joints)
    columns = {f"limits.{f.name}": spec.limits[f.name] for f in fields(Limits)}
    for name, value in (columns | {"resolution": spec.resolution}).items():
        if type(value) is not np.ndarray or value.shape != (count,) or value.dtype.kind != "f":
            return f"{name} is {_kind(value)}, expected an array of {count} floats"
    if len(spec.units) != count:
        return f"units has {len(spec.units)} entries, expected {count}"
    for name in ("rate_hz", "timeout_s", "max_reading_age_s"):
        value = getattr(spec, name)
        if type(value) not in (int, float) or not 0 < value < np.inf:
            return f"{name} is {value!r}, expected a positive number"
    return None


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and type {value.dtype}"
    return f"{value!r}"[:TEXT] if value is None else f"a {type(value).__name__}"
