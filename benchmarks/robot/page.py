"""Write benchmarks/results/robot/README.md from all results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.robot import RESULTS
from offline_rl.utils.files import write_text
from offline_rl.utils.text import table

Result = Mapping[str, Any]


def write() -> Path:
    """Write the page and return its path."""
    path = RESULTS / "README.md"
    write_text(path, page(RESULTS))
    return path


def page(folder: Path) -> str:
    """Return the page for the JSON files in `folder`. A measurement without a file is left out."""
    parts = [INTRO]
    for name, part in PARTS.items():
        file = folder / f"{name}.json"
        if file.exists():
            parts.append(part(json.loads(file.read_text())))
    return "\n\n".join(parts) + "\n"


def _table(
    rows: Sequence[Result], columns: Mapping[str, Callable[[Any], str]], *, left: int = 1
) -> str:
    body = [[cell(row) for cell in columns.values()] for row in rows]
    return table(list(columns), body, markdown=True, left=left)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _machine(result: Result) -> str:
    machine = result["machine"]
    load = f", load average {result['load']}" if "load" in result else ""
    return (
        f"Measured on {machine['cores']} cores with Python {machine['python']}{load}, at commit "
        f"{machine['commit'][:9]}."
    )


def _share(side: Result, episodes: int) -> str:
    low, high = side["interval"]
    return f"{side['succeeded']} of {episodes} ({100 * low:.0f}–{100 * high:.0f} %)"


def _first(result: Result) -> str:
    columns: dict[str, Callable[[Any], str]] = {
        "target": lambda row: str(row["target"]),
        "reached after (s)": lambda row: (
            "" if row["reached_s"] is None else f"{row['reached_s']:.2f}"
        ),
        "stopped by": lambda row: row["stopped_by"] or "not stopped",
    }
    rows = [{"target": k, **row} for k, row in enumerate(result["episodes"], start=1)]
    summary = f"{result['succeeded']} of {len(rows)} runs succeeded."
    return "\n\n".join([FIRST, _table(rows, columns), f"{summary} {_machine(result)}"])


def _task(result: Result) -> str:
    count = result["episodes"]
    columns: dict[str, Callable[[Any], str]] = {
        "policy": lambda row: row["policy"],
        "success in the environment": lambda row: _share(row["task"], count),
        "success on the robot": lambda row: _share(row["robot"], count),
        "success in both": lambda row: str(row["both"]),
        "median time, environment (s)": lambda row: f"{row['task']['median_s'] or 0:.2f}",
        "median time, robot (s)": lambda row: f"{row['robot']['median_s'] or 0:.2f}",
        "stops": lambda row: ", ".join(f"{n} {why}" for why, n in row["stops"].items()) or "none",
        "lag p50, p99 (rad)": lambda row: "{:.3f}, {:.3f}".format(*row["behind_rad"]),
        "missed deadlines": lambda row: f"{row['missed']} of {row['ticks']}",
        "load": lambda row: str(row["load"]),
    }
    rows = [{"policy": NAMES[name], **row} for name, row in result["policies"].items()]
    return "\n\n".join([TASK, _table(rows, columns), f"{TASK_COLUMNS}\n\n{_machine(result)}"])


def _faults(result: Result) -> str:
    columns: dict[str, Callable[[Any], str]] = {
        "row": lambda row: row["row"],
        "fault": _fault_text,
        "reaction": lambda row: REACTION_TEXTS.get(row["reaction"], row["reaction"]),
        "repeats": lambda row: str(row["repeats"]),
        "median (ms)": lambda row: _ms(row["median_ms"]),
        "max (ms)": lambda row: _ms(row["max_ms"]),
        "bound (ms)": lambda row: _ms(row["bound_ms"]),
        "late": lambda row: str(row["late"]) if row["bound_ms"] is not None else "",
        "other": lambda row: str(row["other"]),
        "commands beyond limits": lambda row: str(row["commands_outside_limits"]),
        "rows lost": lambda row: "" if row.get("rows_lost") is None else str(row["rows_lost"]),
        "load": lambda row: str(row.get("load", "")),
        "commit": lambda row: (row.get("commit") or "")[:7],
    }
    parts = [FAULTS]
    for kind, title in (("clock", CLOCK), ("processes", PROCESSES)):
        if rows := result.get(kind):
            parts += [title, _table(rows, columns, left=3)]
            others = [
                f"row {row['row']}, {_fault_text(row)}: "
                f"{', '.join(_other_text(text) for text in row['others'])}"
                for row in rows
                if row["others"]
            ]
            if others:
                parts.append(f"Other reactions: {'; '.join(others)}.")
    refused = [
        f"{BUNDLE_TEXTS.get(row['bundle'], row['bundle'])}: {row['refused']} of {row['repeats']}"
        for row in result.get("bundles", [])
    ]
    if refused:
        items = "\n".join(f"- {item}" for item in refused)
        parts.append(f"{BUNDLES}\n\n{items}")
    return "\n\n".join([*parts, _machine(result)])


def _fault_text(row: Result) -> str:
    return FAULT_TEXTS.get(row["fault"], row["fault"]).replace("encoder leaps", "encoder jumps")


def _other_text(text: str) -> str:
    if text == "afterward":
        return "a condition at the end was not met"
    for recorded, readable in OTHER_TEXTS.items():
        text = text.replace(recorded, readable)
    return text


def _soak(result: Result) -> str:
    reasons = sorted(result["reasons"].items(), key=lambda item: -item[1])
    counts = [[name, f"{count:,}"] for name, count in reasons]
    return "\n\n".join(
        [
            "## A million ticks of random faults",
            f"`python -m benchmarks.robot soak` runs {result['ticks']:,} ticks on a simulated "
            f"clock and injects {result['faults']:,} random faults. A simulated operator re-arms "
            "the robot after each stop.",
            f"- Goals beyond a limit at the servos: {result['violations']}\n"
            f"- Memory growth: {result['grown_kib']} KiB\n"
            f"- States from which the robot could not be restarted: {len(result['stuck'])}",
            table(["reason of the stop", "stops"], counts, markdown=True),
            _machine(result),
        ]
    )


def _timing(result: Result) -> str:
    loops: dict[str, Callable[[Any], str]] = {
        "Hz": lambda row: f"{row['rate_hz']:g}",
        "loop": lambda row: LOOP_TEXTS.get(row["loop"], row["loop"]),
        **{
            f"{name} (µs)": lambda row, k=k: f"{row['error_us'][k]:.0f}"
            for k, name in enumerate(("p50", "p99", "p99.9", "max"))
        },
        "tick p50 (µs)": lambda row: _tick(row, 0),
        "tick p99 (µs)": lambda row: _tick(row, 1),
        "missed": lambda row: str(row["missed"]) if _is_control_loop(row) else "",
    }
    decisions: dict[str, Callable[[Any], str]] = {
        "policy": lambda row: LATENCY_NAMES.get(row["policy"], row["policy"]),
        "runtime": lambda row: row["runtime"],
        **{
            f"{name} (ms)": lambda row, k=k: f"{row['ms'][k]:.3f}"
            for k, name in enumerate(("p50", "p99", "max"))
        },
        "calls": lambda row: str(row["decisions"]),
    }
    inference = result["inferring"]
    p50, p99, _, largest = inference["error_us"]
    granted = next(row["granted"] for row in result["rows"] if row["loop"].endswith("priority"))
    return "\n\n".join(
        [
            TIMING.format(seconds=result["seconds"], granted=granted),
            _table(result["rows"], loops, left=2),
            LATENCY,
            _table(result["latency"], decisions, left=2),
            f"The last measurement runs the loop at {inference['rate_hz']:g} Hz while another "
            "process calls the policy with 1 denoising step, with ONNX Runtime:",
            table(
                ["quantity", "p50", "p99", "max"],
                [
                    ["period error (µs)", f"{p50:.0f}", f"{p99:.0f}", f"{largest:.0f}"],
                    ["tick (µs)", *(f"{us:.0f}" for us in inference["overhead_us"][:2]), ""],
                ],
                markdown=True,
            ),
            f"The policy was called {inference['decisions_a_second']} times per second. "
            f"{inference['missed']} deadlines were missed.",
            _machine(result),
        ]
    )


def _is_control_loop(row: Result) -> bool:
    return str(row["loop"]).startswith("ours")


def _tick(row: Result, place: int) -> str:
    return f"{row['overhead_us'][place]:.0f}" if _is_control_loop(row) else ""


def _bus(result: Result) -> str:
    parts = [BUS]
    titles = {
        "matrix": "Time from a fault to the first reading that shows it:",
        "loss": "Readings that failed because answers were lost or corrupt, in spite of retries "
        "within the tick:",
        "transactions": "Duration of a sync read of five servos on the pseudo-terminal, which "
        "simulates 1 Mbaud:",
    }
    for key, title in titles.items():
        rows = result[key]
        cells = [[BUS_TEXTS.get(str(value), str(value)) for value in row.values()] for row in rows]
        header = [BUS_COLUMNS.get(name, name) for name in rows[0]]
        parts += [title, table(header, cells, markdown=True, left=2 if key == "matrix" else 1)]
    return "\n\n".join([*parts, _machine(result)])


def _alarms(result: Result) -> str:
    stops = ", ".join(f"{name} {count}" for name, count in result["stops"].items())
    return "\n\n".join(
        [
            ALARMS.format(
                minutes=result["minutes"],
                running=result["running_s"],
                contact=result["contact_s"],
                false=result["stops"].get("SENSOR_STUCK", 0),
                stops=stops or "none",
            ),
            _machine(result),
        ]
    )


NAMES = {
    "clone": "behavior cloning, single actions",
    "chunks": "behavior cloning, chunks of 8, 4 executed",
    "diffusion": "diffusion policy, 10 denoising steps, chunks of 8",
    "one_step": "distilled from the diffusion policy, 1 denoising step",
}
# Readable texts for names in the result files.
FAULT_TEXTS = {
    "actions leap by 1 rad": "actions jump by 1 rad",
    "actions shake by 0.8 rad": "actions alternate by 0.8 rad",
    "chunk repeated or older": "repeated or older chunk",
    "measurements stand still": "measurements do not change",
    "2 % of answers broken": "2 % of answers corrupt",
    "40 % of answers broken": "40 % of answers corrupt",
    "an answer late by 16 to 60 ms": "one answer late by 16 to 60 ms",
    "measurements stuck while the goal moves": "measurements stuck while the goal moves",
    "encoder, for the servo too, stuck while the goal moves": (
        "encoder stuck while the goal moves, also for the servo's position loop"
    ),
    "pushed by hand while it holds, let go": "pushed by hand while holding, then released",
    "adapter answers nothing": "adapter returns None",
    "adapter answers a list": "adapter returns a list",
    "adapter answers NaN": "adapter returns NaN",
    "adapter answers the wall clock's time": "adapter returns wall-clock times",
    "adapter answers by an exception": "adapter raises an exception",
    "wall clock leaps by an hour": "wall clock jumps by an hour",
    "suspended for 10 s, clock and all": "suspended for 10 s; the clock stops, too",
    "a person takes over": "an operator takes over",
    "the takeover's device is silent": "takeover device silent",
}
OTHER_TEXTS = {
    "it had stopped before": "the run had already stopped before the fault",
    "it does not stand": "the robot was not at rest afterward",
    "the machine stood still, and the watchdog": "the machine stalled, and the watchdog",
}
REACTION_TEXTS = {
    "held inside; SOFT_STOP": "stays inside the limits; SOFT_STOP",
    "a ramp; goes on": "ramp; continues",
    "the plan's end, SOFT_STOP, HOLD": "plays the plan to its end, SOFT_STOP, HOLD",
    "dropped; goes on": "dropped; continues",
    "asked again; goes on": "retry; continues",
    "FAULT by the second reading": "FAULT at the second failed reading",
    "dropped; the next one is the present's": "drops the late answer; reads the current one",
    "FAULT; stays": "FAULT; stays in FAULT",
    "FAULT; is not armed unasked": "FAULT; is not armed again without confirmation",
    "FAULT that names the joint": "FAULT that names the joint",
    "gives way; no snap": "yields; returns slowly",
    "held by the watchdog": "the watchdog holds the robot",
    "ended, held by the watchdog": "the watchdog kills control and holds the robot",
    "SOFT_STOP, with the next flush": "SOFT_STOP at the next write to the disk",
    "goes on": "continues",
}
BUNDLE_TEXTS = {
    "degrees for radians": "degrees instead of radians",
    "no rate, or no names": "without rate or names",
}
LOOP_TEXTS = {
    "ours": "this control loop",
    "ours, real-time priority": "this control loop, real-time priority",
    "plain sleep": "loop with time.sleep",
    "spin 0.5 ms": "loop with time.sleep, then a busy wait of 0.5 ms",
}
LATENCY_NAMES = {
    "perceptron": "MLP",
    "one step": "U-Net, 1 denoising step",
    "ten steps": "U-Net, 10 denoising steps",
}
BUS_COLUMNS = {
    "median_ms": "median (ms)",
    "p99_ms": "p99 (ms)",
    "max_ms": "max (ms)",
    "bound_ms": "bound (ms)",
    "cpu_ms": "CPU time (ms)",
    "goals_outside_limits": "goals outside limits",
    "failed_percent": "failed (%)",
    "longest_ms": "longest (ms)",
}
BUS_TEXTS = {
    "measurements stand still": "measurements do not change",
    "turn jumps by 4096": "encoder jumps by 4096 ticks",
    "host silent: the servos' own watchdogs": "host silent: the servos' bus watchdogs fire",
    "broken, 2 %": "corrupt, 2 %",
    "broken, 20 %": "corrupt, 20 %",
    "ours, 16 bytes": "this project, 16 bytes per servo",
    "ours, position": "this project, position only",
    "dynamixel-sdk 4.1.0, position": "dynamixel-sdk 4.1.0, position only",
}
INTRO = """# The robot on simulated hardware

