"""What an adapter is given and what it answers; imported by the references' interpreters."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np

from benchmarks.conformance.inputs import Arrays

SIMULATORS = "absl clu d4rl gym gymnasium gtimer imageio matplotlib moviepy mujoco_py neorl pyrallis"
ABSENT = f"{SIMULATORS} seaborn tensorboardX tqdm wandb loguru ray gin".split()


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
    order: Sequence[str] = ()  # their draws: "name", "name NBA->BNA", or "-": used by nobody
    losses: Sequence[str] = ()  # our names of what they call backward() on, in their order


@dataclass
class Job:
    """One case, as the reference's process has it."""

    checkout: Path
    file: str
    config: dict[str, Any]  # of our algorithm, complete
    phase: str
    order: list[str] = field(default_factory=list)

    def load(self, file: str | None = None, swaps: Mapping[str, str] = {}) -> ModuleType:
        """Their file as a module, with parts of its text replaced in memory.

        Modules of simulators and trackers are stood in for. Raises ValueError where a text to
        replace is not there.
        """
        for name in ABSENT:
            sys.modules.setdefault(name, MagicMock())
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


class Replay:
    """The tape of one update, read in the reference's order."""

    def __init__(self, drawn: Arrays, order: Sequence[str]) -> None:
        names = {name.split("/")[1] for name in drawn}
        self.drawn, self.left = drawn, set(drawn)
        self.order = iter([x for x in order if x.split()[0] in names | {"-"}])

    def __call__(self, kind: str, shape: Sequence[int]) -> np.ndarray:
        """The next numbers. Raises ValueError where the sides do not draw alike."""
        name, _, axes = next(self.order, "nothing").partition(" ")
        if name == "-":
            return np.full(shape, 0.5)
        values = self.drawn.get(f"{kind}/{name}")
        if values is None:
            raise ValueError(f"{kind} {tuple(shape)} was drawn where {name} was expected")
        self.left.discard(f"{kind}/{name}")
        if axes:
            before, after = axes.split("->")
            values = np.transpose(values, [before.index(axis) for axis in after])
        return values.reshape(shape)
