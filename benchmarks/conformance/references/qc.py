"""Adapter to ColinQiyangLi/qc, whose networks are those of seohongpark/fql."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.job import Draw, Job, Learner
from benchmarks.conformance.references.fql import LAYERS, TIME, layers, link_critics, make_store

SIDE = "jax_side"


def qc(job: Job) -> Learner:
    """Return the learner; its one-step policy is not trained."""
    losses = {"policy_loss": "bc_flow"}
    return learner(job, "best-of-n", {"policy/network.trunk": "bc_flow"}, losses, [NEXT, X0, TIME])


def qc_fql(job: Job) -> Learner:
    """Return the learner."""
    actors = {"flow/network.trunk": "bc_flow", "policy/trunk": "onestep_flow"}
    losses = {"imitation_loss": "bc_flow", "student_loss": "distill"}
    return learner(job, "distill-ddpg", actors, losses, [NEXT, X0, TIME, ("z", flat)])


def flat(noise: np.ndarray) -> np.ndarray:
    """Return noise of chunks [..., H, A] as [..., H * A]."""
    return noise.reshape(*noise.shape[:-2], -1)


NEXT: Draw = ("next", flat)
X0: Draw = ("x0", flat)


def learner(
    job: Job, kind: str, actors: dict[str, str], losses: dict[str, str], order: list[Draw]
) -> Learner:
    """Return the learner. kind: `actor_type`. actors, losses: our names, and theirs."""
    sys.path.insert(0, str(job.checkout))
    module, c = job.load(), job.config
    config = module.get_config()
    config.lr, config.tau, config.discount = c["actor_lr"], c["tau"], c["discount"]
    config.actor_hidden_dims = config.value_hidden_dims = (WIDTH,) * (LAYERS - 1)
    config.actor_type, config.horizon_length = kind, c["horizon"]
    config.actor_num_samples, config.alpha = c.get("num_samples", 1), c.get("alpha", 0.0)
    config.q_agg, config.num_qs = c["q_aggregate"], c["num_critics"]
    config.flow_steps = c["num_inference_steps"]
    agent = module.ACFQLAgent.create(0, np.zeros(OBS), np.zeros(ACT), config)
    current = SimpleNamespace(agent=agent)

    def update(b: Any) -> dict[str, float]:
        """Update on chunks; the sum of their rewards and their mask are in the last step."""
        batch = {"actions": b.actions, "observations": b.observations[:, 0]}
        batch |= {"rewards": b.rewards[:, None], "masks": 1 - b.terminated[:, None]}
        batch |= {"valid": b.valid, "next_observations": b.next_observations}
        current.agent, info = current.agent.update(batch)
        values = {ours: info[f"actor/{theirs}_loss"] for ours, theirs in losses.items()}
        values |= {"critic_loss": info["critic/critic_loss"]}
        return {name: float(value) for name, value in values.items()}

    store = make_store(current)
    links = link_critics(store)
    for ours, theirs in actors.items():
        names = layers(f"modules_actor_{theirs}/mlp/Dense", LAYERS)
        links += store.mlp(ours, names)
    return Learner(links, update, order)
