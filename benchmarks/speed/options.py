"""What `offline-rl bench` takes."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass, field
from typing import Literal

from offline_rl.utils.options import Checked, Count, Positive

Precision = Literal["fp32", "tf32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class BenchOptions(Checked):
    """What `offline-rl bench` takes."""

    algorithms: list[str] = field(default_factory=lambda: ["td3_bc", "iql", "cql"])  # compared
    seeds: list[Count] = field(default_factory=lambda: [1, 8])  # counts of seeds side by side
    precisions: list[Precision] = field(default_factory=lambda: ["fp32", "bf16"])  # of ours
    device: str = "auto"  # auto, cpu, cuda
    blocks: Count = 7  # turns of each contender
    seconds: Positive = 2.0  # of a turn
    corl: str | None = None  # a checkout of CORL, whose files are run by python= as well
    jax_corl: str | None = None  # the same of JAX-CORL
    unifloral: str | None = None  # the same of Unifloral
    diffusion_policy: str | None = None  # the same of Diffusion Policy
    d3rlpy: bool = False  # also d3rlpy, installed for python=
    python: str = sys.executable  # the interpreter that has the peers' packages
    profile: bool = False  # also where the time of an update goes
    out: str = "speed"  # writes <out>-<device>.json, .md and .png

    def __post_init__(self) -> None:
        """Raises ValueError for what would fail, or mean nothing, after hours of measuring."""
        super().__post_init__()
        if not self.algorithms or not self.precisions or not self.seeds:
            raise ValueError("give an algorithm, a count of seeds and a precision at least")
        if shutil.which(self.python) is None:
            raise ValueError(f"python={self.python} is no program")
