"""Adapter to sfujim/TD3_BC."""

from __future__ import annotations

from benchmarks.conformance.job import Job, Learner
from benchmarks.conformance.references.td3 import SIDE, td3

__all__ = ["SIDE", "td3_bc"]


def td3_bc(job: Job) -> Learner:
    return td3(job, "TD3_BC", alpha=job.config["alpha"])
