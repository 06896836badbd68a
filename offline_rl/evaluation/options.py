"""Options of `offline-rl evaluate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Checked, Count, NonNegative, Number


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(Checked):
    """Options of `offline-rl evaluate`."""

    run: str | list[str]  # a bundle, or the folder of a seed or run; [first,second] compares runs
    task: str | None = None  # task to evaluate in; default: the one the policy was trained on
    dataset: str | None = None  # card or file: error on held-out actions, without an environment
    episodes: Count | Literal["all"] = 100  # per bundle, fixed seeds; all: each initial state once
    eval_envs: Count | None = None  # environments open at a time; 1 if only one can exist
    target_return: Number | None = None  # target of return-conditioned policies; default: bundle's
    decision_every: Count | list[Count] | None = (
        None  # environment steps between decisions; a list also reports their average (FAS)
    )
    decision_random: Count | None = None  # with decision_every: also random intervals up to this
    decision_delay: Count | None = (
        None  # with decision_every: also observations delayed by this many steps
    )
    stl: str | None = None  # formula of signal temporal logic; adds its robustness per episode
    backup: str | None = None  # bundle that acts while the robustness of stl= is below margin=
    margin: Number | None = None  # robustness below which the backup takes over; default: 0
    release: Number | None = None  # robustness at which it hands back; default: margin
    window: Count | None = None  # recent observations that the backup watches; default: 10
    target_cost: NonNegative | list[NonNegative] | None = (
        None  # cost limit of policies that take one, or a list of limits; default: the bundle's
    )
    best: Literal["safe"] | None = None  # safe: policies of the best safe evaluations, not the last
    base: str | None = None  # module:function of a residual policy's base, if the bundle lacks it
    json: bool = False  # print JSON instead of a table


def head_arguments(
    target_return: float | None = None, target_cost: float | None = None
) -> dict[str, float]:
    """Return the arguments of the head that replace those stored in a bundle; without None."""
    targets = {"target_return": target_return, "target_cost": target_cost}
    return {name: value for name, value in targets.items() if value is not None}


def check_task(keys: Mapping[str, Any]) -> None:
    """Raise UserError if `task` is an environment, or its class, where a name is expected."""
    task = keys.get("task")
    if all(hasattr(task, name) for name in ("step", "reset")):
        kind = task if isinstance(task, type) else type(getattr(task, "unwrapped", task))
        raise UserError(
            f"task={kind.__name__} is an environment, but task= takes a name. Register it with "
            f'envs.register("mine", {kind.__name__}, max_episode_steps=…) and use task="mine", or '
            f'use task="env:<file>.py:{kind.__name__}".'
        )
