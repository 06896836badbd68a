"""Adapter to pranz24/pytorch-soft-actor-critic."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.job import Job, Learner
from benchmarks.conformance.torch_side import link, mlp, two_heads

SIDE = "torch_side"


def sac(job: Job) -> Learner:
    """Return the learner. The first update uses the learned temperature, not the fixed one."""
    sys.path.insert(0, str(job.checkout))
    module, c = job.load(), job.config
    sys.modules["model"].epsilon = 0.0
    space = SimpleNamespace(shape=(ACT,), high=np.ones(ACT), low=-np.ones(ACT))
    args = {"gamma": c["discount"], "tau": c["tau"], "alpha": None, "lr": c["critic_lr"]}
    args |= {"policy": "Gaussian", "target_update_interval": 1, "cuda": False}
    args |= {"automatic_entropy_tuning": True, "hidden_size": WIDTH}
    t = module.SAC(OBS, space, SimpleNamespace(**args))

    def update(b: Any) -> dict[str, float]:
        rows = b.observations, b.actions, b.rewards, b.next_observations, 1 - b.terminated
        arrays = tuple(x.numpy() for x in rows)
        t.alpha = t.log_alpha.exp().detach()
        q1, q2, policy, _, _ = t.update_parameters(
            SimpleNamespace(sample=lambda batch_size: arrays), 0, 0
        )
        return {"critic_loss": q1 + q2, "policy_loss": policy}

    p = t.policy
    links = two_heads("policy/trunk", (p.linear1, p.linear2), p.mean_linear, p.log_std_linear)
    links.append(link("log_alpha/value", t.log_alpha))
    for name, q in (("critic", t.critic), ("critic_target", t.critic_target)):
        links += mlp(f"{name}/net", (q.linear1, q.linear2, q.linear3), 0)
        links += mlp(f"{name}/net", (q.linear4, q.linear5, q.linear6), 1)
    return Learner(links, update, ["next", "policy"])
