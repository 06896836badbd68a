"""Transformer blocks, and the transformer of Diffusion Policy, which denoises chunks."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from policies.networks.init import normal_init
from policies.networks.mlp import MLP, Activation, LayerNorm
from policies.networks.time import sinusoids

Drop = Callable[[Tensor], Tensor]


class Attention(nn.Module):
    """Multi-head attention without projections.

    Matrix multiplications run in `compute_dtype` (see `policies.networks.precision`). The softmax
    runs in float32.
    """

    compute_dtype = torch.float32

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, drop: Drop
    ) -> Tensor:
        """Return [B, L, D] for query [B, L, D] and key, value [B, M, D].

        allowed: [B, 1, L, M] or [L, M]; True where query token L may attend to key token M.
        drop: dropout function for the attention weights.
        """
        dtype, parts = self.compute_dtype, (query, key, value)
        q, k, v = (x.to(dtype).unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in parts)
        scores = (q @ k.mT).float() / math.sqrt(q.shape[-1])  # [B, H, L, M]
        weights = drop(scores.masked_fill(~allowed, -math.inf).softmax(-1))
        return (weights.to(dtype) @ v).float().transpose(1, 2).flatten(-2)


class Block(nn.Module):
    """The pre-norm block of GPT-2 (openai/gpt-2:src/model.py), with the initialization of GPT-2.

    It consists of self-attention and an MLP with 4 D hidden units.
    """

    def __init__(self, size: int, heads: int, activation: Activation = "relu") -> None:
        super().__init__()
        init, self.attention = normal_init(0.02), Attention(heads)
        self.norm_attention, self.norm_mlp = LayerNorm(size), LayerNorm(size)
        self.attention_in = MLP(size, 3 * size, (), inner=True, init=init)
        self.attention_out = MLP(size, size, (), inner=True, init=init)
        self.mlp = MLP(size, size, (4 * size,), activation=activation, inner=True, init=init)

    def forward(self, x: Tensor, allowed: Tensor, drop: Drop) -> Tensor:
        """Return [B, L, D] for x [B, L, D].

        allowed: [B, L, L]; True at [b, i, j] where token i may attend to token j.
        """
        parts = self.attention_in(self.norm_attention(x)).chunk(3, -1)
        x = x + drop(self.attention_out(self.attention(*parts, allowed[:, None], drop)))
        return x + drop(self.mlp(self.norm_mlp(x)))


class DecoderBlock(nn.Module):
    """A pre-norm decoder block: self-attention, cross-attention and an MLP.

    The MLP has 4 D hidden units with GELU.
    """

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        init, self.attention = normal_init(0.02), Attention(heads)

        def linear(outputs: int) -> MLP:
            return MLP(size, outputs, (), inner=True, init=init)

        self.norm_self, self.norm_cross, self.norm_mlp = (LayerNorm(size) for _ in range(3))
        self.self_in, self.self_out = linear(3 * size), linear(size)
        self.cross_query, self.cross_in = linear(size), linear(2 * size)
        self.cross_out = linear(size)
        self.mlp = MLP(size, size, (4 * size,), activation="gelu", inner=True, init=init)

    def forward(
        self, x: Tensor, memory: Tensor, allowed: Tensor, memory_allowed: Tensor, drop: Drop
    ) -> Tensor:
        """Return [B, L, D] for x [B, L, D] and memory [B, M, D].

        allowed: [L, L], memory_allowed: [L, M]; True at [i, j] where token i may attend to token j.
        """
        parts = self.self_in(self.norm_self(x)).chunk(3, -1)
        x = x + drop(self.self_out(self.attention(*parts, allowed, drop)))
        query, parts = self.cross_query(self.norm_cross(x)), self.cross_in(memory).chunk(2, -1)
        x = x + drop(self.cross_out(self.attention(query, *parts, memory_allowed, drop)))
        return x + drop(self.mlp(self.norm_mlp(x), drop))


class ChunkTransformer(nn.Module):
    """A causal transformer decoder over the actions of a chunk.

    Each action attends to the diffusion times, and to actions and observations up to its own step.
    It is the decoder of real-stanford/diffusion_policy:diffusion_policy/model/diffusion/
    transformer_for_diffusion.py. Times and observations are encoded by an MLP with 4 * size hidden
    units, applied to each token.
    """

    def __init__(
        self,
        actions: int,
        horizon: int,
        n_obs_steps: int,
        observations: int,
        *,
        size: int = 256,
        layers: int = 8,
        heads: int = 4,
        times: int = 1,
    ) -> None:
        """Create the network.

        observations: size of one encoded observation.
        horizon: number of actions. The first action belongs to the step of the oldest observation.
        times: number of time inputs.
        """
        super().__init__()
        if size % heads:
            raise ValueError(f"size={size} is not a multiple of heads={heads}")
        init = normal_init(0.02)
        self.times, self.size = times, size
        self.embed_action = MLP(actions, size, (), inner=True, init=init)
        self.embed_observation = MLP(observations, size, (), inner=True, init=init)
        self.place = nn.Parameter(0.02 * torch.randn(horizon, size))  # position embeddings
        self.memory_place = nn.Parameter(0.02 * torch.randn(times + n_obs_steps, size))
        self.memory = MLP(size, size, (4 * size,), activation="mish", inner=True, init=init)
        self.blocks = nn.ModuleList(DecoderBlock(size, heads) for _ in range(layers))
        self.norm = LayerNorm(size)
        self.answer = MLP(size, actions, (), init=init)

    def forward(self, x: Tensor, times: Tensor, features: Tensor, drop: Drop) -> Tensor:
        """Return [R, L, actions] for x [R, L, actions].

        times: [R, number of time inputs].  features: [R, n_obs_steps, F].
        """
        time_embeddings = sinusoids(times, self.size)
        memory = torch.cat([time_embeddings, self.embed_observation(features)], 1)
        memory = self.memory(memory + self.memory_place)
        step = torch.arange(x.shape[1], device=x.device)[:, None]
        # negative for time tokens, which every action may attend to
        memory_step = torch.arange(memory.shape[1], device=x.device) - self.times
        x = self.embed_action(x) + self.place
        for block in self.blocks:
            x = block(x, memory, step >= step.T, memory_step <= step, drop)
        return self.answer(self.norm(x))
