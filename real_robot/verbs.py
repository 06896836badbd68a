"""`offline-rl robot …`. The docstring is its --help page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_type_hints

from offline_rl.utils.errors import UserError
from offline_rl.utils.options import coerce, parse, unknown

if TYPE_CHECKING:
    from real_robot.running import Outcome

FOR_PYTHON = {"keyboard", "ask", "changes", "return"}  # of what a verb's function names


def robot(arguments: Sequence[str]) -> None:
    """Check, run, record, replay and calibrate a robot.

    usage: offline-rl robot check robot=<name> [bundle=<file>] [key=value …]
           offline-rl robot run robot=<name> bundle=<file> [record=<file>] [key=value …]
           offline-rl robot record robot=<name> out=<file> [seconds=<s>]
           offline-rl robot replay robot=<name> recording=<file>
           offline-rl robot calibrate robot=<name> [key=value …]

      robot=     a name in configs/robot, or a file of your own; see docs/robot.md
      adapter=   another than the file's: dynamixel, simulated, mine.py:Arm; its own keys: port=…
      rate_hz=   of the control loop; default: the robot's, of which half to twice is taken
      runtime=   that runs the bundle: torch, onnx, numpy; default: the first that can
      limits=    a file of tighter ones, such as velocity: {waist: 0.5}, in rad, m, s and A, and of
                 rules: {trip_after_s: 1.0}; real_robot/safety/limits.py has them
    of run
      start=true       moves at once; else type start
      seconds=         default: until it is finished, stopped, or you type quit
      record=          every tick, to this file; recorder_needed=false: a full disk does not stop it
      offset=          steps from an observation to when its first action is reached
      command_latency_s=0   from a command to the motion, as measured; up to 0.5

      stop=signals     without a terminal: SIGINT stops at once, SIGTERM brings the robot to rest;
                       start=true needs a terminal, stop=signals or seconds=

    Exit codes: 0 the run was finished or quit; 1 a fault, an emergency stop or another reason
    stopped the robot, and it was not re-armed; 2 a mistake in the command, nothing has moved, or a
    process of the run failed.

    While it runs: space or Ctrl-C stops at once. Words: start finish re-arm arm limp
    quit, and confirm=<joint> after its encoder leapt.
    The robot holds when a run ends. The space bar does not replace a switch that cuts the power.
    """
    verbs: dict[str, Callable[[dict[str, Any]], None]] = {
        "check": _check,
        "run": _run,
        "record": _record,
        "replay": _replay,
        "calibrate": _calibrate,
    }
    if not arguments or arguments[0] not in verbs:
        what = arguments[0] if arguments else ""
        raise UserError(unknown("robot command", what, verbs))
    values = parse(arguments[1:])
    if "robot" not in values:
        raise UserError("robot=… is missing: a name in configs/robot, or a file of your own")
    verbs[arguments[0]](values)


def _typed(function: Callable[..., Any], values: dict[str, Any]) -> dict[str, Any]:
    """`values`, those that `function` names being of its types; the others are the adapter's."""
    from real_robot.robots.config import (
        ADAPTERS,
        DynamixelOptions,
        SimulationOptions,
        describe,
    )

    hints = get_type_hints(function)
    known = {
        *hints,
        *get_type_hints(DynamixelOptions),
        *get_type_hints(SimulationOptions),
    } - FOR_PYTHON
    for name in (name for name in values if name not in known):
        own = values.get("adapter") or describe(str(values["robot"])).config.adapter
        if own in ADAPTERS or get_close_matches(name, hints, 1, 0.85):
            raise UserError(unknown("option", name, known))
    return {k: coerce(v, hints[k], k) if k in hints else v for k, v in values.items()}


def _check(values: dict[str, Any]) -> None:
    from real_robot.check import check
    from real_robot.robots.make import make
    from real_robot.running import RunOptions, read_limits

    values = _typed(RunOptions, values)
    name, bundle = values.pop("robot"), values.pop("bundle", None)
    limits, _ = read_limits(values.pop("limits", None))
    rate_hz, runtime = values.pop("rate_hz", None), values.pop("runtime", "auto")
    machine = make(name, **values)
    lines = check(machine, bundle, rate_hz=rate_hz, limits=limits, runtime=runtime)
    print(*(f"{line.name:10s} {line.found}" for line in lines), sep="\n")
    print(f"{machine.spec.name} is in order")


def _run(values: dict[str, Any]) -> None:
    from real_robot.running import RunOptions, run

    values = _typed(RunOptions, values)
    if "bundle" not in values:
        raise UserError("bundle=… is missing: the policy that is to move the robot")
    _end(run(values.pop("bundle"), values.pop("robot"), **values))


def _record(values: dict[str, Any]) -> None:
    from real_robot.running import record

    values = _typed(record, values)
    if "out" not in values:
        raise UserError("out=… is missing: the file to record to")
    _end(record(values.pop("robot"), values.pop("out"), **values))


def _replay(values: dict[str, Any]) -> None:
    from real_robot.running import replay

    values = _typed(replay, values)
    if "recording" not in values:
        raise UserError("recording=… is missing: the file to play back")
    _end(replay(values.pop("recording"), values.pop("robot"), **values))


def _end(outcome: Outcome) -> None:
    """Print how a run ended. Exit with code 1 if something stopped the robot."""
    print(outcome.text, flush=True)
    if outcome.stopped:
        raise SystemExit(1)


def _calibrate(values: dict[str, Any]) -> None:
    from real_robot.calibrating import calibrate

    values = _typed(calibrate, values)
    print(calibrate(values.pop("robot"), **values))
