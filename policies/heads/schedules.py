"""How a head gets from noise to a chunk of actions: rounds of a table of numbers.

In each round a network is asked once, f = network(scale x, time), and then

    guess  = clip(guess_x x + guess_f f, -1, 1)        of the chunk
    x      = keep x + follow f + trust guess + spread z       z: fresh noise

The last round's x is the chunk. DDPM, DDIM, a flow's Euler steps and a consistency model's jumps
differ in their tables alone. A table is plain numbers that a bundle holds: running one needs none
of what it was made with, and no torch (x may be an array of numpy's).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

Table = Sequence[Sequence[float]]


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


@cache
def cosine_alphas(levels: int) -> tuple[float, ...]:
    """alpha-bar of each noise level: diffusers' for Nichol and Dhariwal's cosine schedule.

    arXiv:2102.09672, eq. 17; their betas are at most 0.999.
    """
    from diffusers.schedulers.scheduling_ddpm import DDPMScheduler

    made = DDPMScheduler(num_train_timesteps=levels, beta_schedule="squaredcos_cap_v2")
    return tuple(made.alphas_cumprod.double().tolist())


def ddpm(alphas: Sequence[float], rounds: int, predicts: Literal["noise", "action"]) -> Table:
    """Ancestral sampling (Ho et al., arXiv:2006.11239, eq. 6 and 7) in `rounds` of the levels.

    The posterior's own variance; the guess is clipped, as diffusers' `clip_sample` does.
    """
    table = []
    for k, now, before in leading(alphas, rounds):
        step = now / before  # alpha of the jump
        spread = ((1 - before) / (1 - now) * (1 - step)) ** 0.5
        keep = step**0.5 * (1 - before) / (1 - now)
        trust = before**0.5 * (1 - step) / (1 - now)
        table.append(Round(k, 1.0, *guess(now, predicts), keep, 0.0, trust, spread))
    return table


def ddim(
    alphas: Sequence[float], rounds: int, predicts: Literal["noise", "action"], eta: float = 0.0
) -> Table:
    """Song et al., arXiv:2010.02502, eq. 12 and 16, in `rounds` of the levels; eta 0 is certain.

    The noise that is followed is not that of the clipped guess but the network's own, as in
    diffusers.
    """
    table = []
    for k, now, before in leading(alphas, rounds):
        spread = eta * ((1 - before) / (1 - now) * (1 - now / before)) ** 0.5
        direction = max(1 - before - spread**2, 0.0) ** 0.5
        keep, follow = 0.0, direction
        if predicts == "action":  # noise = (x - sqrt(alpha) f) / sqrt(1 - alpha)
            keep = direction / (1 - now) ** 0.5
            follow = -keep * now**0.5
        table.append(
            Round(k, 1.0, *guess(now, predicts), keep, follow, before**0.5, spread),
        )
    return table


def euler(rounds: int) -> Table:
    """Along a flow from noise at time 0 to the chunk at time 1, in steps of one size."""
    return [Round(k / rounds, 1.0, 0.0, 0.0, 1.0, 1 / rounds, 0.0, 0.0) for k in range(rounds)]


def leading(alphas: Sequence[float], rounds: int) -> list[tuple[int, float, float]]:
    """The levels that are visited, with alpha-bar there and at the next one (1 behind the last).

    diffusers' spacing "leading": multiples of the levels by `rounds`, whole.
    """
    levels = len(alphas)
    stride = levels // rounds
    visited = [k * stride for k in range(rounds)][::-1]
    return [(k, alphas[k], alphas[k - stride] if k >= stride else 1.0) for k in visited]


def guess(alpha: float, predicts: Literal["noise", "action"]) -> tuple[float, float]:
    """How a chunk is guessed from x and from what the network answers."""
    if predicts == "action":
        return 0.0, 1.0
    return alpha**-0.5, -(((1 - alpha) / alpha) ** 0.5)


def centre_and_extent(low: float, high: float) -> tuple[float, float]:
    """Of an action's range; one that hardly moves is shifted alone, and not scaled up."""
    half = (high - low) / 2
    return (high + low) / 2, half if 2 * half >= 1e-4 else 1.0
