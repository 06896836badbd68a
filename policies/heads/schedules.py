"""How a head gets from noise to a chunk of actions: rounds of a table of numbers.

In each round a network is asked once, f = network(scale x, time), and then

    guess  = clip(guess_x x + guess_f f, -1, 1)        of the chunk
    x      = keep x + follow f + trust guess + spread z       z: fresh noise

The last round's x is the chunk. DDPM, DDIM, a flow's Euler steps and a consistency model's jumps
differ in their tables alone. A table is plain numbers that a bundle holds: running one needs none
of what it was made with, and no torch (x may be an array of numpy's).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

Table = Sequence[Sequence[float]]

FLOW_TIME = 1000.0  # a network is told a flow's time from 0 to this
SIGMAS = (0.02, 80.0)  # EDM's least and largest deviation of the noise
RHO, SPREAD = 7.0, 0.5  # EDM's spacing, and the deviation of what is learned
EDM_TIME = 250.0  # a network is told so many times the logarithm of the deviation


class Round(NamedTuple):
    """One row; the numbers are those of the module's text."""

    time: float
    scale: float
    guess_x: float
    guess_f: float
    keep: float
    follow: float
    trust: float
    spread: float


def draws(table: Table) -> int:
    """How many noises a chunk takes: the first x, and one for each round that spreads."""
    return 1 + sum(Round(*row).spread > 0 for row in table)


def sample(table: Table, network: Callable[[Any, float], Any], noise: Any) -> Any:
    """noise: [B, draws, T, A], a tensor or an array. network: x [B, T, A], time -> [B, T, A].

    Returns chunks [B, T, A]; those of a flow may leave [-1, 1].
    """
    x, used = noise[:, 0], 1
    for row in table:
        r = Round(*row)
        f = network(r.scale * x, r.time)
        guess = (r.guess_x * x + r.guess_f * f).clip(-1, 1)
        x = r.keep * x + r.follow * f + r.trust * guess
        if r.spread > 0:
            x, used = x + r.spread * noise[:, used], used + 1
    return x


def cosine_alphas(levels: int) -> tuple[float, ...]:
    """alpha-bar of each noise level: diffusers' for Nichol and Dhariwal's cosine schedule.

    arXiv:2102.09672, eq. 17; their betas are at most 0.999.
    """
    from diffusers.schedulers.scheduling_ddpm import DDPMScheduler

    made = DDPMScheduler(num_train_timesteps=levels, beta_schedule="squaredcos_cap_v2")
    return tuple(made.alphas_cumprod.double().tolist())


def ddpm(
    alphas: Sequence[float], num_inference_steps: int, prediction_type: Literal["epsilon", "sample"]
) -> Table:
    """Ancestral sampling (Ho et al., arXiv:2006.11239, eq. 6 and 7) in `num_inference_steps` of the levels.

    The posterior's own variance; the guess is clipped, as diffusers' `clip_sample` does.
    """
    table = []
    for k, now, before in leading(alphas, num_inference_steps):
        step = now / before  # alpha of the jump
        spread = ((1 - before) / (1 - now) * (1 - step)) ** 0.5
        keep = step**0.5 * (1 - before) / (1 - now)
        trust = before**0.5 * (1 - step) / (1 - now)
        table.append(Round(k, 1.0, *guess(now, prediction_type), keep, 0.0, trust, spread))
    return table


def ddim(
    alphas: Sequence[float],
    num_inference_steps: int,
    prediction_type: Literal["epsilon", "sample"],
    eta: float = 0.0,
) -> Table:
    """Song et al., arXiv:2010.02502, eq. 12 and 16, in `num_inference_steps` of the levels; eta 0 is certain.

    The noise that is followed is not that of the clipped guess but the network's own, as in
    diffusers.
    """
    table = []
    for k, now, before in leading(alphas, num_inference_steps):
        spread = eta * ((1 - before) / (1 - now) * (1 - now / before)) ** 0.5
        direction = max(1 - before - spread**2, 0.0) ** 0.5
        keep, follow = 0.0, direction
        if prediction_type == "sample":  # noise = (x - sqrt(alpha) f) / sqrt(1 - alpha)
            keep = direction / (1 - now) ** 0.5
            follow = -keep * now**0.5
        table.append(
            Round(k, 1.0, *guess(now, prediction_type), keep, follow, before**0.5, spread),
        )
    return table