*Generated by `python -m benchmarks.robot page` from the JSON files in this folder.*

All results are from simulated hardware; no physical arm was available. The hardware is an arm with
five Dynamixel X servos on one bus. The simulation implements the vendor's protocol, uses MuJoCo
physics, and logs every goal that the servos accept."""
FIRST = """## The documented first run

`python -m benchmarks.robot first` runs the commands at the top of docs/robot.md. It then runs the
bundle on the simulated servos, on a simulated clock, from ten starting poses to ten targets. A run
succeeds if two conditions hold:

- Within 4 s, the tip is less than 2 cm from the target and no joint is faster than 0.2 rad/s.
- No reason stops the robot within 10 s."""
TASK = """## A trained bundle on the servo protocol

`python -m benchmarks.robot task` trains policies by imitation, on demonstrations of `arm/reach`
from a scripted expert. Each policy is exported with `offline-rl export`, passes `robot check`, and
runs with `robot run` on the servos' pseudo-terminal. The same bundle is also evaluated in the
environment without servos, from the same starting poses to the same targets. Success is defined as
in the task: within 4 s, the tip is less than 2 cm from the target and no joint is faster than 0.2
rad/s."""
TASK_COLUMNS = """- `success`: with Wilson's 95 % intervals.
- `median time`: time until success.
- `lag`: distance between the goal that was sent and the plan's target, for the joint with the
  largest distance.
