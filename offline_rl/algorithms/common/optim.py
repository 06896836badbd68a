"""Adam and learning-rate schedules as pure elementwise functions, which a compiler can fuse."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

Tree = Mapping[str, Tensor]
Number = float | Tensor


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, arXiv:1412.6980, algorithm 1); AdamW with `weight_decay`."""

    lr: Number
    # learning rates of parameter groups: part of a parameter's name -> its rate instead of `lr`
    rates: Mapping[str, Number] = field(default_factory=dict, kw_only=True)
    beta1: Number = 0.9
    beta2: Number = 0.999
    eps: Number = 1e-8
    weight_decay: Number = 0.0
    undecayed: tuple[str, ...] = ()  # substrings of the names of parameters without weight decay
    max_grad_norm: float | None = None  # clip the gradient's global norm to this
    schedule: Callable[[Tensor], Tensor] | None = None  # number of steps done -> factor on lr
    seeds_stop: bool = False  # seeds may stop at different steps; see `base.keep_where`

    def init(self, params: Tree) -> dict[str, dict[str, Tensor]]:
        """Return zero moments and a zero step count.

        Stacked seeds share the count `steps`. With `seeds_stop`, each seed has its own count,
        `steps_of_seed`.
        """
        device = next(iter(params.values())).device
        name = "steps_of_seed" if self.seeds_stop else "steps"
        return {
            "first": {k: torch.zeros_like(v) for k, v in params.items()},
            "second": {k: torch.zeros_like(v) for k, v in params.items()},
            "count": {name: torch.zeros((), dtype=torch.int64, device=device)},
        }

    def step(
        self, params: Tree, grads: Tree, state: Mapping[str, Tree]
    ) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
        """Return parameters and state after one step; nothing is changed in place."""
        if self.max_grad_norm is not None:
            grads = clip_norm({"": grads}, self.max_grad_norm)[""]
        [(name, done)] = state["count"].items()
        count = (done + 1).float()
        factor = 1.0 if self.schedule is None else self.schedule(done)
        lrs = {part: lr * factor for part, lr in [*self.rates.items(), ("", self.lr)]}
        # 1 - beta**count without cancellation. Combining scalars first saves divisions.
        correction = -(count * log(self.beta1)).expm1()
        sizes = {part: lr / correction for part, lr in lrs.items()}
        scale = (-(count * log(self.beta2)).expm1()).rsqrt()
        first, second, new = {}, {}, {}
        for k, p in params.items():
            group = next(part for part in lrs if part in k)  # "" is part of every name
            m = first[k] = torch.lerp(grads[k], state["first"][k], self.beta1)
            v = second[k] = self.beta2 * state["second"][k] + (1 - self.beta2) * grads[k].square()
            new[k] = p - sizes[group] * (m / (v.sqrt() * scale + self.eps))
            decays = isinstance(self.weight_decay, Tensor) or self.weight_decay
            if decays and not any(part in k for part in self.undecayed):
                new[k] = new[k] - lrs[group] * self.weight_decay * p
        return new, {"first": first, "second": second, "count": {name: done + 1}}


def clip_norm(grads: Mapping[str, Tree], max_norm: float) -> dict[str, dict[str, Tensor]]:
    """Return the gradients of one or several networks, scaled to at most `max_norm` together."""
    squares = [g.square().sum() for tree in grads.values() for g in tree.values()]
    factor = (max_norm / (torch.stack(squares).sum().sqrt() + 1e-6)).clamp(max=1)
    return {name: {k: g * factor for k, g in tree.items()} for name, tree in grads.items()}


def log(beta: Number) -> Number:
    """Return the natural logarithm of a number or a tensor."""
    return beta.log() if isinstance(beta, Tensor) else math.log(beta)


def warm_up(total: int) -> Callable[[Tensor], Tensor]:
    """Return a schedule that rises linearly from 1/total to 1 over the first `total` steps."""

    def factor(done: Tensor) -> Tensor:
        return ((done.float() + 1) / max(total, 1)).clamp(max=1)

    return factor


def cosine(total: int) -> Callable[[Tensor], Tensor]:
    """Return a schedule that falls from 1 to 0 along half a cosine over `total` steps."""

    def factor(done: Tensor) -> Tensor:
        return 0.5 * (1 + (math.pi * (done.float() / max(total, 1)).clamp(max=1)).cos())

    return factor


def warm_up_cosine(warm_up: int, total: int) -> Callable[[Tensor], Tensor]:
    """Return a schedule with a linear rise over `warm_up` steps, then a half-cosine fall to 0.

    It equals diffusers' `get_cosine_schedule_with_warmup`: the first step has a learning rate of 0.
    """

    def factor(done: Tensor) -> Tensor:
        fall = ((done.float() - warm_up) / max(total - warm_up, 1)).clamp(0, 1)
        return (done.float() / max(warm_up, 1)).clamp(max=1) * 0.5 * (1 + (math.pi * fall).cos())

    return factor
