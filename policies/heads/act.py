"""Chunks of actions by a transformer's queries, one for each step: ACT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from policies.networks.act import Layer, fixed_places
from policies.networks.dropout import Random, hidden_dropout
from policies.networks.mlp import MLP, LayerNorm
from policies.networks.scaled import Scaled, Seen


class ActionChunkingTransformer(Scaled):
    """A conditional VAE whose decoder attends to the observation (Zhao et al., arXiv:2304.13705).

    While it learns, an encoder of the demonstrated chunk tells its style `z`; acting, z is 0. A
    `heads.head.Planner`. The chunk begins with the present action.
    """

    noise_shape: tuple[int, ...] = ()

    def __init__(
        self,
        observations: Seen,
        actions: int,
        *,
        history: int = 1,
        window: int = 100,
        executed: int = 100,
        size: int = 512,
        heads: int = 8,
        hidden: int = 3200,
        layers: int = 4,
        decoder_layers: int = 1,
        style_layers: int = 4,
        style: int = 32,
        action_low: Sequence[float] | None = None,
        action_high: Sequence[float] | None = None,
        encoder: Mapping[str, Any] | None = None,
        blending: float | None = None,
        dropout_rate: float = 0.0,
    ) -> None:
        """window: actions of a chunk.  style: numbers in z.  hidden: units in each perceptron.

        observations, encoder: as of `heads.diffusion.DiffusionActor`.  blending: of `Planner`.
        """
        super().__init__(observations, actions, action_low, action_high, encoder)
        if size % heads or size % 2:
            raise ValueError(f"{heads} heads do not divide a size of {size}, which is to be even")
        if executed > window:
            raise ValueError(f"executed={executed} of a chunk of window={window} actions")
        self.arguments |= {
            "history": history,
            "window": window,
            "executed": executed,
            "size": size,
            "heads": heads,
            "hidden": hidden,
            "layers": layers,
            "decoder_layers": decoder_layers,
            "style_layers": style_layers,
            "style": style,
        }
        self.history, self.horizon, self.executed = history, window, executed
        self.blending = blending
        self.size, self.style, self.dropout_rate = size, style, dropout_rate
        seen = self.features * history

        def stack(count: int, **kind: bool) -> nn.ModuleList:
            return nn.ModuleList(Layer(size, heads, hidden, **kind) for _ in range(count))

        self.style_start = nn.Parameter(torch.randn(size))
        self.style_observation = MLP(seen, size, (), inner=True)
        self.style_action = MLP(actions, size, (), inner=True)
        self.style_blocks = stack(style_layers, plain=True)
        self.style_answer = MLP(size, 2 * style, ())
        self.embed_style = MLP(style, size, (), inner=True)
        self.embed_observation = MLP(seen, size, (), inner=True)
        self.place = nn.Parameter(torch.randn(2, size))
        self.queries = nn.Parameter(torch.randn(window, size))
        self.encoder, self.decoder = stack(layers), stack(decoder_layers, recalls=True)
        self.norm, self.answer = LayerNorm(size), MLP(size, actions, ())

    def forward(
        self, observations: Any, chunk: Tensor, real: Tensor, random: Random
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[B, history, *obs] or channels, demonstrated chunks [B, T, A] in [-1, 1], real [B, T].

        Returns the chunk [B, T, A], and mean and log variance of z [B, style]. Under dropout.
        """
        seen = self.encode(observations, random).flatten(1)
        mean, log_variance = self.styles(seen, chunk, real, random)
        z = mean + (log_variance / 2).exp() * random.normal(mean.shape)
        return self.decode(seen, z, random), mean, log_variance

    def styles(
        self, seen: Tensor, chunk: Tensor, real: Tensor, random: Random | None
    ) -> tuple[Tensor, Tensor]:
        """Mean and log variance of z, [B, style] each; actions that are not real are not seen."""
        drop, rows = self._drop(random), len(seen)
        start = self.style_start.expand(rows, 1, self.size)
        observed = self.style_observation(seen)[:, None]
        x = torch.cat([start, observed, self.style_action(chunk)], 1)
        place = fixed_places(x.shape[1], self.size, x.device)
        allowed = torch.cat([torch.ones_like(real[:, :1]).expand(-1, 2), real], 1)[:, None, None]
        for layer in self.style_blocks:
            x = layer(x, place, allowed, drop)
        mean, log_variance = self.style_answer(x[:, 0]).chunk(2, -1)
        return mean, log_variance

    def decode(self, seen: Tensor, z: Tensor, random: Random | None = None) -> Tensor:
        """[B, history * F], [B, style] -> the chunk [B, T, A] as the network sees it."""
        drop = self._drop(random)
        x = torch.stack([self.embed_style(z), self.embed_observation(seen)], 1)
        everything = torch.ones(1, 1, dtype=torch.bool, device=x.device)
        for layer in self.encoder:
            x = layer(x, self.place, everything, drop)
        chunk = torch.zeros(x.shape[0], self.horizon, self.size, device=x.device)
        for layer in self.decoder:
            chunk = layer(chunk, self.queries, everything, drop, (x, self.place))
        return self.answer(self.norm(chunk))

    def plan(self, observations: Any, noise: Tensor) -> Tensor:
        """See `Planner`."""
        seen = self.encode(observations).flatten(1)
        chunk = self.decode(seen, seen.new_zeros(seen.shape[0], self.style))
        return self.raw(chunk.clip(-1, 1)).clip(-1, 1)

    def _drop(self, random: Random | None):  # type: ignore[no-untyped-def]
        return hidden_dropout(self.dropout_rate, random) or (lambda values: values)
