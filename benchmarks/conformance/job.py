"""What an adapter is given and what it answers; imported by the references' interpreters."""

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

ABSENT = """absl clu d4rl dateutil dm_control dm_env gtimer gym h5py imageio loguru matplotlib
mujoco_py neorl pyrallis ray sklearn tensorboardX tianshou tqdm wandb"""


class StandIn(MetaPathFinder, Loader):
    """Simulators, trackers and the like, where they are not installed: modules that agree to all.

    Asked last, so that what is installed comes first.
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


UNUSED = ""  # a draw of theirs that changes nothing that is compared
Draw = str | tuple[str, Callable[[np.ndarray], np.ndarray]]  # a name, and how ours becomes theirs


@dataclass(frozen=True)
class Link:
    """One parameter of theirs: where it stands in ours, how it is read and written."""

    name: str  # ours: <network>/<parameter>
    index: Any  # the part of ours that it is
    read: Callable[[], np.ndarray]
    write: Callable[[np.ndarray], None]
    moment: Callable[[], np.ndarray | None] = lambda: None  # Adam's mean of gradients


@dataclass
class Learner:
    """A reference, ready to learn."""

    links: Sequence[Link]
    update: Callable[[Any], Mapping[str, float] | None]  # of a batch; losses by our names
    order: Sequence[Draw] = ()  # their draws by the names of ours; of those not made none is read
    losses: Sequence[str] = ()  # our names of what they call backward() on, in their order


@dataclass
class Job:
    """One case, as the reference's process has it."""

    checkout: Path
    algorithm: str
    file: str
    config: dict[str, Any]  # of our algorithm, complete
    phase: str

    def load(self, file: str | None = None, swaps: Mapping[str, str] = {}) -> ModuleType:
        """Their file as a module, with parts of its text replaced in memory.

        Raises ValueError where a text to replace is not there.
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


def swapped(x: np.ndarray) -> np.ndarray:
    """[N, B, …] as [B, N, …]: theirs repeat each state, ours each batch."""
    return x.swapaxes(0, 1)


class Replay:
    """The tape of one update, read in the reference's order."""

    def __init__(self, drawn: Arrays, order: Sequence[Draw]) -> None:
        names = {name.split("/")[1] for name in drawn} | {UNUSED}
        pairs = [x if isinstance(x, tuple) else (x, np.asarray) for x in order]
        self.drawn, self.left = drawn, set(drawn)
        self.order = iter([pair for pair in pairs if pair[0] in names])

    def __call__(self, kind: str, shape: Sequence[int]) -> np.ndarray:
        """The next numbers. Raises ValueError where the sides do not draw alike."""
        name, arranged = next(self.order, ("nothing", np.asarray))
        if name == UNUSED:
            return np.full(shape, 0.5)
        values = self.drawn.get(f"{kind}/{name}")
        if values is None:
            raise ValueError(f"{kind} {tuple(shape)} was drawn where {name} was expected")
        self.left.discard(f"{kind}/{name}")
        found = arranged(values)
        if found.shape[-1:] != tuple(shape)[-1:]:
            raise ValueError(f"{name} is {found.shape}, and {tuple(shape)} was drawn")
        return found.reshape(shape)
