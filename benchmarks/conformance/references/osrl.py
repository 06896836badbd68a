"""Adapter to liuzuxin/OSRL. Its packages for logging and environments are replaced by mocks."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from torch import Tensor

from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.job import UNUSED, Job, Learner, Link
from benchmarks.conformance.torch_side import link, mlp, two_heads

SIDE = "torch_side"


class Log(dict[str, float]):
    """Logger of a trainer: the last value of each of its metrics."""

    def store(self, **metrics: float) -> None:
        """Store the metrics of an update."""
        self.update(metrics)


def load(job: Job, swaps: Mapping[str, str] = {}) -> ModuleType:
    """Import the case's file, and its package from the checkout. swaps: see `Job.load`."""
    sys.path.insert(0, str(job.checkout))
    return job.load(swaps=swaps)


def columns(b: Any) -> list[Tensor]:
    """Return a batch's columns in the order of a trainer's `train_one_step`."""
    rows = [b.observations, b.next_observations, b.actions]
    return [*rows, b.rewards, b.costs, b.terminated]


def critic_links(name: str, nets: Any) -> list[Link]:
    """Return links from a list of critics to our ensemble `name`."""
    return [x for k, net in enumerate(nets) for x in mlp(f"{name}/net", net, k)]


def actor_links(actor: Any) -> list[Link]:
    """Return links from a squashed Gaussian actor to our policy."""
    layers = [m for m in actor.net if hasattr(m, "weight")]
    return two_heads("policy/trunk", layers, actor.mu_layer, actor.log_std_layer)


def vae_links(vae: Any) -> list[Link]:
    """Return links from a VAE to ours."""
    links = two_heads("vae/encoder", (vae.e1, vae.e2), vae.mean, vae.log_std)
    return links + mlp("vae/decoder", (vae.d1, vae.d2, vae.d3))


def coptidice(job: Job) -> Learner:
    """Return the learner. The noise on the policy's data is scaled by the batch's deviation."""
    module, c, sizes = load(job), job.config, [WIDTH, WIDTH]
    options = {"a_hidden_sizes": sizes, "c_hidden_sizes": sizes, "num_nu": 2, "num_chi": 2}
    options |= {"gamma": c["discount"], "alpha": c["alpha"], "cost_ub_epsilon": c["cost_bound"]}
    options |= {"cost_limit": c["target_cost"], "episode_len": c["episode_steps"]}
    model = module.COptiDICE(OBS, ACT, 1.0, "softchi", c["initial_share"], 1.0, 1.0, **options)
    trainer = module.COptiDICETrainer(
        model, None, log := Log(), c["actor_lr"], c["critic_lr"], c["multiplier_lr"]
    )
    links = actor_links(model.actor)
    links += critic_links("nu", model.nu_network.q_nets)
    links += critic_links("chi", model.chi_network.q_nets)
    for name, number in (("multiplier", model.lmbda), ("temperature", model.tau)):
        links.append(link(f"raw_{name}/value", number))
    names = {"nu_loss": "nu_loss", "chi_loss": "chi_loss", "policy_loss": "actor_loss"}
    names |= {"multiplier": "lmbda"}

    def update(b: Any) -> dict[str, float]:
        model.observations_std = b.observations.std(0, correction=0)
        model.actions_std = b.actions.std(0, correction=0)
        trainer.train_one_step([*columns(b), (b.timesteps == 0).double()])
        return {ours: log[f"loss/{theirs}"] for ours, theirs in names.items()}

    return Learner(links, update, ["observation_noise", "action_noise", UNUSED])
