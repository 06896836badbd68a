"""The head of ACT, a transformer that predicts a chunk of actions in one forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from policies.heads.head import ChunkHead, Memory, ObservationSizes
from policies.networks.act import Layer, sinusoidal_positions
from policies.networks.dropout import Random, hidden_dropout
from policies.networks.mlp import MLP, LayerNorm


class ActionChunkingTransformer(ChunkHead):
    """ACT, a conditional VAE with a transformer decoder (Zhao et al., arXiv:2304.13705).

    In training, an encoder infers the style variable `z` from the demonstrated chunk. When the
    policy acts, z is 0. The first action of the chunk is for the present step.
    """

    def __init__(
        self,
        observations: ObservationSizes,
        actions: int,
        *,
        n_obs_steps: int = 1,
        horizon: int = 100,
        n_action_steps: int = 100,
        dim_model: int = 512,
        num_heads: int = 8,
        hidden: int = 3200,
        num_layers: int = 4,
        num_decoder_layers: int = 1,
        num_vae_encoder_layers: int = 4,
        latent_dim: int = 32,
        action_low: Sequence[float] | None = None,
        action_high: Sequence[float] | None = None,
        encoder: Mapping[str, Any] | None = None,
        temporal_ensemble_coeff: float | None = None,
        dropout_rate: float = 0.0,
    ) -> None:
        """Create the head.

        observations, action_low, action_high, encoder: see `heads.diffusion.DiffusionActor`.
        horizon: number of actions in a chunk.
        n_action_steps: number of executed actions per chunk.
        latent_dim: size of z.  hidden: hidden units of the MLP in each transformer layer.
        temporal_ensemble_coeff: see `policies.episodes.RunningEpisodes`.
        dropout_rate: in training only.
        """
        super().__init__(observations, actions, action_low, action_high, encoder)
        if dim_model % num_heads or dim_model % 2:
            raise ValueError(
                f"dim_model={dim_model} must be even and a multiple of num_heads={num_heads}"
            )
        if n_action_steps > horizon:
            raise ValueError(f"n_action_steps={n_action_steps} is more than horizon={horizon}")
        self.arguments |= {
            "n_obs_steps": n_obs_steps,
            "horizon": horizon,
            "n_action_steps": n_action_steps,
            "dim_model": dim_model,
            "num_heads": num_heads,
            "hidden": hidden,
            "num_layers": num_layers,
            "num_decoder_layers": num_decoder_layers,
            "num_vae_encoder_layers": num_vae_encoder_layers,
            "latent_dim": latent_dim,
        }
        self.n_obs_steps, self.chunk_size, self.n_action_steps = (
            n_obs_steps,
            horizon,
            n_action_steps,
        )
        self.temporal_ensemble_coeff = temporal_ensemble_coeff
        self.dim_model, self.latent_dim, self.dropout_rate = dim_model, latent_dim, dropout_rate
        features = self.features * n_obs_steps

        def stack(count: int, **kind: bool) -> nn.ModuleList:
            return nn.ModuleList(Layer(dim_model, num_heads, hidden, **kind) for _ in range(count))

        self.style_start = nn.Parameter(torch.randn(dim_model))
        self.style_observation = MLP(features, dim_model, (), inner=True)
        self.style_action = MLP(actions, dim_model, (), inner=True)
        self.style_blocks = stack(num_vae_encoder_layers, torch_init_scheme=True)
        self.style_answer = MLP(dim_model, 2 * latent_dim, ())
        self.embed_style = MLP(latent_dim, dim_model, (), inner=True)
        self.embed_observation = MLP(features, dim_model, (), inner=True)
        self.place = nn.Parameter(torch.randn(2, dim_model))  # positions of z and observation
        self.queries = nn.Parameter(torch.randn(horizon, dim_model))
        self.encoder = stack(num_layers)
        self.decoder = stack(num_decoder_layers, cross_attends=True)
        self.norm, self.answer = LayerNorm(dim_model), MLP(dim_model, actions, ())

    def forward(
        self, observations: Any, chunk: Tensor, real: Tensor, random: Random
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Reconstruct the demonstrated chunks, with dropout.

        observations: [B, n_obs_steps, *obs], or channels of this shape by name.
        chunk: [B, T, A], normalized.  real: [B, T], False for padding.
        Returns the reconstruction [B, T, A], and mean and log variance of z, [B, latent_dim] each.
        """
        features = self.encode(observations, random).flatten(1)
        mean, log_variance = self.encode_style(features, chunk, real, random)
        z = mean + (log_variance / 2).exp() * random.normal(mean.shape)
        return self.decode(features, z, random), mean, log_variance

    def encode_style(
        self, features: Tensor, chunk: Tensor, real: Tensor, random: Random | None
    ) -> tuple[Tensor, Tensor]:
        """Return mean and log variance of z, [B, latent_dim] each. Attention ignores padding."""
        drop, rows = self._drop(random), len(features)
        start = self.style_start.expand(rows, 1, self.dim_model)
        observed = self.style_observation(features)[:, None]
        x = torch.cat([start, observed, self.style_action(chunk)], 1)
        positions = sinusoidal_positions(x.shape[1], self.dim_model, x.device)
        allowed = torch.cat([torch.ones_like(real[:, :1]).expand(-1, 2), real], 1)[:, None, None]
        for layer in self.style_blocks:
            x = layer(x, positions, allowed, drop)
        mean, log_variance = self.style_answer(x[:, 0]).chunk(2, -1)
        return mean, log_variance

    def decode(self, features: Tensor, z: Tensor, random: Random | None = None) -> Tensor:
        """Decode features and z to normalized chunks [B, T, A].

        features: [B, n_obs_steps * F].  z: [B, latent_dim].
        """
        drop = self._drop(random)
        x = torch.stack([self.embed_style(z), self.embed_observation(features)], 1)
        all_allowed = torch.ones(1, 1, dtype=torch.bool, device=x.device)
        for layer in self.encoder:
            x = layer(x, self.place, all_allowed, drop)
        chunk = torch.zeros(x.shape[0], self.chunk_size, self.dim_model, device=x.device)
        for layer in self.decoder:
            chunk = layer(chunk, self.queries, all_allowed, drop, (x, self.place))
        return self.answer(self.norm(chunk))

    def decide(self, observations: Any, memory: Memory, noise: Tensor) -> tuple[Tensor, Memory]:
        """See `Head.decide`."""
        features = self.encode(observations).flatten(1)
        chunk = self.decode(features, features.new_zeros(features.shape[0], self.latent_dim))
        return self.denormalize_actions(chunk.clip(-1, 1)).clip(-1, 1), memory

    def _drop(self, random: Random | None):  # type: ignore[no-untyped-def]
        return hidden_dropout(self.dropout_rate, random) or (lambda values: values)
