"""A block of a causal transformer."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn

from policies.networks.init import normal_init
from policies.networks.mlp import MLP, LayerNorm


class Block(nn.Module):
    """Attention, then a perceptron of 4 D ReLUs, each on normalised input and added to it.

    The pre-norm block of GPT-2 (openai/gpt-2:src/model.py), with its initialisation.
    """

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        init, self.heads = normal_init(0.02), heads
        self.norm_attention, self.norm_mlp = LayerNorm(size), LayerNorm(size)
        self.attention_in = MLP(size, 3 * size, (), inner=True, init=init)
        self.attention_out = MLP(size, size, (), inner=True, init=init)
        self.mlp = MLP(size, size, (4 * size,), inner=True, init=init)

    def forward(self, x: Tensor, allowed: Tensor, drop: Callable[[Tensor], Tensor]) -> Tensor:
        """x: [B, L, D]. allowed: [B, L, L], which token (second) each one (first) may see."""
        parts = self.attention_in(self.norm_attention(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)  # [B, H, L, D / H] each
        scores = query @ key.mT / math.sqrt(query.shape[-1])  # [B, H, L, L]
        weights = scores.masked_fill(~allowed[:, None], -math.inf).softmax(-1)
        heads = drop(weights) @ value  # [B, H, L, D / H]
        x = x + drop(self.attention_out(heads.transpose(1, 2).flatten(-2)))
        return x + drop(self.mlp(self.norm_mlp(x)))
