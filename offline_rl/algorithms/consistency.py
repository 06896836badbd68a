"""Consistency Policy: a diffusion policy's chunk in one step, or in three.

The student jumps from any noise to any lesser one. It learns that two jumps along the teacher's
path end where one does (CTM), and to denoise demonstrations as the teacher learned to (DSM).
`offline-rl distill run=<run>` begins with a run of diffusion_policy with process=edm.

Paper:   Prasad et al., RSS 2024, arXiv:2405.07503; CTM: Kim et al., ICLR 2024, arXiv:2310.02279.
Differs: from the authors' code (Aaditya-Prasad/consistency-policy) in that a path's second point is
         always the next bin and jumps end after it, where a part of theirs ends where it begins and
         teaches nothing; that those of a batch are noised alike by their parity, not their half;
         in the bins of three steps, which their default takes for deviations; that what acts, and
         what teaches, is a moving average, there the last weights (`ema_max=0`); and that
         `dropout` is that of all blocks, where their middle's is always 0.2. As there the target is
         the student itself, and what is noise at first has deviation 1 (`unit`). Pictures are seen
         by the teacher's encoder, once an update; the student never changes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common.base import Metrics, State, minimize_with
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
from offline_rl.utils.options import Count, NonNegative, Range
from policies.heads.diffusion import DiffusionActor
from policies.heads.schedules import SIGMAS, Table, jumps, karras, log_time, sigma


@dataclass(frozen=True)
class Config(DenoisingConfig):
    """Defaults: the authors', but that a moving average acts."""

    num_inference_steps: Annotated[int, Range(1, BINS)] = 1  # jumps from noise to a chunk
    unit: bool = True  # begins with noise of deviation 1 instead of 80
    ctm_weight: NonNegative = 1.0  # of consistency along the teacher's path
    dsm_weight: NonNegative = 1.0  # of denoising the data
    distance: Distance = "elements"  # of two chunks: the code's, or the norm of the paper
    dropout: Dropout = 0.2  # of the student's hidden units, while it learns
    batch_size: Count = 64  # chunks


class Consistency(Student):
    Config = Config
    distills_from = "a run of diffusion_policy with algorithm.process=edm"

    @classmethod
    def config_from_teacher(cls, algorithm: str, hyper: Mapping[str, Any]) -> dict[str, Any] | None:
        if algorithm != "diffusion_policy" or hyper.get("process") != "edm":
            return None
        return {name: hyper[name] for name in TEACHER_FIELDS if hyper.get(name) is not None}

    def table(self) -> Table:
        return jumps(self.cfg.num_inference_steps, BINS, self.cfg.unit)

    def head(self) -> DiffusionActor:
        return self.build_actor(self.table(), until=log_time(SIGMAS[0]))

    def networks(self) -> dict[str, nn.Module]:
        return {"model": self.head(), "teacher": self.build_actor(karras(1))}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """One step on both losses, at `levels` noise levels of each chunk."""
        cfg, random = self.cfg, state.random
        s = state.teacher.encode(
            batch.observations, random
        )  # [B, n_obs_steps, F]; all see by its eyes
        model, teacher = state.model.predict, state.teacher.predict
        a = self.unit(batch.actions)  # [B, T, A]
        shape = (cfg.levels, len(a))  # [K, B]
        t = random.integers(BINS - 1, shape)
        later = t + 1 + (random.uniform(shape) * (BINS - 1 - t)).floor()  # t + 1 to BINS - 1
        start, near, end = (sigma(place / (BINS - 1)) for place in (t, t + 1, later))
        least = torch.full_like(start, SIGMAS[0])
        x = a + expand_chunk(start) * random.normal((*shape, *a.shape[1:]))
        closer = heun_step(teacher, s, x, start, near)
        target = jump(model, s, closer, near, end, random)
        target = jump(model, s, target, end, least, random)  # [K, B, T, A]
        deviation = sample_consistency_std(random, shape)
        noised = a + expand_chunk(deviation) * random.normal(x.shape)

        def policy_loss(learner) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            found = jump(learner.predict, s, x, start, end, random)
            found = jump(model, s, found, end, least, random)
            ctm = self.masked_mean(distance(found, target, None, cfg.distance), batch)
            denoised = jump(learner.predict, s, noised, deviation, least, random)
            weight = karras_weight(deviation)
            dsm = self.masked_mean(distance(denoised, a, weight, cfg.distance), batch)
            return cfg.ctm_weight * ctm + cfg.dsm_weight * dsm, (ctm, dsm)

        state, policy_value, (ctm, dsm) = minimize_with(state, "model", policy_loss)
        metrics = {"policy_loss": policy_value, "ctm_loss": ctm, "dsm_loss": dsm}
        return self.update_average(state), metrics

    def widen_parameter(self, found: Tensor, own: Tensor) -> Tensor:
        """A teacher's weights with rows of zeros for the second time, behind those of the first.

        What the student is told besides, a jump's end, has no weight at first. In a transformer it
        is one token more, which all others attend to, so that it begins near its teacher only.
        """
        more = len(own) - len(found) if own.dim() else 0
        if more < 1:
            return found
        spec, options = self.spec, self.cfg.network_options()
        place = {"transformer": 1, "unet": options.get("time_size", 0)}.get(self.cfg.network)
        if place is None:
            place = self.cfg.horizon * spec.action_dim + options["time_size"]
        zeros = found.new_zeros(more, *found.shape[1:])
        return torch.cat([found[:place], zeros, found[place:]])
