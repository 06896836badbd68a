"""One-step policy: distillation of a diffusion or flow policy into a single forward pass.

From the same initial noise, the student predicts in one step the chunk at which the teacher's
deterministic sampler ends. Training uses the data's states, but not its actions. A teacher that
acts by DDPM, or with noise in sampling, is distilled through its DDIM sampler without noise. If the
teacher is a run of rl100, its multi-step policy is distilled. In RL-100, this distillation is the
last phase, or a one-step head is trained in all phases (option `one_step` of `rl100`). `offline-rl
distill algorithm=one_step run=<run>` starts with a run of diffusion_policy, flow_policy, dppo or
rl100.

Paper:   Lei et al., arXiv:2510.14830.
Differs: from the authors' code (Lei-Kun/RL-100). All actions from the current step on are trained;
         the authors train only the executed ones. A moving average of the weights acts; in the
         authors' code the last weights act (`ema_max=0`). The head receives the policy's first
         denoising timestep, and its chunks are limited to [-1, 1]; in the authors' code they are in
         the actions' own units. Images are encoded by the teacher's encoder, which does not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common.base import LossAndMetrics, Metrics, Mode, Network, State
from offline_rl.algorithms.common.chunk_cloning import (
    TEACHER_FIELDS,
    Built,
    ChunkConfig,
    DenoiserShape,
    Student,
)
from offline_rl.algorithms.common.config import BUILT
from offline_rl.algorithms.common.noising.deterministic import deterministic_table, one_step_table
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import frozen
from policies.heads.diffusion import DiffusionActor, TunedActor
from policies.heads.schedules import Table, sample


@frozen
class Config(DenoiserShape, ChunkConfig):
    """Sizes and process are the teacher's; other defaults are Diffusion Policy's."""

    process: Annotated[Literal["ddpm", "edm", "flow"], BUILT] = "ddpm"  # the teacher's process
    num_train_timesteps: Built = 100  # noise levels of the teacher's ddpm schedule
    prediction_type: Annotated[Literal["epsilon", "sample"], BUILT] = (
        "epsilon"  # what the teacher's ddpm network predicts
    )
    num_inference_steps: Built = 100  # the teacher's denoising steps
    tuned: Built | None = None  # last steps with fine-tuned weights; null: one network for all

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask_ends:
            raise ValueError(
                "mask_ends has no effect, as the data's actions are not used. Remove it."
            )
        if self.process != "ddpm":
            self.refuse_unread("process", "num_train_timesteps", "prediction_type")
        if self.tuned is not None and self.tuned > self.num_inference_steps:
            raise ValueError(
                f"tuned={self.tuned} exceeds the teacher's "
                f"num_inference_steps={self.num_inference_steps}. Use at most that."
            )
        if self.process == "ddpm" and self.num_inference_steps > self.num_train_timesteps:
            raise ValueError(
                f"num_inference_steps={self.num_inference_steps} exceeds "
                f"num_train_timesteps={self.num_train_timesteps}. Use at most that."
            )

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {"num_train_timesteps": 10, "tuned": 3}


class OneStep(Student):
    Config: type = Config
    mode = Mode(start="teacher", runs="a run of diffusion_policy, flow_policy, dppo or rl100")

    @classmethod
    def config_from_teacher(cls, algorithm: str, hyper: Mapping[str, Any]) -> dict[str, Any] | None:
        if algorithm not in ("diffusion_policy", "flow_policy", "dppo", "rl100"):
            return None
        names = (
            *TEACHER_FIELDS,
            "process",
            "num_train_timesteps",
            "prediction_type",
            "num_inference_steps",
            "tuned",
        )
        values = {name: hyper[name] for name in names if hyper.get(name) is not None}
        if algorithm == "flow_policy":
            values["process"] = "flow"
        if values.get("process") != "ddpm":  # other processes do not use these
            values = {
                k: v
                for k, v in values.items()
                if k not in ("num_train_timesteps", "prediction_type")
            }
        return values

    def table(self) -> Table:
        return one_step_table(deterministic_table(self.cfg))

    def networks(self) -> dict[str, nn.Module]:
        options = self.cfg.head_options(self.spec) | {"table": deterministic_table(self.cfg)}
        tuned = (
            {}
            if self.cfg.tuned in (None, self.cfg.num_inference_steps)
            else {"tuned": self.cfg.tuned}
        )
        teacher = TunedActor(**options, **tuned) if tuned else DiffusionActor(**options)
        return {"model": self.head(), "teacher": teacher}

    def build_actor(self, table: Table, until: float | None = None) -> DiffusionActor:
        return DiffusionActor(**self.cfg.head_options(self.spec), table=table, until=until)

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update the head toward the teacher's chunk, on the actions from the current step on."""
        cfg, random, head = self.cfg, state.random, self.modules["model"]
        s = state.teacher.encode(batch.observations, random)  # [B, n_obs_steps, F]
        noise = random.normal((len(s), *head.noise_shape))  # type: ignore[misc]

        def teacher(x: Tensor, time: float) -> Tensor:
            prediction: Tensor = state.teacher.predict_at(s, x, time)
            return prediction

        target = sample(deterministic_table(cfg), teacher, noise).clip(-1, 1)  # [B, T, A]
        x, time = noise[:, 0], torch.full_like(noise[:, 0, 0, 0], self.table()[0][0])

        def policy_loss(model: Network) -> LossAndMetrics:
            error: Tensor = model.predict(s, x, time) - target
            return error[:, cfg.n_obs_steps - 1 :].square().mean(), {}

        return self.update_model(state, policy_loss)
