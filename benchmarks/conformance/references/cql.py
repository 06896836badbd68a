"""Adapter to young-geng/CQL."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.job import Job, Learner, swap_axes
from benchmarks.conformance.references.cql_options import OPTIONS
from benchmarks.conformance.torch_side import link, mlp

SIDE = "torch_side"


def cql(job: Job) -> Learner:
    sys.path.insert(0, str(job.checkout))
    from SimpleSAC import conservative_sac, model

    c, arch = job.config, "-".join([str(WIDTH)] * 3)
    policy = model.TanhGaussianPolicy(OBS, ACT, arch)
    critics = [model.FullyConnectedQFunction(OBS, ACT, arch) for _ in range(4)]
    options = {name: c[ours] for name, ours in OPTIONS.items()} | {"target_entropy": -float(ACT)}
    options |= {"cql_lagrange": c["gap"] is not None, "cql_target_action_gap": c["gap"] or 0.0}
    t = conservative_sac.ConservativeSAC(options, policy, *critics)

    def update(b: Any) -> dict[str, float]:
        rows = {name: getattr(b, name) for name in ("observations", "actions", "rewards")}
        rows |= {"next_observations": b.next_observations, "dones": b.terminated}
        log = t.train(rows, bc=job.phase == "clone")
        return {
            "critic_loss": log["qf1_loss"] + log["qf2_loss"],
            "penalty": (log["cql/cql_qf1_diff"] + log["cql/cql_qf2_diff"]) / 2,
            "policy_loss": log["policy_loss"],
            "alpha": log["alpha"],
        }

    links = mlp("policy/trunk", policy.base_network)
    links += [
        link("policy/affine", policy.log_std_multiplier.constant, (0,)),
        link("policy/affine", policy.log_std_offset.constant, (1,)),
        link("log_alpha/value", t.log_alpha.constant),
    ]
    if c["gap"] is not None:
        links.append(link("log_multiplier/value", t.log_alpha_prime.constant))
    for k in range(2):
        links += mlp("critic/net", critics[k], k) + mlp("critic_target/net", critics[2 + k], k)
    order = [
        "policy",
        *((name, swap_axes) for name in ("next", "uniform", "current_samples", "next_samples")),
    ]
    return Learner(links, update, order)
