"""Phases of a run in order, as plain data, and the options of online training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias, get_args

import numpy as np

from offline_rl.utils.options import Amount, Checked, Count, Positive, Share
from policies.channels import Observations

ONLINE = "online"  # name of the online phase


Unit = Literal["rows", "updates", "env_steps"]  # fields of `Counts`


@dataclass(frozen=True)
class Learn:
    """Gradient updates."""

    phase: str
    updates: int
    evaluate: bool = True  # False: no evaluation during these updates or at their end
    # Number of the following pieces that are skipped if `Algorithm.has_converged` is true for all
    # seeds at the end of this piece. The skipped pieces would change nothing, and count as done.
    skips: int = 0

    unit: ClassVar[Unit] = "updates"

    @property
    def size(self) -> int:
        """Number of updates."""
        return self.updates


@dataclass(frozen=True)
class Interact:
    """Environment steps of each seed, and the updates that follow from them."""

    phase: str
    env_steps: int
    # False: no evaluation at the end of this piece. Evaluations depend only on the number of
    # environment steps
    evaluate: bool = True

    unit: ClassVar[Unit] = "env_steps"

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

    unit: ClassVar[Unit] = "env_steps"
    evaluate: ClassVar[bool] = True

    @property
    def size(self) -> int:
        """Number of environment steps."""
        return self.decisions * self.n_action_steps


@dataclass(frozen=True)
class Fill:
    """Rows that each seed's policy computes without an environment, from states of the data."""

    phase: str
    rows: int
    states: str  # phase whose batches provide the states
    target: str = "rollouts"  # source that stores the rows

    unit: ClassVar[Unit] = "rows"
    evaluate: ClassVar[bool] = False

    @property
    def size(self) -> int:
        """Number of rows."""
        return self.rows


Piece: TypeAlias = Learn | Interact | Collect | Fill


@dataclass
class Counts:
    """Work of one phase so far, per seed: a separate counter for each unit."""

    updates: int = 0
    env_steps: int = 0
    rows: int = 0  # computed without an environment
    seconds: float = 0.0  # time that the updates took


class Position(NamedTuple):
    """Progress in a schedule: the index of a piece, and how much of it is done in its unit."""

    piece: int = 0
    done: int = 0


def locate(schedule: Sequence[Piece], position: Position) -> Position:
    """Return the position of the next work: the end of a piece is the start of the next one.

    After the last piece, the index is len(schedule).
    """
    piece, done = position
    while piece < len(schedule) and done >= schedule[piece].size:
        piece, done = piece + 1, 0
    return Position(piece, done)


def axes(schedule: Sequence[Piece]) -> dict[str, Unit]:
    """Return the unit of each phase's curves: environment steps if it takes any, else updates."""
    units = dict[str, Unit]()
    for unit in get_args(Unit):  # a later unit replaces an earlier one
        units |= {piece.phase: unit for piece in schedule if piece.unit == unit}
    return units


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
        """Return options for fast tests."""
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
        """Return the number of updates before the policy's first one, in complete periods."""
        return 0

    def updates_due(self, env_steps: int, batch_size: int, period: int) -> int:
        """Return the total number of updates due after `env_steps` steps, in complete periods."""
        counted_steps = max(env_steps - max(self.warmup_steps, batch_size), 0)
        return int(counted_steps * self.utd) // period * period


@dataclass(frozen=True, kw_only=True)
class RandomStart(Online):
    """Online training from scratch: uniform random actions during the warm-up."""

    warmup_policy: Literal["policy", "random"] = "random"


@dataclass(frozen=True, kw_only=True)
class OneBuffer(Online):
    """Online training with one buffer that starts with the data."""

    offline_fraction: Share | Literal["rows"] = "rows"


@dataclass(frozen=True, kw_only=True)
class Chunked(OneBuffer):
    """Online training with one buffer and warm-up steps, as in Q-chunking."""

    warmup_steps: Amount = 5000  # environment steps per seed before updates start


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
