"""Div99/XQL."""

from __future__ import annotations

from benchmarks.conformance.jax_side import norm_epsilon
from benchmarks.conformance.job import Job, Learner, swapped
from benchmarks.conformance.references.iql import SIDE, flags, learner, links, rows, told

__all__ = ["SIDE", "xql"]


def xql(job: Job) -> Learner:
    c = job.config
    norm_epsilon(1e-5)
    options = {"loss_temp": c["temperature"], "vanilla": False, "args": flags(c)}
    t, batch = learner(job, layernorm=c["layer_norm"], **options)
    # every step of V on a batch draws from one key, so the same numbers
    order = [("uniform", swapped), "noise"] * c["value_updates"]
    return Learner(
        links(t, norms=c["layer_norm"]), lambda b: told(t.update(batch(*rows(b)))), order
    )
