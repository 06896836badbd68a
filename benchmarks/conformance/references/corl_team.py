"""corl-team/CORL, where tinkoff-ai/CORL went on."""

from __future__ import annotations

from benchmarks.conformance.job import Job, Learner
from benchmarks.conformance.references.rebrac import SIDE, learner

__all__ = ["SIDE", "rebrac"]


def rebrac(job: Job) -> Learner:
    """The weight as its loop has it, which cannot be run without a simulator."""
    total, end = job.config["num_updates"], job.config["policy_bc_end"]
    return learner(job, lambda done: max(end, 1 - done / total), use_calibration=False)
