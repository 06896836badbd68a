"""Adapter to seohongpark/fql."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.jax_side import Store, to_float64
from benchmarks.conformance.job import UNUSED, Draw, Job, Learner

SIDE = "jax_side"
LAYERS = 5


def fql(job: Job) -> Learner:
    """Return the learner. Its times are 1 minus ours, and its last draw is for a metric."""
    sys.path.insert(0, str(job.checkout))
    module, c = job.load(), job.config
    config = module.get_config()
    config.lr, config.tau, config.discount = c["actor_lr"], c["tau"], c["discount"]
    config.actor_hidden_dims = config.value_hidden_dims = (WIDTH,) * (LAYERS - 1)
    config.alpha, config.normalize_q_loss = c["alpha"], c["normalize_q"]
    config.q_agg, config.flow_steps = c["q_aggregate"], c["num_inference_steps"]
    agent = module.FQLAgent.create(0, np.zeros((1, OBS)), np.zeros((1, ACT)), config)
    current = SimpleNamespace(agent=agent)

    def update(b: Any) -> dict[str, float]:
        batch = {"rewards": b.rewards, "masks": 1 - b.terminated, "actions": b.actions[:, 0]}
        batch |= {"observations": b.observations[:, 0]}
        batch |= {"next_observations": b.next_observations[:, 0]}
        current.agent, info = current.agent.update(batch)
        distance, q_loss = info["actor/distill_loss"], info["actor/q_loss"]
        losses = {"critic_loss": info["critic/critic_loss"], "flow_loss": info["actor/bc_flow_loss"]}
        losses |= {"policy_loss": c["alpha"] * distance + q_loss, "distance": distance}
        return {name: float(value) for name, value in losses.items()}

    def write(tree: Any) -> None:
        network = current.agent.network
        network = network.replace(params=tree, opt_state=to_float64(network.opt_state))
        current.agent = current.agent.replace(network=network)

    store = Store(
        lambda: current.agent.network.params, write, lambda: current.agent.network.opt_state
    )
    links = []
    for ours, theirs in (("policy/trunk", "onestep_flow"), ("flow/network.trunk", "bc_flow")):
        links += store.mlp(ours, layers(f"modules_actor_{theirs}/mlp/Dense", LAYERS))
    for ours, theirs in (("critic", "critic"), ("critic_target", "target_critic")):
        inside = f"modules_{theirs}/value_net"
        links += store.mlp(f"{ours}/net", layers(f"{inside}/Dense", LAYERS), stacked=True)
        norms = layers(f"{inside}/LayerNorm", LAYERS - 1)
        links += store.norms(f"{ours}/net", norms, stacked=True)
    order: list[Draw] = ["next", "x0", ("time", lambda u: 1 - u.reshape(-1, 1)), "z", UNUSED]
    return Learner(links, update, order)


def layers(kind: str, count: int) -> list[str]:
    return [f"{kind}_{i}" for i in range(count)]
