"""Adapter to dee0512/Sequence-Reinforcement-Learning."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.job import Job, Learner
from benchmarks.conformance.torch_side import Layer, link, mlp

SIDE = "torch_side"


def sequence_rl(job: Job) -> Learner:
    """Return the learner. The first update uses the learned temperature, not the fixed one."""
    c = job.config
    module = job.load(swaps={"neurons=[400, 300]": f"neurons={[*c['model_hidden']]}"})
    module.epsilon = 0.0
    space = SimpleNamespace(shape=(ACT,), high=np.ones(ACT), low=-np.ones(ACT))
    t = module.SACGRU(
        OBS,
        space,
        c["discount"],
        c["tau"],
        None,
        "Gaussian",
        1,
        True,
        WIDTH,
        c["critic_lr"],
        c["horizon"],
    )

    def update(b: Any) -> dict[str, float]:
        rewards, mask = b.column.rewards, 1 - b.column.terminated
        rows = b.observations, b.actions, b.previous_actions, b.next_observations, rewards, mask
        t.alpha = t.log_alpha.exp().detach()
        memory = SimpleNamespace(sample=lambda batch_size: rows)
        critic, _, policy, _, _, model = t.update_parameters(memory, 0, 0)
        return {"critic_loss": critic, "policy_loss": policy, "model_loss": model}

    p, gru = t.policy, t.policy.gru
    links = mlp("policy/start", (p.linear1, p.linear2))
    links += mlp("policy/gru_input", [Layer(gru.weight_ih, gru.bias_ih)])
    links += mlp("policy/gru_state", [Layer(gru.weight_hh, gru.bias_hh)])
    links += mlp("policy/mean", [p.mean_linear]) + mlp("policy/log_std", [p.log_std_linear])
    links.append(link("log_alpha/value", t.log_alpha))
    for name, q in (("critic", t.critic), ("critic_target", t.critic_target)):
        links += mlp(f"{name}/net", (q.linear1, q.linear2, q.linear3), 0)
        links += mlp(f"{name}/net", (q.linear4, q.linear5, q.linear6), 1)
    links += mlp("model/net", t.model) + mlp("model_target/net", t.model_target)
    return Learner(links, update, ["next", *(f"policy_{k}" for k in range(c["horizon"]))])
