"""Adapter to Div99/XQL."""

from __future__ import annotations

from benchmarks.conformance.jax_side import set_norm_epsilon
from benchmarks.conformance.job import Job, Learner, swap_axes
from benchmarks.conformance.references.iql import (
    SIDE,
    learner,
    links,
    make_flags,
    read_metrics,
    rows,
)

__all__ = ["SIDE", "xql"]


def xql(job: Job) -> Learner:
    c = job.config
    set_norm_epsilon(1e-5)
    options = {"loss_temp": c["temperature"], "vanilla": False, "args": make_flags(c)}
    t, batch = learner(job, layernorm=c["layer_norm"], **options)
    # all updates of V on a batch use the same random key, so they draw the same numbers
    order = [("uniform", swap_axes), "noise"] * c["value_updates"]
    return Learner(
        links(t, norms=c["layer_norm"]), lambda b: read_metrics(t.update(batch(*rows(b)))), order
    )