- `load`: load average of the machine."""
FAULTS = """## Failure matrix

`python -m benchmarks.robot faults` injects each fault at uniformly random times of a run. `row` is
the number of the fault in the failure matrix. Times are from the fault to the reaction. The control
period is 10 ms.

- `late`: number of repeats whose reaction came after the bound.
- `other`: number of repeats with another reaction.
- `commands beyond limits`: number of goals in the servos' log that exceed a limit of position or
  velocity, or a stop limit of acceleration or jerk.

If a joint jams where its path reverses, the jam cannot be detected before the path has moved on.
The times of row 17 are counted from the jam, so repeats can be late."""
CLOCK = """### One process, on one simulated clock

These rows run the bus client, the safety check, the loop and inference in one process. The results
are the same on every machine."""
PROCESSES = """### All processes, on this machine's clock

Each repeat is a complete `offline-rl robot run`.

- `rows lost`: the largest number of the loop's rows that were missing in a recording. Every
  recording was readable.
- `load`: load average of the machine.

The goal that the watchdog's hold sends may differ from the last goal by more than the limits
permit. It is not counted in `commands beyond limits`. A hold consists of three parts: a killed
process takes about 7 ms to end, the watchdog waits 5 ms for silence on the bus, and the hold itself
takes 3 ms. A shared or busy machine sometimes stalls. Late reactions that this causes are counted
like all others."""
BUNDLES = """### Bundles that do not fit

