"""Adapter to ZhengYinan-AIR/FISOR."""

from __future__ import annotations

import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp

from benchmarks.conformance import jax_side
from benchmarks.conformance.inputs import ACT, OBS
from benchmarks.conformance.job import Job, Learner
from benchmarks.conformance.references.idql import (
    HIDDEN,
    agent_options,
    draw_integers,
    link_policy,
    make_store,
    space,
)

SIDE = "jax_side"
LOSSES = {"actor_loss": "policy_loss", "weights": "weight", "value_loss": "value_loss"}
LOSSES |= {"critic_loss": "critic_loss", "safe_value_loss": "cost_value_loss"}
LOSSES |= {"safe_critic_loss": "cost_critic_loss"}


def fisor(job: Job) -> Learner:
    """Return the learner. Its noise levels are drawn as ours: integer parts of uniform numbers."""
    sys.path.insert(0, str(job.checkout))
    jax_side.use_frozen_dicts()
    draw_integers()
    c = job.config
    size = 2 * c["time_size"]
    swaps = {"(128, 128)": f"({size}, {size})", "x[:256]": f"x[:{c['critic_rows']}]"}
    module: Any = job.load(swaps=swaps)
    module.MLPResNet = partial(module.MLPResNet, hidden_dim=c["width"])
    agent = module.FISOR.create(
        0,
        space(OBS),
        space(ACT),
        actor_architecture="ln_resnet",
        cost_critic_hyperparam=c["cost_expectile"],
        cost_temperature=c["cost_beta"],
        reward_temperature=c["beta"],
        actor_objective="feasibility",
        decay_steps=2 * c["num_updates"],
        extract_method="minqc",
        cost_ub=c["max_cost_weight"],
        **agent_options(c),
    )
    current = SimpleNamespace(agent=agent)

    def update(b: Any) -> dict[str, float]:
        columns = ("observations", "actions", "rewards", "next_observations")
        batch = {name: getattr(b, name) for name in columns} | {"masks": 1 - b.terminated}
        batch["costs"] = jnp.where(b.costs > 0, c["unsafe_signal"], -1.0)
        current.agent, info = current.agent.update(batch)
        return {ours: float(info[theirs]) for theirs, ours in LOSSES.items()}

    links = []
    for ours, theirs in (("model", "score_model"), ("policy", "target_score_model")):
        links += link_policy(f"{ours}/network", make_store(current, theirs), c["blocks"])
    for ours, theirs in (("", ""), ("cost_", "safe_")):
        value = make_store(current, f"{theirs}value")
        links += value.mlp(f"{ours}value/net", [*HIDDEN, "OutputVDense"])
        layers = [f"VmapStateActionValue_0/{layer}" for layer in (*HIDDEN, "Dense_0")]
        for name, network in (("critic", "critic"), ("critic_target", "target_critic")):
            store = make_store(current, f"{theirs}{network}")
            links += store.mlp(f"{ours}{name}/net", layers, stacked=True)
    drawn = ("time", "noise", *(f"dropout_{k}" for k in range(c["blocks"])))
    return Learner(links, update, [f"{name}_{k}" for k in range(2) for name in drawn])
