"""Offline and offline-to-online reinforcement learning: from logged data to scored policies.

offline_rl.train(algorithm="iql", task="gym/hopper-medium-replay", seeds=3, num_updates=20_000)
offline_rl.Dataset.load("my.hdf5")
offline_rl.Dataset.from_arrays(observations, actions, rewards, terminated, truncated)
offline_rl.evaluate(run="runs/gym_hopper-medium-replay/iql/default", episodes=50)
offline_rl.load("runs/gym_hopper-medium-replay/iql/default").q_values(observations, actions)
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_rl.utils.errors import UserError
from offline_rl.version import __version__

if TYPE_CHECKING:
    from offline_rl.data.dataset import Dataset
    from offline_rl.evaluation.evaluate import Evaluation, evaluate
    from offline_rl.evaluation.export import export
    from offline_rl.reporting.report import Report, report
    from offline_rl.trained import Trained, load
    from offline_rl.training.finetune import distill, finetune
    from offline_rl.training.result import Result
    from offline_rl.training.train import train

__all__ = [
    "Dataset",
    "Evaluation",
    "Report",
    "Result",
    "Trained",
    "UserError",
    "__version__",
    "distill",
    "evaluate",
    "export",
    "finetune",
    "load",
    "report",
    "train",
]

_LAZY = {
    "train": "offline_rl.training.train",
    "finetune": "offline_rl.training.finetune",
    "distill": "offline_rl.training.finetune",
    "evaluate": "offline_rl.evaluation.evaluate",
    "Evaluation": "offline_rl.evaluation.evaluate",
    "export": "offline_rl.evaluation.export",
    "report": "offline_rl.reporting.report",
    "Report": "offline_rl.reporting.report",
    "Result": "offline_rl.training.result",
    "Dataset": "offline_rl.data",
    "load": "offline_rl.trained",
    "Trained": "offline_rl.trained",
}


def _check_neighbours() -> None:
    """`envs` and `policies` are common names: a folder of the user's must not stand in for ours."""
    home = Path(__file__).resolve().parents[1]
    for name in ("envs", "policies"):
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin).resolve().parents[1] if spec and spec.origin else None
        if found != home:
            raise ImportError(
                f"the package {name!r} would be imported from {found or 'nowhere'}, but offline_rl "
                f"lies in {home}: rename the other folder or start from another directory"
            )


_check_neighbours()


def __getattr__(name: str) -> Any:
    """Heavy parts are imported when they are first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'offline_rl' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """What is for users; what is loaded when it is asked for, too."""
    return sorted(__all__)
