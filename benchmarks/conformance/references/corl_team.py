"""Adapter to corl-team/CORL, the continuation of tinkoff-ai/CORL."""

from __future__ import annotations

from benchmarks.conformance.job import Job, Learner
from benchmarks.conformance.references.rebrac import SIDE, learner

__all__ = ["SIDE", "rebrac"]


def rebrac(job: Job) -> Learner:
    """Return the learner.

    The weight of behavior cloning is computed as in the reference's training loop. The loop itself
    is not run, because it needs a simulator.
    """
    total, end = job.config["num_updates"], job.config["policy_bc_end"]
    return learner(job, lambda done: max(end, 1 - done / total), use_calibration=False)
