"""Signals of a formula: values of observations, actions, rewards and costs, step by step.

    observation[3]   value 3 of the channel `observation`, in C order; raw, not normalized
    glucose          value with this name, or the only value of the channel with this name
    action[0]        executed action in [-1, 1], or action if there is only one
    reward, cost     raw reward and raw cost of a step

Step t has the observation before the action, this action, its reward and its cost. The last step of
an episode has the final observation. It repeats the action, reward and cost of the step before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from policies.channels import Observations
from policies.spec import Spec
from policies.stl.formula import Formula, Signal
from policies.stl.robustness import is_satisfied, robustness

FEEDBACK = ("action", "reward", "cost")  # signals of a step, which an observation does not contain


class Place(NamedTuple):
    """Place of a signal: a channel, or an element of FEEDBACK, and the position in it."""

    source: str
    position: int


class Verdict(NamedTuple):
    """Result of a formula for B episodes."""

    robustness: np.ndarray  # [B] float64, at the first step
    satisfied: np.ndarray  # [B] bool


def places(formula: Formula, spec: Spec, feedback: Sequence[str] = FEEDBACK) -> list[Place]:
    """Return the place of each signal of `formula`. Raises FormulaError.

    feedback: signals that are available besides the observation.
    """
    known = {"reward": 1, "cost": 1, "action": spec.action_dim}
    sizes = {name: known[name] for name in feedback}
    sizes |= {c.name: c.size for c in spec.vectors if c.name not in sizes}
    named: dict[str, list[Place]] = {}
    for channel in spec.vectors:
        for index, name in enumerate(channel.names):
            named.setdefault(name, []).append(Place(channel.name, index))

    def place(signal: Signal) -> Place:
        size = sizes.get(signal.name)
        if size is not None:
            if signal.index is None and size > 1:
                formula.fail(signal, f"{signal} has {size} values. Choose one: {signal.name}[0]")
            if (signal.index or 0) >= size:
                formula.fail(signal, f"{signal} does not exist: {signal.name} has {size} values")
            return Place(signal.name, signal.index or 0)
        found = named.get(signal.name, [])
        if len(found) > 1:
            options = " or ".join(f"{p.source}[{p.position}]" for p in found)
            formula.fail(signal, f"several channels have a value {signal}. Use {options}")
        if not found or signal.index is not None:
            ranges = (f"{k}[0] to {k}[{n - 1}]" if n > 1 else k for k, n in sizes.items())
            names = ", ".join([*named, *ranges])
            formula.fail(signal, f"there is no signal {signal}. The signals are {names}")
        return found[0]

    return [place(signal) for signal in formula.signals]


class SignalReader:
    """Reader of a formula's signals from the observations and feedback of a spec."""

    def __init__(self, formula: Formula, spec: Spec, feedback: Sequence[str] = FEEDBACK) -> None:
        """Find the signals. Arguments and errors: see `places`."""
        self.formula, self._lone = formula, spec.single_vector is not None
        self.places = places(formula, spec, feedback)
        self.columns = {signal: k for k, signal in enumerate(formula.signals)}

    def observed(self, observations: Observations, values: np.ndarray) -> None:
        """Write the signals of raw observations [R, *obs] to their columns of `values` [R, n]."""
        for k, (source, index) in enumerate(self.places):
            if source not in FEEDBACK:
                channel = observations if self._lone else observations[source]
                values[:, k] = channel.reshape(len(values), -1)[:, index]

    def reported(
        self,
        values: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        costs: np.ndarray | None,
    ) -> None:
        """Write the signals of a step's feedback to their columns of `values` [R, n]."""
        for k, (signal, (source, index)) in enumerate(zip(self.columns, self.places, strict=True)):
            if source == "action":
                values[:, k] = actions[:, index]
            elif source == "reward":
                values[:, k] = rewards
            elif source == "cost":
                if costs is None:
                    self.formula.fail(signal, "the environment reports no cost")
                values[:, k] = costs

    def verdict(self, values: np.ndarray, lengths: np.ndarray) -> Verdict:
        """Return the result of the formula for recorded signals [B, T, n], of `lengths` [B]."""
        result = Verdict(np.zeros(len(values)), np.zeros(len(values), bool))
        for row, (episode, length) in enumerate(zip(values, lengths, strict=True)):
            signals = {signal: episode[:length, k] for signal, k in self.columns.items()}
            result.robustness[row] = robustness(self.formula, signals)[0]
            result.satisfied[row] = is_satisfied(self.formula, signals)[0]
        return result


class EpisodeRecorder:
    """Recorder of a formula's signals in B parallel episodes."""

    def __init__(self, reader: SignalReader, observations: Observations) -> None:
        """Start B episodes with their first raw observations [B, *obs]."""
        count = len(observations if reader._lone else next(iter(observations.values())))
        self.reader, self._lengths = reader, np.ones(count, np.int64)
        self._values = np.zeros((count, 64, len(reader.places)))
        reader.observed(observations, self._values[:, 0])

    def add(
        self,
        rows: np.ndarray,
        actions: np.ndarray,
        observations: Observations,
        rewards: np.ndarray,
        costs: np.ndarray | None,
    ) -> None:
        """Add a step of the episodes `rows` [R]: actions, and what the environment returned."""
        last = self._lengths[rows]
        if last.max() == self._values.shape[1]:
            self._values = np.concatenate([self._values, np.zeros_like(self._values)], axis=1)
        new = self._values[rows, last - 1]
        self.reader.reported(new, actions, rewards, costs)
        self._values[rows, last - 1] = new
        self.reader.observed(observations, new)
        self._values[rows, last] = new
        self._lengths[rows] += 1

    def verdict(self) -> Verdict:
        """Return the result of the formula for the episodes so far."""
        return self.reader.verdict(self._values, self._lengths)
