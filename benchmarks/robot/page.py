"""benchmarks/results/robot/README.md, of all results that are there."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.robot import RESULTS
from offline_rl.utils.files import write_text
from offline_rl.utils.text import table

Found = Mapping[str, Any]


def write() -> Path:
    """Makes the page; returns its path."""
    path = RESULTS / "README.md"
    write_text(path, page(RESULTS))
    return path


def page(folder: Path) -> str:
    """Of the JSON files in `folder`; what was not measured is left out."""
    parts = [INTRO]
    for name, part in PARTS.items():
        file = folder / f"{name}.json"
        if file.exists():
            parts.append(part(json.loads(file.read_text())))
    return "\n\n".join(parts) + "\n"


def _table(
    rows: Sequence[Found], columns: Mapping[str, Callable[[Any], str]], *, left: int = 1
) -> str:
    body = [[cell(row) for cell in columns.values()] for row in rows]
    return table(list(columns), body, markdown=True, left=left)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _where(found: Found) -> str:
    machine = found["machine"]
    load = f", load {found['load']}" if "load" in found else ""
    return f"{machine['cores']} cores, Python {machine['python']}{load}, {machine['commit'][:9]}."


def _share(side: Found, episodes: int) -> str:
    low, high = side["interval"]
    return f"{side['succeeded']} of {episodes} ({100 * low:.0f}–{100 * high:.0f} %)"


def _first(found: Found) -> str:
    columns: dict[str, Callable[[Any], str]] = {
        "target": lambda row: str(row["target"]),
        "reached after s": lambda row: (
            "" if row["reached_s"] is None else f"{row['reached_s']:.2f}"
        ),
        "stopped by": lambda row: row["stopped_by"] or "nothing",
    }
    rows = [{"target": k, **row} for k, row in enumerate(found["episodes"], start=1)]
    result = f"{found['succeeded']} of {len(rows)} succeeded."
    return "\n\n".join([FIRST, _table(rows, columns), f"{result} {_where(found)}"])


def _task(found: Found) -> str:
    count = found["episodes"]
    columns: dict[str, Callable[[Any], str]] = {
        "policy": lambda row: row["policy"],
        "in the task": lambda row: _share(row["task"], count),
        "on the robot": lambda row: _share(row["robot"], count),
        "both": lambda row: str(row["both"]),
        "median s, task": lambda row: f"{row['task']['median_s'] or 0:.2f}",
        "robot": lambda row: f"{row['robot']['median_s'] or 0:.2f}",
        "stops": lambda row: ", ".join(f"{n} {why}" for why, n in row["stops"].items()) or "none",
        "behind its plan, p50, p99 rad": lambda row: "{:.3f}, {:.3f}".format(*row["behind_rad"]),
        "missed": lambda row: f"{row['missed']} of {row['ticks']}",
        "load": lambda row: str(row["load"]),
    }
    rows = [{"policy": NAMES[name], **row} for name, row in found["policies"].items()]
    return "\n\n".join([TASK, _table(rows, columns), f"Wilson's 95 % intervals. {_where(found)}"])


def _faults(found: Found) -> str:
    columns: dict[str, Callable[[Any], str]] = {
        "row": lambda row: row["row"],
        "fault": lambda row: row["fault"],
        "reaction": lambda row: row["reaction"],
        "repeats": lambda row: str(row["repeats"]),
        "median ms": lambda row: _ms(row["median_ms"]),
        "max ms": lambda row: _ms(row["max_ms"]),
        "bound ms": lambda row: _ms(row["bound_ms"]),
        "late": lambda row: str(row["late"]) if row["bound_ms"] is not None else "",
        "otherwise": lambda row: str(row["other"]),
        "commands outside limits": lambda row: str(row["commands_outside_limits"]),
        "rows lost": lambda row: "" if row.get("rows_lost") is None else str(row["rows_lost"]),
        "load": lambda row: str(row.get("load", "")),
        "at": lambda row: (row.get("commit") or "")[:7],
    }
    parts = [FAULTS]
    for where, title in (("clock", CLOCK), ("processes", PROCESSES)):
        if rows := found.get(where):
            parts += [title, _table(rows, columns, left=3)]
            others = [f"row {r['row']}, {r['fault']}: {', '.join(r['others'])}" for r in rows]
            told = [other for other, row in zip(others, rows, strict=True) if row["others"]]
            if told:
                parts.append(f"Otherwise: {'; '.join(told)}.")
    refused = [
        f"{row['bundle']} {row['refused']} of {row['repeats']}" for row in found.get("bundles", [])
    ]
    if refused:
        parts.append(f"Row 24, bundles refused before anything is connected: {'; '.join(refused)}.")
    return "\n\n".join([*parts, _where(found)])


def _soak(found: Found) -> str:
    reasons = sorted(found["reasons"].items(), key=lambda item: -item[1])
    told = ", ".join(f"{name} {count:,}" for name, count in reasons)
    return "\n\n".join(
        [
            "## A million ticks of random faults",
            f"`python -m benchmarks.robot soak`: {found['ticks']:,} ticks on a simulated clock, "
            f"{found['faults']:,} faults, a person who re-arms. Goals beyond a limit, as the "
            f"servos saw them: {found['violations']}. Memory that it grew by: "
            f"{found['grown_kib']} KiB. States that it did not come out of: "
            f"{len(found['stuck'])}. Why it stopped: {told}.",
            _where(found),
        ]
    )


def _timing(found: Found) -> str:
    loops: dict[str, Callable[[Any], str]] = {
        "Hz": lambda row: f"{row['rate_hz']:g}",
        "loop": lambda row: row["loop"],
        **{
            f"{name} µs": lambda row, k=k: f"{row['error_us'][k]:.0f}"
            for k, name in enumerate(("p50", "p99", "p99.9", "max"))
        },
        "tick p50 µs": lambda row: _tick(row, 0),
        "p99": lambda row: _tick(row, 1),
        "missed": lambda row: str(row["missed"]) if _ours(row) else "",
    }
    decisions: dict[str, Callable[[Any], str]] = {
        "policy": lambda row: row["policy"],
        "runtime": lambda row: row["runtime"],
        **{
            f"{name} ms": lambda row, k=k: f"{row['ms'][k]:.3f}"
            for k, name in enumerate(("p50", "p99", "max"))
        },
        "decisions": lambda row: str(row["decisions"]),
    }
    beside = found["inferring"]
    p50, p99, _, most = beside["error_us"]
    granted = next(row["granted"] for row in found["rows"] if row["loop"].endswith("priority"))
    return "\n\n".join(
        [
            TIMING.format(seconds=found["seconds"], granted=granted),
            _table(found["rows"], loops, left=2),
            "One decision, batch 1, one thread, in turns; the chunk policies' network is a U-Net "
            "of 64, 128 and 256 channels.",
            _table(found["latency"], decisions, left=2),
            f"The loop at {beside['rate_hz']:g} Hz with the one-step policy in a process beside "
            f"it, by ONNX: {beside['decisions_a_second']} decisions a second; period error p50 "
            f"{p50:.0f}, p99 {p99:.0f}, max {most:.0f} µs; tick p50 "
            f"{beside['overhead_us'][0]:.0f}, p99 {beside['overhead_us'][1]:.0f} µs; "
            f"{beside['missed']} missed.",
            _where(found),
        ]
    )


def _ours(row: Found) -> bool:
    return str(row["loop"]).startswith("ours")


def _tick(row: Found, place: int) -> str:
    return f"{row['overhead_us'][place]:.0f}" if _ours(row) else ""


def _bus(found: Found) -> str:
    parts = [BUS]
    titles = {
        "matrix": "From a fault to the reading that shows it.",
        "loss": "Answers lost and broken, asked for again within the tick.",
        "transactions": "A sync read of five servos on the pseudo-terminal, 1 Mbaud modeled.",
    }
    for key, title in titles.items():
        rows = found[key]
        cells = [[str(value) for value in row.values()] for row in rows]
        parts += [title, table(list(rows[0]), cells, markdown=True)]
    return "\n\n".join([*parts, _where(found)])


def _alarms(found: Found) -> str:
    stops = ", ".join(f"{count} {name}" for name, count in found["stops"].items())
    return "\n\n".join(
        [
            ALARMS.format(
                minutes=found["minutes"],
                running=found["running_s"],
                contact=found["contact_s"],
                false=found["stops"].get("SENSOR_STUCK", 0),
                stops=stops or "none",
            ),
            _where(found),
        ]
    )


NAMES = {
    "clone": "clone, an action at a time",
    "chunks": "clone, chunks of 8, 4 taken",
    "diffusion": "diffusion policy, 10 rounds, chunks of 8",
    "one_step": "distilled from it, 1 round",
}
INTRO = """# The robot on simulated hardware

