"""ikostrikov/implicit_q_learning, and its descendants Div99/XQL, hari-sikchi/DVL and ReCOIL."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.jax_side import attribute, frozen
from benchmarks.conformance.job import Job, Learner, Link

SIDE = "jax_side"


def learner(job: Job, **options: Any) -> Any:
    """Their Learner of the folder that the file lies in, with its batch type."""
    if job.file != "offline/learner_imitate.py":
        frozen()
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
    """Of the four networks; norms: V is normalized."""
    dense, actor, value = (
        ["Dense_0", "Dense_1", "Dense_2"],
        attribute(t, "actor"),
        attribute(t, "value"),
    )
    found = actor.mlp("policy/trunk", ["MLP_0/Dense_0", "MLP_0/Dense_1", "Dense_0"])
    found += [actor.link("policy/log_std", "log_stds")]
    found += value.mlp("value/net", [f"MLP_0/{layer}" for layer in dense])
    if norms:
        found += value.norms("value/net", ["MLP_0/LayerNorm_0", "MLP_0/LayerNorm_1"])
    for name, theirs in (("critic", "critic"), ("critic_target", "target_critic")):
        for k in range(2):
            layers = [f"Critic_{k}/MLP_0/{layer}" for layer in dense]
            found += attribute(t, theirs).mlp(f"{name}/net", layers, k)
    return found


def told(info: Any) -> dict[str, float]:
    """Their metrics by our names."""
    names = {"value_loss": "value_loss", "actor_loss": "policy_loss", "critic_loss": "critic_loss"}
    found = {ours: float(info[theirs]) for theirs, ours in names.items() if theirs in info}
    return found | {"advantage": float(info["adv"].mean())}


def flags(c: dict[str, Any], **options: Any) -> Any:
    """Their command line, as XQL and what comes of it read it in the middle of an update."""
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
    return Learner(links(t), lambda b: told(t.update(batch(*rows(b)))), order)
