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
    """Return the page for the JSON files in `folder`. Missing measurements are left out."""
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
    load = f", load {result['load']}" if "load" in result else ""
    return f"{machine['cores']} cores, Python {machine['python']}{load}, {machine['commit'][:9]}."


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
    summary = f"{result['succeeded']} of {len(rows)} succeeded."
    return "\n\n".join([FIRST, _table(rows, columns), f"{summary} {_machine(result)}"])


def _task(result: Result) -> str:
    count = result["episodes"]
    columns: dict[str, Callable[[Any], str]] = {
        "policy": lambda row: row["policy"],
        "in the task": lambda row: _share(row["task"], count),
        "on the robot": lambda row: _share(row["robot"], count),
        "both": lambda row: str(row["both"]),
        "median (s), task": lambda row: f"{row['task']['median_s'] or 0:.2f}",
        "robot": lambda row: f"{row['robot']['median_s'] or 0:.2f}",
        "stops": lambda row: ", ".join(f"{n} {why}" for why, n in row["stops"].items()) or "none",
        "lag behind plan, p50, p99 (rad)": lambda row: "{:.3f}, {:.3f}".format(*row["behind_rad"]),
        "missed deadlines": lambda row: f"{row['missed']} of {row['ticks']}",
        "load": lambda row: str(row["load"]),
    }
    rows = [{"policy": NAMES[name], **row} for name, row in result["policies"].items()]
    return "\n\n".join(
        [TASK, _table(rows, columns), f"Wilson's 95 % intervals. {_machine(result)}"]
    )


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
        parts.append(
            f"Row 24, bundles refused before the robot is connected: {'; '.join(refused)}."
        )
    return "\n\n".join([*parts, _machine(result)])


def _fault_text(row: Result) -> str:
    return FAULT_TEXTS.get(row["fault"], row["fault"])


def _other_text(text: str) -> str:
    return text.replace("it had stopped before", "the run had already stopped")


