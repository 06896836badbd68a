"""Adapter to the minibatch update of vwxyzjn/cleanrl's PPO, whose lines are run as they are."""

from __future__ import annotations

from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from benchmarks.conformance.inputs import ACT, OBS
from benchmarks.conformance.job import Job, Learner
from benchmarks.conformance.torch_side import link, mlp, narrow

SIDE = "torch_side"
UNUSED_IMPORTS = ("import tyro\n", "from torch.utils.tensorboard import SummaryWriter\n")
FIRST, LAST = "_, newlogprob, entropy, newvalue =", "optimizer.step()"  # of the update's lines


def ppo(job: Job) -> Learner:
    c = job.config
    module = job.load(swaps=dict.fromkeys(UNUSED_IMPORTS, ""))
    narrow(64)
    spaces = {"single_observation_space": (OBS,), "single_action_space": (ACT,)}
    envs = SimpleNamespace(**{k: SimpleNamespace(shape=x) for k, x in spaces.items()})
    agent = module.Agent(envs)
    args = SimpleNamespace(
        norm_adv=True,
        clip_coef=c["clip"],
        clip_vloss=c["value_clip"],
        ent_coef=c["entropy_weight"],
        vf_coef=c["value_weight"],
        max_grad_norm=c["max_grad_norm"],
    )
    optimizer = torch.optim.Adam(agent.parameters(), lr=c["policy_lr"], eps=1e-5)
    names: dict[str, Any] = {"args": args, "agent": agent, "optimizer": optimizer, "clipfracs": []}
    names |= {"torch": torch, "nn": nn}
    lines = (job.checkout / job.file).read_text().splitlines()
    first, last = (next(k for k, line in enumerate(lines) if x in line) for x in (FIRST, LAST))
    code = compile(dedent("\n".join(lines[first : last + 1])), job.file, "exec")

    def update(b: Any) -> dict[str, float]:
        names.update(
            b_obs=b.observations[:, 0],
            b_actions=b.samples,
            b_logprobs=b.log_probs[:, 0],
            b_advantages=b.advantages,
            b_returns=b.returns,
            b_values=b.returns - b.advantages,
            mb_inds=torch.arange(len(b.returns)),
        )
        exec(code, names)
        keys = {"policy_loss": "pg_loss", "value_loss": "v_loss", "entropy": "entropy_loss"}
        losses = {ours: names[key].item() for ours, key in keys.items()}
        return losses | {"divergence": names["approx_kl"].item(), "clipped": names["clipfracs"][-1]}

    links = mlp("policy/trunk", agent.actor_mean) + mlp("value/net", agent.critic)
    return Learner([*links, link("policy/log_std", agent.actor_logstd)], update)
