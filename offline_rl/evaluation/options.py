"""What `offline-rl evaluate` takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Checked, Count, Number


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(Checked):
    """What `offline-rl evaluate` takes."""

    run: str | list[str]  # a bundle, a seed's folder or its parent; several: [first,second]
    task: str | None = None  # default: the one the policy was trained on
    episodes: Count | Literal["all"] = 100  # of each bundle, from fixed seeds; all: each start once
    eval_envs: Count | None = None  # environments open at once; 1 if only one can exist
    target_return: Number | None = None  # for policies that aim at one; default: the bundle's
    base: str | None = None  # module:function, where a bundle corrects what it does not hold
    json: bool = False  # numbers for machines instead of a table


def check_task(keys: Mapping[str, Any]) -> None:
    """Raise UserError if `task` is an environment, or its class, where a name is expected."""
    task = keys.get("task")
    if all(hasattr(task, name) for name in ("step", "reset")):
        kind = task if isinstance(task, type) else type(getattr(task, "unwrapped", task))
        raise UserError(
            f"task={kind.__name__} is an environment; task= takes a name. Register it with "
            f'envs.register("mine", {kind.__name__}, max_episode_steps=…) and give task="mine", or '
            f'give task="env:<file>.py:{kind.__name__}".'
        )
