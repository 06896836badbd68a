"""Interface of the adapters, imported by the references' interpreters."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np

from benchmarks.conformance.inputs import Arrays

ABSENT = """absl clu d4rl dateutil dm_control dm_env fsrl gtimer gym gymnasium h5py imageio loguru
matplotlib mujoco_py neorl oapackage pyrallis ray sklearn tensorboardX tianshou tqdm wandb"""


class StandIn(MetaPathFinder, Loader):
    """Import hook that replaces missing packages (simulators, trackers, …) by mock modules.

    It is the last import hook, so installed packages take precedence.
    """

    def __init__(self, names: str = ABSENT) -> None:
        self.names = names.split()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        absent = name.split(".")[0] in self.names
        return ModuleSpec(name, self, is_package=True) if absent else None

    def create_module(self, spec: ModuleSpec) -> Any:
        return MagicMock(__path__=[], __spec__=spec)

    def exec_module(self, module: Any) -> None:
        pass


UNUSED = ""  # name of a draw of the reference that affects no compared quantity
# our name of a draw, and the conversion of our array to the reference's layout
Draw = str | tuple[str, Callable[[np.ndarray], np.ndarray]]


@dataclass(frozen=True)
class Link:
    """Link between a parameter of the reference and one of ours, with a reader and a writer."""

    name: str  # our name: <network>/<parameter>
    index: Any  # index into our parameter
    read: Callable[[], np.ndarray]
    write: Callable[[np.ndarray], None]
    moment: Callable[[], np.ndarray | None] = lambda: None  # Adam's running mean of gradients


@dataclass
class Learner:
    """A reference, ready to train."""

    links: Sequence[Link]
    update: Callable[[Any], Mapping[str, float] | None]  # trains on a batch; losses by our names
    # the reference's draws in order, by our names; draws that our side did not make are skipped
    order: Sequence[Draw] = ()
    losses: Sequence[str] = ()  # our names of the losses that backward() is called on, in order


@dataclass
class Job:
    """One case, as passed to the reference's process."""

    checkout: Path
    algorithm: str
    file: str
    config: dict[str, Any]  # complete config of our algorithm
    phase: str

    def load(self, file: str | None = None, swaps: Mapping[str, str] = {}) -> ModuleType:
        """Import the reference's file as a module. The file itself does not change.

        swaps: texts to replace in its source, and their replacements.
        Raises ValueError if a text to replace is missing.
        """
        path = self.checkout / (file or self.file)
        source = path.read_text()
        for old, new in swaps.items():
            if old not in source:
                raise ValueError(f"{path.name} has no {old!r}")
            source = source.replace(old, new)
        name = "_".join(path.with_suffix("").parts[-2:])
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        exec(compile(source, str(path), "exec"), vars(module))
        return module


def swap_axes(x: np.ndarray) -> np.ndarray:
    """Return [N, B, …] as [B, N, …]: the reference repeats each state, our code the batch."""
    return x.swapaxes(0, 1)


class Replay:
    """Random numbers of one update, in the order in which the reference draws them."""

    def __init__(self, arrays: Arrays, order: Sequence[Draw]) -> None:
        names = {name.split("/")[1] for name in arrays} | {UNUSED}
        pairs = [x if isinstance(x, tuple) else (x, np.asarray) for x in order]
        self.arrays, self.unread = arrays, set(arrays)
        self.order = iter([pair for pair in pairs if pair[0] in names])

    def __call__(self, kind: str, shape: Sequence[int]) -> np.ndarray:
        """Return the next numbers. Raises ValueError if the two sides draw differently."""
        name, arrange = next(self.order, ("nothing", np.asarray))
        if name == UNUSED:
            return np.full(shape, 0.5)
        values = self.arrays.get(f"{kind}/{name}")
        if values is None:
            raise ValueError(f"{kind} {tuple(shape)} was drawn where {name} was expected")
        self.unread.discard(f"{kind}/{name}")
        arranged = arrange(values)
        if arranged.shape[-1:] != tuple(shape)[-1:]:
            raise ValueError(f"{name} is {arranged.shape}, and {tuple(shape)} was drawn")
        return arranged.reshape(shape)
