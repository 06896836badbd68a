"""Command line of `offline-rl robot …`. The docstring of `robot` is its --help page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_type_hints

from offline_rl.utils.errors import UserError
from offline_rl.utils.options import coerce, parse_options, unknown

if TYPE_CHECKING:
    from real_robot.running import Outcome

# parameters of the functions that are no options of the command line
FOR_PYTHON = {"keyboard", "ask", "changes", "return"}


def robot(arguments: Sequence[str]) -> None:
    """Check, run, record, replay, monitor and calibrate a robot.

    usage: offline-rl robot check robot=<name> [bundle=<file>] [key=value …]
           offline-rl robot run robot=<name> bundle=<file> [record=<file>] [key=value …]
           offline-rl robot record robot=<name> out=<file> [seconds=<s>]
           offline-rl robot replay robot=<name> recording=<file>
           offline-rl robot monitor recording=<file> stl=<formula>
           offline-rl robot calibrate robot=<name> [key=value …]

      robot=     a name in configs/robot, or your own file; see docs/robot.md
      adapter=   replaces the adapter in the robot's file: dynamixel, simulated, or your own class,
                 such as mine.py:Arm. Options of the adapter, such as port=…, may follow
      rate_hz=   rate of the control loop; default: the robot's rate; half to twice this rate
      runtime=   runtime of the bundle: torch, onnx, numpy; default: the first that is installed
      limits=    file of tighter limits, in rad, m, s and A, and of rules; for example
                 velocity: {waist: 0.5} and rules: {trip_after_s: 1.0}. All limits and rules are
                 in real_robot/safety/limits.py
    run
      start=true       move immediately; default: wait until you type start
      seconds=         maximum duration; default: no maximum
      record=          new file to which every tick is recorded
      recorder_needed=false   a full disk does not stop the robot
      offset=          steps from an observation to the time at which its first action is due
      command_latency_s=0     measured delay from a command to the motion, 0 to 0.5
      backup=          bundle that acts while the robustness of stl= is below margin=
      stl=             formula of signal temporal logic on the policy's observations
      margin=0         robustness below which the backup takes over
      release=         robustness at which the policy takes over again; default: margin
      window=10        number of recent observations that the formula is evaluated on
      stop=signals     run without a terminal: SIGINT stops the robot immediately, SIGTERM brings
                       it to rest. start=true needs a terminal, stop=signals or seconds=
    monitor
      stl=             formula on measurements, such as shoulder.q, and commands, shoulder.sent;
                       prints its robustness for every episode of a recording

    Exit codes: 0: the run finished or was quit. 1: a fault, an emergency stop or another reason
    stopped the robot, and it was not re-armed. 2: the command was wrong and nothing has moved, or a
    process of the run failed.

    During a run, the space bar and Ctrl-C stop the robot immediately. Other commands: start finish
    re-arm arm limp quit, and confirm=<joint> after the joint's encoder jumped. The robot holds when
    a run ends. The space bar does not replace a switch that cuts the power.
    """
    verbs: dict[str, Callable[[dict[str, Any]], None]] = {
        "check": _check,
        "run": _run,
        "record": _record,
        "replay": _replay,
        "monitor": _monitor,
        "calibrate": _calibrate,
    }
    if not arguments or arguments[0] not in verbs:
        name = arguments[0] if arguments else ""
        raise UserError(unknown("robot command", name, verbs))
    values = parse_options(arguments[1:])
    if "robot" not in values and arguments[0] != "monitor":
        raise UserError("robot=… is missing: add the name of a robot in configs/robot, or a file")
    verbs[arguments[0]](values)


def _convert_types(function: Callable[..., Any], values: dict[str, Any]) -> dict[str, Any]:
    """Convert options to the types of the parameters of `function`.

    Options that `function` does not have are left to the adapter.
    """
    from real_robot.robots.config import (
        ADAPTERS,
        DynamixelOptions,
        SimulationOptions,
        describe,
    )

    hints = get_type_hints(function)
    options = {
        *hints,
        *get_type_hints(DynamixelOptions),
        *get_type_hints(SimulationOptions),
    } - FOR_PYTHON
    for name in (name for name in values if name not in options):
        adapter = values.get("adapter") or describe(str(values["robot"])).config.adapter
        if adapter in ADAPTERS or get_close_matches(name, hints, 1, 0.85):
            raise UserError(unknown("option", name, options))
    return {k: coerce(v, hints[k], k) if k in hints else v for k, v in values.items()}


def _check(values: dict[str, Any]) -> None:
    from real_robot.check import check
    from real_robot.robots.make import make
    from real_robot.running import RunOptions, read_limits

    values = _convert_types(RunOptions, values)
    name, bundle = values.pop("robot"), values.pop("bundle", None)
    limits, _ = read_limits(values.pop("limits", None))
    rate_hz, runtime = values.pop("rate_hz", None), values.pop("runtime", "auto")
    machine = make(name, **values)
    findings = check(machine, bundle, rate_hz=rate_hz, limits=limits, runtime=runtime)
    print(*(f"{each.name:10s} {each.text}" for each in findings), sep="\n")
    print(f"{machine.spec.name} passed the check")


def _run(values: dict[str, Any]) -> None:
    from real_robot.running import RunOptions, run

    values = _convert_types(RunOptions, values)
    if "bundle" not in values:
        raise UserError("bundle=… is missing: add the policy bundle")
    _report_outcome(run(values.pop("bundle"), values.pop("robot"), **values))


def _record(values: dict[str, Any]) -> None:
    from real_robot.running import record

    values = _convert_types(record, values)
    if "out" not in values:
        raise UserError("out=… is missing: add the file to record to")
    _report_outcome(record(values.pop("robot"), values.pop("out"), **values))


def _replay(values: dict[str, Any]) -> None:
    from real_robot.running import replay

    values = _convert_types(replay, values)
    if "recording" not in values:
        raise UserError("recording=… is missing: add the file to play back")
    _report_outcome(replay(values.pop("recording"), values.pop("robot"), **values))


def _monitor(values: dict[str, Any]) -> None:
    from real_robot.monitoring import monitor

    options = ("recording", "stl")
    for name in (name for name in values if name not in options):
        raise UserError(unknown("option", name, options))
    for name in (name for name in options if name not in values):
        raise UserError(f"{name}=… is missing: use robot monitor recording=<file> stl=<formula>")
    print(monitor(str(values["recording"]), str(values["stl"])))


def _report_outcome(outcome: Outcome) -> None:
    """Print the outcome of a run. Exit with code 1 if a reason stopped the robot."""
    print(outcome.text, flush=True)
    if outcome.stopped:
        raise SystemExit(1)


def _calibrate(values: dict[str, Any]) -> None:
    from real_robot.calibrating import calibrate

    values = _convert_types(calibrate, values)
    print(calibrate(values.pop("robot"), **values))
