"""Recordings of `real_robot`: one row per tick (period) of the control loop.

    q dq current_a [J], channel.<name>   measurements: the observations, with names and units
    sent [J]                             joint goals sent to the robot: the actions
    channel.cost []                      costs: a robot may measure or compute them
    mode episode tick code               source of motion, episode, time, and status of the reading

A recording has no rewards, so all are 0. The cost of a step is measured one tick later or, if that
tick has no reading, in the same tick.

A step is a tick in which a policy or an operator moved the robot. If a recording has no such tick,
for example because an operator guided the limp arm by hand, every tick is a step, and its action is
the joint position one tick later. An episode is truncated where ticks are missing, because a step
is one period.

A tick whose reading failed is left out. A gap of up to `BRIDGED_TICKS` such ticks does not end the
episode. Nothing is interpolated: the next observation of the step before the gap is unknown, so
this step is not a transition for learning values. Action chunks for imitation continue after the
gap, without the ticks that were left out. If the arm was guided by hand, the step before a gap is
left out too, because the joint position one tick later was not read.
"""

from collections.abc import Callable

import numpy as np

from offline_rl.data.containers.raw import Raw
from offline_rl.data.dataset import NO_REWARDS, as_columns
from offline_rl.data.formats.common import ParsedFile, ReadOptions, choose_observations
from offline_rl.utils.errors import UserError

NAME, COST = "real_robot", "channel.cost"
SUPPORTED_OPTIONS = ("observation_keys",)
BRIDGED_TICKS = 2  # consecutive failed readings that do not end an episode


def mismatch(raw: Raw) -> str | None:
    """Return the reason why `raw` does not have this layout; None if it has."""
    return None if raw.kind == "recording" else "no recording of a robot"


def parse(raw: Raw, options: ReadOptions, report: Callable[[str], None]) -> ParsedFile:
    """Read every sequence of consecutive steps as a truncated episode."""
    about = raw.attribute("/", "about")
    if "measured" not in about:
        raise UserError(
            f"{raw.where}: an older version wrote this recording, without the names of the "
            "measurements. It cannot be read. Record the data again."
        )
    measured = {key: raw.get(key) for key in about["measured"]}
    observes_cost = COST in (options.observation_keys or ())
    cost = None if observes_cost else measured.pop(COST, None)
    moved, goals = raw.get("mode") != 0, raw.get("sent")
    guided = not moved.any()
    steps = moved | guided
    read = raw.get("code") == 0
    available = [key for key in measured if np.isfinite(measured[key][steps & read]).any()]
    shapes = {key: measured[key].shape[1:] for key in measured}
    keys, notes = choose_observations(raw.where, shapes, options, available)
    observations = np.concatenate([_flatten_rows(measured[key]) for key in keys], 1)
    complete = steps & read & np.isfinite(observations).all(1)
    if not guided:
        complete &= np.isfinite(goals).all(1)
    if cost is not None:
        cost = _flatten_rows(cost)[:, 0]
        complete &= np.isfinite(cost)
    rows = np.flatnonzero(complete)
    if len(rows) < 2:
        raise UserError(
            f"{raw.where}: fewer than two ticks with a successful reading while the robot moved. "
            "Record more data."
        )
    same_episode = np.diff(raw.get("episode")[rows]) == 0
    distance = np.diff(raw.get("tick")[rows].astype(np.int64))
    # True if all ticks of the gap were recorded and are steps; then only their readings failed
    recorded = (np.diff(rows) == distance) & (np.diff(steps.cumsum()[rows]) == distance)
    short_gap = (distance > 1) & (distance <= 1 + BRIDGED_TICKS)
    bridged = np.append(same_episode & recorded & short_gap, False)
    ends = np.append(~same_episode | (distance != 1), True) & ~bridged
    if guided:
        after = np.where(ends, rows, np.append(rows[1:], rows[-1]))
        usable = np.flatnonzero(~bridged)
        rows, ends, goals = rows[usable], ends[usable], measured["q"][after[usable]]
        bridged = np.append(np.diff(usable) != 1, False) & ~ends
        notes.append("no goals were sent: actions are the joint positions one tick later")
    else:
        goals = goals[rows]
    if left_out := int(steps.sum()) - len(rows):
        notes.append(f"{left_out:,} ticks left out, because a reading failed or lacked a number")
    notes.append(NO_REWARDS)
    low, high = np.array(about["position"], np.float64)
    limits = (
        f"{joint} {a:g} to {b:g} {unit}"
        for joint, a, b, unit in zip(about["joints"], low, high, about["units"], strict=True)
    )
    notes.append(f"actions of -1 and 1 stand for the joints' limits: {', '.join(limits)}")
    if bridged.any():
        notes.append(
            f"{bridged.sum():,} gaps of at most {BRIDGED_TICKS} ticks do not end an episode; the "
            "next observation of the step before each gap is unknown"
        )
    columns = {
        "observations": observations[rows],
        "actions": goals,
        "rewards": np.zeros(len(rows), np.float32),
        "terminated": np.zeros(len(rows), bool),
        "truncated": ends,
    }
    if cost is not None:
        tick, after = raw.get("tick"), np.minimum(rows + 1, len(cost) - 1)
        is_next = (tick[after] == tick[rows] + 1) & read[after] & np.isfinite(cost[after])
        columns["costs"] = np.where(is_next, cost[after], cost[rows])
    numbers = [number for key in keys for number in about["measured"][key]]
    return ParsedFile(
        "recording",
        as_columns(columns),
        {"actions": "sent"},
        notes=notes,
        unknown_next=bridged,
        action_range=(low, high),
        observation_names=tuple(name for name, _ in numbers),
        observation_units=tuple(unit for _, unit in numbers),
        action_names=tuple(about["joints"]),
        action_units=tuple(about["units"]),
        rate_hz=float(about["rate_hz"]),
        action_offset=1.0 if guided else 0.0,
    )


def _flatten_rows(values: np.ndarray) -> np.ndarray:
    return values.reshape(len(values), -1)
