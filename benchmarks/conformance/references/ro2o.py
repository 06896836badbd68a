"""Adapter to BattleWen/RO2O."""

from __future__ import annotations

from typing import Any

from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.job import UNUSED, Job, Learner, swap_axes
from benchmarks.conformance.references.corl import adam, columns, ensemble_links

SIDE = "torch_side"
OPTIONS = {  # reference's name: our name
    "gamma": "discount",
    "tau": "tau",
    "beta_policy": "policy_smoothness",
    "beta_ood": "uncertainty",
    "q_smooth_eps": "q_noise",
    "policy_smooth_eps": "policy_noise",
    "ood_smooth_eps": "ood_noise",
    "sample_size": "num_samples",
    "q_ood_uncertainty_reg": "pessimism",
    "q_ood_uncertainty_reg_min": "min_pessimism",
    "q_ood_uncertainty_decay": "pessimism_decay",
    "alpha_learning_rate": "alpha_lr",
}


def ro2o(job: Job) -> Learner:
    module, c = job.load(swaps={"+ 1e-6)": "+ 0.0)"}), job.config
    actor = module.Actor(OBS, ACT, WIDTH)
    critic = module.VectorizedCritic(OBS, ACT, WIDTH, c["num_critics"])
    options = {theirs: c[ours] for theirs, ours in OPTIONS.items()} | {"device": "cpu"}
    if c["bound"] == "lcb":
        options |= {"beta": -4.0, "beta_bc": c["cloning"]}
    optimizers = adam(actor, c["actor_lr"]), adam(critic, c["critic_lr"])
    t = module.RO2O(actor, optimizers[0], critic, optimizers[1], **options)

    online = job.phase == "online"

    def update(b: Any) -> dict[str, float]:
        rows = columns(b)
        if online:  # the reference has [B] here, from a list of numbers
            rows[2], rows[4] = b.rewards, b.terminated
        log = (t.update_online if online else t.update)(rows)
        offline = {} if online else {"uncertainty": log["ood_loss"] / c["uncertainty"]}
        return offline | {
            "policy_loss": log["actor_loss"],
            "critic_loss": log["critic_loss1"],
            "smoothness": log["noise_Q_loss"] / 1e-4,
            "alpha": log["alpha"],
        }

    order = ["temperature", "policy", "policy_noise", UNUSED, UNUSED]
    order += [
        "next",
        *([UNUSED] if online else []),
        "q_noise",
        "ood_noise",
        ("ood", swap_axes),
    ]
    order += [UNUSED]
    return Learner(ensemble_links(t, module.VectorizedLinear), update, order)
