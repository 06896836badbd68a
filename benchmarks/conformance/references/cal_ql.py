"""Adapter to nakamotoo/Cal-QL."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.jax_side import Store, to_float64
from benchmarks.conformance.job import Job, Learner, swap_axes
from benchmarks.conformance.references.cql_options import OPTIONS

SIDE = "jax_side"
DENSE = [f"Dense_{i}" for i in range(3)]


def cal_ql(job: Job) -> Learner:
    """Return the learner. All losses use the same action samples instead of separate ones."""
    sys.path.insert(0, str(job.checkout))
    from JaxCQL import conservative_sac, jax_utils, model

    c, arch = job.config, "-".join([str(WIDTH)] * 2)
    jax_utils.init_rng(0)
    options = {name: c[ours] for name, ours in OPTIONS.items() if "weight" not in name}
    options |= {"cql_lagrange": c["gap"] is not None, "cql_target_action_gap": c["gap"] or 0.0}
    options |= {"target_entropy": -float(ACT)}
    policy, q = (
        model.TanhGaussianPolicy(OBS, ACT, arch),
        model.FullyConnectedQFunction(OBS, ACT, arch),
    )
    t = conservative_sac.ConservativeSAC(options, policy, q)

    def store(name: str) -> Store:
        def write(tree: Any) -> None:
            state = t._train_states[name]
            new = state.replace(params=tree, opt_state=to_float64(state.opt_state))
            t._train_states[name] = new

        return Store(
            lambda: t._train_states[name].params, write, lambda: t._train_states[name].opt_state
        )

    def target(name: str) -> Store:
        def write(tree: Any) -> None:
            t._target_qf_params = t._target_qf_params | {name: tree}

        return Store(lambda: t._target_qf_params[name], write, tuple)

    links = store("policy").mlp("policy/trunk", [f"params/base_network/{d}" for d in DENSE])
    for i, part in enumerate(("multiplier", "offset")):
        path = f"params/log_std_{part}_module/value"
        links.append(store("policy").link("policy/affine", path, (i,)))
    links.append(store("log_alpha").link("log_alpha/value", "params/value"))
    if c["gap"] is not None:
        links.append(store("log_alpha_prime").link("log_multiplier/value", "params/value"))
    for k, name in enumerate(("qf1", "qf2")):
        paths = [f"params/FullyConnectedNetwork_0/{d}" for d in DENSE]
        links += store(name).mlp("critic/net", paths, k)
        links += target(name).mlp("critic_target/net", paths, k)

    def update(b: Any) -> dict[str, float]:
        names = ("observations", "actions", "rewards", "next_observations", "mc_returns")
        rows = {name: getattr(b, name) for name in names} | {"dones": b.terminated}
        log = t.train(rows, cql_min_q_weight=c["weight"], enable_calql=True)
        bellman = log["cql/qf1_bellman_loss"] + log["cql/qf2_bellman_loss"]
        penalty = (log["cql/cql_qf1_diff"] + log["cql/cql_qf2_diff"]) / 2
        losses = {"critic_loss": bellman, "penalty": penalty, "policy_loss": log["policy_loss"]}
        return {name: float(value) for name, value in losses.items()}

    order = [
        "policy",
        *((name, swap_axes) for name in ("next", "uniform", "current_samples", "next_samples")),
    ]
    return Learner(links, update, order * len(t.model_keys))
