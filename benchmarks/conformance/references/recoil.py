"""chufanchen/ReCOIL, a copy of the authors' code, which is in no public place any more."""

from __future__ import annotations

import sys
from typing import Any

import jax.numpy as jnp

from benchmarks.conformance.job import Job, Learner
from benchmarks.conformance.references.iql import SIDE, flags, learner, links, rows, told

__all__ = ["SIDE", "recoil"]


def recoil(job: Job) -> Learner:
    c = job.config
    options = {"loss_temp": c["temperature"], "vanilla": False, "args": flags(c)}
    t, batch = learner(job, layernorm=c["layer_norm"], **options)
    mixed = sys.modules["common"].MixedBatch

    def update(b: Any) -> dict[str, float]:
        other = mixed(*rows(b), jnp.zeros(len(b.rewards)))
        found = told(t.update(other, batch(*rows(b.expert))))
        return {name: value for name, value in found.items() if name != "advantage"}

    return Learner(links(t), update)
