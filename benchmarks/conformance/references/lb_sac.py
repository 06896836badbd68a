"""Adapter to tinkoff-ai/lb-sac."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.job import UNUSED, Job, Learner
from benchmarks.conformance.references.corl import ensemble_links

SIDE = "torch_side"


def lb_sac(job: Job) -> Learner:
    sys.path.insert(0, str(job.checkout))
    c, module = job.config, job.load()
    networks = job.load("lb_sac/networks.py", {"+ 1e-6)": "+ 0.0)"})
    actor = networks.Actor(OBS, ACT, WIDTH)
    critic = networks.EnsembleCritic(OBS, ACT, WIDTH, c["num_critics"])
    scale = (c["batch_size"] / 256) ** 0.5
    rates = {name: scale * c[name] for name in ("actor_lr", "critic_lr", "alpha_lr")}
    t = module.SACN(actor, critic, gamma=c["discount"], tau=c["tau"], **rates)

    def update(b: Any) -> dict[str, float]:
        rows = b.observations, b.actions, b.rewards, b.next_observations, b.next_actions
        log = t.update([*rows, b.terminated])
        names = {"policy_loss": "actor_loss", "entropy": "batch_entropy", "alpha": "alpha"}
        return {ours: log[theirs] for ours, theirs in names.items()}

    order = ["temperature", "policy", "next", UNUSED]
    return Learner(ensemble_links(t, networks.VectorizedLinear), update, order)
