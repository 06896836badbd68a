"""Adapter to thuml/SPOT."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.conformance.inputs import ACT, OBS, WIDTH
from benchmarks.conformance.job import Job, Learner, Link
from benchmarks.conformance.torch_side import mlp, two_heads

SIDE = "torch_side"
NAMES = ("discount", "tau", "policy_noise", "noise_clip")


def spot(job: Job) -> Learner:
    """Return the learner.

    The VAE is trained with the reference's elbo_loss; the training script writes out its terms.
    """
    sys.path.insert(0, str(job.checkout))
    module, c = job.load(), job.config
    vae = module.VAE(OBS, ACT, 2 * ACT, 1.0, hidden_dim=WIDTH)
    t = module.SPOT_TD3(
        vae,
        OBS,
        ACT,
        1.0,
        policy_freq=c["policy_delay"],
        beta=c["kl_weight"],
        lambd=c["support_weight"],
        lr=c["critic_lr"],
        actor_lr=c["actor_lr"],
        actor_hidden_dim=WIDTH,
        critic_hidden_dim=WIDTH,
        actor_dropout=c["dropout"],
        **{name: c[name] for name in NAMES},
    )
    logger = SimpleNamespace(log=lambda *_: None)
    adam = torch.optim.Adam(vae.parameters(), lr=c["vae_lr"])

    def update(b: Any) -> None:
        c = b.column
        rows = b.observations, b.actions, b.next_observations, c.rewards, 1 - c.terminated
        t.train(SimpleNamespace(sample=lambda size: rows), logger=logger)

    def fit_vae(b: Any) -> None:
        adam.zero_grad()
        vae.elbo_loss(b.observations, b.actions, c["kl_weight"]).mean().backward()
        adam.step()

    links = vae_links(vae)
    for name, actor in (("policy", t.actor), ("policy_target", t.actor_target)):
        links += mlp(f"{name}/trunk", actor)
    for name, q in (("critic", t.critic), ("critic_target", t.critic_target)):
        links += mlp(f"{name}/net", (q.l1, q.l2, q.l3), 0) + mlp(
            f"{name}/net", (q.l4, q.l5, q.l6), 1
        )
    if job.phase == "fit_vae":
        return Learner(links, fit_vae, ["latent"], ["vae_loss"])
    order = ["noise", "target_dropout_0", "target_dropout_1", "dropout_0", "dropout_1", "latent"]
    return Learner(links, update, order, ["critic_loss", "policy_loss"])


def vae_links(vae: Any) -> list[Link]:
    links = two_heads("vae/encoder", (vae.e1, vae.e2), vae.mean, vae.log_std)
    return links + mlp("vae/decoder", (vae.d1, vae.d2, vae.d3))
