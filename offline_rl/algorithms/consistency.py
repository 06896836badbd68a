"""Consistency Policy: distillation of a diffusion policy into one or three sampling steps.

The student jumps from any noise level to any lower one. It is trained by two losses. CTM: a
denoising step of the teacher followed by a jump should end where a single jump ends. DSM: the
teacher's denoising loss on demonstrations. `offline-rl distill run=<run>` starts with a run of
diffusion_policy with process=edm.

Paper:   Prasad et al., RSS 2024, arXiv:2405.07503; CTM: Kim et al., ICLR 2024, arXiv:2310.02279.
Differs: from the authors' code (Aaditya-Prasad/consistency-policy). Training uses 80 noise levels
         (bins), in order of decreasing noise. From each bin, the teacher takes one step to the next
         bin, and the student's jumps end at that bin or a later one. In the authors' code some
         jumps end at the bin where they start, which gives no training signal. For the denoising
         loss, noise levels come from two distributions, which alternate within a batch; the
         authors' code uses one distribution for each half of the batch. With three sampling steps,
         jumps start at other noise levels: the default of the authors' code reads bin numbers as
         standard deviations. The policy and its teacher use moving averages of the weights; the
         authors use the last weights (`ema_max=0`). `dropout` applies to all blocks; in the
         authors' code the middle block always has a rate of 0.2. As in the authors' code, the
         current student computes the targets, without a moving average, and the initial noise has
         standard deviation 1 (`unit`). Images are encoded by the teacher's encoder, once per
         update; the student never changes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common.base import LossAndMetrics, Metrics, Mode, Network, State
from offline_rl.algorithms.common.chunk_cloning import TEACHER_FIELDS, DenoisingConfig, Student
from offline_rl.algorithms.common.config import Dropout
from offline_rl.algorithms.common.noising.edm import (
    BINS,
    Distance,
    distance,
    expand_chunk,
    heun_step,
    jump,
    karras_weight,
    sample_consistency_std,
)
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Count, NonNegative, Range, frozen
from policies.heads.diffusion import DiffusionActor
from policies.heads.schedules import SIGMAS, Table, jumps, karras, log_time, sigma


@frozen
class Config(DenoisingConfig):
    """Defaults: the authors', except that evaluation uses a moving average of the weights."""

    num_inference_steps: Annotated[int, Range(1, BINS)] = 1  # sampling steps (jumps)
    unit: bool = True  # initial noise in sampling has standard deviation 1 instead of 80
    ctm_weight: NonNegative = 1.0  # weight of the consistency loss (CTM)
    dsm_weight: NonNegative = 1.0  # weight of the denoising loss (DSM)
    distance: Distance = "elements"  # loss of elements (authors' code) or of the norm (paper)
    dropout: Dropout = 0.2  # dropout rate of the student during training
    batch_size: Count = 64  # chunks per update


class Consistency(Student):
    Config: type = Config
    mode = Mode(start="teacher", runs="a run of diffusion_policy with algorithm.process=edm")

    @classmethod
    def config_from_teacher(cls, algorithm: str, hyper: Mapping[str, Any]) -> dict[str, Any] | None:
        if algorithm != "diffusion_policy" or hyper.get("process") != "edm":
            return None
        return {name: hyper[name] for name in TEACHER_FIELDS if hyper.get(name) is not None}

    def table(self) -> Table:
        return jumps(self.cfg.num_inference_steps, BINS, self.cfg.unit)

    def head(self) -> DiffusionActor:
        # in sampling, every jump ends at the lowest noise level
        return self.build_actor(self.table(), until=log_time(SIGMAS[0]))

    def networks(self) -> dict[str, nn.Module]:
        return {"model": self.head(), "teacher": self.build_actor(karras(1))}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update the student on both losses, at `levels` noise levels per chunk."""
        cfg, random = self.cfg, state.random
        s = state.teacher.encode(batch.observations, random)  # [B, n_obs_steps, F]
        model, teacher = state.model.predict, state.teacher.predict
        a = self.normalize_actions(batch.actions)  # [B, T, A]
        shape = (cfg.levels, len(a))  # [K, B]
        t = random.integers(BINS - 1, shape)
        later = t + 1 + (random.uniform(shape) * (BINS - 1 - t)).floor()  # t + 1 to BINS - 1
        start, near, end = (sigma(k / (BINS - 1)) for k in (t, t + 1, later))
        lowest = torch.full_like(start, SIGMAS[0])
        x = a + expand_chunk(start) * random.normal((*shape, *a.shape[1:]))
        closer = heun_step(teacher, s, x, start, near)
        target = jump(model, s, closer, near, end, random)
        target = jump(model, s, target, end, lowest, random)  # [K, B, T, A]
        std = sample_consistency_std(random, shape)
        noised = a + expand_chunk(std) * random.normal(x.shape)

        def policy_loss(learner: Network) -> LossAndMetrics:
            chunk = jump(learner.predict, s, x, start, end, random)
            chunk = jump(model, s, chunk, end, lowest, random)
            ctm = self.masked_mean(distance(chunk, target, None, cfg.distance), batch)
            denoised = jump(learner.predict, s, noised, std, lowest, random)
            weight = karras_weight(std)
            dsm = self.masked_mean(distance(denoised, a, weight, cfg.distance), batch)
            loss = cfg.ctm_weight * ctm + cfg.dsm_weight * dsm
            return loss, {"ctm_loss": ctm, "dsm_loss": dsm}

        return self.update_model(state, policy_loss)

    def widen_parameter(self, teacher: Tensor, student: Tensor) -> Tensor:
        """Return a teacher's weights, extended by zero rows for the student's second time input.

        The second time input is the time at which a jump ends. Because of the zeros it has no
        effect at first. In a transformer it is an additional token, to which all others attend, so
        the student starts near its teacher but not equal to it.
        """
        added = len(student) - len(teacher) if student.dim() else 0
        if added < 1:
            return teacher
        spec, options = self.spec, self.cfg.network_options()
        row = {"transformer": 1, "unet": options.get("time_size", 0)}.get(self.cfg.network)
        if row is None:
            row = self.cfg.horizon * spec.action_dim + options["time_size"]
        zeros = teacher.new_zeros(added, *teacher.shape[1:])
        return torch.cat([teacher[:row], zeros, teacher[row:]])
