"""Adapter to tinkoff-ai/CORL. Its trainers get small networks, built from CORL's classes."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.job import UNUSED, Job, Learner, Link, swap_axes
from benchmarks.conformance.torch_side import linears, link, mlp, narrow, stacked_mlp, two_heads

SIDE = "torch_side"


def adam(module: Any, lr: float) -> torch.optim.Adam:
    return torch.optim.Adam(module.parameters(), lr=lr)


def columns(b: Any) -> list[torch.Tensor]:
    """Return the batch in CORL's order; rewards and terminals are [B, 1]."""
    return [b.observations, b.actions, b.column.rewards, b.next_observations, b.column.terminated]


def bc(job: Job) -> Learner:
    module, c = job.load(), job.config
    narrow()
    actor = module.Actor(OBS, ACT, 1.0)
    trainer = module.BC(1.0, actor, adam(actor, c["lr"]))
    return Learner(
        mlp("policy/trunk", actor),
        lambda b: trainer.train(columns(b)) and None,
        losses=["policy_loss"],
    )


def td3_bc(job: Job) -> Learner:
    module, c = job.load(), job.config
    narrow()
    actor, critics = module.Actor(OBS, ACT, 1.0), [module.Critic(OBS, ACT) for _ in range(2)]
    pairs = [x for q in critics for x in (q, adam(q, c["critic_lr"]))]
    names = ("discount", "tau", "policy_noise", "noise_clip", "alpha")
    options = {name: c[name] for name in names}
    t = module.TD3_BC(
        1.0, actor, adam(actor, c["actor_lr"]), *pairs, policy_freq=c["policy_delay"], **options
    )
    links = mlp("policy/trunk", actor) + mlp("policy_target/trunk", t.actor_target)
    for k, (q, target) in enumerate(
        [(t.critic_1, t.critic_1_target), (t.critic_2, t.critic_2_target)]
    ):
        links += mlp("critic/net", q, k) + mlp("critic_target/net", target, k)
    losses = ["critic_loss", "policy_loss"]
    return Learner(links, lambda b: t.train(columns(b)) and None, ["noise"], losses)


def iql(job: Job) -> Learner:
    """Return the learner. Q's target and the advantage use the new V; Q's loss is not halved."""
    module, c = job.load(), job.config
    narrow()
    actor, q, v = (
        module.GaussianPolicy(OBS, ACT, 1.0),
        module.TwinQ(OBS, ACT),
        module.ValueFunction(OBS),
    )
    t = module.ImplicitQLearning(
        1.0,
        actor,
        adam(actor, c["actor_lr"]),
        q,
        adam(q, c["critic_lr"]),
        v,
        adam(v, c["value_lr"]),
        iql_tau=c["expectile"],
        beta=c["beta"],
        max_steps=job.config["num_updates"],
        discount=c["discount"],
        tau=c["tau"],
    )
    mse, update_v, update_q = module.F.mse_loss, t._update_v, t._update_q
    module.F = SimpleNamespace(mse_loss=lambda q, y: 2 * mse(q, y))

    def new_advantage(s: Any, a: Any, log: Any) -> torch.Tensor:
        update_v(s, a, log)
        return (t.q_target(s, a) - t.vf(s)).detach()

    def update(b: Any) -> None:
        t._update_v = new_advantage
        t._update_q = lambda _, *rest: update_q(t.vf(b.next_observations).detach(), *rest)
        t.train(columns(b))

    links = [*mlp("policy/trunk", actor.net), link("policy/log_std", actor.log_std)]
    links += mlp("value/net", v)
    for k, (online, target) in enumerate([(q.q1, t.q_target.q1), (q.q2, t.q_target.q2)]):
        links += mlp("critic/net", online, k) + mlp("critic_target/net", target, k)
    return Learner(links, update, losses=["value_loss", "critic_loss", "policy_loss"])


def cql(job: Job) -> Learner:
    module, c = job.load(), job.config
    narrow()
    actor = module.TanhGaussianPolicy(OBS, ACT, 1.0)
    depth = {"n_hidden_layers": len(c["critic_hidden"])} if job.phase == "online" else {}
    critics = [module.FullyConnectedQFunction(OBS, ACT, **depth) for _ in range(2)]
    pairs = [x for q in critics for x in (q, adam(q, c["critic_lr"]))]
    t = module.ContinuousCQL(
        *pairs,
        actor,
        adam(actor, c["policy_lr"]),
        target_entropy=-ACT,
        discount=c["discount"],
        backup_entropy=c["backup_entropy"],
        policy_lr=c["policy_lr"],
        qf_lr=c["critic_lr"],
        soft_target_update_rate=c["tau"],
        bc_steps=0,
        cql_n_actions=c["num_samples"],
        cql_lagrange=c["gap"] is not None,
        cql_target_action_gap=c["gap"] or 0.0,
        cql_temp=c["temperature"],
        cql_alpha=c["weight"],
        cql_max_target_backup=c["max_target_backup"],
        cql_clip_diff_min=c["clip_diff_min"],
        cql_clip_diff_max=c["clip_diff_max"],
    )
    links = mlp("policy/trunk", actor.base_network)
    links += [
        link("policy/affine", actor.log_std_multiplier.constant, (0,)),
        link("policy/affine", actor.log_std_offset.constant, (1,)),
        link("log_alpha/value", t.log_alpha.constant),
    ]
    if c["gap"] is not None:
        links.append(link("log_multiplier/value", t.log_alpha_prime.constant))
    for k, (q, target) in enumerate(
        [(t.critic_1, t.target_critic_1), (t.critic_2, t.target_critic_2)]
    ):
        links += mlp("critic/net", q, k) + mlp("critic_target/net", target, k)

    def update(b: Any) -> dict[str, float]:
        log = t.train(columns(b))
        return {
            "critic_loss": log["qf1_loss"] + log["qf2_loss"],
            "penalty": (log["cql_qf1_diff"] + log["cql_qf2_diff"]) / 2,
            "policy_loss": log["policy_loss"],
            "alpha": log["alpha"],
            "entropy": -log["log_pi"],
        }

    order = [
        "policy",
        *((name, swap_axes) for name in ("next", "uniform", "current_samples", "next_samples")),
    ]
    return Learner(links, update, order)