def _soak(result: Result) -> str:
    reasons = sorted(result["reasons"].items(), key=lambda item: -item[1])
    causes = ", ".join(f"{name} {count:,}" for name, count in reasons)
    return "\n\n".join(
        [
            "## A million ticks of random faults",
            f"`python -m benchmarks.robot soak`: {result['ticks']:,} ticks on a simulated clock, "
            f"{result['faults']:,} faults, and a simulated operator who re-arms. Goals beyond a "
            f"limit at the servos: {result['violations']}. Memory growth: {result['grown_kib']} "
            f"KiB. States from which the robot could not be restarted: {len(result['stuck'])}. "
            f"Reasons for stops: {causes}.",
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
        "decisions": lambda row: str(row["decisions"]),
    }
    inference = result["inferring"]
    p50, p99, _, largest = inference["error_us"]
    granted = next(row["granted"] for row in result["rows"] if row["loop"].endswith("priority"))
    return "\n\n".join(
        [
            TIMING.format(seconds=result["seconds"], granted=granted),
            _table(result["rows"], loops, left=2),
            "One decision, batch 1, one thread, policies and runtimes alternating. The network of "
            "the chunk policies is a U-Net of 64, 128 and 256 channels.",
            _table(result["latency"], decisions, left=2),
            f"The loop at {inference['rate_hz']:g} Hz with the one-step policy in another "
            f"process, by ONNX: {inference['decisions_a_second']} decisions per second; period "
            f"error p50 {p50:.0f}, p99 {p99:.0f}, max {largest:.0f} µs; tick p50 "
            f"{inference['overhead_us'][0]:.0f}, p99 {inference['overhead_us'][1]:.0f} µs; "
            f"{inference['missed']} missed deadlines.",
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
        "matrix": "Time from a fault to the reading that shows it.",
        "loss": "Lost and corrupt answers, with retries within the tick.",
        "transactions": "Sync read of five servos on the pseudo-terminal, with 1 Mbaud simulated.",
    }
    for key, title in titles.items():
        rows = result[key]
        cells = [[str(value) for value in row.values()] for row in rows]
        parts += [title, table(list(rows[0]), cells, markdown=True)]
    return "\n\n".join([*parts, _machine(result)])


def _alarms(result: Result) -> str:
    stops = ", ".join(f"{count} {name}" for name, count in result["stops"].items())
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
# texts of the page for names in the result files
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
        "encoder stuck, for the servo's loop, too, while the goal moves"
    ),
    "pushed by hand while it holds, let go": "pushed by hand while holding, then released",
    "adapter answers nothing": "adapter returns None",
    "adapter answers a list": "adapter returns a list",
    "adapter answers NaN": "adapter returns NaN",
    "adapter answers the wall clock's time": "adapter returns wall-clock times",
    "adapter answers by an exception": "adapter raises an exception",
    "wall clock leaps by an hour": "wall clock jumps by an hour",
    "suspended for 10 s, clock and all": "suspended for 10 s, including its clock",
    "a person takes over": "an operator takes over",
    "the takeover's device is silent": "takeover device silent",
}
REACTION_TEXTS = {
    "held inside; SOFT_STOP": "stays inside the limits; SOFT_STOP",
    "a ramp; goes on": "ramp; continues",
    "the plan's end, SOFT_STOP, HOLD": "end of the plan, SOFT_STOP, HOLD",
    "dropped; goes on": "dropped; continues",
    "asked again; goes on": "retry; continues",
    "FAULT by the second reading": "FAULT at the second failed reading",
    "dropped; the next one is the present's": "dropped; the next answer is current",
    "FAULT; stays": "FAULT; stays in FAULT",
    "FAULT; is not armed unasked": "FAULT; is not armed again without confirmation",
    "FAULT that names the joint": "FAULT that names the joint",
    "gives way; no snap": "yields; returns slowly",
    "ended, held by the watchdog": "killed, held by the watchdog",
    "goes on": "continues",
}
BUNDLE_TEXTS = {
    "degrees for radians": "degrees instead of radians",
    "no rate, or no names": "without rate or names",
}
LOOP_TEXTS = {
    "ours": "this control loop",
    "ours, real-time priority": "this control loop, real-time priority",
    "plain sleep": "sleep",
    "spin 0.5 ms": "sleep, then spin 0.5 ms",
}
LATENCY_NAMES = {
    "one step": "U-Net, 1 denoising step",
    "ten steps": "U-Net, 10 denoising steps",
}
INTRO = """# The robot on simulated hardware

*Generated by `python -m benchmarks.robot page` from the JSON files in this folder.*

All results are from simulated servos: five X servos on one line with the vendor's protocol, MuJoCo
physics, and a log of every goal that they accepted. No physical arm was available."""
FIRST = """## The documented first run

`python -m benchmarks.robot first` runs the commands at the top of docs/robot.md, and then the
bundle on the simulated servos, on one simulated clock, from ten starts to ten targets. A target
counts as reached if the tip stands within 2 cm of it in 4 s, and nothing stops the robot within
10 s."""
TASK = """## A trained bundle on the servo protocol

`python -m benchmarks.robot task` trains policies on demonstrations of `arm/reach` by the scripted
expert. Each passes `offline-rl export` and `robot check`, and is run by `robot run` on the servos'
pseudo-terminal. The same bundle is evaluated in the plain environment, with the same starts and
targets. Success is that of the task: within 2 cm of the target and no joint faster than 0.2 rad/s,
in 4 s."""
FAULTS = """## Failure matrix

`python -m benchmarks.robot faults` injects each fault at uniformly random times of a run.

- `late`: repeats beyond the bound.
- `other`: repeats with another reaction.
- `commands beyond limits`: from the log of the servos, for the limits of position and velocity, and
  of acceleration and jerk of stops.

The control period is 10 ms. A joint that jams where its path reverses cannot be noticed before its
path has moved on; `late` counts from the jam."""
CLOCK = """### One process, on one simulated clock

Bus client, check, loop and inference. The results are the same on every machine."""
PROCESSES = """### All processes, on this machine's clock

Each repeat is a complete `offline-rl robot run`. `rows lost` is the maximum number of the loop's
rows that are missing in the recording, which was readable each time. The watchdog's hold is one
step, and is not counted against the limits. A killed process takes about 7 ms to end, the silence
of the line 5 ms, and the hold 3 ms. A shared or busy machine stands still at times; late reactions
due to that are counted like all others. A row without `commit` was measured before the watchdog's
last changes."""
ALARMS = """## False alarms of the stuck-sensor check

`python -m benchmarks.robot alarms`: {minutes:g} simulated minutes, alternating between the swinging
arm, a wall in its way, and plans that differ by 0.002 to 0.03 rad. The robot ran for {running} s
and touched the wall for {contact} s. SENSOR_STUCK, each a false alarm: {false}. All stops:
{stops}."""
TIMING = """## Timing

`python -m benchmarks.robot timing`: {seconds:g} s of each loop at each rate, alternating, while the
other core multiplies matrices. Error: |period - P|. Tick: from waking to the publication of the
row, without the time of the adapter. Chunks of 8 actions for six joints. Granted: {granted}."""
BUS = """## The bus alone

`python -m benchmarks.robot bus`: faults on a simulated clock while the arm follows a path at 100
Hz. The line alone needs 2.54 ms for 16 bytes per servo with 1 ms of adapter latency, and 1.94 ms
for the position."""
PARTS: dict[str, Callable[[Result], str]] = {
    "first": _first,
    "task": _task,
    "faults": _faults,
    "alarms": _alarms,
    "timing": _timing,
    "bus": _bus,
    "soak": _soak,
}
