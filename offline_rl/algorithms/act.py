"""ACT: a transformer answers with the whole chunk at once, one learned query for each of its steps.

While it learns, an encoder looks at the demonstrated chunk and tells its style, which is kept near
a normal distribution, so that the policy need not average styles; acting, the style is 0. The
error is absolute, and actions beyond an episode's end do not count.

Paper:   Zhao et al., RSS 2023, arXiv:2304.13705.
Differs: from LeRobot's (huggingface/lerobot:src/lerobot/policies/act), whose settings and single
         decoder layer are used, in that actions are scaled to their range, there standardized; and
         in that all that is seen is one token, pictures as the places of keypoints in pieces cut
         out of them, and told to the encoder of styles too, there a token for each place of a whole
         picture's map, of which styles know nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from torch import Tensor

from offline_rl.algorithms.common.base import Metrics, State, minimize_with
from offline_rl.algorithms.common.chunk_cloning import ChunkCloning, ChunkConfig
from offline_rl.algorithms.common.config import BUILT, Dropout, Rate
from offline_rl.algorithms.common.optim import Adam
from offline_rl.algorithms.common.vision import input_options
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Amount, Count, NonNegative, Positive, Share
from policies.heads.act import ActionChunkingTransformer


@dataclass(frozen=True)
class Config(ChunkConfig):
    """Defaults: LeRobot's."""

    n_obs_steps: Count = 1  # observations seen at once
    horizon: Count = 100  # actions predicted, from the present one on
    n_action_steps: Count = 100  # of these, taken before the next decision
    # temporal ensembling: with n_action_steps=1, what all chunks say of a step is averaged
    temporal_ensemble_coeff: NonNegative | None = (
        None  # m of the weights exp(-m i), i = 0 the oldest; paper: 0.01
    )
    mask_ends: bool = True  # learn nothing from actions repeated beyond an episode's ends
    dim_model: Count = 512  # of a token; even, and a multiple of heads
    num_heads: Count = 8  # of attention, in each layer
    dim_feedforward: Count = 3200  # of each layer's perceptron
    num_layers: Count = 4  # of the encoder
    num_decoder_layers: Count = 1  # of the decoder
    num_vae_encoder_layers: Count = 4  # of the encoder of styles
    latent_dim: Count = 32  # numbers in a style
    kl_weight: NonNegative = 10.0  # of the style's divergence from a normal distribution
    dropout: Dropout = 0.1  # in all layers, while it learns
    lr: Rate = 1e-5  # learning rate
    beta1: Share = 0.9  # of AdamW
    weight_decay: Share = 1e-4  # share of the weights, times lr, that an update takes off
    max_grad_norm: Annotated[Positive, BUILT] = 10.0  # of a gradient
    num_warmup_updates: Amount = 0  # over which lr rises
    decay_lr: bool = False  # then takes it to 0 along half a cosine over num_updates
    ema_max: Share = 0.0  # decay of the moving average that acts; 0: the last weights act
    batch_size: Count = 8  # chunks

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim_model % self.num_heads or self.dim_model % 2:
            raise ValueError(
                f"dim_model={self.dim_model} is no even multiple of num_heads={self.num_heads}"
            )
        if self.temporal_ensemble_coeff is not None and self.n_action_steps > 1:
            raise ValueError(
                f"temporal_ensemble_coeff={self.temporal_ensemble_coeff} averages what every step decides, so it needs "
                f"n_action_steps=1, found n_action_steps={self.n_action_steps}"
            )

    @property
    def num_future_actions(self) -> int:
        return self.horizon


class ACT(ChunkCloning):
    Config = Config
    beside: ClassVar[Literal["oldest", "present"]] = "present"

    def head(self) -> ActionChunkingTransformer:
        spec, cfg = self.spec, self.cfg
        chunk = (
            "n_obs_steps",
            "horizon",
            "n_action_steps",
            "action_low",
            "action_high",
            "temporal_ensemble_coeff",
        )
        sizes = (
            "dim_model",
            "num_heads",
            "num_layers",
            "num_decoder_layers",
            "num_vae_encoder_layers",
            "latent_dim",
        )
        options: dict[str, Any] = {name: getattr(cfg, name) for name in (*chunk, *sizes)}
        return ActionChunkingTransformer(
            actions=spec.action_dim,
            hidden=cfg.dim_feedforward,
            dropout_rate=cfg.dropout,
            **input_options(spec, cfg),
            **options,
        )

    def optimizers(self) -> dict[str, Adam]:
        adams = super().optimizers().items()
        return {name: replace(adam, max_grad_norm=self.cfg.max_grad_norm) for name, adam in adams}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """One step on absolute error and divergence."""
        a, random = self.unit(batch.actions), state.random  # [B, T, A]

        def policy_loss(model) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            chunk, mean, log_variance = model(batch.observations, a, batch.real, random)
            error = self.masked_mean((chunk - a).abs()[None], batch)
            divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp())
            kl = divergence.sum(-1).mean()  # sum over the style, mean over the batch
            return error + self.cfg.kl_weight * kl, (error, kl)

        state, policy_value, (error, kl) = minimize_with(state, "model", policy_loss)
        metrics = {"policy_loss": policy_value, "l1_loss": error, "kl": kl}
        return self.update_average(state), metrics
