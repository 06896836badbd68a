"""Adapter to the loss and the optimizers of irom-princeton/dppo; needs the package einops."""

from __future__ import annotations

import sys
from typing import Any

import torch

from benchmarks.conformance.inputs import ACT, OBS
from benchmarks.conformance.job import Job, Learner, Link
from benchmarks.conformance.torch_side import link, mlp

SIDE = "torch_side"
NETWORK = "model/diffusion/mlp_diffusion.py"
STEPS = "model/diffusion/diffusion_vpg.py"
OF_CLIPPED = "noise = (x - alpha ** (0.5) * x_recon) / sqrt_one_minus_alpha"


def dppo(job: Job) -> Learner:
    """Return the learner: the minibatch update of TrainPPODiffusionAgent.

    Reward scaling and GAE come before this update and are not part of the comparison.
    """
    sys.path.insert(0, str(job.checkout))
    c, ddim = job.config, job.config["sampler"] == "ddim"
    if ddim:  # follow the noise that the network predicts, not that of the clipped prediction
        steps = job.load(STEPS, {OF_CLIPPED: "pass"})
        sys.modules[STEPS.removesuffix(".py").replace("/", ".")] = steps
    module = job.load()
    network = job.load(NETWORK, {"time_dim * 2": "time_dim * 4"})
    from model.common.critic import CriticObs
    from model.diffusion.eta import EtaFixed

    sizes = {"action_dim": ACT, "horizon_steps": c["horizon"], "cond_dim": OBS * c["n_obs_steps"]}
    actor = network.DiffusionMLP(**sizes, time_dim=c["time_size"], mlp_dims=list(c["widths"]))
    critic = CriticObs(OBS * c["n_obs_steps"], list(c["value_hidden"]))
    jumps = {"use_ddim": True, "ddim_steps": c["num_inference_steps"], "eta": EtaFixed(c["eta"])}
    model = module.PPODiffusion(
        actor=actor,
        critic=critic,
        gamma_denoising=c["denoising_discount"],
        clip_ploss_coef=c["clip"],
        clip_ploss_coef_base=c["first_clip"],
        clip_ploss_coef_rate=c["clip_rate"],
        ft_denoising_steps=c["tuned"],
        min_sampling_denoising_std=c["sampling_floor"],
        min_logprob_denoising_std=c["density_floor"],
        randn_clip_value=c["noise_max"],
        horizon_steps=c["horizon"],
        obs_dim=OBS,
        action_dim=ACT,
        denoising_steps=c["num_train_timesteps"],
        device="cpu",
        **(jumps if ddim else {}),
    )
    optimizers = [
        torch.optim.AdamW(model.actor_ft.parameters(), c["policy_lr"], weight_decay=0),
        torch.optim.AdamW(model.critic.parameters(), c["value_lr"], weight_decay=0),
    ]
    stopped = torch.zeros(())

    def update(b: Any) -> dict[str, float]:
        rows, step = torch.arange(len(b.step)), b.step.long()
        policy_loss, _, value_loss, clipped, divergence, *_ = model.loss(
            {"state": b.observations},
            b.chain[rows, step],
            b.chain[rows, step + 1],
            step,
            b.returns,
            None,
            b.advantages,
            b.densities[rows, step],
            reward_horizon=c["n_action_steps"],
        )
        value_loss = value_loss * c["value_weight"]
        for optimizer in optimizers:
            optimizer.zero_grad()
        (policy_loss + value_loss).backward()
        for optimizer in optimizers:
            optimizer.step()
        losses = {"policy_loss": policy_loss.item(), "value_loss": value_loss.item()}
        return losses | {"divergence": divergence, "clipped": clipped}

    links = actor_links("model/network", model.actor_ft) + mlp("value/net", critic)
    links += [read_only(source) for source in actor_links("policy/network", model.actor_ft)]
    links += actor_links("policy/base", model.actor)
    return Learner([*links, link("stopped/value", stopped)], update)


def actor_links(name: str, net: Any) -> list[Link]:
    time = [net.time_embedding[1], net.time_embedding[3]]
    return mlp(f"{name}.embed_time.perceptron", time) + mlp(f"{name}.trunk", net.mlp_mean)


def read_only(source: Link) -> Link:
    """Return the link without a writer, for a second link to the same network."""
    return Link(source.name, source.index, source.read, lambda _: None)
