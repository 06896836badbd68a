"""Adapter to Aaditya-Prasad/consistency-policy; needs the packages einops and transformers."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.conformance.inputs import ACT, OBS
from benchmarks.conformance.job import Draw, Job, Learner, StandIn
from benchmarks.conformance.references.chunks import unet_links
from benchmarks.conformance.torch_side import link_copies

SIDE = "torch_side"
ABSENT = "dill hydra numcodecs omegaconf pytorch3d robomimic scipy threadpoolctl torchvision zarr"
JUMPS = ("jump", "target", "rest", "target_rest", "denoised")  # in the reference's order
SHAPES = {"action": {"shape": [ACT]}, "obs": {"state": {"shape": [OBS]}}}


def load_module(job: Job) -> ModuleType:
    """Return the case's file as a module; observations are vectors."""
    sys.path.insert(0, str(job.checkout))
    sys.meta_path.append(StandIn(ABSENT))
    module = job.load()

    class Encoder(nn.Module):
        """Replacement of robomimic's image encoder."""

        def output_shape(self) -> list[int]:
            return [OBS]

        def forward(self, observations: dict[str, Tensor]) -> Tensor:
            return observations["state"]

    nets: Any = Encoder()
    for name in ("obs", "encoder", "policy"):
        nets = SimpleNamespace(nets={name: nets})
    module.algo_factory = lambda **_: nets
    return module


def make_optimizer(policy: Any, c: dict[str, Any]) -> tuple[Any, Any]:
    """Return the optimizer and its rate's schedule; set the normalizer to the identity."""
    from diffusion_policy.model.common.normalizer import (
        LinearNormalizer,
        SingleFieldLinearNormalizer,
    )
    from transformers.optimization import get_cosine_schedule_with_warmup

    normalizer = LinearNormalizer()
    for name in ("state", "action"):
        normalizer[name] = SingleFieldLinearNormalizer.create_identity()
    policy.set_normalizer(normalizer)
    betas = (c["beta1"], c["beta2"])
    adam = torch.optim.AdamW(policy.parameters(), c["lr"], betas, 1e-8, c["weight_decay"])
    return adam, get_cosine_schedule_with_warmup(adam, c["num_warmup_updates"], c["num_updates"])


def diffusion_policy(job: Job) -> Learner:
    """Return the teacher. The dropout of the middle block, which no option controls, is off."""
    module, c = load_module(job), job.config
    from consistency_policy.diffusion import Karras_Scheduler
    from diffusion_policy.model.diffusion.ema_model import EMAModel

    policy = module.KarrasUnetHybridImagePolicy(
        SHAPES,
        Karras_Scheduler(0.02, 80.0, 7.0, 80, "heun", "log_normal", "boundary", 0.5),
        c["horizon"],
        c["n_action_steps"],
        c["n_obs_steps"],
        crop_shape=None,
        diffusion_step_embed_dim=c["time_size"],
        down_dims=c["widths"],
        delta=-1,
    )
    policy.eval()
    adam, schedule = make_optimizer(policy, c)
    average = EMAModel(copy.deepcopy(policy.model), power=c["ema_power"], max_value=c["ema_max"])

    def update(b: Any) -> dict[str, float]:
        loss = policy.compute_loss({"obs": {"state": b.observations}, "action": b.actions})
        loss.backward()
        adam.step()
        adam.zero_grad()
        schedule.step()
        average.step(policy.model)
        return {"policy_loss": loss.item()}

    links = unet_links("model/network", policy.model)
    links += unet_links("policy/network", average.averaged_model)
    return Learner(links, update, ["noise_level", "noise"])


def consistency(job: Job) -> Learner:
    """Return the student. Times on a path and noise levels are drawn as in our code."""
    module, c = load_module(job), job.config
    from consistency_policy.diffusion import CTM_Scheduler

    class Scheduler(CTM_Scheduler):
        def sample_times(self, trajectory: Tensor, time_sampler: str | None = None) -> Any:
            rows, device = trajectory.shape[:1], trajectory.device
            if time_sampler == "ctm":
                t = (torch.rand(rows) * (self.bins - 1)).long()
                later = (torch.rand(rows) * (self.bins - 1 - t)).long()
                return t, t + 1 + later, t + 1
            assert time_sampler == "ctm_dsm"
            places = self.ctm_dsm_sampler(len(trajectory), device)[0]
            levels = self.log_normal_sampler(len(trajectory), device)[0]
            return torch.where(torch.arange(len(trajectory)) % 2 == 0, places, levels), None

    scheduler = Scheduler(0.02, 80.0, 7.0, 80, "heun", "ctm", "boundary", 0.5, ode_steps_max=1)
    policy = module.CTMPPUnetHybridImagePolicy(
        SHAPES,
        scheduler,
        c["horizon"],
        c["n_action_steps"],
        c["n_obs_steps"],
        crop_shape=None,
        diffusion_step_embed_dim=c["time_size"],
        down_dims=c["widths"],
        dropout_rate=c["dropout"],
        initial_ema_decay=0.0,
        delta=-1,
        losses=[["ctm", "dsm"], [c["ctm_weight"], c["dsm_weight"]]],
        dsm_weights="karras",
        inference_mode=True,  # the teacher is not read from a file
    )
    policy.teacher.eval().requires_grad_(False)
    adam, schedule = make_optimizer(policy, c)

    def update(b: Any) -> dict[str, float]:
        policy.ema_update()  # the decay is 0, so the average is a copy
        losses = policy.compute_loss({"obs": {"state": b.observations}, "action": b.actions})
        loss = sum(losses.values())
        loss.backward()
        adam.step()
        adam.zero_grad()
        schedule.step()
        metrics = {f"{name}_loss": value.item() for name, value in losses.items()}
        return metrics | {"policy_loss": loss.item()}

    links = unet_links("model/network", policy.model)
    teacher = unet_links("teacher/network", policy.teacher)
    order = ["time_index", "later_index", "noise", *masks(*JUMPS[:4])]
    order += ["dsm_index", "noise_level", "dsm_noise", *masks(JUMPS[4])]
    return Learner([*links, *link_copies("policy", links), *teacher], update, order)


def masks(*passes: str) -> Iterator[Draw]:
    """Yield the draws of dropout masks. In the reference, channels come before steps."""
    for name in passes:
        yield from ((f"{name}_{k}", lambda x: x.swapaxes(1, 2)) for k in range(16))
