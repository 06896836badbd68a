"""hari-sikchi/DVL."""

from __future__ import annotations

from benchmarks.conformance.jax_side import norm_epsilon
from benchmarks.conformance.job import Job, Learner
from benchmarks.conformance.references.iql import SIDE, flags, learner, links, rows, told

__all__ = ["SIDE", "f_dvl"]


def f_dvl(job: Job) -> Learner:
    """Their one temperature is the weight of the conjugate, but reverse KL's temperature."""
    c = job.config
    norm_epsilon(1e-5)
    weight = c["temperature"] if c["divergence"] == "reverse_kl" else c["lam"]
    args = flags(c, f=c["divergence"].replace("_", "-"))
    t, batch = learner(job, layernorm=c["layer_norm"], loss_temp=weight, vanilla=False, args=args)
    return Learner(links(t, norms=True), lambda b: told(t.update(batch(*rows(b)))))
