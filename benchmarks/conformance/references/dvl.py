"""Adapter to hari-sikchi/DVL."""

from __future__ import annotations

from benchmarks.conformance.jax_side import set_norm_epsilon
from benchmarks.conformance.job import Job, Learner
from benchmarks.conformance.references.iql import (
    SIDE,
    learner,
    links,
    make_flags,
    read_metrics,
    rows,
)

__all__ = ["SIDE", "f_dvl"]


def f_dvl(job: Job) -> Learner:
    """Return the learner.

    The reference's temperature corresponds to our weight of the conjugate (`lam`), and with reverse
    KL to our temperature.
    """
    c = job.config
    set_norm_epsilon(1e-5)
    weight = c["temperature"] if c["divergence"] == "reverse_kl" else c["lam"]
    args = make_flags(c, f=c["divergence"].replace("_", "-"))
    t, batch = learner(job, layernorm=c["layer_norm"], loss_temp=weight, vanilla=False, args=args)
    return Learner(links(t, norms=True), lambda b: read_metrics(t.update(batch(*rows(b)))))
