"""A reference in a process and an interpreter of its own: python -m benchmarks.conformance.worker.

Reads job.json and inputs.npz of the folder it is given, writes outputs.npz into it.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.conformance.inputs import Arrays, part, stacked
from benchmarks.conformance.job import Job, Learner, Link, Replay, StandIn


def main(folder: Path) -> None:
    job = json.loads((folder / "job.json").read_text())
    with np.load(folder / "inputs.npz") as file:
        inputs = {name: file[name] for name in file.files}
    adapter = importlib.import_module(f"benchmarks.conformance.references.{job['repository']}")
    side = importlib.import_module(f"benchmarks.conformance.{adapter.SIDE}")
    sys.meta_path.append(StandIn())
    side.prepare()
    learner = getattr(adapter, job["algorithm"])(
        Job(Path(job["checkout"]), job["algorithm"], job["file"], job["config"], job["phase"])
    )
    found = run(side, learner, inputs, job["updates"])
    np.savez(folder / "outputs.npz", **found)


def run(side: Any, learner: Learner, inputs: Arrays, updates: int) -> Arrays:
    """Every quantity after each update, [updates, …]."""
    params = part(inputs, "params/")
    for link in learner.links:
        link.write(params[link.name][link.index])
    outputs = []
    for update in range(updates):
        replay = Replay(part(inputs, f"tape/{update}/"), learner.order)
        side.replay, side.backward_losses[:] = replay, []
        losses = dict(learner.update(side.given(part(inputs, f"batch/{update}/"))) or {})
        side.replay = None
        if replay.left:
            raise ValueError(f"update {update}: the reference did not draw {sorted(replay.left)}")
        losses |= dict(zip(learner.losses, side.backward_losses, strict=False))
        now = parameters(learner.links, params) | moments(learner.links, params)
        now |= {f"loss/{name}": np.asarray(value, np.float64) for name, value in losses.items()}
        outputs.append(now)
    return stacked(outputs)


def parameters(links: Sequence[Link], params: Arrays) -> Arrays:
    """All of them by our names. Raises ValueError for one of ours that is linked to none."""
    found = {f"params/{name}": np.full_like(x, np.nan) for name, x in params.items()}
    for link in links:
        place = found[f"params/{link.name}"]
        place[link.index] = link.read().reshape(place[link.index].shape)
    if loose := [name for name, x in found.items() if np.isnan(x).any()]:
        raise ValueError(f"not a number, or linked to nothing of theirs: {loose}")
    return found


def moments(links: Sequence[Link], params: Arrays) -> Arrays:
    """Adam's mean of gradients, for the parameters that have one by now."""
    found: Arrays = {}
    for link in links:
        if (moment := link.moment()) is not None:
            values = found.setdefault(f"moment/{link.name}", np.zeros_like(params[link.name]))
            values[link.index] = moment.reshape(values[link.index].shape)
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
