"""Adapter to chufanchen/ReCOIL, a copy of the authors' code, which is no longer public."""

from __future__ import annotations

import sys
from typing import Any

import jax.numpy as jnp

from benchmarks.conformance.job import Job, Learner
from benchmarks.conformance.references.iql import (
    SIDE,
    learner,
    links,
    make_flags,
    read_metrics,
    rows,
)

__all__ = ["SIDE", "recoil"]


def recoil(job: Job) -> Learner:
    c = job.config
    options = {"loss_temp": c["temperature"], "vanilla": False, "args": make_flags(c)}
    t, batch = learner(job, layernorm=c["layer_norm"], **options)
    mixed = sys.modules["common"].MixedBatch

    def update(b: Any) -> dict[str, float]:
        other = mixed(*rows(b), jnp.zeros(len(b.rewards)))
        metrics = read_metrics(t.update(other, batch(*rows(b.expert))))
        return {name: value for name, value in metrics.items() if name != "advantage"}

    return Learner(links(t), update)
