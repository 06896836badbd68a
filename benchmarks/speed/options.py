"""Options of `offline-rl bench`."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass, field
from typing import Literal

from offline_rl.utils.options import Checked, Count, Positive

Precision = Literal["fp32", "tf32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class BenchOptions(Checked):
    """Options of `offline-rl bench`."""

    algorithms: list[str] = field(  # algorithms to time
        default_factory=lambda: ["td3_bc", "iql", "cql"]
    )
    seeds: list[Count] = field(  # numbers of seeds trained together; each number is timed
        default_factory=lambda: [1, 8]
    )
    precisions: list[Precision] = field(  # precisions of our contenders
        default_factory=lambda: ["fp32", "bf16"]
    )
    device: str = "auto"  # auto, cpu, cuda
    blocks: Count = 7  # timed blocks per contender; the median is reported
    seconds: Positive = 2.0  # length of a block
    corl: str | None = None  # also time CORL, run by python=; the folder of a checkout
    jax_corl: str | None = None  # also time JAX-CORL, run by python=; the folder of a checkout
    unifloral: str | None = None  # also time Unifloral, run by python=; the folder of a checkout
    diffusion_policy: str | None = None  # also time Diffusion Policy; the folder of a checkout
    d3rlpy: bool = False  # also time d3rlpy, which must be installed for the interpreter python=
    python: str = sys.executable  # interpreter for other projects, with their packages installed
    profile: bool = False  # also profile our updates
    out: str = "speed"  # writes <out>-<device>.json, .md and .png

    def __post_init__(self) -> None:
        """Raise ValueError for options that would fail, or be useless, after hours of timing."""
        super().__post_init__()
        if not self.algorithms or not self.precisions or not self.seeds:
            raise ValueError("algorithms=, seeds= and precisions= need at least one entry each")
        if shutil.which(self.python) is None:
            raise ValueError(
                f"python={self.python} is not a program. Pass the path of a Python interpreter"
            )