def euler(num_inference_steps: int, eta: float = 0.0) -> Table:
    """Along a flow from noise at time 0 to the chunk at time 1, in steps of one size.

    eta: how much of the noise that is left is drawn anew in every step, all at 1, its share staying
    as the time says (Wang and Yu, arXiv:2509.05952); the last step is certain.
    """
    step, certain = 1 / num_inference_steps, math.cos(math.pi / 2 * eta)
    table = []
    for k in range(num_inference_steps):
        left = (
            max(1 - (k + 1) * step, 0.0) if k + 1 < num_inference_steps else 0.0
        )  # of noise, after the step
        fresh = (1 - certain) * left
        keep, follow = 1.0 - fresh, step + fresh * k * step
        spread = math.sin(math.pi / 2 * eta) * left
        table.append(Round(FLOW_TIME * k * step, 1.0, 0.0, 0.0, keep, follow, 0.0, spread))
    return table


def sigma(place: Any) -> Any:
    """EDM's deviation of the noise at a place in [0, 1], 0 being the noisiest.

    Karras et al., arXiv:2206.00364, eq. 5, from SIGMAS[1] down to SIGMAS[0].
    """
    low, high = (end ** (1 / RHO) for end in SIGMAS)
    return (high + place * (low - high)) ** RHO


def boundary(sigma: Any) -> tuple[Any, Any, Any]:
    """c_skip, c_out, c_in: the guess c_skip x + c_out net(c_in x) is x itself at the least noise.

    Song et al., arXiv:2303.01469, appendix C.
    """
    least, spread = sigma - SIGMAS[0], (sigma**2 + SPREAD**2) ** 0.5
    return SPREAD**2 / (least**2 + SPREAD**2), least * SPREAD / spread, 1 / spread


def log_time(sigma: float) -> float:
    """What a network is told of it."""
    return EDM_TIME * math.log(sigma)


def karras(num_inference_steps: int) -> Table:
    """Euler's steps along EDM's flow, down to its least noise, which stays."""
    table = []
    for k, (now, following) in enumerate(
        pairwise(sigma(k / num_inference_steps) for k in range(num_inference_steps + 1))
    ):
        skip, out, scale = boundary(now)
        keep, first = following / now, now if k == 0 else 1.0  # the first x is noise times sigma
        numbers = (scale * first, skip * first, out, keep * first, 0.0, 1 - keep, 0.0)
        table.append(Round(log_time(now), *numbers))
    return table


def jumps(num_inference_steps: int, bins: int, unit: bool) -> Table:
    """A consistency model's jumps to the least noise, noised again between them.

    At `num_inference_steps` of the bins, evenly (Prasad et al., arXiv:2405.07503: 80, and for three jumps bins
    0, 27 and 54).  unit: the first x is noise of deviation 1, as they have it, not SIGMAS[1].
    """
    visited = [
        sigma(-(-bins * k // num_inference_steps) / (bins - 1)) for k in range(num_inference_steps)
    ]
    table = []
    for k, now in enumerate(visited):
        skip, out, scale = boundary(now)
        kept, first = SIGMAS[0] / now, now if k == 0 and not unit else 1.0
        numbers = (scale * first, (kept + (1 - kept) * skip) * first, (1 - kept) * out)
        spread = visited[k + 1] if k + 1 < num_inference_steps else 0.0
        table.append(Round(log_time(now), *numbers, 0.0, 0.0, 1.0, spread))
    return table


def leading(alphas: Sequence[float], num_inference_steps: int) -> list[tuple[int, float, float]]:
    """The levels that are visited, with alpha-bar there and at the next one (1 behind the last).

    diffusers' spacing "leading": multiples of the levels by `num_inference_steps`, whole.
    """
    levels = len(alphas)
    stride = levels // num_inference_steps
    visited = [k * stride for k in range(num_inference_steps)][::-1]
    return [(k, alphas[k], alphas[k - stride] if k >= stride else 1.0) for k in visited]


def guess(alpha: float, prediction_type: Literal["epsilon", "sample"]) -> tuple[float, float]:
    """How a chunk is guessed from x and from what the network answers."""
    if prediction_type == "sample":
        return 0.0, 1.0
    return alpha**-0.5, -(((1 - alpha) / alpha) ** 0.5)
