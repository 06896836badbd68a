"""Adapter to ColinQiyangLi/qam, for its agents other than QAM."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.jax_side import Store, to_float64
from benchmarks.conformance.job import Draw, Job, Learner, Link

SIDE = "jax_side"
LAYERS = 5


def dsrl(job: Job) -> Learner:
    """Return the learner. Its times are 1 minus ours."""
    agent = create(job, "DSRLAgent", {"noise_scale": job.config["noise_scale"]})
    names = {"critic_loss": "critic/critic_loss", "noise_critic_loss": "critic/distill_loss"}
    names |= {"imitation_loss": "actor/flow_loss", "policy_loss": "actor/actor_loss"}
    store = store_of(agent)
    links = perceptron(store, "flow/network.trunk", "modules_actor_bc_flow/mlp")
    averages = perceptron(store, "sampler/network.trunk", "modules_target_actor_bc_flow/mlp")
    links += critics(store, "critic", "critic")
    links += untrained(averages + critics(store, "critic_target", "target_critic"))
    links += critics(store, "noise_critic", "z_critic") + gaussian(store, "policy/", "actor", job)
    links.append(store.link("log_alpha/value", "modules_alpha/log_value"))
    order: list[Draw] = [dimensions_first("next", 1), "noise", *FLOW_DRAWS]
    order.append(dimensions_first("policy"))
    return Learner(links, lambda b: update(agent, b, names), order)


def expo(job: Job) -> Learner:
    """Return the learner. Its times are 1 minus ours."""
    count, options = job.config["num_samples"], {"edit_scale": job.config["edit_scale"]}
    agent = create(job, "FEditAgent", options | {"best_of_n": count})
    names = {"critic_loss": "critic/critic_loss", "imitation_loss": "actor/bc_flow_loss"}
    names["policy_loss"] = "actor/bc_flow_loss actor/edit_q_loss actor/edit_entropy_loss"
    store = store_of(agent)
    links = perceptron(store, "policy/flow.network.trunk", "modules_actor_bc_flow/mlp")
    links += critics(store, "critic", "critic")
    links += untrained(critics(store, "critic_target", "target_critic"))
    links += gaussian(store, "policy/edit.", "edit_actor", job)
    links.append(store.link("log_alpha/value", "modules_alpha/log_value"))

    def part(index: int) -> Draw:  # of [B * N, 2, H, A]: the flow's noise, and the edit's
        name, arrange = dimensions_first("next", count) if index else ("next", np.asarray)
        return name, lambda x: arrange(x[:, index].reshape(len(x), -1))

    order = [part(0), part(1), *FLOW_DRAWS, ("noise", lambda x: x.reshape(len(x), -1))]
    order.append(dimensions_first("edit"))
    return Learner(links, lambda b: update(agent, b, names), order)


FLOW_DRAWS: list[Draw] = [
    ("x0", lambda x: x.reshape(x.shape[1], -1)),  # [1, B, H, A]
    ("time", lambda u: 1 - u.reshape(-1, 1)),
]


def dimensions_first(name: str, samples: int | None = None) -> Draw:
    """Return a draw of a distribution of TensorFlow Probability, [D, B], or [D, B, samples]."""

    def arrange(x: np.ndarray) -> np.ndarray:
        rows = x.reshape(-1, samples or 1, x.shape[-1])
        return np.moveaxis(rows, -1, 0) if samples else rows[:, 0].T

    return name, arrange


def create(job: Job, name: str, options: dict[str, Any]) -> SimpleNamespace:
    """Return a holder of the agent, which every update replaces."""
    sys.path.insert(0, str(job.checkout))
    module, c = job.load(), job.config
    config = module.get_config()
    values = {"lr": c["actor_lr"], "num_qs": c["num_critics"], "horizon_length": c["horizon"]}
    values |= {k: c[k] for k in ("tau", "discount", "rho")} | options
    values |= {"flow_steps": c["num_inference_steps"], "action_chunking": c["horizon"] > 1}
    values |= dict.fromkeys(("actor_hidden_dims", "value_hidden_dims"), (WIDTH,) * (LAYERS - 1))
    for key, value in values.items():
        config[key] = value
    lead = (1,) if name == "DSRLAgent" else ()  # the other agents expect single examples
    examples = np.zeros((*lead, OBS)), np.zeros((*lead, ACT))
    return SimpleNamespace(agent=getattr(module, name).create(0, *examples, config))


def update(holder: SimpleNamespace, b: Any, names: dict[str, str]) -> dict[str, float]:
    """Update the agent and return its losses. names: of the terms there, by our name."""
    ones = np.ones((len(b.rewards), 1))
    batch = {"rewards": b.rewards[:, None], "masks": 1 - b.terminated[:, None], "valid": ones}
    batch |= {"actions": b.actions, "observations": b.observations[:, 0]}
    batch |= {"next_observations": b.next_observations}
    holder.agent, info = holder.agent.update(batch)
    return {ours: sum(float(info[x]) for x in theirs.split()) for ours, theirs in names.items()}


def store_of(holder: SimpleNamespace) -> Store:
    """Return access to the agent's parameters, which all have one optimizer."""

    def write(tree: Any) -> None:
        network = holder.agent.network
        network = network.replace(params=tree, opt_state=to_float64(network.opt_state))
        holder.agent = holder.agent.replace(network=network)

    return Store(lambda: holder.agent.network.params, write, lambda: holder.agent.network.opt_state)


def perceptron(store: Store, ours: str, theirs: str) -> list[Link]:
    return store.mlp(ours, [f"{theirs}/Dense_{i}" for i in range(LAYERS)])


def critics(store: Store, ours: str, theirs: str) -> list[Link]:
    inside = f"modules_{theirs}/value_net"
    layers = [f"{inside}/Dense_{i}" for i in range(LAYERS)]
    norms = [f"{inside}/LayerNorm_{i}" for i in range(LAYERS - 1)]
    links = store.mlp(f"{ours}/net", layers, stacked=True)
    return links + store.norms(f"{ours}/net", norms, stacked=True)


def untrained(links: list[Link]) -> list[Link]:
    """Return links without Adam's running means, which stay 0 for moving averages."""
    return [replace(link, moment=lambda: None) for link in links]


def gaussian(store: Store, ours: str, theirs: str, job: Job) -> list[Link]:
    """Return links of a tanh-Gaussian policy, whose mean and log std are layers of their own."""
    inside, size = f"modules_{theirs}", ACT * job.config["horizon"]
    links = store.mlp(f"{ours}trunk", [f"{inside}/MLP_0/Dense_{i}" for i in range(LAYERS - 1)])
    for half, layer in enumerate(("OutputDenseMean", "OutputDenseLogStd")):
        part = slice(half * size, (half + 1) * size)
        for name, kind in (("weights", "kernel"), ("biases", "bias")):
            full = f"{ours}trunk.{name}.{LAYERS - 1}"
            links.append(store.link(full, f"{inside}/{layer}/{kind}", (..., part)))
    return links
