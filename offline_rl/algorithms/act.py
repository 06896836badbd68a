"""ACT: action chunking with a transformer CVAE.

A transformer predicts the complete action chunk in one forward pass, one query per step. In
training, an encoder maps the demonstrated chunk to a latent style whose distribution is kept near a
standard normal, so that the policy need not average over styles. At test time the style is 0. The
loss is the absolute error; actions beyond an episode's end do not count.

Paper:   Zhao et al., RSS 2023, arXiv:2304.13705.
Differs: from LeRobot's (huggingface/lerobot:src/lerobot/policies/act), whose settings and single
         decoder layer are used. Actions are scaled to their range; LeRobot standardizes them. All
         observations form one token. Images enter it as spatial keypoints of random crops. The
         style encoder also receives this token. In LeRobot, each location of the feature map of the
         uncropped image is a token, and the style encoder receives no image.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from offline_rl.algorithms.common.base import LossAndMetrics, Metrics, Network, State
from offline_rl.algorithms.common.chunk_cloning import ChunkCloning, ChunkConfig
from offline_rl.algorithms.common.config import BUILT, Dropout, Rate
from offline_rl.algorithms.common.optim import Adam
from offline_rl.algorithms.common.vision import input_options
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Amount, Count, NonNegative, Positive, Share, frozen
from policies.heads.act import ActionChunkingTransformer


@frozen
class Config(ChunkConfig):
    """Defaults: LeRobot's."""

    n_obs_steps: Count = 1  # number of past observations in the input
    horizon: Count = 100  # number of predicted actions, from the current step on
    n_action_steps: Count = 100  # predicted actions that are executed before the next prediction
    # temporal ensembling averages the predictions of overlapping chunks; it needs n_action_steps=1
    temporal_ensemble_coeff: NonNegative | None = (
        None  # m of the weights exp(-m i), i = 0 the oldest chunk; paper: 0.01; null: off
    )
    mask_ends: bool = True  # exclude actions padded beyond an episode's end from the loss
    dim_model: Count = 512  # size of a token: even, and a multiple of num_heads
    num_heads: Count = 8  # attention heads in each layer
    dim_feedforward: Count = 3200  # units of each layer's feed-forward block
    num_layers: Count = 4  # layers of the encoder
    num_decoder_layers: Count = 1  # layers of the decoder
    num_vae_encoder_layers: Count = 4  # layers of the style encoder
    latent_dim: Count = 32  # dimensions of the latent style
    kl_weight: NonNegative = 10.0  # weight of the KL divergence of the style from a standard normal
    dropout: Dropout = 0.1  # dropout rate in all layers during training
    lr: Rate = 1e-5  # learning rate
    beta1: Share = 0.9  # beta1 of AdamW
    weight_decay: Share = 1e-4  # weight decay of AdamW
    max_grad_norm: Annotated[Positive, BUILT] = 10.0  # gradients are clipped to this norm
    num_warmup_updates: Amount = 0  # updates over which the learning rate rises
    decay_lr: bool = False  # cosine decay of the learning rate to 0 over num_updates
    ema_max: Share = 0.0  # EMA decay of the weights used at evaluation; 0: the last weights
    batch_size: Count = 8  # chunks per update

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim_model % self.num_heads or self.dim_model % 2:
            raise ValueError(
                f"dim_model={self.dim_model} must be even and a multiple of "
                f"num_heads={self.num_heads}."
            )
        if self.temporal_ensemble_coeff is not None and self.n_action_steps > 1:
            raise ValueError(
                f"temporal_ensemble_coeff={self.temporal_ensemble_coeff} needs a prediction at "
                f"every step, but n_action_steps={self.n_action_steps}. Set n_action_steps=1."
            )

    @property
    def num_future_actions(self) -> int:
        return self.horizon

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {
            "dim_model": 8,
            "dim_feedforward": 16,
            "num_layers": 1,
            "num_vae_encoder_layers": 1,
            "latent_dim": 3,
        }


class ACT(ChunkCloning):
    Config: type = Config
    data_parallel: ClassVar[bool] = True
    chunk_start: ClassVar[Literal["oldest", "present"]] = "present"  # at the current step

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
        """Update the model on absolute error and KL divergence."""
        a, random = self.normalize_actions(batch.actions), state.random  # [B, T, A]

        def policy_loss(model: Network) -> LossAndMetrics:
            chunk, mean, log_variance = model(batch.observations, a, batch.valid, random)
            error = self.masked_mean((chunk - a).abs()[None], batch)
            divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp())
            kl = divergence.sum(-1).mean()  # sum over dimensions, mean over the batch
            return error + self.cfg.kl_weight * kl, {"l1_loss": error, "kl": kl}

        return self.update_model(state, policy_loss)
