"""The order of a run's work, as plain data, and how an algorithm goes on in an environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from offline_rl.utils.options import Amount, Checked, Count, Positive, Share
from policies.channels import Observations

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


@dataclass(frozen=True)
class Collect:
    """So many decisions of each seed's policy as it is, kept until the next are collected."""

    phase: str
    decisions: int
    n_action_steps: int  # environment steps of a decision, unless its episode ends before
    adds: bool = False  # whether episodes that end meanwhile are data from then on

    @property
    def size(self) -> int:
        """What the clock counts of it: environment steps."""
        return self.decisions * self.n_action_steps


@dataclass(frozen=True)
class Fill:
    """So many decisions of each seed's policy on the data's states, in the rollouts' place."""

    phase: str
    rows: int
    states: str  # the phase whose batches' observations they are on

    @property
    def size(self) -> int:
        """What the clock counts of it."""
        return self.rows


Piece: TypeAlias = Learn | Interact | Collect | Fill


def locate(schedule: Sequence[Piece], clock: int) -> tuple[int, int]:
    """Which piece of work is under way when the clock shows `clock`, and how much of it is done.

    At the end of one, the next has begun; after the last, its number is that of the pieces.
    """
    for k, work in enumerate(schedule):
        if clock < work.size:
            return k, clock
        clock -= work.size
    return len(schedule), clock


@dataclass(frozen=True, kw_only=True)
class Online(Checked):
    """How an algorithm learns in an environment; `online.<field>=`, or an `online:` row of a table.

    A subclass beside an algorithm's Config gives that method's own defaults.
    """

    warmup_steps: Amount = 0  # environment steps of each seed before it learns; at least a batch
    warmup_policy: Literal["policy", "random"] = "policy"  # who acts meanwhile; random: uniformly
    utd: Positive = 1.0  # updates for each environment step
    offline_fraction: Share | Literal["rows"] = (
        0.0  # of a batch that is offline data; rows: as in one buffer
    )
    n_step: Count = 1  # steps after which a transition bootstraps

    config_changes: ClassVar[Mapping[str, Any]] = {}  # of the algorithm's Config then, unless told
    critic_only_option: ClassVar[str] = ""  # the key that `alone` follows from

    def warmup_action(
        self, random: np.random.Generator, observations: Observations, size: int
    ) -> np.ndarray | None:
        """The warm-up's action [size] of one seed, who sees [*obs]; None: the policy acts."""
        return random.uniform(-1, 1, size) if self.warmup_policy == "random" else None

    def critic_only_updates(self, period: int) -> int:
        """Updates of the critics alone, before the first that changes the policy: whole periods."""
        return 0

    def updates_due(self, env_steps: int, batch_size: int, period: int) -> int:
        """Updates that so many environment steps bring in all: whole periods, after the warm-up."""
        learned_from = max(env_steps - max(self.warmup_steps, batch_size), 0)
        return int(learned_from * self.utd) // period * period


@dataclass(frozen=True, kw_only=True)
class OneBuffer(Online):
    """In a buffer that begins with the data."""

    offline_fraction: Share | Literal["rows"] = "rows"


@dataclass(frozen=True, kw_only=True)
class OnPolicy(Online):
    """From its own rollouts alone: nothing of the rest is read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in fields(self):
            if getattr(self, field.name) != field.default:
                raise ValueError(
                    f"{field.name}: this method learns from its own rollouts alone; leave it out"
                )


@dataclass(frozen=True, kw_only=True)
class HalfAndHalf(Online):
    """Half of each batch is data."""

    offline_fraction: Share | Literal["rows"] = 0.5
