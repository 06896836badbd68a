"""What is compared with what: one row each, and the repositories at the commit that was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

REPOSITORIES = {  # the command's key: repository, commit
    "corl": ("tinkoff-ai/CORL", "6afec90484bbf47dee05fdf525e26a3ebe028e9b"),
    "td3": ("sfujim/TD3", "34770ccdcb51df6f6c7d85c1ba7e40d71b940d16"),
    "td3_bc": ("sfujim/TD3_BC", "8791ad7d7656cb8396f1b3ac8c37f170b2a2dd5f"),
    "iql": ("ikostrikov/implicit_q_learning", "09d700248117881a75cb21f0adb95c6c8a694cb2"),
}
EPSILON = "log density: 1e-6 inside its logarithm -> 0"


@dataclass(frozen=True)
class Case:
    """One algorithm beside one file of public code."""

    algorithm: str
    repository: str  # of REPOSITORIES; the adapter is references/<repository>.py:<function>
    file: str
    draws: tuple[str, ...] = ()  # names of our random draws in an update, in their order
    config: Mapping[str, Any] = field(default_factory=dict)  # beside the sizes
    phase: str = "update"
    variant: str = ""  # tells cases of one algorithm and repository apart
    function: str = ""  # of the adapter; default: the algorithm
    adapted: tuple[str, ...] = ()  # declared differences that their side was relieved of
    updates: int = 10

    @property
    def name(self) -> str:
        return "-".join(x for x in (self.algorithm, self.repository, self.variant) if x)


SOFT = ("temperature", "policy", "next")
PENALTY = ("policy", "next", "here", "there", "uniform")
CASES = (
    Case("bc", "corl", "algorithms/offline/any_percent_bc.py"),
    Case("td3", "td3", "TD3.py", ("noise",)),
    Case("td3_bc", "td3_bc", "TD3_BC.py", ("noise",)),
    Case("td3_bc", "corl", "algorithms/offline/td3_bc.py", ("noise",)),
    Case(
        "iql",
        "corl",
        "algorithms/offline/iql.py",
        config={"clip_actions": 1.0},
        adapted=("the old V in Q's target and the advantage -> the new", "half Q's loss -> all of it"),
    ),
    Case("iql", "iql", "learner.py"),
    Case("iql", "iql", "learner.py", ("dropout_0", "dropout_1"), {"dropout": 0.2}, variant="dropout"),
    Case("cql", "corl", "algorithms/offline/cql.py", PENALTY),
    Case(
        "cql",
        "corl",
        "algorithms/offline/cql.py",
        PENALTY,
        {"gap": 1.0, "max_target_backup": True, "backup_entropy": True, "clip_diff_max": 5.0},
        variant="lagrange",
    ),
    Case("sac_n", "corl", "algorithms/offline/sac_n.py", SOFT, adapted=(EPSILON,)),
    Case("edac", "corl", "algorithms/offline/edac.py", SOFT, adapted=(EPSILON,)),
)
WITHOUT: dict[str, str] = {}  # algorithms without a case, and why