*Made by `python -m benchmarks.robot page` of the JSON files beside it, not by hand.*

All of it is measured on simulated servos: five X servos on one line that speak the vendor's
protocol, MuJoCo behind them, and a log of every goal that they took. No arm of metal was there."""
FIRST = """## The documented first run

`python -m benchmarks.robot first`: the commands at the top of docs/robot.md, then the bundle on the
simulated servos on one simulated clock, from ten starts to ten targets. A target counts if the tip
stands within 2 cm of it in 4 s, and nothing stops the robot in 10 s."""
TASK = """## A trained bundle through the servo protocol

`python -m benchmarks.robot task`: demonstrations of `arm/reach` by the scripted expert, a clone,
`offline-rl export`, `robot check`, `robot run` on the servos' pseudo-terminal; the same bundle in
the plain environment, from the same starts to the same targets. Success is the task's: within 2 cm
of the target and no joint faster than 0.2 rad/s, in 4 s."""
FAULTS = """## The failure matrix

`python -m benchmarks.robot faults`: each fault injected at uniformly random moments of a run.
`late`: repeats beyond the bound; `otherwise`: repeats that reacted in another way; commands outside
limits: by the servos' own log, of position, velocity, and a stop's acceleration and jerk. The
control period is 10 ms. A joint that jams where its path turns is missed by nobody before the path
has left it behind: `late` counts from the jam."""
CLOCK = """### On one simulated clock

