"""Adapter to snu-mllab/EDAC, which also contains SAC-N (eta = 0)."""

from __future__ import annotations

import copy
import sys
from typing import Any

from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.job import UNUSED, Job, Learner
from benchmarks.conformance.torch_side import Layer, link, stacked_mlp, two_heads

SIDE = "torch_side"


def sac_n(job: Job) -> Learner:
    return edac(job)


def edac(job: Job) -> Learner:
    """Return the learner.

    The reference computes all losses at the old parameters. This adapter runs its update three
    times, for temperature, policy and critics, so that each loss uses the latest parameters.
    """
    sys.path.insert(0, str(job.checkout))
    module, c = job.load(), job.config
    from lifelong_rl.models.networks import (
        ParallelizedEnsembleFlattenMLP,
    )
    from lifelong_rl.policies.models.tanh_gaussian_policy import (
        TanhGaussianPolicy,
    )
    from lifelong_rl.torch.distributions import TanhNormal

    TanhNormal.__init__.__defaults__ = (0.0,)
    hidden = [WIDTH] * 3
    policy = TanhGaussianPolicy(hidden, OBS, ACT)
    critics = ParallelizedEnsembleFlattenMLP(c["num_critics"], hidden, OBS + ACT, 1)
    t = module.SACTrainer(
        None,
        policy,
        critics,
        copy.deepcopy(critics),
        discount=c["discount"],
        target_entropy=-float(ACT),
        policy_lr=c["actor_lr"],
        qf_lr=c["critic_lr"],
        soft_target_tau=c["tau"],
        eta=c.get("eta", -1.0),
        num_qs=c["num_critics"],
    )
    t._need_to_update_eval_statistics = False
    steps = {"alpha": t.alpha_optimizer, "policy": t.policy_optimizer, "critics": t.qfs_optimizer}
    done = {name: optimizer.step for name, optimizer in steps.items()}
    track = t.update_target_networks

    def update(b: Any) -> None:
        rows = {name: getattr(b, name) for name in ("observations", "actions", "next_observations")}
        rows |= {"rewards": b.column.rewards, "terminals": b.column.terminated}
        for turn in steps:
            for name, optimizer in steps.items():
                optimizer.step = done[name] if name == turn else lambda: None
            t.update_target_networks = track if turn == "critics" else lambda: None
            t.train_from_torch({k: x.clone() for k, x in rows.items()}, None)

    links = two_heads("policy/trunk", policy.fcs, policy.last_fc, policy.last_fc_log_std)
    links.append(link("log_alpha/value", t.log_alpha))
    for name, theirs in (("critic", t.qfs), ("critic_target", t.target_qfs)):
        layers = [theirs.get_submodule(f"fc{i}") for i in range(3)] + [theirs.last_fc]
        links += stacked_mlp(f"{name}/net", [Layer(x.W, x.b) for x in layers])
    order = ["temperature", UNUSED, "policy", UNUSED, UNUSED, "next"]
    return Learner(links, update, order)
