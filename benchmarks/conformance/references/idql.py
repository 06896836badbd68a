"""Adapter to philippe-eecs/IDQL."""

from __future__ import annotations

import importlib
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.conformance import jax_side
from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.jax_side import Store, to_float64
from benchmarks.conformance.job import Job, Learner, Link

SIDE = "jax_side"
FULL = "jaxrl5/agents/ddpm_iql/ddpm_iql_learner.py"
HIDDEN = ("MLP_0/Dense_0", "MLP_0/Dense_1")


def draw_integers() -> None:
    """Replace JAX's random integers by the integer parts of our uniform numbers."""
    jax.random.randint = lambda key, shape, low, high: jnp.floor(
        high * jnp.asarray(jax_side.replay("uniform", shape))
    ).astype(int)


def agent_options(c: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that this agent and that of FISOR, which is based on it, share."""
    return {
        "actor_lr": c["actor_lr"],
        "critic_lr": c["critic_lr"],
        "value_lr": c["value_lr"],
        "critic_hidden_dims": (WIDTH, WIDTH),
        "discount": c["discount"],
        "tau": c["tau"],
        "critic_hyperparam": c["expectile"],
        "actor_num_blocks": c["blocks"],
        "actor_tau": c["policy_tau"],
        "actor_dropout_rate": c["dropout"],
        "actor_layer_norm": True,
        "T": c["num_inference_steps"],
        "time_dim": c["time_size"],
    }


def idql(job: Job) -> Learner:
    """Return the learner. Its noise levels are drawn as ours: integer parts of uniform numbers."""
    sys.path.insert(0, str(job.checkout))
    importlib.import_module(
        "tensorflow_probability.substrates.jax"
    )  # the reference uses this module without importing it
    draw_integers()
    c, full = job.config, job.file == FULL
    hidden = f"({2 * c['time_size']}, {2 * c['time_size']})"
    module: Any = job.load(swaps={"(128, 128)": hidden} if full else {})
    module.MLPResNet = partial(module.MLPResNet, hidden_dim=c["width"])
    options = {"actor_architecture": "ln_resnet"} if full else {"value_layer_norm": False}
    agent = module.DDPMIQLLearner.create(
        0,
        space(OBS),
        space(ACT),
        decay_steps=c["num_updates"],
        **agent_options(c),
        **options,
    )
    current = SimpleNamespace(agent=agent)

    def update(b: Any) -> dict[str, float]:
        columns = ("observations", "actions", "rewards", "next_observations")
        batch = {name: getattr(b, name) for name in columns} | {"masks": 1 - b.terminated}
        train = current.agent.critic_update if job.phase == "online" else current.agent.update
        current.agent, info = train(batch)
        names = {"actor_loss": "policy_loss", "value_loss": "value_loss"}
        names |= {"critic_loss": "critic_loss"}
        return {ours: float(info[theirs]) for theirs, ours in names.items() if theirs in info}

    links = []
    for ours, theirs in (("model", "score_model"), ("policy", "target_score_model")):
        links += link_policy(f"{ours}/network", make_store(current, theirs), c["blocks"])
    links += make_store(current, "value").mlp("value/net", [*HIDDEN, "OutputVDense"])
    for ours, theirs in (("critic", "critic"), ("critic_target", "target_critic")):
        layers = [f"VmapStateActionValue_0/{layer}" for layer in (*HIDDEN, "Dense_0")]
        links += make_store(current, theirs).mlp(f"{ours}/net", layers, stacked=True)
    return Learner(links, update, ["time", "noise", *(f"dropout_{k}" for k in range(c["blocks"]))])


def make_store(current: SimpleNamespace, name: str) -> Store:
    """Return the access to the parameters of a network, an attribute of the agent."""

    def read() -> Any:
        return getattr(current.agent, name)

    def write(tree: Any) -> None:
        new = read().replace(params=tree, opt_state=to_float64(read().opt_state))
        current.agent = current.agent.replace(**{name: new})

    return Store(lambda: read().params, write, lambda: read().opt_state)


def link_policy(name: str, store: Store, blocks: int) -> list[Link]:
    """Return the links of a policy's network."""
    links = [store.link(f"{name}.frequencies", "FourierFeatures_0/kernel")]
    links += store.mlp(f"{name}.embed_time", HIDDEN)
    for layer, place in (("first", "Dense_0"), ("last", "Dense_1")):
        links += store.mlp(f"{name}.{layer}", [f"MLPResNet_0/{place}"])
    for k in range(blocks):
        ours, theirs = f"{name}.blocks.{k}", f"MLPResNet_0/MLPResNetBlock_{k}"
        links += store.mlp(f"{ours}.perceptron", [f"{theirs}/Dense_{i}" for i in range(2)])
        for part, source in (("weight", "scale"), ("bias", "bias")):
            links.append(store.link(f"{ours}.norm.{part}", f"{theirs}/LayerNorm_0/{source}"))
    return links


def space(size: int) -> Any:
    """Return a space of vectors of this size."""
    return SimpleNamespace(shape=(size,), sample=lambda: np.zeros(size))
