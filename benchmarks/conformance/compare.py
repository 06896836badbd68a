"""Relative differences between our results and a reference's, for each quantity."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.conformance import our_side
from benchmarks.conformance.cases import Case
from benchmarks.conformance.inputs import Arrays
from benchmarks.figures import import_path

ROOT = Path(__file__).resolve().parents[2]
TOLERANCE = 1e-9  # relative; both sides are in float64


def relative_differences(
    our_results: Arrays, reference_results: Arrays, start: Arrays
) -> dict[str, float]:
    """Return the largest difference over all updates for each network, gradient mean and loss.

    Differences of losses and gradient means are relative to the reference's largest entry. Those of
    weights are relative to the largest *change* from the initial weights; otherwise large weights
    would hide differences in a target network. Raises ValueError for a quantity of the reference
    that our side does not have.
    """
    if unknown := reference_results.keys() - our_results.keys():
        raise ValueError(f"our side has no quantities called {sorted(unknown)}")
    gaps: dict[str, float] = {}
    size: dict[str, float] = {}
    for name, reference in reference_results.items():
        kind, _, rest = name.partition("/")
        network = rest.partition("/")[0]
        ours, reported = our_results[name], ~np.isnan(reference)
        if ours.shape != reference.shape or np.isnan(ours[reported]).any():
            raise ValueError(
                f"{name}: the shapes differ (ours {ours.shape}, reference {reference.shape}), or "
                "ours contains NaN"
            )
        change = reference - start[rest] if kind == "params" else reference
        group = {"params": network, "moment": f"{network}'s gradient", "loss": rest}[kind]
        gap = np.abs(ours - reference)[reported]
        gaps[group] = max(gaps.get(group, 0.0), float(gap.max()))
        size[group] = max(size.get(group, 0.0), float(np.abs(change)[reported].max()))
    return {group: gap / size[group] if size[group] else gap for group, gap in gaps.items()}


def run_reference(case: Case, checkout: str, inputs: Arrays, python: str) -> Arrays:
    """Run the reference in a separate process and return its results.

    Raises UserError with the last lines of its error output if it fails.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = {"repository": case.repository, "algorithm": case.algorithm}
        job |= {"checkout": checkout, "file": case.file, "phase": case.phase}
        job |= {"updates": case.updates, "config": our_side.config(case)}
        (folder / "job.json").write_text(json.dumps(job))
        np.savez(folder / "inputs.npz", **inputs)
        done = subprocess.run(
            [python, "-m", "benchmarks.conformance.worker", name],
            env=os.environ
            | {"PYTHONPATH": import_path(ROOT), "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            words = "\n".join(done.stderr.strip().splitlines()[-12:])
            raise our_side.UserError(f"conformance: the reference of {case.name} failed:\n{words}")
        with np.load(folder / "outputs.npz") as file:
            return {key: file[key] for key in file.files}


def final_quantities(results: Arrays) -> Arrays:
    """Return networks and gradient means after the last update, and all losses."""
    return {k: x if k.startswith("loss/") else x[-1:] for k, x in results.items()}
