"""What `offline-rl evaluate` takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from offline_rl.utils.options import Checked, Count, Number


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(Checked):
    """What `offline-rl evaluate` takes."""

    run: str  # a bundle, a seed's folder or its parent
    task: str | None = None  # default: the one the policy was trained on
    episodes: Count | Literal["all"] = 100  # of each bundle, from fixed seeds; all: each start once
    eval_envs: Count | None = None  # environments open at once; default: one for each episode
    target_return: Number | None = None  # for policies that aim at one; default: the bundle's
    base: str | None = None  # module:function, where a bundle corrects what it does not hold
    json: bool = False  # numbers for machines instead of a table
