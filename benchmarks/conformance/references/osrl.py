"""Adapter to liuzuxin/OSRL. Its packages for logging and environments are replaced by mocks."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from torch import Tensor

from benchmarks.conformance.job import Job, Link
from benchmarks.conformance.torch_side import mlp, two_heads

SIDE = "torch_side"


class Log(dict[str, float]):
    """Logger of a trainer: the last value of each of its metrics."""

    def store(self, **metrics: float) -> None:
        """Store the metrics of an update."""
        self.update(metrics)


def load(job: Job, swaps: Mapping[str, str] = {}) -> ModuleType:
    """Import the case's file, and its package from the checkout. swaps: see `Job.load`."""
    sys.path.insert(0, str(job.checkout))
    return job.load(swaps=swaps)


def columns(b: Any) -> list[Tensor]:
    """Return a batch's columns in the order of a trainer's `train_one_step`."""
    rows = [b.observations, b.next_observations, b.actions]
    return [*rows, b.rewards, b.costs, b.terminated]


def critic_links(name: str, nets: Any) -> list[Link]:
    """Return links from a list of critics to our ensemble `name`."""
    return [x for k, net in enumerate(nets) for x in mlp(f"{name}/net", net, k)]


def actor_links(actor: Any) -> list[Link]:
    """Return links from a squashed Gaussian actor to our policy."""
    layers = [m for m in actor.net if hasattr(m, "weight")]
    return two_heads("policy/trunk", layers, actor.mu_layer, actor.log_std_layer)


def vae_links(vae: Any) -> list[Link]:
    """Return links from a VAE to ours."""
    links = two_heads("vae/encoder", (vae.e1, vae.e2), vae.mean, vae.log_std)
    return links + mlp("vae/decoder", (vae.d1, vae.d2, vae.d3))
