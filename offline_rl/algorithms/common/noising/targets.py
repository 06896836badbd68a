"""Training targets of denoising networks: noised chunks and what to predict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from offline_rl.utils.random import Random
from policies.heads.schedules import FLOW_TIME


class TrainingTargets(NamedTuple):
    """Noised chunks at K noise levels each, and what to predict."""

    x: Tensor  # [K, B, T, A]
    times: Tensor  # [K, B]
    target: Tensor  # shape of x, or [B, T, A]


def diffusion_targets(
    random: Random, chunks: Tensor, levels: int, alphas: Sequence[float], prediction_type: str
) -> TrainingTargets:
    """Return the noise that was added (Ho et al., arXiv:2006.11239, eq. 14), or the chunk.

    alphas: alpha-bar of each training timestep.
    """
    noise = random.normal((levels, *chunks.shape), groups=levels)
    k = random.integers(len(alphas), noise.shape[:2], groups=levels)  # [K, B]
    alpha = chunks.new_tensor(alphas)[k][..., None, None]
    noised = alpha.sqrt() * chunks + (1 - alpha).sqrt() * noise
    return TrainingTargets(noised, k.float(), noise if prediction_type == "epsilon" else chunks)


def flow_targets(
    random: Random, chunks: Tensor, levels: int, power: float | Tensor, latest: float | Tensor
) -> TrainingTargets:
    """Return the velocity from noise to a chunk, at times t with 1 - t / latest ~ Beta(power, 1).

    Lipman et al., arXiv:2210.02747; times: Black et al., arXiv:2410.24164.
    """
    noise = random.normal((levels, *chunks.shape), groups=levels)
    u = random.uniform(noise.shape[:2], groups=levels) ** (1 / power)
    t = latest * (1 - u)  # [K, B]: 0 is noise, 1 the chunk
    between = t[..., None, None] * chunks + (1 - t)[..., None, None] * noise
    return TrainingTargets(between, FLOW_TIME * t, chunks - noise)
