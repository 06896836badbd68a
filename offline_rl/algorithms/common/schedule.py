"""Phases of a run in order, as plain data, and the options of online training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self, TypeAlias

import numpy as np

from offline_rl.utils.options import Amount, Checked, Count, Positive, Share
from policies.channels import Observations

ONLINE = "online"  # name of the online phase


@dataclass(frozen=True)
class Learn:
    """Gradient updates."""

    phase: str
    updates: int

    @property
    def size(self) -> int:
        """Number of updates."""
        return self.updates


@dataclass(frozen=True)
class Interact:
    """Environment steps of each seed, and the updates that follow from them."""

    phase: str
    env_steps: int

    @property
    def size(self) -> int:
        """Number of environment steps."""
        return self.env_steps


@dataclass(frozen=True)
class Collect:
    """Decisions of each seed's fixed policy, stored until the next `Collect`."""

    phase: str
    decisions: int
    n_action_steps: int  # environment steps per decision, unless the episode ends earlier
    adds: bool = False  # add completed episodes to the data

    @property
    def size(self) -> int:
        """Number of environment steps."""
        return self.decisions * self.n_action_steps


@dataclass(frozen=True)
class Fill:
    """Decisions of each seed's fixed policy on the data's states, stored as rollouts."""

    phase: str
    rows: int
    states: str  # phase whose batches provide the observations

    @property
    def size(self) -> int:
        """Number of rows."""
        return self.rows


Piece: TypeAlias = Learn | Interact | Collect | Fill


def locate(schedule: Sequence[Piece], clock: int) -> tuple[int, int]:
    """Return the index of the phase at `clock`, and how much of it is done.

    The end of a phase counts as the start of the next. After the last, the index is len(schedule).
    """
    for k, work in enumerate(schedule):
        if clock < work.size:
            return k, clock
        clock -= work.size
    return len(schedule), clock


@dataclass(frozen=True, kw_only=True)
class Online(Checked):
    """Options of online training: `online.<field>=`, or an `online:` row of a per-task table.

    An algorithm defines a subclass next to its Config for its own defaults.
    """

    warmup_steps: Amount = 0  # environment steps per seed before updates start; at least one batch
    warmup_policy: Literal["policy", "random"] = "policy"  # policy of the warm-up; random: uniform
    utd: Positive = 1.0  # updates per environment step
    offline_fraction: Share | Literal["rows"] = (
        0.0  # share of offline rows in a batch; rows: sample uniformly from all rows
    )
    n_step: Count = 1  # rewards in an n-step return, before it bootstraps

    config_changes: ClassVar[Mapping[str, Any]] = {}  # algorithm options changed online
    critic_only_option: ClassVar[str] = ""  # option that sets `critic_only_updates`

    @classmethod
    def small(cls) -> Self:
        """Return options of a short period, with which tests take little time."""
        values: dict[str, Any] = {"utd": 2.0, "critic_updates": 0}
        return cls(**{f.name: values[f.name] for f in fields(cls) if f.name in values})

    def warmup_action(
        self, random: np.random.Generator, observations: Observations, size: int
    ) -> np.ndarray | None:
        """Return the warm-up action [size] of one seed; None: the policy acts.

        observations: of that seed, [*obs].
        """
        return random.uniform(-1, 1, size) if self.warmup_policy == "random" else None

    def critic_only_updates(self, period: int) -> int:
        """Return the updates before the first one of the policy, in complete periods."""
        return 0

    def updates_due(self, env_steps: int, batch_size: int, period: int) -> int:
        """Return the total updates after `env_steps` steps, in complete periods."""
        counted_steps = max(env_steps - max(self.warmup_steps, batch_size), 0)
        return int(counted_steps * self.utd) // period * period


@dataclass(frozen=True, kw_only=True)
class OneBuffer(Online):
    """Online training with one buffer that starts with the data."""

    offline_fraction: Share | Literal["rows"] = "rows"


@dataclass(frozen=True, kw_only=True)
class OnPolicy(Online):
    """Online training on new rollouts alone, without further options."""

    @classmethod
    def small(cls) -> Self:
        return cls()

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in fields(self):
            if getattr(self, field.name) != field.default:
                raise ValueError(
                    f"{field.name} is not used: this method is trained on its own rollouts alone. "
                    "Remove it."
                )


@dataclass(frozen=True, kw_only=True)
class HalfAndHalf(Online):
    """Online training with half of each batch from the data."""

    offline_fraction: Share | Literal["rows"] = 0.5
