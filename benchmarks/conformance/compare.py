"""How far two sides are apart, quantity by quantity."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.conformance import ours
from benchmarks.conformance.cases import Case
from benchmarks.conformance.inputs import Arrays
from benchmarks.figures import import_path

ROOT = Path(__file__).resolve().parents[2]
TOLERANCE = 1e-9  # relative; both sides are in float64


def differences(mine: Arrays, theirs: Arrays, start: Arrays) -> dict[str, float]:
    """The largest of all updates, by quantity: each network, its gradients' means, each loss.

    Relative to the largest entry of theirs: of a loss, of a mean of gradients, and of a network to
    the largest *change* from its start, or a target would hide behind its weights.
    Raises ValueError for a quantity of theirs that is none of ours.
    """
    if unknown := theirs.keys() - mine.keys():
        raise ValueError(f"nothing of ours is called {sorted(unknown)}")
    apart: dict[str, float] = {}
    size: dict[str, float] = {}
    for name, reference in theirs.items():
        kind, _, rest = name.partition("/")
        network = rest.partition("/")[0]
        own, told = mine[name], ~np.isnan(reference)
        if own.shape != reference.shape or np.isnan(own[told]).any():
            raise ValueError(f"{name}: ours is {own.shape}, theirs {reference.shape}, or a NaN")
        change = reference - start[rest] if kind == "params" else reference
        group = {"params": network, "moment": f"{network}'s gradient", "loss": rest}[kind]
        gap = np.abs(own - reference)[told]
        apart[group] = max(apart.get(group, 0.0), float(gap.max()))
        size[group] = max(size.get(group, 0.0), float(np.abs(change)[told].max()))
    return {group: apart[group] / size[group] if size[group] else apart[group] for group in apart}


def reference(case: Case, checkout: str, given: Arrays, python: str) -> Arrays:
    """What the other side comes to, in a process of its own. UserError with its last words."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = {"repository": case.repository, "algorithm": case.algorithm}
        job |= {"checkout": checkout, "file": case.file, "phase": case.phase}
        job |= {"updates": case.updates, "config": ours.config(case)}
        (folder / "job.json").write_text(json.dumps(job))
        np.savez(folder / "inputs.npz", **given)
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
            raise ours.UserError(f"conformance: {case.name} stopped:\n{words}")
        with np.load(folder / "outputs.npz") as file:
            return {key: file[key] for key in file.files}


def last(found: Arrays) -> Arrays:
    """What is kept as numbers: networks and gradients' means after the last update, all losses."""
    return {k: x if k.startswith("loss/") else x[-1:] for k, x in found.items()}
