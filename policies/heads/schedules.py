"""Sampling of action chunks by denoising, with sampler tables: one row of coefficients per step.

Each denoising step calls the network once, f = network(input_scale x, time), and then computes

    x0 = clip(x0_from_x x + x0_from_f f, -1, 1)                      predicted clean chunk
    x  = x_weight x + f_weight f + x0_weight x0 + noise_std z        z: fresh noise
    x  = clip(x, -x_clip, x_clip), unless x_clip is 0

The chunk is the x after the last step. DDPM, DDIM, the Euler steps of a flow and the jumps of a
consistency model differ only in their tables. A table is a list of numbers, which a bundle stores.
Sampling needs nothing else, and no torch: x may be a numpy array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

Table = Sequence[Sequence[float]]

FLOW_TIME = 1000.0  # time input of the network = FLOW_TIME * flow time; flow time is in [0, 1]
SIGMAS = (0.02, 80.0)  # EDM's sigma_min and sigma_max, standard deviations of the noise
RHO, SIGMA_DATA = 7.0, 0.5  # EDM's rho (spacing of noise levels) and std of the data
EDM_TIME = 250.0  # time input of an EDM network = EDM_TIME * log(sigma)


class DenoisingStep(NamedTuple):
    """One row of a sampler table. The module's docstring defines the coefficients."""

    time: float
    input_scale: float
    x0_from_x: float
    x0_from_f: float
    x_weight: float
    f_weight: float
    x0_weight: float
    noise_std: float
    x_clip: float = 0.0


def count_noises(table: Table) -> int:
    """Return the number of noise samples per chunk: the first x, and one per stochastic step."""
    return 1 + sum(DenoisingStep(*row).noise_std > 0 for row in table)


def sample(table: Table, network: Callable[[Any, float], Any], noise: Any) -> Any:
    """Sample chunks [B, T, A]. Chunks of a flow may leave [-1, 1].

    network: function of x [B, T, A] and a time; returns f [B, T, A].
    noise: [B, count_noises(table), T, A], a tensor or an array.
    """
    x, num_used = noise[:, 0], 1
    for row in table:
        step = DenoisingStep(*row)
        f = network(step.input_scale * x, step.time)
        x0 = (step.x0_from_x * x + step.x0_from_f * f).clip(-1, 1)
        x = step.x_weight * x + step.f_weight * f + step.x0_weight * x0
        if step.noise_std > 0:
            x, num_used = x + step.noise_std * noise[:, num_used], num_used + 1
        x = x.clip(-step.x_clip, step.x_clip) if step.x_clip else x
    return x


def cosine_alphas(num_train_timesteps: int) -> tuple[float, ...]:
    """Return alpha-bar of each training timestep in the cosine schedule, as computed by diffusers.

    Nichol and Dhariwal, arXiv:2102.09672, eq. 17; beta is at most 0.999.
    """
    from diffusers.schedulers.scheduling_ddpm import DDPMScheduler

    scheduler = DDPMScheduler(
        num_train_timesteps=num_train_timesteps, beta_schedule="squaredcos_cap_v2"
    )
    return tuple(scheduler.alphas_cumprod.double().tolist())


def variance_preserving_alphas(num_train_timesteps: int) -> tuple[float, ...]:
    """Return alpha-bar of each training timestep in the variance-preserving schedule.

    Song et al., arXiv:2011.13456, with beta_min 0.1 and beta_max 10, in discrete steps.
    """
    low, high, total = 0.1, 10.0, num_train_timesteps
    return tuple(
        math.exp(-low * t / total - (high - low) / 2 * (t / total) ** 2)
        for t in range(1, total + 1)
    )


