"""How networks start."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn

Init = Callable[[Tensor, Tensor, int, bool], None]  # weight [in, out], bias [out], fan_in, is_last


def torch_init(weight: Tensor, bias: Tensor, fan_in: int, is_last: bool) -> None:
    """`torch.nn.Linear`'s own: weight and bias uniform in +-1/sqrt(fan_in)."""
    bound = 1 / math.sqrt(fan_in)
    nn.init.uniform_(weight, -bound, bound)
    nn.init.uniform_(bias, -bound, bound)


def fan_out_init(weight: Tensor, bias: Tensor, fan_in: int, is_last: bool) -> None:
    """Weight and bias uniform in +-1/sqrt(outputs): for [in, out] what torch's is for [out, in]."""
    torch_init(weight, bias, bias.shape[-1], is_last)


def orthogonal_init(gain: float = math.sqrt(2), last_gain: float | None = None) -> Init:
    """Orthogonal weights, zero biases; `last_gain` (default: `gain`) for the output layer."""

    def init(weight: Tensor, bias: Tensor, fan_in: int, is_last: bool) -> None:
        nn.init.orthogonal_(weight, last_gain if is_last and last_gain is not None else gain)
        nn.init.zeros_(bias)

    return init


def xavier_init(weight: Tensor, bias: Tensor, fan_in: int, is_last: bool) -> None:
    """Xavier's uniform weights, zero biases."""
    nn.init.xavier_uniform_(weight)
    nn.init.zeros_(bias)


def small_output_init(gain: float) -> Init:
    """`torch_init`, but an output layer of Xavier's weights times `gain` and without bias."""

    def init(weight: Tensor, bias: Tensor, fan_in: int, is_last: bool) -> None:
        torch_init(weight, bias, fan_in, is_last)
        if is_last:
            nn.init.xavier_uniform_(weight, gain)
            nn.init.zeros_(bias)

    return init


def uniform_output_init(bound: float, hidden_bias: float | None = None) -> Init:
    """`torch_init`, but an output layer uniform in +-bound; `hidden_bias` for the other biases."""

    def init(weight: Tensor, bias: Tensor, fan_in: int, is_last: bool) -> None:
        torch_init(weight, bias, fan_in, is_last)
        if is_last:
            nn.init.uniform_(weight, -bound, bound)
            nn.init.uniform_(bias, -bound, bound)
        elif hidden_bias is not None:
            nn.init.constant_(bias, hidden_bias)

    return init


def normal_init(deviation: float) -> Init:
    """Normal weights, zero biases."""

    def init(weight: Tensor, bias: Tensor, fan_in: int, is_last: bool) -> None:
        nn.init.normal_(weight, std=deviation)
        nn.init.zeros_(bias)

    return init
