"""What a network that denoises is asked while it is taught, and what it should answer."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from offline_rl.utils.random import Random
from policies.heads.schedules import FLOW_TIME, cosine_alphas


class TrainingTargets(NamedTuple):
    """About chunks at K levels of noise each."""

    x: Tensor  # [K, B, T, A]
    times: Tensor  # [K, B]
    answer: Tensor  # as x, or [B, T, A]


def diffusion_targets(
    random: Random, chunks: Tensor, levels: int, num_train_timesteps: int, prediction_type: str
) -> TrainingTargets:
    """Which noise was added (Ho et al., arXiv:2006.11239, eq. 14), or to which chunk."""
    noise = random.normal((levels, *chunks.shape))
    k = random.integers(num_train_timesteps, noise.shape[:2])  # [K, B]
    alpha = chunks.new_tensor(cosine_alphas(num_train_timesteps))[k][..., None, None]
    noised = alpha.sqrt() * chunks + (1 - alpha).sqrt() * noise
    return TrainingTargets(noised, k.float(), noise if prediction_type == "epsilon" else chunks)


def flow_targets(
    random: Random, chunks: Tensor, levels: int, power: float | Tensor, latest: float | Tensor
) -> TrainingTargets:
    """The direction from noise to a chunk, at times of Beta(power, 1) from the chunk's end.

    Lipman et al., arXiv:2210.02747; times: Black et al., arXiv:2410.24164.
    """
    noise = random.normal((levels, *chunks.shape))
    u = random.uniform(noise.shape[:2]) ** (1 / power)
    t = latest * (1 - u)  # [K, B]: 0 is noise, 1 the chunk
    between = t[..., None, None] * chunks + (1 - t)[..., None, None] * noise
    return TrainingTargets(between, FLOW_TIME * t, chunks - noise)