def ddpm(
    alphas: Sequence[float], num_inference_steps: int, prediction_type: Literal["epsilon", "sample"]
) -> Table:
    """Return the table of DDPM's ancestral sampling (Ho et al., arXiv:2006.11239, eq. 6 and 7).

    alphas: alpha-bar of each training timestep.
    The noise has the posterior variance. The predicted chunk is clipped, as with `clip_sample` in
    diffusers.
    """
    table = []
    for k, alpha_bar, next_alpha_bar in leading_timesteps(alphas, num_inference_steps):
        alpha = alpha_bar / next_alpha_bar
        noise_std = ((1 - next_alpha_bar) / (1 - alpha_bar) * (1 - alpha)) ** 0.5
        x_weight = alpha**0.5 * (1 - next_alpha_bar) / (1 - alpha_bar)
        x0_weight = next_alpha_bar**0.5 * (1 - alpha) / (1 - alpha_bar)
        x0 = x0_coefficients(alpha_bar, prediction_type)
        table.append(DenoisingStep(k, 1.0, *x0, x_weight, 0.0, x0_weight, noise_std))
    return table


def ddpm_clipping_x(alphas: Sequence[float]) -> Table:
    """Return the table of DDPM's ancestral sampling with clipped x instead of clipped x0.

    alphas: alpha-bar of each training timestep; there is a denoising step for each of them. The
    network predicts the noise. The fresh noise has the variance beta, the other choice in section
    3.2 of Ho et al., arXiv:2006.11239. As in philippe-eecs/IDQL:jaxrl5/networks/diffusion.py.
    """
    table = []
    for k, alpha_bar, next_alpha_bar in leading_timesteps(alphas, len(alphas)):
        alpha = alpha_bar / next_alpha_bar
        weights = alpha**-0.5, -(1 - alpha) / (alpha * (1 - alpha_bar)) ** 0.5, 0.0
        noise_std = (1 - alpha) ** 0.5 if k else 0.0
        table.append(DenoisingStep(k, 1.0, 0.0, 0.0, *weights, noise_std, x_clip=1.0))
    return table


def ddim(
    alphas: Sequence[float],
    num_inference_steps: int,
    prediction_type: Literal["epsilon", "sample"],
    eta: float = 0.0,
) -> Table:
    """Return the table of DDIM (Song et al., arXiv:2010.02502, eq. 12 and 16).

    alphas: alpha-bar of each training timestep.
    eta: factor of the noise that each step adds; 0 is deterministic.
    The term "direction pointing to x_t" uses the noise that the network predicts. As in diffusers,
    the noise is not computed again from the clipped chunk.
    """
    table = []
    for k, alpha_bar, next_alpha_bar in leading_timesteps(alphas, num_inference_steps):
        alpha = alpha_bar / next_alpha_bar
        noise_std = eta * ((1 - next_alpha_bar) / (1 - alpha_bar) * (1 - alpha)) ** 0.5
        noise_weight = max(1 - next_alpha_bar - noise_std**2, 0.0) ** 0.5
        x_weight, f_weight = 0.0, noise_weight
        if prediction_type == "sample":  # noise = (x - sqrt(alpha_bar) f) / sqrt(1 - alpha_bar)
            x_weight = noise_weight / (1 - alpha_bar) ** 0.5
            f_weight = -x_weight * alpha_bar**0.5
        x0 = x0_coefficients(alpha_bar, prediction_type)
        x0_weight = next_alpha_bar**0.5
        table.append(DenoisingStep(k, 1.0, *x0, x_weight, f_weight, x0_weight, noise_std))
    return table


def euler(num_inference_steps: int, eta: float = 0.0) -> Table:
    """Return the table of a flow's Euler steps from noise at time 0 to the chunk at time 1.

    eta: how much of the remaining noise each step replaces with fresh noise: 0 none, 1 all of it.
    The noise level at each time does not depend on eta (Wang and Yu, arXiv:2509.05952). The last
    step is deterministic.
    """
    step, cosine = 1 / num_inference_steps, math.cos(math.pi / 2 * eta)
    table = []
    for k in range(num_inference_steps):
        is_last = k + 1 == num_inference_steps
        noise_level = 0.0 if is_last else max(1 - (k + 1) * step, 0.0)  # after the step
        fresh = (1 - cosine) * noise_level
        x_weight, f_weight = 1.0 - fresh, step + fresh * k * step
        noise_std = math.sin(math.pi / 2 * eta) * noise_level
        time = FLOW_TIME * k * step
        table.append(DenoisingStep(time, 1.0, 0.0, 0.0, x_weight, f_weight, 0.0, noise_std))
    return table


