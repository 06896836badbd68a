"""A deployed policy that hands over to a backup policy while a formula's margin is too small.

At every step, the exact robustness of the formula on the last `window` observations is compared
with two thresholds:

    robustness < margin     the backup policy takes over
    robustness >= release   the deployed policy takes over again

Between the two thresholds, the acting policy does not change. With a dynamics model, the formula
also covers the next `horizon` observations, which the model predicts for the deployed policy. Both
policies observe every step, so that observation histories and memories are complete. A memory of
actions (Decision Transformer) contains the actions that its policy predicted, executed or not. The
policy that takes over predicts a new chunk immediately. A robot's safety layer limits the actions
of both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Self

import numpy as np

from policies import channels
from policies.bundle import BundleError
from policies.channels import Observations
from policies.episodes import RunningEpisodes
from policies.policy import BundlePolicy
from policies.spec import Spec
from policies.stl.formula import parse, steps_ahead
from policies.stl.robustness import robustness
from policies.stl.signals import SignalReader

# raw observations [R, *obs] and actions [R, A] in [-1, 1] -> raw next observations [R, *obs]
Predict = Callable[[Observations, np.ndarray], Observations]
DEPLOYED, BACKUP = "deployed/", "backup/"  # prefixes of the two policies' entries in the state


@dataclass(frozen=True)
class Switch:
    """Rule that selects the backup policy."""

    stl: str  # formula on signals of the observation
    margin: float = 0.0  # the backup takes over below this robustness
    release: float | None = None  # the deployed policy takes over from here on; None: margin
    window: int = 10  # number of recent observations
    horizon: int = 0  # number of predicted observations after them; needs a dynamics model

    def __post_init__(self) -> None:
        if not isfinite(self.margin) or self.window < 1 or self.horizon < 0:
            raise BundleError(
                f"margin={self.margin:g}, window={self.window} and horizon={self.horizon} must be "
                "a finite number, at least 1 step, and at least 0 steps"
            )
        if not self.margin <= self.threshold < np.inf:
            raise BundleError(
                f"release={self.threshold:g} is below margin={self.margin:g}: the two policies "
                "would alternate. Use a release of at least margin"
            )

    @property
    def threshold(self) -> float:
        """The robustness at which the deployed policy takes over again."""
        return self.margin if self.release is None else self.release


class BackupPolicy(BundlePolicy):
    """A deployed policy and its backup, which act as one policy."""

    def __init__(
        self,
        deployed: BundlePolicy,
        backup: BundlePolicy,
        switch: Switch,
        spec: Spec | None = None,
        *,
        predict: Predict | None = None,
    ) -> None:
        """Combine the two policies.

        spec: names of the observations; by default those of `deployed`.  predict: one step of a
        known or learned dynamics model, for a switch with a horizon.
        Raises BundleError if the backup policy cannot replace the deployed one, or if the watched
        observations are too few for the formula. Raises FormulaError if the formula has a signal
        that is no part of the observation.
        """
        super().__init__(deployed.bundle, deployed.network, units=deployed.units)
        self.spec, self.is_stateless = deployed.spec, False
        self.deployed, self.backup, self.switch = deployed, backup, switch
        if (problem := backup_mismatch(deployed, backup)) is not None:
            raise BundleError(problem)
        if (predict is not None) != (switch.horizon > 0):
            raise BundleError(
                "a horizon and a dynamics model belong together: give both or neither"
            )
        self.predict = predict
        both = (deployed, backup)
        self.has_memory = any(policy.has_memory for policy in both)
        self.needs_rewards = any(policy.needs_rewards for policy in both)
        self.needs_costs = any(policy.needs_costs for policy in both)
        self.reader = SignalReader(parse(switch.stl), spec or deployed.spec, feedback=())
        if (problem := too_few_steps(self.reader, switch)) is not None:
            raise BundleError(problem)

    def new_episodes(self) -> BackupEpisodes:
        """See `BundlePolicy.new_episodes`."""
        return BackupEpisodes(self)


def backup_mismatch(deployed: BundlePolicy, backup: BundlePolicy) -> str | None:
    """Return the reason why `backup` cannot replace `deployed`. None if it can."""
    mine, theirs = backup.spec, deployed.spec
    if (problem := mine.mismatch(theirs)) is not None:
        return f"the backup does not fit the deployed policy: {problem}"
    for name in ("observation_names", "action_names"):
        a, b = getattr(mine, name), getattr(theirs, name)
        if a and b and a != b:
            return f"the backup does not fit the deployed policy: {name} are {a}, here they are {b}"
    if any((a != b).any() for a, b in zip(mine.action_bounds, theirs.action_bounds, strict=True)):
        return (
            f"the backup does not fit the deployed policy: its action range is "
            f"{mine.action_range}, here it is {theirs.action_range}"
        )
    return None


def too_few_steps(reader: SignalReader, switch: Switch) -> str | None:
    """Return the reason why the watched observations cannot judge a formula. None if they can."""
    formula, count = reader.formula, switch.window + switch.horizon
    if (needed := 1 + steps_ahead(formula.root)) > count:
        return (
            f"a window of the formula starts after the last of {count} watched observations. Use "
            f"window={needed - switch.horizon} or more"
        )
    margin = robustness(formula, dict.fromkeys(reader.columns, np.zeros(count)))[0]
    if not np.isfinite(margin):
        return (
            f"the robustness is {margin:g} for any observations, because inner windows start after "
            f"the last of {count} watched observations. Let them start at step 0"
        )
    return None


class BackupEpisodes(RunningEpisodes):
    """Running episodes of a deployed policy and its backup."""

    def __init__(self, policy: BackupPolicy) -> None:
        """Create the object without episodes."""
        self.policy, self.switch = policy, policy.switch
        self.deployed, self.backup = policy.deployed.new_episodes(), policy.backup.new_episodes()
        self.active = np.zeros(0, bool)  # [B], True while the backup policy acts
        self.margins = np.zeros(0)  # [B], robustness on the last observations
        self._recent = np.zeros((0, 0, 0))  # [B, window, number of signals]
        super().__init__(self._decide, n_action_steps=policy.spec.n_action_steps)

    @staticmethod
    def _decide(*_: Any) -> Any:
        raise NotImplementedError("the deployed policy and its backup decide")

    def reset(self, seeds: np.ndarray, rows: np.ndarray | None = None) -> None:
        self.deployed.reset(seeds, rows)
        self.backup.reset(seeds, rows)
        if rows is None:
            count, signals = len(seeds), len(self.policy.reader.places)
            self.active, self.margins = np.zeros(count, bool), np.zeros(count)
            self._recent = np.zeros((count, self.switch.window, signals))
        else:
            self.active[rows] = False
        super().reset(seeds, rows)

    def add_rewards(self, rewards: np.ndarray, rows: np.ndarray | None = None) -> None:
        self.deployed.add_rewards(rewards, rows)
        self.backup.add_rewards(rewards, rows)

    def add_costs(self, costs: np.ndarray, rows: np.ndarray | None = None) -> None:
        self.deployed.add_costs(costs, rows)
        self.backup.add_costs(costs, rows)

    def observe(self, observations: Observations, rows: np.ndarray | None = None) -> None:
        """See `RunningEpisodes.observe`. Afterwards, `active` states which policy acts."""
        self.interrupted = len(self._choose(observations, rows)) > 0
        self.deployed.observe(observations, rows)
        self.backup.observe(observations, rows)

    def predict_chunk(
        self, rows: np.ndarray | None = None, noise: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the chunks of the acting policies. Both need the same chunk size."""
        chosen = self.active if rows is None else self.active[rows]
        deployed = self.deployed.predict_chunk(rows, noise)
        backup = self.backup.predict_chunk(rows, noise)
        return np.where(chosen[:, None, None], backup, deployed)

    def step(self, observations: Observations, rows: np.ndarray | None = None) -> np.ndarray:
        """See `RunningEpisodes.step`."""
        switched = self._choose(observations, rows)
        self.deployed.replan(switched)
        self.backup.replan(switched)
        deployed = self.deployed.step(observations, rows)
        backup = self.backup.step(observations, rows)
        chosen = self.active if rows is None else self.active[rows]
        return np.where(chosen[:, None], backup, deployed)

    def _choose(self, observations: Observations, rows: np.ndarray | None) -> np.ndarray:
        """Select the acting policies, and return the episodes in which the other one takes over."""
        index = self._all if rows is None else rows
        reader, new, recent = self.policy.reader, self.is_new[index], self._recent[index]
        latest = np.empty((len(index), recent.shape[2]))
        reader.observed(observations, latest)
        recent = np.concatenate([recent[:, 1:], latest[:, None]], axis=1)
        recent[new] = latest[new][:, None]  # the first observation fills the window
        watched = np.concatenate([recent, self._predicted(observations, rows)], axis=1)
        signals = {signal: watched[:, :, k] for signal, k in reader.columns.items()}
        margins = robustness(reader.formula, signals)[:, 0]
        before = self.active[index]
        limits = np.where(before, self.switch.threshold, self.switch.margin)
        self._recent[index], self.margins[index] = recent, margins
        self.active[index] = ~(margins >= limits)  # also if a prediction is NaN
        self.is_new[index] = False
        switched: np.ndarray = index[self.active[index] != before]
        return switched

    def _predicted(self, observations: Observations, rows: np.ndarray | None) -> np.ndarray:
        """Return the signals of the observations that the deployed policy leads to, [R, H, n]."""
        predict, reader = self.policy.predict, self.policy.reader
        values = np.empty((channels.size(observations), self.switch.horizon, len(reader.places)))
        if predict is None:
            return values
        if rows is not None:
            raise ValueError("predictions need steps of all episodes")
        episodes = self.deployed.fork()
        for step in range(self.switch.horizon):
            actions = episodes.step(observations)
            if self.policy.units:
                actions = self.policy.spec.from_units(actions)
            observations = predict(observations, actions)
            latest = np.empty_like(values[:, step])
            reader.observed(observations, latest)
            values[:, step] = latest
        return values

    def fork(self) -> Self:
        other = super().fork()
        other.deployed, other.backup = self.deployed.fork(), self.backup.fork()
        for name in ("active", "margins", "_recent"):
            setattr(other, name, getattr(self, name).copy())
        return other

    def state(self, rows: np.ndarray) -> dict[str, Any]:
        state = {name: getattr(self, name)[rows] for name in ("active", "_recent")}
        for prefix, episodes in ((DEPLOYED, self.deployed), (BACKUP, self.backup)):
            state |= {f"{prefix}{name}": x for name, x in episodes.state(rows).items()}
        return super().state(rows) | state

    def load(self, rows: np.ndarray, state: Mapping[str, Any]) -> None:
        for prefix, episodes in ((DEPLOYED, self.deployed), (BACKUP, self.backup)):
            entries = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            episodes.load(rows, entries)
        self.active[rows], self._recent[rows] = state["active"], state["_recent"]
        super().load(rows, state)