def awac(job: Job) -> Learner:
    module, c = job.load(), job.config
    sizes = {"state_dim": OBS, "action_dim": ACT, "hidden_dim": WIDTH}
    actor, critics = module.Actor(**sizes), [module.Critic(**sizes) for _ in range(2)]
    pairs = [x for q in critics for x in (q, adam(q, c["critic_lr"]))]
    t = module.AdvantageWeightedActorCritic(
        actor,
        adam(actor, c["actor_lr"]),
        *pairs,
        gamma=c["discount"],
        tau=c["tau"],
        awac_lambda=c["temperature"],
        exp_adv_max=c["max_weight"],
    )
    links = [*mlp("policy/trunk", actor._mlp), link("policy/log_std", actor._log_std)]
    for k, target in enumerate([t._target_critic_1, t._target_critic_2]):
        links += mlp("critic/net", critics[k], k) + mlp("critic_target/net", target, k)
    losses = ["critic_loss", "policy_loss"]
    return Learner(links, lambda b: t.update(columns(b)) and None, ["next", "policy"], losses)


def spot(job: Job) -> Learner:
    """Return the learner of the online phase. The count of updates starts at -1 instead of 0."""
    module, c = job.load(), job.config
    narrow()
    narrow(750)
    vae, actor = module.VAE(OBS, ACT, 2 * ACT, 1.0, 750), module.Actor(OBS, ACT, 1.0)
    critics = [module.Critic(OBS, ACT) for _ in range(2)]
    pairs = [x for q in critics for x in (q, adam(q, c["critic_lr"]))]
    names = ("discount", "tau", "policy_noise", "noise_clip")
    t = module.SPOT(
        1.0,
        actor,
        adam(actor, c["actor_lr"]),
        *pairs,
        vae,
        adam(vae, c["vae_lr"]),
        policy_freq=c["policy_delay"],
        beta=c["kl_weight"],
        lambd=c["support_weight"],
        lambd_cool=True,
        lambd_end=c["support_end"],
        max_online_steps=c["num_updates"],
        **{name: c[name] for name in names},
    )
    t.is_online, t.online_it = True, -1
    links = mlp("policy/trunk", actor) + mlp("policy_target/trunk", t.actor_target)
    for k, (q, target) in enumerate(
        [(t.critic_1, t.critic_1_target), (t.critic_2, t.critic_2_target)]
    ):
        links += mlp("critic/net", q, k) + mlp("critic_target/net", target, k)
    links += two_heads("vae/encoder", linears(vae.encoder_shared), vae.mean, vae.log_std)
    links += mlp("vae/decoder", vae.decoder)
    losses = ["critic_loss", "policy_loss"]
    return Learner(links, lambda b: t.train(columns(b)) and None, ["noise", "latent"], losses)


def sac_n(job: Job) -> Learner:
    return ensemble(job, "SACN", {"critic_loss": "critic_loss"})


def edac(job: Job) -> Learner:
    return ensemble(job, "EDAC", eta=job.config["eta"])


def lb_sac(job: Job) -> Learner:
    """Return the learner. The adapter scales the learning rates with the batch size."""
    plain = {"edac_init": False}
    scale = (job.config["batch_size"] / 256) ** 0.5
    return ensemble(job, "LBSAC", {}, scale, (plain, {"layernorm": False} | plain))


def ensemble(
    job: Job,
    name: str,
    metrics: Mapping[str, str] = {},
    scale: float = 1.0,
    networks: tuple[Any, Any] = ({}, {}),
    **options: Any,
) -> Learner:
    """Return a learner of SAC-N's family.

    metrics: further metrics, from our names to the reference's. scale: factor on learning rates.
    """
    module, c = job.load(swaps={"+ 1e-6)": "+ 0.0)"}), job.config
    actor = module.Actor(OBS, ACT, WIDTH, **networks[0])
    critic = module.VectorizedCritic(OBS, ACT, WIDTH, c["num_critics"], **networks[1])
    t = getattr(module, name)(
        actor,
        adam(actor, scale * c["actor_lr"]),
        critic,
        adam(critic, scale * c["critic_lr"]),
        gamma=c["discount"],
        tau=c["tau"],
        alpha_learning_rate=scale * c["alpha_lr"],
        **options,
    )
    names = {"policy_loss": "actor_loss", "entropy": "batch_entropy", "alpha": "alpha"}
    names |= metrics

    def update(b: Any) -> dict[str, float]:
        log = t.update(columns(b))
        return {ours: log[theirs] for ours, theirs in names.items()}

    links = ensemble_links(t, module.VectorizedLinear)
    return Learner(links, update, ["temperature", "policy", "next", UNUSED])


def ensemble_links(t: Any, layer: type) -> list[Link]:
    """Return links of a learner of SAC-N's family; layer: the class of a critic's layers."""
    actor = t.actor
    links = two_heads("policy/trunk", linears(actor.trunk), actor.mu, actor.log_sigma)
    links.append(link("log_alpha/value", t.log_alpha))
    for network, theirs in (("critic", t.critic), ("critic_target", t.target_critic)):
        layers = [m for m in theirs.modules() if isinstance(m, layer)]
        links += stacked_mlp(f"{network}/net", layers)
    return links
