"""Adapter to Zhendong-Wang/Diffusion-Policies-for-Offline-RL."""

from __future__ import annotations

import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.conformance.inputs import ACT, OBS
from benchmarks.conformance.job import UNUSED, Draw, Job, Learner, Link
from benchmarks.conformance.torch_side import linears, mlp, narrow

SIDE = "torch_side"


def diffusion_ql(job: Job) -> Learner:
    """Return the learner. Its coin is NumPy's. Its last denoising step samples unused noise."""
    sys.path.insert(0, str(job.checkout))
    torch.randint = lambda low, high, shape, **_: (torch.rand(shape) * high).long()
    narrow()
    module, c = job.load(), job.config
    module.np = SimpleNamespace(random=SimpleNamespace(uniform=lambda: torch.rand(()).item()))
    steps, samples = c["num_inference_steps"], c["num_target_samples"]
    agent = module.Diffusion_QL(
        OBS,
        ACT,
        max_action=1.0,
        device="cpu",
        discount=c["discount"],
        tau=c["tau"],
        max_q_backup=samples > 1,
        eta=c["eta"],
        beta_schedule="vp",
        n_timesteps=steps,
        ema_decay=1 - c["policy_tau"],
        step_start_ema=c["average_start"],
        update_ema_every=c["average_every"],
        lr=c["actor_lr"],
        grad_norm=c["max_grad_norm"],
    )

    def update(b: Any) -> dict[str, float]:
        rows = (b.observations, b.actions, b.next_observations)
        rows += (b.column.rewards, 1 - b.column.terminated)
        buffer = SimpleNamespace(sample=lambda _: rows)
        metrics = agent.train(buffer, 1, len(b.rewards))
        names = {"critic_loss": "critic_loss", "policy_loss": "actor_loss"}
        names |= {"imitation_loss": "bc_loss"}
        return {ours: metrics[theirs][0] for ours, theirs in names.items()}

    links = denoiser("policy", agent.actor.model) + denoiser("policy_target", agent.ema_model.model)
    for name, critic in (("critic", agent.critic), ("critic_target", agent.critic_target)):
        for k, net in enumerate((critic.q1_model, critic.q2_model)):
            links += mlp(f"{name}/net", net, k)
    order: list[Draw] = [*denoising("next", steps), "level", "noise"]
    return Learner(links, update, [*order, *denoising("policy", steps), "coin"])


def denoiser(name: str, net: Any) -> list[Link]:
    path = f"{name}/network"
    links = mlp(f"{path}.embed_time.perceptron", net.time_mlp)
    return links + mlp(f"{path}.trunk", [*linears(net.mid_layer), net.final_layer])


def denoising(name: str, steps: int) -> list[Draw]:
    """Return the draws of one sampled action: a part of our draw [B, T, 1, A] for each step."""
    return [*((name, partial(take_step, k)) for k in range(steps)), UNUSED]


def take_step(k: int, x: np.ndarray) -> np.ndarray:
    return x[:, k, 0]
