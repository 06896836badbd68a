"""Adapter to liuzuxin/OSRL. Its packages for logging and environments are replaced by mocks."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.job import UNUSED, Job, Learner, Link, swap_axes
from benchmarks.conformance.torch_side import Layer, link, mlp, two_heads

SIDE = "torch_side"


def bc_safe(job: Job) -> Learner:
    module, log = load(job), Log()
    model = module.BC(OBS, ACT, 1.0, [WIDTH, WIDTH])
    trainer = module.BCTrainer(model, None, log, job.config["lr"])

    def update(b: Any) -> dict[str, float]:
        trainer.train_one_step(b.observations, b.actions)
        return {"policy_loss": log["loss/actor_loss"]}

    return Learner(mlp("policy/trunk", model.actor), update)


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


def cdt(job: Job) -> Learner:
    """Return the learner, a rollout in an episode (`act`), or the new episodes (`augment`)."""
    sys.modules["oapackage"] = Pareto("oapackage")
    c, log, torch.float = job.config, Log(), torch.float64
    loaded = load(job)
    module = loaded if hasattr(loaded, "CDT") else job.load("osrl/algorithms/cdt.py")
    model = module.CDT(
        OBS,
        ACT,
        1.0,
        seq_len=c["context_length"],
        episode_len=c["episode_steps"] - c["context_length"],
        embedding_dim=c["dim_model"],
        num_layers=c["num_layers"],
        num_heads=c["num_heads"],
        use_rew=True,
        use_cost=True,
        cost_transform=True,
        stochastic=True,
        target_entropy=-ACT,
    )
    t = module.CDTTrainer(
        model,
        None,
        log,
        learning_rate=c["lr"],
        weight_decay=c["weight_decay"],
        clip_grad=c["max_grad_norm"],
        lr_warmup_steps=c["num_warmup_updates"],
        loss_cost_weight=c["cost_weight"],
    )

    def update(b: Any) -> dict[str, float]:
        rows = b.observations, b.actions, b.mc_returns / c["return_scale"], b.mc_costs
        t.train_one_step(*rows, b.timesteps, b.valid.double(), b.mc_costs[:, 0], b.costs)
        names = {"all_loss": "policy_loss", "cost_loss": "cost_loss", "ent": "entropy"}
        return {ours: log[name] for name, ours in names.items()}

    def act(b: Any) -> dict[str, Any]:
        rewards = b.rewards[:, 0].numpy() / c["return_scale"]
        episode = Episode(b.observations[:, 0].numpy(), rewards, b.costs[:, 0].numpy())
        model.eval()
        t.rollout(model, episode, c["target_return"] / c["return_scale"], c["target_cost"])
        return {"actions": np.stack(episode.actions)}

    phases = {"update": update, "act": act, "augment": partial(new_episodes, loaded, c)}
    return Learner(transformer_links(model), phases[job.phase])


def transformer_links(model: Any) -> list[Link]:
    """Return links from a constrained Decision Transformer to our policy and temperature."""
    names = {"embed_return": "return_emb", "embed_cost": "cost_emb", "cost_head": "cost_pred_head"}
    names |= {"embed_observation": "state_emb", "embed_action": "action_emb"}
    links = [link("policy/embed_place", model.timestep_emb.weight)]
    links.append(link("log_alpha/value", model.log_temperature))
    for ours, theirs in names.items():
        links += mlp(f"policy/{ours}", [model.get_submodule(theirs)])
    links += two_heads("policy/head", [], model.action_head.mu, model.action_head.log_std)
    normed = {"norm_in": model.emb_norm, "norm_out": model.out_norm}
    for i, block in enumerate(model.blocks):
        inside, attention = f"blocks.{i}", block.attention
        normed |= {f"{inside}.norm_attention": block.norm1, f"{inside}.norm_mlp": block.norm2}
        parts = {"attention_in": [Layer(attention.in_proj_weight, attention.in_proj_bias)]}
        parts |= {"attention_out": [attention.out_proj], "mlp": [block.mlp[0], block.mlp[2]]}
        for ours, layers in parts.items():
            links += mlp(f"policy/{inside}.{ours}", layers)
    for ours, norm in normed.items():
        links += [link(f"policy/{ours}.{part}", getattr(norm, part)) for part in ("weight", "bias")]
    return links


class Episode:
    """Environment with given observations [T, O], rewards and costs [T], which records actions."""

    def __init__(self, observations: np.ndarray, rewards: np.ndarray, costs: np.ndarray) -> None:
        self.observations, self.rewards, self.costs = observations, rewards, costs
        self.actions = list[np.ndarray]()

    def reset(self) -> tuple[np.ndarray, dict[str, float]]:
        return self.observations[0], {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, float]]:
        k, count = len(self.actions), len(self.costs)
        self.actions.append(action)
        following, is_last = self.observations[(k + 1) % count], k + 1 == count
        return following, self.rewards[k], False, is_last, {"cost": self.costs[k]}


class Pareto(ModuleType):
    """Replacement of OApackage, with the parts that the augmentation uses."""

    doubleVector = tuple

    class ParetoDoubleLong:
        """Set of points, of which those that no other point surpasses are returned."""

        def __init__(self) -> None:
            self.points = list[tuple[float, ...]]()

        def addvalue(self, point: tuple[float, ...], index: int) -> None:
            self.points.append(point)

        def show(self, verbose: int) -> None:
            pass

        def allindices(self) -> list[int]:
            points = np.array(self.points)
            better = [((points >= x).all(1) & (points > x).any(1)).any() for x in points]
            return np.flatnonzero(~np.array(better)).tolist()


def new_episodes(module: ModuleType, c: Mapping[str, Any], b: Any) -> dict[str, Any]:
    """Return the new episodes for episodes of one step."""
    columns = {"returns": b.mc_returns.numpy(), "cost_returns": b.mc_costs.numpy()}
    episodes = [{k: x[i : i + 1] for k, x in columns.items()} for i in range(len(b.rewards))]
    np.random.seed(0)  # noqa: NPY002
    percent, limits = c["augmentation"], (c["max_return"], c["min_gain"])
    nearest, new, _, kept = module.augmentation(
        episodes, c["degree"], c["max_decrease"], 1, percent, *limits
    )
    targets = {k: np.array([x[k][0] for x in new]) for k in columns}
    return {
        "episodes": np.array(kept)[nearest],
        "returns": targets["returns"],
        "costs": targets["cost_returns"],
    }
