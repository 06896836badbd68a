"""One step: a policy that denoises in many rounds, taught to a head that answers at once.

From the same noise, without any between the rounds, the teacher and the head should end in the same
chunk; the states are the data's, its actions are not looked at. What was acted by DDPM, or with
noise between the rounds, is taught as its DDIM without; of rl100 the policy in its rounds teaches.
`offline-rl distill algorithm=one_step run=<run>` begins with one of diffusion_policy, flow_policy,
dppo or rl100.

Paper:   Lei et al., arXiv:2510.14830, whose RL-100 ends so, or keeps such a head in step throughout
         (`rl100` with `one_step`).
Differs: from the authors' code (Lei-Kun/RL-100) in that all actions from the present one on are
         taught, there those executed; what acts is a moving average, there the last weights
         (`ema_max=0`); the head is told the policy's first time, and held to chunks in [-1, 1],
         there in the actions' own units. Pictures are seen by the teacher's encoder, which stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common.base import Metrics, State, minimize
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
from policies.heads.diffusion import DiffusionActor, TunedActor
from policies.heads.schedules import Table, sample


@dataclass(frozen=True)
class Config(DenoiserShape, ChunkConfig):
    """What the teacher is made of is its run's; the rest as Diffusion Policy learns."""

    process: Annotated[Literal["ddpm", "edm", "flow"], BUILT] = "ddpm"  # the teacher's
    num_train_timesteps: Built = 100  # the teacher's, of ddpm
    prediction_type: Annotated[Literal["epsilon", "sample"], BUILT] = (
        "epsilon"  # the teacher's, of ddpm
    )
    num_inference_steps: Built = 100  # the teacher's, from noise to a chunk
    tuned: Built | None = None  # of these, the last that were fine-tuned; null: all, or none

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask_ends:
            raise ValueError("mask_ends is not read: the data's actions are not looked at")
        if self.process != "ddpm":
            self.refuse_unread("process", "num_train_timesteps", "prediction_type")
        if self.tuned is not None and self.tuned > self.num_inference_steps:
            raise ValueError(
                f"tuned={self.tuned} steps are more than the teacher's {self.num_inference_steps}"
            )
        if self.process == "ddpm" and self.num_inference_steps > self.num_train_timesteps:
            raise ValueError(
                f"num_inference_steps={self.num_inference_steps} are more than num_train_timesteps={self.num_train_timesteps}"
            )


class OneStep(Student):
    Config: ClassVar[type] = Config
    distills_from = "a run of diffusion_policy, flow_policy, dppo or rl100"

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
        found = {name: hyper[name] for name in names if hyper.get(name) is not None}
        if algorithm == "flow_policy":
            found["process"] = "flow"
        if found.get("process") != "ddpm":  # of others these are not read
            found = {
                k: v
                for k, v in found.items()
                if k not in ("num_train_timesteps", "prediction_type")
            }
        return found

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
        """One step toward where the teacher's rounds end, in the actions from the present one."""
        cfg, random, head = self.cfg, state.random, self.modules["model"]
        s = state.teacher.encode(batch.observations, random)  # [B, n_obs_steps, F], by its eyes
        noise = random.normal((len(s), *head.noise_shape))  # type: ignore[misc]

        def teacher(x: Tensor, time: float) -> Tensor:
            told: Tensor = state.teacher.asked(s, x, time)
            return told

        target = sample(deterministic_table(cfg), teacher, noise).clip(-1, 1)  # [B, T, A]
        x, time = noise[:, 0], torch.full_like(noise[:, 0, 0, 0], self.table()[0][0])

        def policy_loss(model) -> Tensor:
            error: Tensor = model.predict(s, x, time) - target
            return error[:, cfg.n_obs_steps - 1 :].square().mean()

        state, value = minimize(state, "model", policy_loss)
        return self.update_average(state), {"policy_loss": value}
