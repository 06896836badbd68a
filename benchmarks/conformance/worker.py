"""Run a reference in a separate process: python -m benchmarks.conformance.worker <folder>.

Reads job.json and inputs.npz from the folder and writes outputs.npz into it.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.conformance.inputs import RECORD, Arrays, stack_updates, subtree
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
    np.savez(folder / "outputs.npz", **run(side, learner, inputs, job["updates"]))


def run(side: Any, learner: Learner, inputs: Arrays, updates: int) -> Arrays:
    """Run the updates and return every quantity after each of them, [updates, …]."""
    params = subtree(inputs, "params/")
    for link in learner.links:
        link.write(params[link.name][link.index])
    outputs = []
    for update in range(updates):
        replay = Replay(subtree(inputs, f"tape/{update}/"), learner.order)
        side.replay, side.backward_losses[:] = replay, []
        losses = dict(learner.update(side.make_batch(subtree(inputs, f"batch/{update}/"))) or {})
        side.replay = None
        if replay.unread:
            raise ValueError(f"update {update}: the reference did not draw {sorted(replay.unread)}")
        losses |= dict(zip(learner.losses, side.backward_losses, strict=False))
        result = parameters(learner.links, params) | moments(learner.links, params)
        result |= {f"loss/{name}": np.asarray(value, np.float64) for name, value in losses.items()}
        outputs.append(result)
    return stack_updates(outputs)


def parameters(links: Sequence[Link], params: Arrays) -> Arrays:
    """Return the reference's parameters by our names. Raises ValueError for one without a link.

    Parameters that record a fit need no link.
    """
    values = {f"params/{name}": np.full_like(x, np.nan) for name, x in params.items()}
    for link in links:
        target = values[f"params/{link.name}"]
        target[link.index] = link.read().reshape(target[link.index].shape)
    linked = {link.name for link in links}
    for name in [name for name in params if name.startswith(RECORD) and name not in linked]:
        del values[f"params/{name}"]
    if missing := [name for name, x in values.items() if np.isnan(x).any()]:
        raise ValueError(f"NaN, or not linked to a parameter of the reference: {missing}")
    return values


def moments(links: Sequence[Link], params: Arrays) -> Arrays:
    """Return Adam's running means of gradients, for the parameters that have had a gradient."""
    means: Arrays = {}
    for link in links:
        if (moment := link.moment()) is not None:
            values = means.setdefault(f"moment/{link.name}", np.zeros_like(params[link.name]))
            values[link.index] = moment.reshape(values[link.index].shape)
    return means


if __name__ == "__main__":
    main(Path(sys.argv[1]))
