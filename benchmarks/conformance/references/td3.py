"""Adapter to sfujim/TD3 and to sfujim/TD3_BC, the same file with a different actor loss."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from benchmarks.conformance.inputs import ACT, OBS
from benchmarks.conformance.job import Job, Learner
from benchmarks.conformance.torch_side import mlp, narrow

SIDE = "torch_side"
NAMES = ("discount", "tau", "policy_noise", "noise_clip")


def td3(job: Job, name: str = "TD3", **options: Any) -> Learner:
    module, c = job.load(), job.config
    narrow()
    options |= {name: c[name] for name in NAMES}
    t = getattr(module, name)(OBS, ACT, 1.0, policy_freq=c["policy_delay"], **options)
    links = mlp("policy/trunk", t.actor) + mlp("policy_target/trunk", t.actor_target)
    for network, q in (("critic", t.critic), ("critic_target", t.critic_target)):
        links += mlp(f"{network}/net", (q.l1, q.l2, q.l3), 0)
        links += mlp(f"{network}/net", (q.l4, q.l5, q.l6), 1)

    def update(b: Any) -> None:
        c = b.column
        rows = b.observations, b.actions, b.next_observations, c.rewards, 1 - c.terminated
        t.train(SimpleNamespace(sample=lambda size: rows))

    return Learner(links, update, ["noise"], ["critic_loss", "policy_loss"])