Bus client, check, loop and inference; the same on every machine."""
PROCESSES = """### All processes, on this machine's clock

A whole `offline-rl robot run` for each repeat. `rows lost`: at most, of those that the loop made,
missing in the recording, which was readable each time. The watchdog's hold is one step, and not
counted against the limits; a process that was killed takes some 7 ms to be gone, the line's silence
5 and the hold 3. A machine that is shared or busy stands still at times: what came late then is
counted like all else. `at`: the commit; a row without one was measured before the watchdog's last
changes."""
ALARMS = """## False alarms of the stuck-sensor check

`python -m benchmarks.robot alarms`: {minutes:g} simulated minutes, in turns of the swinging arm,
of a wall in its way, and of plans that differ by 0.002 to 0.03 rad. It ran for {running} s and
touched the wall for {contact} s.
SENSOR_STUCK, each of them a false alarm: {false}. All stops: {stops}."""
TIMING = """## Time

`python -m benchmarks.robot timing`: {seconds:g} s of each loop at each rate, in turns, while the
other core multiplies matrices. Error: |period - P|. Tick: from waking to the row's publication,
without the adapter's own time. Chunks of 8 actions for six joints. Granted: {granted}."""
BUS = """## The bus by itself

`python -m benchmarks.robot bus`: faults on its own clock, the arm following a path at 100 Hz. The
wire alone needs 2.54 ms for 16 bytes of each servo with the adapter's millisecond, 1.94 ms for the
position."""
PARTS: dict[str, Callable[[Found], str]] = {
    "first": _first,
    "task": _task,
    "faults": _faults,
    "alarms": _alarms,
    "timing": _timing,
    "bus": _bus,
    "soak": _soak,
}
