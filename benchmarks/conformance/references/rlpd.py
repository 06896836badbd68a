"""Adapter to ikostrikov/rlpd."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.conformance import jax_side
from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.jax_side import Store, set_norm_epsilon, to_float64
from benchmarks.conformance.job import Draw, Job, Learner

SIDE = "jax_side"


def rlpd(job: Job) -> Learner:
    """Return the learner.

    The subset of critics is drawn as in our code: the indices of the largest random numbers.
    """
    sys.path.insert(0, str(job.checkout))
    importlib.import_module(
        "tensorflow_probability.substrates.jax"
    )  # the reference uses this module without importing it
    set_norm_epsilon(1e-5)
    module, c = job.load(), job.config
    jax.random.choice = lambda key, a, shape, replace: jnp.argsort(
        -jnp.asarray(jax_side.replay("uniform", a.shape))
    )[: shape[0]]
    t = module.SACLearner.create(
        0,
        space(OBS),
        space(ACT),
        actor_lr=c["actor_lr"],
        critic_lr=c["critic_lr"],
        temp_lr=c["alpha_lr"],
        hidden_dims=(WIDTH, WIDTH),
        discount=c["discount"],
        tau=c["tau"],
        num_qs=c["num_critics"],
        num_min_qs=c["num_min_critics"],
        critic_layer_norm=True,
        target_entropy=-c["entropy_scale"] * ACT,
        backup_entropy=c["backup_entropy"],
    )
    current = SimpleNamespace(agent=t, done=0)

    def update(b: Any) -> dict[str, float]:
        batch = {name: getattr(b, name) for name in ("observations", "actions", "rewards")}
        batch |= {"next_observations": b.next_observations, "masks": 1 - b.terminated}
        current.done += 1
        if current.done % job.config["period"]:
            current.agent, info = current.agent.update_critic(batch)
            return {"critic_loss": float(info["critic_loss"])}
        current.agent, info = current.agent.update(batch, 1)
        names = {"critic_loss": "critic_loss", "policy_loss": "actor_loss", "entropy": "entropy"}
        return {ours: float(info[theirs]) for ours, theirs in names.items()}

    def store(name: str) -> Store:
        def write(tree: Any) -> None:
            state = getattr(current.agent, name)
            new = state.replace(params=tree, opt_state=to_float64(state.opt_state))
            current.agent = current.agent.replace(**{name: new})

        def state() -> Any:
            return getattr(current.agent, name)

        return Store(lambda: state().params, write, lambda: state().opt_state)

    actor, heads = store("actor"), ("OutputDenseMean", "OutputDenseLogStd")
    links = actor.mlp("policy/trunk", ["MLP_0/Dense_0", "MLP_0/Dense_1"])
    for k, head in enumerate(heads):
        columns = slice(k * ACT, (k + 1) * ACT)
        links.append(actor.link("policy/trunk.weights.2", f"{head}/kernel", (slice(None), columns)))
        links.append(actor.link("policy/trunk.biases.2", f"{head}/bias", (columns,)))
    links.append(store("temp").link("log_alpha/value", "log_temp"))
    inside = "VmapStateActionValue_0"
    dense = [f"{inside}/{layer}" for layer in ("MLP_0/Dense_0", "MLP_0/Dense_1", "Dense_0")]
    norms = [f"{inside}/MLP_0/LayerNorm_{i}" for i in range(2)]
    for name, theirs in (("critic", "critic"), ("critic_target", "target_critic")):
        links += store(theirs).mlp(f"{name}/net", dense, stacked=True)
        links += store(theirs).norms(f"{name}/net", norms, stacked=True)
    # the reference's distribution draws [A, B]
    order: list[Draw] = [("next", np.transpose), "subset", ("policy", np.transpose)]
    return Learner(links, update, order)


def space(size: int) -> Any:
    return SimpleNamespace(shape=(size,), sample=lambda: np.zeros(size))
