"""Adapter to ikostrikov/implicit_q_learning, also for XQL, DVL and ReCOIL, which derive from it."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.jax_side import attribute_store, use_frozen_dicts
from benchmarks.conformance.job import Job, Learner, Link

SIDE = "jax_side"


def learner(job: Job, **options: Any) -> Any:
    """Return an instance of the reference's Learner, and its batch type."""
    if job.file != "offline/learner_imitate.py":
        use_frozen_dicts()
    sys.path.insert(0, str((job.checkout / job.file).parent))
    module, c = job.load(), job.config
    t = module.Learner(
        0,
        np.zeros((1, OBS)),
        np.zeros((1, ACT)),
        actor_lr=c["actor_lr"],
        value_lr=c["value_lr"],
        critic_lr=c["critic_lr"],
        hidden_dims=(WIDTH, WIDTH),
        discount=c["discount"],
        tau=c["tau"],
        temperature=c["beta"],
        dropout_rate=c["dropout"] or None,
        max_steps=c["num_updates"],
        **options,
    )
    return t, module.Batch


def links(t: Any, norms: bool = False) -> list[Link]:
    """Return links of the four networks; norms: V has layer normalization."""
    dense, actor, value = (
        ["Dense_0", "Dense_1", "Dense_2"],
        attribute_store(t, "actor"),
        attribute_store(t, "value"),
    )
    links = actor.mlp("policy/trunk", ["MLP_0/Dense_0", "MLP_0/Dense_1", "Dense_0"])
    links += [actor.link("policy/log_std", "log_stds")]
    links += value.mlp("value/net", [f"MLP_0/{layer}" for layer in dense])
    if norms:
        links += value.norms("value/net", ["MLP_0/LayerNorm_0", "MLP_0/LayerNorm_1"])
    for name, theirs in (("critic", "critic"), ("critic_target", "target_critic")):
        for k in range(2):
            layers = [f"Critic_{k}/MLP_0/{layer}" for layer in dense]
            links += attribute_store(t, theirs).mlp(f"{name}/net", layers, k)
    return links


def read_metrics(info: Any) -> dict[str, float]:
    """Return the reference's metrics by our names."""
    names = {"value_loss": "value_loss", "actor_loss": "policy_loss", "critic_loss": "critic_loss"}
    losses = {ours: float(info[theirs]) for theirs, ours in names.items() if theirs in info}
    return losses | {"advantage": float(info["adv"].mean())}


def make_flags(c: dict[str, Any], **options: Any) -> Any:
    """Return the command-line options that XQL, DVL and ReCOIL read during an update."""
    return SimpleNamespace(
        num_v_updates=c["value_updates"],
        sample_random_times=c.get("random_actions", 0),
        noise=c.get("noise", False),
        noise_std=0.1,
        max_clip=c["max_clip"],
        log_loss=False,
        grad_pen=False,
        **options,
    )


def rows(b: Any) -> tuple[Any, ...]:
    return b.observations, b.actions, b.rewards, 1 - b.terminated, b.next_observations


def iql(job: Job) -> Learner:
    decay = "cosine" if job.config["decay_actor_lr"] else None
    t, batch = learner(job, expectile=job.config["expectile"], opt_decay_schedule=decay)
    order = ["dropout_0", "dropout_1"]
    return Learner(links(t), lambda b: read_metrics(t.update(batch(*rows(b)))), order)
