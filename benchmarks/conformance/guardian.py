"""Compare the guardian's density with the authors' code (Runz96/SafeRL-OGSRL:guardian.py).

    python -m benchmarks.conformance.guardian <checkout>

200 points of 6 columns set the threshold, and 100 others are judged, in float64. Writes
benchmarks/results/guardian.md.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.figures import commit_of, run_command
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import write_text
from policies.runtimes.guardian import Guardian

PAGE = Path("benchmarks/results/guardian.md")
SIGMA, QUANTILE = 0.535, 0.05
POINTS, OTHERS, OBSERVED, ACTIONS = 200, 100, 4, 2


def load(checkout: Path) -> Any:
    """Return the authors' module; its progress bar and its tables are replaced by mocks."""
    file = checkout / "guardian.py"
    if not file.is_file():
        raise UserError(f"{file} does not exist. Give a checkout of Runz96/SafeRL-OGSRL.")
    bar = ModuleType("tqdm")
    bar.tqdm = lambda rows, desc: rows  # type: ignore[attr-defined]
    sys.modules |= {"tqdm": bar, "pandas": ModuleType("pandas")}
    spec = importlib.util.spec_from_file_location("reference_guardian", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def differences(reference: Any) -> tuple[float, float, int]:
    """Return the largest relative difference of densities, that of the threshold, and the flags.

    The flags are the number of points that only one of both calls out of distribution.
    """
    rng = np.random.default_rng(0)
    points, others = (rng.uniform(-1, 1, (n, OBSERVED + ACTIONS)) for n in (POINTS, OTHERS))
    others *= 1.5  # some are out of distribution
    own, other = (reference.compute_kernel_density(x, points, SIGMA) for x in (points, others))
    threshold = np.percentile(own, 100 * QUANTILE)
    labels = reference.classify_points(other, threshold)

    def parts(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return x[:, :OBSERVED], x[:, OBSERVED:]

    plain = np.zeros(OBSERVED), np.ones(OBSERVED)
    guardian = Guardian("kde", points, *plain, threshold=0.0, bandwidth=SIGMA)
    densities = np.exp(guardian.score(*parts(others)))
    # the quantile of a logarithm is interpolated differently, so it is taken of the densities
    ours = np.quantile(np.exp(guardian.score(*parts(points))), QUANTILE)
    inside = densities >= ours
    assert 0 < inside.sum() < OTHERS
    relative = float(np.abs(densities / other - 1).max())
    return relative, float(abs(ours / threshold - 1)), int((inside == labels).sum())


def main(arguments: Sequence[str]) -> None:
    """Run the command. Raises UserError."""
    if len(arguments) != 1:
        raise UserError("Give one checkout: python -m benchmarks.conformance.guardian <checkout>.")
    checkout = Path(arguments[0])
    density, threshold, flags = differences(load(checkout))
    if max(density, threshold) > 1e-10 or flags:
        raise UserError(
            f"The guardian differs from the reference: densities by {density:.1e}, threshold by "
            f"{threshold:.1e}, {flags} flags. Find the cause before the page is written."
        )
    lines = [
        "# Guardian",
        "",
        "*Made by `python -m benchmarks.conformance.guardian <checkout>`, not by hand.*",
        "",
        f"Kernel densities of {OTHERS} points under {POINTS} of {OBSERVED + ACTIONS} columns "
        f"(bandwidth {SIGMA}), the threshold at the {QUANTILE:.0%} quantile of the points' own "
        "densities, and the flags, in float64. Largest relative differences from the reference.",
        "",
        "| reference | commit | densities | threshold | flags that differ |",
        "|---|---|---|---|---|",
        f"| Runz96/SafeRL-OGSRL:guardian.py | {commit_of(str(checkout))[:7]} | {density:.0e} | "
        f"{threshold:.0e} | {flags} of {OTHERS} |",
        "",
    ]
    write_text(PAGE, "\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
