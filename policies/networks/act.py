"""The transformer of ACT: learned or fixed places are added to queries and keys of every layer.

DETR's post-norm layers (Carion et al., arXiv:2005.12872), as ACT has them.
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


class PlacedAttention(nn.Module):
    """Attention whose queries and keys know their place, and whose values do not."""

    def __init__(self, size: int, heads: int, *, plain: bool = False) -> None:
        """plain: begins as torch's own."""
        super().__init__()
        packed = [MLP(size, size, (), inner=True, init=xavier(4 * size)) for _ in range(3)]
        self.query, self.key, self.value = packed  # initialized as one matrix of three times them
        # torch's bound for weights, 1 / sqrt(size), is Xavier's for six times the inputs
        self.out = MLP(size, size, (), inner=True, init=xavier((6 if plain else 2) * size))
        self.attention = Attention(heads)

    def forward(self, x: Tensor, place: Tensor, y: Tensor, there: Tensor, *how: object) -> Tensor:
        """x: [B, L, D] at `place`, to y: [B, M, D] at `there`. how: see `Attention`."""
        parts = self.query(x + place), self.key(y + there), self.value(y)
        return self.out(self.attention(*parts, *how))


class Layer(nn.Module):
    """Attention among tokens, to a memory where there is one, then a perceptron; post-norm."""

    def __init__(
        self, size: int, heads: int, hidden: int, *, recalls: bool = False, plain: bool = False
    ) -> None:
        """plain: begins as torch's own layers, not by Xavier's rule."""
        super().__init__()
        self.own = PlacedAttention(size, heads, plain=plain)
        self.norm_own, self.norm_mlp = LayerNorm(size), LayerNorm(size)
        if recalls:
            self.recall, self.norm_recall = PlacedAttention(size, heads), LayerNorm(size)
        init = torch_init if plain else xavier(size + hidden, zero_bias=False)
        self.mlp = MLP(size, size, (hidden,), inner=True, init=init)

    def forward(
        self,
        x: Tensor,
        place: Tensor,
        allowed: Tensor,
        drop: Drop,
        memory: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """x: [B, L, D] at `place` [L, D]. allowed: see `Attention`. memory: [B, M, D], [M, D]."""
        x = self.norm_own(x + drop(self.own(x, place, x, place, allowed, drop)))
        if memory is not None:
            everything = torch.ones(1, 1, dtype=torch.bool, device=x.device)
            x = self.norm_recall(x + drop(self.recall(x, place, *memory, everything, drop)))
        return self.norm_mlp(x + drop(self.mlp(x, drop)))


def xavier(fans: int, zero_bias: bool = True) -> Callable[[Tensor, Tensor, int, bool], None]:
    """Xavier's uniform weights for so many inputs and outputs; biases zero, or torch's."""

    def init(weight: Tensor, bias: Tensor, fan_in: int, is_last: bool) -> None:
        bound = math.sqrt(6 / fans)
        nn.init.uniform_(weight, -bound, bound)
        edge = 0.0 if zero_bias else 1 / math.sqrt(fan_in)
        nn.init.uniform_(bias, -edge, edge)

    return init


def fixed_places(count: int, size: int, device: torch.device) -> Tensor:
    """Sines and cosines in turn (Vaswani et al., arXiv:1706.03762), [count, size]."""
    place = torch.arange(count, device=device)[:, None]
    wave = torch.arange(size // 2, device=device) * (-2 * math.log(10_000) / size)
    angle = place * wave.exp()
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)