Number of bundles that were refused before the robot was connected (row 24):"""
ALARMS = """## False alarms of the stuck-sensor check

`python -m benchmarks.robot alarms` simulates {minutes:g} minutes. Three situations alternate: the
arm swings freely, a wall is in its way, and the plans hold poses that differ by 0.002 to 0.03 rad.
The robot ran for {running} s and touched the wall for {contact} s.

- SENSOR_STUCK, which would be a false alarm: {false}
- All stops: {stops}"""
TIMING = """## Timing

`python -m benchmarks.robot timing` runs each loop at each rate for {seconds:g} s, in alternation,
while the other core multiplies matrices. The policy's chunks have 8 actions for six joints. The
loop with real-time priority was granted: {granted}.

- p50 to max: error of the period, |period - P|.
- `tick`: time from waking to the publication of the row, without the time of the adapter.
- `missed`: number of missed deadlines."""
LATENCY = """The next table shows the duration of one call of a policy, with batch size 1 and one
thread. Policies and runtimes alternate. The U-Net has 64, 128 and 256 channels."""
BUS = """## The bus alone

`python -m benchmarks.robot bus` injects faults on a simulated clock while the arm follows a path at
100 Hz. For comparison: with 1 ms of adapter latency, transmission alone takes 2.54 ms for 16 bytes
per servo, and 1.94 ms for the position only."""
PARTS: dict[str, Callable[[Result], str]] = {
    "first": _first,
    "task": _task,
    "faults": _faults,
    "alarms": _alarms,
    "timing": _timing,
    "bus": _bus,
    "soak": _soak,
}
