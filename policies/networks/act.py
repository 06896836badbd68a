"""The transformer layers of ACT: the post-norm layers of DETR (Carion et al., arXiv:2005.12872).

Each layer adds position embeddings to its queries and keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from policies.networks.init import torch_init
from policies.networks.mlp import MLP, LayerNorm
from policies.networks.transformer import Attention

Drop = Callable[[Tensor], Tensor]


class PositionalAttention(nn.Module):
    """Attention with position embeddings in queries and keys, but not in values."""

    def __init__(self, size: int, heads: int, *, torch_init_scheme: bool = False) -> None:
        """Create the projections.

        torch_init_scheme: initialize the output projection as torch does.
        """
        super().__init__()
        packed = [MLP(size, size, (), inner=True, init=xavier(4 * size)) for _ in range(3)]
        self.query, self.key, self.value = packed  # initialized as one matrix [size, 3 * size]
        # Xavier's bound is sqrt(6 / fans). For fans = 6 * size it is torch's bound 1 / sqrt(size).
        fans = (6 if torch_init_scheme else 2) * size
        self.out = MLP(size, size, (), inner=True, init=xavier(fans))
        self.attention = Attention(heads)

    def forward(
        self, x: Tensor, x_position: Tensor, y: Tensor, y_position: Tensor, *options: object
    ) -> Tensor:
        """Attend from x [B, L, D] to y [B, M, D].

        x_position, y_position: position embeddings.  options: `allowed` and `drop` of `Attention`.
        """
        parts = self.query(x + x_position), self.key(y + y_position), self.value(y)
        return self.out(self.attention(*parts, *options))


class Layer(nn.Module):
    """A post-norm transformer layer: self-attention, optional cross-attention, and an MLP."""

    def __init__(
        self,
        size: int,
        heads: int,
        hidden: int,
        *,
        cross_attends: bool = False,
        torch_init_scheme: bool = False,
    ) -> None:
        """Create the layer.

        torch_init_scheme: initialize self-attention output and MLP as torch does, not by Xavier's
        rule.
        """
        super().__init__()
        self.self_attention = PositionalAttention(size, heads, torch_init_scheme=torch_init_scheme)
        self.norm_self, self.norm_mlp = LayerNorm(size), LayerNorm(size)
        if cross_attends:
            self.cross_attention = PositionalAttention(size, heads)
            self.norm_cross = LayerNorm(size)
        init = torch_init if torch_init_scheme else xavier(size + hidden, zero_bias=False)
        self.mlp = MLP(size, size, (hidden,), inner=True, init=init)

    def forward(
        self,
        x: Tensor,
        position: Tensor,
        allowed: Tensor,
        drop: Drop,
        memory: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Return the layer's output [B, L, D] for x [B, L, D].

        position: position embeddings [L, D].  allowed, drop: see `Attention`.
        memory: values [B, M, D] and position embeddings [M, D] for the cross-attention.
        """
        attended = self.self_attention(x, position, x, position, allowed, drop)
        x = self.norm_self(x + drop(attended))
        if memory is not None:
            all_allowed = torch.ones(1, 1, dtype=torch.bool, device=x.device)
            attended = self.cross_attention(x, position, *memory, all_allowed, drop)
            x = self.norm_cross(x + drop(attended))
        return self.norm_mlp(x + drop(self.mlp(x, drop)))


def xavier(fans: int, zero_bias: bool = True) -> Callable[[Tensor, Tensor, int, bool], None]:
    """Return Xavier's uniform initialization for fan_in + fan_out = fans.

    zero_bias: set biases to zero. Otherwise initialize biases as torch does.
    """

    def init(weight: Tensor, bias: Tensor, fan_in: int, is_last: bool) -> None:
        bound = math.sqrt(6 / fans)
        nn.init.uniform_(weight, -bound, bound)
        bias_bound = 0.0 if zero_bias else 1 / math.sqrt(fan_in)
        nn.init.uniform_(bias, -bias_bound, bias_bound)

    return init


def sinusoidal_positions(count: int, size: int, device: torch.device) -> Tensor:
    """Return sinusoidal position embeddings [count, size] (Vaswani et al., arXiv:1706.03762).

    Sines and cosines alternate along the last axis.
    """
    position = torch.arange(count, device=device)[:, None]
    wave = torch.arange(size // 2, device=device) * (-2 * math.log(10_000) / size)
    angle = position * wave.exp()
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)
