"""The order of a run's work, as plain data, and how an algorithm goes on in an environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

ONLINE = "online"  # the phase in an environment


@dataclass(frozen=True)
class Learn:
    """So many updates."""

    phase: str
    updates: int

    @property
    def size(self) -> int:
        """What the clock counts of it."""
        return self.updates


@dataclass(frozen=True)
class Interact:
    """So many steps of each seed's environment, and the updates that these bring."""

    phase: str
    env_steps: int

    @property
    def size(self) -> int:
        """What the clock counts of it."""
        return self.env_steps


Work: TypeAlias = Learn | Interact


def at(schedule: Sequence[Work], clock: int) -> tuple[int, int]:
    """Which piece of work is under way when the clock shows `clock`, and how much of it is done.

    At the end of one, the next has begun; after the last, its number is that of the pieces.
    """
    for k, work in enumerate(schedule):
        if clock < work.size:
            return k, clock
        clock -= work.size
    return len(schedule), clock


@dataclass(frozen=True, kw_only=True)
class Online:
    """How an algorithm learns in an environment; `online.<field>=`, or an `online:` row of a table.

    A subclass beside an algorithm's Config gives that method's own defaults.
    """

    warm_up: int = 0  # >= 0: environment steps of each seed before the first update
    warm_up_by: Literal["policy", "random"] = "policy"  # who acts meanwhile; random: uniformly
    utd: float = 1.0  # > 0: updates for each environment step
    mixing: float | Literal["rows"] = 0.0  # in [0, 1]: share of a batch that is offline data;
    # rows: in proportion to the rows of both, as if they lay in one buffer
    n_step: int = 1  # >= 1: steps after which a transition bootstraps

    def __post_init__(self) -> None:
        """Raises ValueError naming a field out of its range."""
        if not self.warm_up >= 0:
            raise ValueError(f"warm_up={self.warm_up} is below 0")
        if not 0 < self.utd < float("inf"):
            raise ValueError(f"utd={self.utd} is no number above 0")
        if self.mixing != "rows" and not 0 <= float(self.mixing) <= 1:
            raise ValueError(f"mixing={self.mixing} is neither between 0 and 1 nor rows")
        if self.n_step < 1:
            raise ValueError(f"n_step={self.n_step} is below 1")

    def due(self, env_steps: int, batch_size: int, period: int) -> int:
        """Updates that so many environment steps bring in all: whole periods, after the warm-up."""
        learnt_from = max(env_steps - max(self.warm_up, batch_size), 0)
        return int(learnt_from * self.utd) // period * period
