"""Robustness of a formula of signal temporal logic in the episodes of a recording."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from offline_rl.utils.errors import UserError
from policies.spec import Channel, Spec
from policies.stl.formula import parse
from policies.stl.signals import SignalReader, Verdict
from real_robot.recording.files import Recording, read
from real_robot.robot import Code
from real_robot.rows import Mode

SENT = "sent"  # suffix of the names of the commands: `<joint>.sent`, rad or m


class Monitored(NamedTuple):
    """Result of a formula for the E episodes of a recording. A step is a tick of the recording."""

    formula: str
    episodes: np.ndarray  # [E] number of each episode, as in the rows
    lengths: np.ndarray  # [E] ticks
    verdict: Verdict
    rate_hz: float

    def __str__(self) -> str:
        held = self.verdict.satisfied
        lines = [f"stl: {self.formula}", f"steps of windows are ticks at {self.rate_hz:g} Hz"]
        for number, length, rho, holds in zip(
            self.episodes, self.lengths, *self.verdict, strict=True
        ):
            word = "satisfied" if holds else "violated"
            lines.append(f"episode {number}: {word}, robustness {rho:.4g}, {length} ticks")
        return "\n".join([*lines, f"{held.sum()} of {len(held)} episodes satisfy the formula"])


def monitor(recording: str | Path, stl: str) -> Monitored:
    """Return the exact robustness of the formula `stl` in each episode of a recording.

    Signals are the names of measurements, such as `shoulder.q`, and of commands, such as
    `shoulder.sent`. An episode has the ticks in which the policy or the operator moved the robot
    and the reading was successful. Raises UserError.
    """
    recorded = read(recording)
    values, names = signals_of(recorded)
    channel = Channel("observation", (len(names),), names=names)
    try:
        reader = SignalReader(parse(stl), Spec((channel,), len(recorded.about["joints"])), ())
    except ValueError as error:
        raise UserError(f"{error}.") from None
    rows = recorded.rows
    used = (rows["mode"] != Mode.NOBODY) & (rows["code"] == Code.OK)
    if not used.any():
        raise UserError(
            f"{recording} has no tick in which the robot was moved. Record a run of a policy or an "
            "operator."
        )
    columns = np.empty((int(used.sum()), len(reader.places)))
    reader.observed(values[used], columns)
    for signal, k in reader.columns.items():
        if missing := int((~np.isfinite(columns[:, k])).sum()):
            raise UserError(
                f"{recording}: {signal} was not measured in {missing} of {len(columns)} ticks. "
                "Leave it out of the formula."
            )
    numbers = rows["episode"][used]
    order, lengths = np.unique(numbers, return_counts=True)
    parts = [
        reader.verdict(columns[None, numbers == n], lengths[k : k + 1]) for k, n in enumerate(order)
    ]
    verdict = Verdict(*map(np.concatenate, zip(*parts, strict=True)))
    return Monitored(stl, order, lengths, verdict, float(recorded.about["rate_hz"]))


def signals_of(recording: Recording) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the measurements and commands of all rows, [N, n], and their names."""
    parts, names = list[np.ndarray](), list[str]()
    for field, numbers in recording.about["measured"].items():
        parts.append(recording.rows[field].reshape(len(recording.rows), -1))
        names += [name for name, _ in numbers]
    parts.append(recording.rows[SENT])
    names += [f"{joint}.{SENT}" for joint in recording.about["joints"]]
    return np.concatenate(parts, axis=1).astype(np.float64), tuple(names)
