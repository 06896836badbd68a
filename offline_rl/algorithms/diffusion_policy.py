"""Diffusion Policy: demonstrated chunks of actions, denoised out of noise.

A network learns to tell the noise that was added to a chunk, at every level of noise, given what
was seen before it. From noise alone it then makes a chunk round by round, whose first actions are
taken before it is asked again. Where demonstrations differ it commits to one way.

Paper:   Chi et al., RSS 2023, arXiv:2303.04137.
Differs: from the authors' code (real-stanford/diffusion_policy) in that observations are
         standardized, there scaled to [-1, 1] (here `normalize_observations=min_max`); that every
         row of the data is the present one equally often, where theirs leaves out an episode's last
         ones; and that keypoints of pictures are told on as they are, there through a linear layer
         and ReLUs, and a transformer's encoder decays as it does, there by 1e-6. process=edm learns
         as the teacher of Aaditya-Prasad/consistency-policy, less the dropout in its middle, always
         0.2; it acts by `num_inference_steps` Euler steps from noise of deviation 80, theirs by 79 of Heun's
         from 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from offline_rl.algorithms.common.base import Loss, Metrics, State, minimize
from offline_rl.algorithms.common.chunk_cloning import Denoising, DenoisingConfig
from offline_rl.algorithms.common.noising.edm import (
    Distance,
    denoise,
    distance,
    expand_chunk,
    karras_weight,
    sample_std,
)
from offline_rl.algorithms.common.noising.targets import diffusion_targets
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Count, Share
from policies.heads.schedules import Table, cosine_alphas, ddim, ddpm, karras


@dataclass(frozen=True)
class Config(DenoisingConfig):
    """Defaults: the authors' for states, with a U-Net; they train for 4,500 epochs."""

    process: Literal["ddpm", "edm"] = "ddpm"  # the noise; edm: Karras et al., a teacher for distill
    num_train_timesteps: Count = 100  # of ddpm's cosine schedule
    prediction_type: Literal["epsilon", "sample"] = (
        "epsilon"  # what ddpm's network tells; edm's is between
    )
    sampler: Literal["ddpm", "ddim"] = "ddpm"  # where process=ddpm; ddim needs fewer rounds
    num_inference_steps: Count = 100  # from noise to a chunk; ddpm's are at most noise_levels
    eta: Share = 0.0  # of ddim: 0 adds no noise on the way, 1 as much as ddpm
    distance: Distance = "elements"  # of edm's loss: their code's, or the norm of the paper

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.process == "edm":
            self.refuse_unread(
                "process", "num_train_timesteps", "eta"
            )  # tables set predicts and sampler
            return
        if self.num_inference_steps > self.num_train_timesteps:
            raise ValueError(
                f"num_inference_steps={self.num_inference_steps} are more than num_train_timesteps={self.num_train_timesteps}"
            )
        self.refuse_unread("process", "distance")
        if self.sampler == "ddpm":
            self.refuse_unread("sampler", "eta")


class DiffusionPolicy(Denoising):
    Config = Config

    def table(self) -> Table:
        cfg, alphas = self.cfg, cosine_alphas(self.cfg.num_train_timesteps)
        if cfg.process == "edm":
            return karras(cfg.num_inference_steps)
        if cfg.sampler == "ddpm":
            return ddpm(alphas, cfg.num_inference_steps, cfg.prediction_type)
        return ddim(alphas, cfg.num_inference_steps, cfg.prediction_type, cfg.eta)

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """One step of denoising regression at `levels` noise levels of each chunk."""
        loss = self.edm_loss if self.cfg.process == "edm" else self.ddpm_loss
        state, policy_value = minimize(state, "model", loss(state, batch))
        return self.update_average(state), {"policy_loss": policy_value}

    def ddpm_loss(self, state: State, batch: Batch) -> Loss:
        """Of the noise that was added, or of the chunk."""
        cfg, random, a = self.cfg, state.random, self.unit(batch.actions)  # [B, T, A]
        x, times, answer = diffusion_targets(
            random, a, cfg.levels, cfg.num_train_timesteps, cfg.prediction_type
        )

        def policy_loss(model) -> Tensor:
            told = model(batch.observations, x, times, random)
            return self.masked_mean((told - answer).square(), batch)

        return policy_loss

    def edm_loss(self, state: State, batch: Batch) -> Loss:
        """Of the chunk, weighted so that all noise counts alike (arXiv:2206.00364, eq. 8)."""
        cfg, random = self.cfg, state.random
        a = self.unit(batch.actions)
        deviation = sample_std(random, (cfg.levels, len(a)))  # [K, B]
        noised = a + expand_chunk(deviation) * random.normal((cfg.levels, *a.shape))

        def policy_loss(model) -> Tensor:
            found = denoise(model, batch.observations, noised, deviation, random)
            far = distance(found, a, karras_weight(deviation), cfg.distance)
            return self.masked_mean(far, batch)

        return policy_loss
