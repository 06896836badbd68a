"""Adapter to liuzuxin/OSRL. Its packages for logging and environments are replaced by mocks."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
from torch import Tensor

from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.job import UNUSED, Job, Learner, Link, swap_axes
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


def critics_of(learner: Any) -> dict[str, Any]:
    """Return the critics of a learner by our names."""
    pairs = {"critic": learner.critic, "critic_target": learner.critic_old}
    pairs |= {"cost_critic": learner.cost_critic, "cost_critic_target": learner.cost_critic_old}
    return pairs


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
    for name, scalar in (("multiplier", model.lmbda), ("temperature", model.tau)):
        links.append(link(f"raw_{name}/value", scalar))
    names = {"nu_loss": "nu_loss", "chi_loss": "chi_loss", "policy_loss": "actor_loss"}
    names |= {"multiplier": "lmbda"}

    def update(b: Any) -> dict[str, float]:
        model.observations_std = b.observations.std(0, correction=0)
        model.actions_std = b.actions.std(0, correction=0)
        trainer.train_one_step([*columns(b), (b.timesteps == 0).double()])
        return {ours: log[f"loss/{theirs}"] for ours, theirs in names.items()}

    return Learner(links, update, ["observation_noise", "action_noise", UNUSED])


def settings(job: Job) -> dict[str, Any]:
    """Return the arguments that the learners with critics and a VAE have in common."""
    c, sizes = job.config, [WIDTH, WIDTH]
    options = {"a_hidden_sizes": sizes, "c_hidden_sizes": sizes, "vae_hidden_sizes": WIDTH}
    options |= {"sample_action_num": c["num_samples"], "gamma": c["discount"], "tau": c["tau"]}
    options |= {"cost_limit": c["target_cost"], "episode_len": c["episode_steps"]}
    return options | {"beta": c["kl_weight"], "num_q": 2, "num_qc": 2}


def cpq(job: Job) -> Learner:
    module, c, log = load(job), job.config, Log()
    t = module.CPQ(OBS, ACT, 1.0, qc_scalar=c["ood_limit"], **settings(job))
    rates = [c[name] for name in ("actor_lr", "critic_lr", "multiplier_lr", "vae_lr")]
    trainer = module.CPQTrainer(t, None, log, *rates)
    links = actor_links(t.actor) + vae_links(t.vae)
    links.append(link("log_multiplier/value", t.log_alpha))
    for name, critics in (("critic", t.critic), ("critic_target", t.critic_old)):
        links += critic_links(name, critics.q_nets)
    for name, critics in (
        ("cost_critic", t.cost_critic),
        ("cost_critic_target", t.cost_critic_old),
    ):
        links += critic_links(name, critics.q_nets)
    names = {"vae_loss": "loss_vae", "critic_loss": "critic_loss", "policy_loss": "actor_loss"}
    names |= {"multiplier": "alpha_value"}

    def update(b: Any) -> dict[str, float]:
        trainer.train_one_step(*columns(b))
        return {ours: log[f"loss/{theirs}"] for ours, theirs in names.items()}

    return Learner(links, update, ["vae", "next", "next_cost", UNUSED, "ood", UNUSED, "policy"])


def bcq_lag(job: Job) -> Learner:
    """Return the learner. The multiplier is read from its log, because it is not stored."""
    module, c, log = load(job), job.config, Log()
    gains = [c[f"{name}_gain"] for name in ("proportional", "integral", "derivative")]
    options = {"phi": c["max_perturbation"], "lmbda": c["min_share"], "PID": gains}
    t = module.BCQL(OBS, ACT, 1.0, **settings(job), **options)
    rates = [c[name] for name in ("actor_lr", "critic_lr", "vae_lr")]
    trainer, controller = module.BCQLTrainer(t, None, log, *rates), t.controller
    links = vae_links(t.vae)
    for name, actor in (("policy", t.actor), ("policy_target", t.actor_old)):
        links += [*mlp(f"{name}/trunk", actor.pi), number(f"{name}/scale", actor, "phi")]
    for name, critics in (("critic", t.critic), ("critic_target", t.critic_old)):
        links += critic_links(name, [*critics.q1_nets, *critics.q2_nets])
    for name, critics in (
        ("cost_critic", t.cost_critic),
        ("cost_critic_target", t.cost_critic_old),
    ):
        links += critic_links(name, [*critics.q1_nets, *critics.q2_nets])
    links.append(number("multiplier/integral", controller, "error_integral"))
    links.append(number("multiplier/previous_error", controller, "error_old"))
    links.append(
        Link("multiplier/value", ..., lambda: np.asarray(log["loss/lagrangian"]), lambda _: None)
    )
    names = {"vae_loss": "loss_vae", "critic_loss": "critic_loss", "policy_loss": "actor_loss"}
    names |= {"cost_critic_loss": "cost_critic_loss", "multiplier": "lagrangian"}

    def update(b: Any) -> dict[str, float]:
        trainer.train_one_step(*columns(b))
        return {ours: log[f"loss/{theirs}"] for ours, theirs in names.items()}

    order = ["vae", ("next", swap_axes), ("next_cost", swap_axes), "proposed"]
    return Learner(links, update, order)


def number(name: str, owner: Any, attribute: str) -> Link:
    """Return a link to a number that the reference stores as an attribute."""

    def write(value: np.ndarray) -> None:
        setattr(owner, attribute, float(value))

    return Link(name, ..., lambda: np.asarray(float(getattr(owner, attribute))), write)