def sigma(position: Any) -> Any:
    """Return EDM's noise level at a position in [0, 1] (Karras et al., arXiv:2206.00364, eq. 5).

    It falls from SIGMAS[1] at position 0 to SIGMAS[0] at position 1.
    """
    low, high = (end ** (1 / RHO) for end in SIGMAS)
    return (high + position * (low - high)) ** RHO


def boundary_coefficients(sigma: Any) -> tuple[Any, Any, Any]:
    """Return c_skip, c_out and c_in of the predicted chunk c_skip x + c_out net(c_in x).

    At the minimum noise the predicted chunk equals x. Song et al., arXiv:2303.01469, appendix C.
    """
    excess, norm = sigma - SIGMAS[0], (sigma**2 + SIGMA_DATA**2) ** 0.5
    return SIGMA_DATA**2 / (excess**2 + SIGMA_DATA**2), excess * SIGMA_DATA / norm, 1 / norm


def log_time(sigma: float) -> float:
    """Return the time input of the network at the noise level sigma."""
    return EDM_TIME * math.log(sigma)


def karras(num_inference_steps: int) -> Table:
    """Return the table of Euler steps along EDM's flow, which end at the minimum noise level."""
    table = []
    for k, (level, next_level) in enumerate(
        pairwise(sigma(k / num_inference_steps) for k in range(num_inference_steps + 1))
    ):
        skip, out, scale = boundary_coefficients(level)
        x_weight = next_level / level
        first = level if k == 0 else 1.0  # the first x is standard normal noise times sigma
        numbers = (scale * first, skip * first, out, x_weight * first, 0.0, 1 - x_weight, 0.0)
        table.append(DenoisingStep(log_time(level), *numbers))
    return table


def jumps(num_inference_steps: int, bins: int, unit: bool) -> Table:
    """Return the table of a consistency model. Each step jumps to the minimum noise level.

    After each jump except the last one, the sampler adds fresh noise.
    num_inference_steps: number of jumps, evenly spaced over the bins.
    bins: number of noise levels. Prasad et al. (arXiv:2405.07503) have 80 bins, and start three
    jumps at bins 0, 27 and 54.
    unit: the first x has the standard deviation 1, as in their code, instead of SIGMAS[1].
    """
    levels = [
        sigma(-(-bins * k // num_inference_steps) / (bins - 1)) for k in range(num_inference_steps)
    ]
    table = []
    for k, level in enumerate(levels):
        skip, out, scale = boundary_coefficients(level)
        ratio, first = SIGMAS[0] / level, level if k == 0 and not unit else 1.0
        numbers = (scale * first, (ratio + (1 - ratio) * skip) * first, (1 - ratio) * out)
        noise_std = levels[k + 1] if k + 1 < num_inference_steps else 0.0
        table.append(DenoisingStep(log_time(level), *numbers, 0.0, 0.0, 1.0, noise_std))
    return table


def leading_timesteps(
    alphas: Sequence[float], num_inference_steps: int
) -> list[tuple[int, float, float]]:
    """Return (timestep, alpha-bar, alpha-bar of the next timestep) for each denoising step.

    alphas: alpha-bar of each training timestep.
    The last step has no next timestep. Its next alpha-bar is 1. The timesteps have the spacing
    "leading" of diffusers: multiples of len(alphas) // num_inference_steps.
    """
    stride = len(alphas) // num_inference_steps
    visited = [k * stride for k in range(num_inference_steps)][::-1]
    return [(k, alphas[k], alphas[k - stride] if k >= stride else 1.0) for k in visited]


def x0_coefficients(
    alpha: float, prediction_type: Literal["epsilon", "sample"]
) -> tuple[float, float]:
    """Return the factors of x and of the network's output in the predicted clean chunk.

    alpha: alpha-bar of the timestep.
    """
    if prediction_type == "sample":
        return 0.0, 1.0
    return alpha**-0.5, -(((1 - alpha) / alpha) ** 0.5)
