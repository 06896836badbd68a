"""Adapter to ColinQiyangLi/qc."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.jax_side import Store, to_float64
from benchmarks.conformance.job import Draw, Job, Learner
from benchmarks.conformance.references.fql import LAYERS, layers

SIDE = "jax_side"


def qc(job: Job) -> Learner:
    """Return the learner; its one-step policy is not trained."""
    noise: list[Draw] = [("next", flat), *IMITATION]
    return learner(job, "best-of-n", {"policy": "bc_flow"}, noise, {"policy_loss": "bc_flow"})


def qc_fql(job: Job) -> Learner:
    """Return the learner."""
    actors = {"flow": "bc_flow", "policy": "onestep_flow"}
    noise: list[Draw] = [("next", flat), *IMITATION, ("z", flat)]
    losses = {"flow_loss": "bc_flow", "distance": "distill"}
    return learner(job, "distill-ddpg", actors, noise, losses)


def flat(noise: np.ndarray) -> np.ndarray:
    """Return noise of chunks [..., H, A] as [..., H * A]."""
    return noise.reshape(*noise.shape[:-2], -1)


IMITATION: list[Draw] = [("x0", flat), ("time", lambda u: 1 - u.reshape(-1, 1))]


def learner(
    job: Job, kind: str, actors: dict[str, str], order: list[Draw], losses: dict[str, str]
) -> Learner:
    """Return the learner. Its times are 1 minus ours.

    kind: `actor_type`. actors, losses: our names, and theirs.
    """
    sys.path.insert(0, str(job.checkout))
    module, c = job.load(), job.config
    config = module.get_config()
    config.lr, config.tau, config.discount = c["actor_lr"], c["tau"], c["discount"]
    config.actor_hidden_dims = config.value_hidden_dims = (WIDTH,) * (LAYERS - 1)
    config.actor_type, config.horizon_length = kind, c["horizon"]
    config.actor_num_samples = c.get("num_samples", 1)
    config.alpha, config.q_agg = c.get("alpha", 0.0), c["q_aggregate"]
    config.num_qs, config.flow_steps = c["num_critics"], c["num_inference_steps"]
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

    def write(tree: Any) -> None:
        network = current.agent.network
        network = network.replace(params=tree, opt_state=to_float64(network.opt_state))
        current.agent = current.agent.replace(network=network)

    def read() -> Any:
        return current.agent.network.params

    trained = Store(read, write, lambda: current.agent.network.opt_state)
    copied = Store(read, write, dict)  # target networks have no moments
    links = []
    for ours, theirs in actors.items():
        trunk = f"{ours}/network.trunk" if theirs == "bc_flow" else f"{ours}/trunk"
        links += trained.mlp(trunk, layers(f"modules_actor_{theirs}/mlp/Dense", LAYERS))
    critics = ("critic", "critic", trained), ("critic_target", "target_critic", copied)
    for ours, theirs, store in critics:
        inside = f"modules_{theirs}/value_net"
        links += store.mlp(f"{ours}/net", layers(f"{inside}/Dense", LAYERS), stacked=True)
        norms = layers(f"{inside}/LayerNorm", LAYERS - 1)
        links += store.norms(f"{ours}/net", norms, stacked=True)
    return Learner(links, update, order)
