"""Offline and offline-to-online reinforcement learning: from logged data to scored policies.

offline_rl.train(algorithm="iql", task="gym/hopper-medium-replay", seeds=3, num_updates=20_000)
offline_rl.Dataset.from_arrays(observations, actions, rewards, terminated, truncated)
offline_rl.load("runs/gym_hopper-medium-replay/iql/default").q_values(observations, actions)
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_rl.utils.errors import UserError
from offline_rl.version import __version__

if TYPE_CHECKING:
    from offline_rl.data.dataset import Dataset
    from offline_rl.trained import Trained, load
    from offline_rl.training.finetune import distill, finetune
    from offline_rl.training.result import Result
    from offline_rl.training.train import train

__all__ = [
    "Dataset",
    "Result",
    "Trained",
    "UserError",
    "__version__",
    "distill",
    "finetune",
    "load",
    "train",
]

_LAZY = {
    "train": "offline_rl.training.train",
    "finetune": "offline_rl.training.finetune",
    "distill": "offline_rl.training.finetune",
    "Result": "offline_rl.training.result",
    "Dataset": "offline_rl.data",
    "load": "offline_rl.trained",
    "Trained": "offline_rl.trained",
}


def _load_neighbors() -> None:
    """Import the packages beside this one, whatever else has their common names.

    A package of the user's, in the script's folder, is found first. Then ours is imported here, and
    a warning says so. Raises ImportError if the user's is imported already.
    """
    home = Path(__file__).resolve().parents[1]
    for name in ("envs", "policies", "real_robot"):
        try:
            spec = importlib.util.find_spec(name)
        except ValueError:  # a module in memory, without a file
            spec = None
        if spec is not None and spec.origin and Path(spec.origin).resolve().parents[1] == home:
            continue
        other = spec.origin if spec is not None and spec.origin else "another module"
        if name in sys.modules:
            raise ImportError(
                f"offline_rl needs its own package {name!r}, and {other} is imported by that name. "
                "Rename that one"
            )
        own = PathFinder.find_spec(name, [str(home)])
        if own is None or own.loader is None:
            raise ImportError(f"offline_rl lies in {home}, where its package {name!r} is missing")
        sys.modules[name] = module = importlib.util.module_from_spec(own)
        own.loader.exec_module(module)
        if spec is not None:
            warnings.warn(
                f"in this process {name!r} is the package of offline_rl, not {other}: rename that "
                "one to import it",
                stacklevel=3,
            )


_load_neighbors()


def __getattr__(name: str) -> Any:
    """Heavy parts are imported when they are first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'offline_rl' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """What is for users; what is loaded when it is asked for, too."""
    return sorted(__all__)
