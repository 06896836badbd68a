"""Adapter to seohongpark/fql."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.jax_side import Store, to_float64
from benchmarks.conformance.job import UNUSED, Draw, Job, Learner, Link

SIDE = "jax_side"
LAYERS = 5
TIME: Draw = ("time", lambda u: 1 - u.reshape(-1, 1))  # its times are 1 minus ours


def agent(job: Job, name: str, **options: Any) -> SimpleNamespace:
    """Return an object with the reference's agent, in the attribute `agent`."""
    sys.path.insert(0, str(job.checkout))
    module, c = job.load(), job.config
    config = module.get_config()
    config.lr, config.tau, config.discount = c["actor_lr"], c["tau"], c["discount"]
    config.actor_hidden_dims = config.value_hidden_dims = (WIDTH,) * (LAYERS - 1)
    config.update(options)
    create = getattr(module, name).create
    return SimpleNamespace(agent=create(0, np.zeros((1, OBS)), np.zeros((1, ACT)), config))


def update(current: SimpleNamespace, b: Any) -> dict[str, Any]:
    """Update the agent and return its metrics."""
    batch = {"rewards": b.rewards, "masks": 1 - b.terminated, "actions": b.actions[:, 0]}
    batch |= {"observations": b.observations[:, 0], "next_observations": b.next_observations[:, 0]}
    current.agent, info = current.agent.update(batch)
    return {name: float(value) for name, value in info.items()}


def make_store(current: SimpleNamespace) -> Store:
    """Return the access to the parameters of all networks."""

    def write(tree: Any) -> None:
        network = current.agent.network
        network = network.replace(params=tree, opt_state=to_float64(network.opt_state))
        current.agent = current.agent.replace(network=network)

    return Store(
        lambda: current.agent.network.params, write, lambda: current.agent.network.opt_state
    )


def link_values(store: Store, ours: str, theirs: str) -> list[Link]:
    """Return the links of a value network, or of the ensemble of critics."""
    inside, stacked = f"modules_{theirs}/value_net", ours != "value"
    links = store.mlp(f"{ours}/net", layers(f"{inside}/Dense", LAYERS), stacked=stacked)
    norms = layers(f"{inside}/LayerNorm", LAYERS - 1)
    return links + store.norms(f"{ours}/net", norms, stacked=stacked)


def link_critics(store: Store) -> list[Link]:
    """Return the links of the critics and their targets, whose moments stay 0."""
    targets = link_values(store, "critic_target", "target_critic")
    targets = [replace(link, moment=lambda: None) for link in targets]
    return link_values(store, "critic", "critic") + targets


def fql(job: Job) -> Learner:
    """Return the learner. Its last draw is for a metric."""
    c = job.config
    options = {"alpha": c["alpha"], "normalize_q_loss": c["normalize_q"]}
    options |= {"q_agg": c["q_aggregate"], "flow_steps": c["num_inference_steps"]}
    current = agent(job, "FQLAgent", **options)

    def update_fql(b: Any) -> dict[str, float]:
        info = update(current, b)
        distance, q_loss = info["actor/distill_loss"], info["actor/q_loss"]
        losses = {"critic_loss": info["critic/critic_loss"]}
        losses |= {"imitation_loss": info["actor/bc_flow_loss"]}
        return losses | {"policy_loss": c["alpha"] * distance + q_loss, "student_loss": distance}

    store = make_store(current)
    links = link_critics(store)
    for ours, theirs in (("policy/trunk", "onestep_flow"), ("flow/network.trunk", "bc_flow")):
        links += store.mlp(ours, layers(f"modules_actor_{theirs}/mlp/Dense", LAYERS))
    return Learner(links, update_fql, ["next", "x0", TIME, "z", UNUSED])


def ifql(job: Job) -> Learner:
    """Return the learner."""
    current = agent(job, "IFQLAgent", expectile=job.config["expectile"])

    def update_ifql(b: Any) -> dict[str, float]:
        info = update(current, b)
        losses = {"value_loss": info["value/value_loss"], "policy_loss": info["actor/actor_loss"]}
        return losses | {"critic_loss": info["critic/critic_loss"]}

    store = make_store(current)
    links = link_critics(store) + link_values(store, "value", "value")
    links += store.mlp("policy/network.trunk", layers("modules_actor_flow/mlp/Dense", LAYERS))
    return Learner(links, update_ifql, ["x0", TIME])


def layers(kind: str, count: int) -> list[str]:
    """Return the names of `count` layers of this kind."""
    return [f"{kind}_{i}" for i in range(count)]
