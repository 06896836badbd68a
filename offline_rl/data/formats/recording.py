"""What `real_robot` records: a row for every tick of the control loop.

    q dq current_a [J], channel.<name>   measured: observed, with the names and units of the file
    sent [J]                             the joints' goals as they left the host: the actions
    mode episode tick code               who moved, in which episode, when; how the reading went

A robot is given no rewards, so all are 0.

A step is a tick in which a policy or a person moved the robot. Where nobody ever did, as while a
person guides the limp arm by hand, every tick is one, and its action is where the joints were a
tick later. An episode is cut where ticks are missing, for a step is a period.

A tick whose reading failed is left out. Up to `BRIDGED_TICKS` of them in a row do not end the
episode. The next observation of the step before such a gap is unknown, so it is no transition to
learn values from, and no number is made up for it. Windows of actions for imitation go on behind
the gap, and are too short by the ticks that were left out. In an episode that was guided by hand
the step before a gap is left out too: where the joints came to a tick later was not read.
"""

from collections.abc import Callable

import numpy as np

from offline_rl.data.containers.raw import Raw
from offline_rl.data.dataset import NO_REWARDS, as_columns
from offline_rl.data.formats.common import ParsedFile, ReadOptions, choose
from offline_rl.utils.errors import UserError

NAME = "real_robot"
TAKES = ("observation_keys",)
BRIDGED_TICKS = 2  # in a row; a run that lacks two readings in a row is stopped by a fault


def missed(raw: Raw) -> str | None:
    """Why `raw` is not of this layout; None where it is."""
    return None if raw.kind == "recording" else "no recording of a robot"


def parse(raw: Raw, options: ReadOptions, complain: Callable[[str], None]) -> ParsedFile:
    """Every stretch of consecutive steps as an episode that was cut."""
    about = raw.attribute("/", "about")
    if "measured" not in about:
        raise UserError(f"{raw.where}: an older version's, which does not name what it measured.")
    measured = {key: raw.get(key) for key in about["measured"]}
    moved, goals = raw.get("mode") != 0, raw.get("sent")
    guided = not moved.any()
    steps = moved | guided
    read = raw.get("code") == 0
    seen = [key for key in measured if np.isfinite(measured[key][steps & read]).any()]
    asked, notes = choose(
        raw.where, {key: measured[key].shape[1:] for key in measured}, options, seen
    )
    whole = (
        steps & read & np.isfinite(np.concatenate([_flat(measured[k]) for k in asked], 1)).all(1)
    )
    if not guided:
        whole &= np.isfinite(goals).all(1)
    rows = np.flatnonzero(whole)
    if len(rows) < 2:
        raise UserError(f"{raw.where}: no two ticks in which the robot moved and was read.")
    same = np.diff(raw.get("episode")[rows]) == 0
    apart = np.diff(raw.get("tick")[rows].astype(np.int64))
    # ticks in between were all recorded, and are steps whose reading failed
    recorded = (np.diff(rows) == apart) & (np.diff(steps.cumsum()[rows]) == apart)
    bridged = np.append(same & recorded & (apart > 1) & (apart <= 1 + BRIDGED_TICKS), False)
    ends = np.append(~same | (apart != 1), True) & ~bridged
    if guided:
        after = np.where(ends, rows, np.append(rows[1:], rows[-1]))
        kept = np.flatnonzero(~bridged)
        rows, ends, goals = rows[kept], ends[kept], measured["q"][after[kept]]
        bridged = np.append(np.diff(kept) != 1, False) & ~ends
        notes.append("nothing was sent: actions are where the joints were a tick later")
    else:
        goals = goals[rows]
    if left := int(steps.sum()) - len(rows):
        notes.append(f"{left:,} ticks left out, whose reading failed or lacked a number")
    notes.append(NO_REWARDS)
    low, high = np.array(about["position"], np.float64)
    told = (
        f"{joint} {a:g} to {b:g} {unit}"
        for joint, a, b, unit in zip(about["joints"], low, high, about["units"], strict=True)
    )
    notes.append(f"actions of -1 and 1 stand for the joints' limits: {', '.join(told)}")
    if bridged.any():
        notes.append(
            f"{bridged.sum():,} gaps of at most {BRIDGED_TICKS} ticks do not end an episode; the "
            "next observation is unknown there"
        )
    columns = {
        "observations": np.concatenate([_flat(measured[key][rows]) for key in asked], 1),
        "actions": goals,
        "rewards": np.zeros(len(rows), np.float32),
        "terminated": np.zeros(len(rows), bool),
        "truncated": ends,
    }
    numbers = [number for key in asked for number in about["measured"][key]]
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


def _flat(values: np.ndarray) -> np.ndarray:
    return values.reshape(len(values), -1)
