"""Initialization of weights and biases."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

Init = Callable[[Tensor, Tensor, int, bool], None]  # weight [in, out], bias [out], fan_in, is_last


def torch_init(weight: Tensor, bias: Tensor, fan_in: int, is_last: bool) -> None:
    """Initialize like `torch.nn.Linear`: weights and biases uniform in +-1/sqrt(fan_in)."""
    bound = 1 / math.sqrt(fan_in)
    nn.init.uniform_(weight, -bound, bound)
    nn.init.uniform_(bias, -bound, bound)


def fan_out_init(weight: Tensor, bias: Tensor, fan_in: int, is_last: bool) -> None:
    """Initialize weights and biases uniformly in +-1/sqrt(fan_out).

    Some published code stores weights as [in, out], and initializes them with torch's functions,
    which expect [out, in]. The result is this initialization.
    """
    torch_init(weight, bias, bias.shape[-1], is_last)


def orthogonal_init(gain: float = math.sqrt(2), last_gain: float | None = None) -> Init:
    """Return an initialization with orthogonal weights and zero biases.

    last_gain: gain of the output layer, default `gain`.
    """

    def init(weight: Tensor, bias: Tensor, fan_in: int, is_last: bool) -> None:
        nn.init.orthogonal_(weight, last_gain if is_last and last_gain is not None else gain)
        nn.init.zeros_(bias)

    return init


def xavier_init(weight: Tensor, bias: Tensor, fan_in: int, is_last: bool) -> None:
    """Initialize weights with Xavier's uniform distribution, and biases with zero."""
    nn.init.xavier_uniform_(weight)
    nn.init.zeros_(bias)


def lecun_init(weight: Tensor, bias: Tensor, fan_in: int, is_last: bool) -> None:
    """Initialize weights with LeCun's truncated normal distribution, and biases with zero.

    It is the default of flax's Dense layers: a normal distribution cut off at two standard
    deviations, rescaled to the variance 1 / fan_in.
    """
    std = math.sqrt(1 / fan_in) / 0.87962566103423978
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)
    nn.init.zeros_(bias)


def half_lecun_init(weight: Tensor, bias: Tensor, fan_in: int, is_last: bool) -> None:
    """Initialize weights with a normal distribution of std 1 / (2 sqrt(fan_in)), biases with zero.

    They are truncated to [-2, 2]. Used for dynamics models (MBPO, Janner et al., arXiv:1906.08253).
    """
    nn.init.trunc_normal_(weight, std=1 / (2 * math.sqrt(fan_in)))
    nn.init.zeros_(bias)


def small_output_init(gain: float) -> Init:
    """Return `torch_init`, but the output layer has zero biases and Xavier weights times `gain`."""

    def init(weight: Tensor, bias: Tensor, fan_in: int, is_last: bool) -> None:
        torch_init(weight, bias, fan_in, is_last)
        if is_last:
            nn.init.xavier_uniform_(weight, gain)
            nn.init.zeros_(bias)

    return init


def scaled_output_init(gain: float) -> Init:
    """Return `torch_init`, but with output weights times `gain` and zero output biases."""

    def init(weight: Tensor, bias: Tensor, fan_in: int, is_last: bool) -> None:
        torch_init(weight, bias, fan_in, is_last)
        if is_last:
            with torch.no_grad():
                weight.mul_(gain)
            nn.init.zeros_(bias)

    return init


def uniform_output_init(bound: float, hidden_bias: float | None = None) -> Init:
    """Return `torch_init`, but the output layer is uniform in +-bound.

    hidden_bias: constant for the biases of the hidden layers. None: as in `torch_init`.
    """

    def init(weight: Tensor, bias: Tensor, fan_in: int, is_last: bool) -> None:
        torch_init(weight, bias, fan_in, is_last)
        if is_last:
            nn.init.uniform_(weight, -bound, bound)
            nn.init.uniform_(bias, -bound, bound)
        elif hidden_bias is not None:
            nn.init.constant_(bias, hidden_bias)

    return init


def normal_init(std: float) -> Init:
    """Return an initialization with normal weights and zero biases."""

    def init(weight: Tensor, bias: Tensor, fan_in: int, is_last: bool) -> None:
        nn.init.normal_(weight, std=std)
        nn.init.zeros_(bias)

    return init
