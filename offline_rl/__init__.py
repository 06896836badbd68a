"""Offline and offline-to-online reinforcement learning: from logged data to scored policies.

offline_rl.train(algorithm="iql", task="gym/hopper-medium-replay", seeds=3, num_updates=20_000)
offline_rl.Dataset.load("my.hdf5")
offline_rl.Dataset.from_arrays(observations, actions, rewards, terminated, truncated)
offline_rl.evaluate(run="runs/gym_hopper-medium-replay/iql/default", episodes=50)
offline_rl.load("runs/gym_hopper-medium-replay/iql/default").q_values(observations, actions)
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_rl.utils.errors import UserError
from offline_rl.version import __version__

if TYPE_CHECKING:
    from offline_rl.data.dataset import Dataset
    from offline_rl.evaluation.evaluate import Evaluation, evaluate
    from offline_rl.reporting.report import Report, report
    from offline_rl.runs.export import export
    from offline_rl.trained import Trained, load
    from offline_rl.training.result import Result
    from offline_rl.training.train import distill, finetune, train

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
    "finetune": "offline_rl.training.train",
    "distill": "offline_rl.training.train",
    "evaluate": "offline_rl.evaluation.evaluate",
    "Evaluation": "offline_rl.evaluation.evaluate",
    "export": "offline_rl.runs.export",
    "report": "offline_rl.reporting.report",
    "Report": "offline_rl.reporting.report",
    "Result": "offline_rl.training.result",
    "Dataset": "offline_rl.data",
    "load": "offline_rl.trained",
    "Trained": "offline_rl.trained",
}


_HOME = Path(__file__).resolve().parents[1]
_NEIGHBORS = ("envs", "policies", "real_robot")


class _HiddenFolders:
    """Import finder that explains why modules in a user's folder `envs`, say, are not found."""

    @staticmethod
    def find_spec(name: str, *rest: object) -> None:
        """Raise ImportError if `name` is a module in a user's folder that our package hides.

        Such a folder has no __init__.py: Python finds a folder with this file before our package.
        """
        package, _, module = name.partition(".")
        if package not in _NEIGHBORS or not module:
            return
        for entry in sys.path:
            folder = Path(entry).resolve() / package
            part = folder / module.partition(".")[0]
            if folder.parent != _HOME and (part.is_dir() or part.with_suffix(".py").is_file()):
                raise ImportError(_rename_message(package, folder), name=name)


def _rename_message(package: str, path: str | Path) -> str:
    """Return a message on why a user's folder or file cannot be imported, with the remedy."""
    kind = "file" if Path(path).suffix else "folder"
    return f"offline_rl uses its own package {package!r}. Rename your {kind} {path} to import it."


def _location(spec: ModuleSpec | None) -> str | None:
    """Return the folder of a package, or the file of a module; None if it has neither."""
    if spec is not None and spec.origin:
        path = Path(spec.origin)
        return str(path.parent if path.name == "__init__.py" else path)
    locations = spec.submodule_search_locations if spec is not None else None
    return next(iter(locations), None) if locations else None


def _load_neighbors() -> None:
    """Import `envs`, `policies` and `real_robot`, even if the user has packages of these names.

    Python finds a user's package in the script's folder first. Our package is then imported
    instead, with a warning. Raises ImportError if the user's package is already imported.
    """
    sys.meta_path.append(_HiddenFolders)
    home = _HOME
    for name in _NEIGHBORS:
        try:
            spec = importlib.util.find_spec(name)
        except ValueError:  # a module in memory, without a file
            spec = None
        if spec is not None and spec.origin and Path(spec.origin).resolve().parents[1] == home:
            continue
        other = _location(spec)
        if name in sys.modules:
            raise ImportError(
                f"offline_rl needs its own package {name!r}, and {other or 'another module'} is "
                "already imported under this name. Rename it."
            )
        spec = PathFinder.find_spec(name, [str(home)])
        if spec is None or spec.loader is None:
            raise ImportError(f"The package {name!r} is missing in {home}. Reinstall offline_rl.")
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        if other is not None:
            warnings.warn(_rename_message(name, other), stacklevel=3)


_load_neighbors()


def __getattr__(name: str) -> Any:
    """Import the module of a public name when the name is first used."""
    if name not in _LAZY:
        raise AttributeError(f"module 'offline_rl' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """Return the public names, including those that are imported when first used."""
    return sorted(__all__)
