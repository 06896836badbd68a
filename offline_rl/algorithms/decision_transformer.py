"""Decision Transformer: return-conditioned sequence modeling, without value functions.

A causal transformer reads (return-to-go, observation, action) of past steps and predicts the data's
action. At test time it is conditioned on a target return, from which each reward is subtracted.

Paper:   Chen et al., NeurIPS 2021, arXiv:2106.01345.
Differs: from the authors' code (kzl/decision-transformer:gym). Short windows are padded at their
         end, and no step attends to the padding; the authors pad and mask their start. Observations
         are divided by their standard deviation plus 1e-3; the authors add 1e-6. To evaluate the
         authors' second target return, run `offline-rl evaluate run=… target_return=…`. The dropout
         rate of embeddings is `dropout`; in the authors' code it is always GPT-2's 0.1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from torch import nn

from offline_rl.algorithms.common.base import Algorithm, Metrics, State, minimize
from offline_rl.algorithms.common.config import BaseConfig, Dropout, Rate
from offline_rl.algorithms.common.optim import Adam, warm_up
from offline_rl.data.dataset import Dataset
from offline_rl.replay.batch import Batch, Source, Sources
from offline_rl.replay.chunks import Sequences
from offline_rl.utils.options import Amount, Count, Number, Positive, Share, frozen
from policies.heads.decision_transformer import DecisionTransformer


@frozen
class Config(BaseConfig):
    """Defaults: the authors' code. They train for 100,000 updates."""

    target_return: Number | None = None  # raw return to condition on; null: best in the data
    return_scale: Positive | None = None  # divides returns; null: the largest |return| of the data
    counted: bool = False  # rewards in the data are cumulative: train on their differences
    context_length: Count = 20  # steps in the context (K)
    dim_model: Count = 128  # embedding size: a multiple of num_heads
    num_layers: Count = 3  # transformer layers
    num_heads: Count = 1  # attention heads in each layer
    episode_steps: Count | None = (
        1000  # number of time step embeddings, the last for all later steps; null: longest episode
    )
    dropout: Dropout = 0.1  # dropout rate during training
    lr: Rate = 1e-4  # learning rate
    weight_decay: Share = 1e-4  # weight decay of AdamW
    max_grad_norm: Positive = 0.25  # gradients are clipped to this norm
    num_warmup_updates: Amount = 10_000  # updates over which the learning rate rises
    normalize_observations: bool = True
    batch_size: Count = 64  # windows per update
    discount: ClassVar[float] = 1.0  # returns-to-go are plain sums

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim_model % self.num_heads:
            raise ValueError(
                f"num_heads={self.num_heads} does not divide dim_model={self.dim_model}. "
                "Use a divisor."
            )
        if self.normalize_returns or (self.reward_scale, self.reward_shift) != (1, 0):
            raise ValueError(
                "normalize_returns, reward_scale and reward_shift change the returns that "
                "condition the policy. Use return_scale."
            )

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {
            "dim_model": 8,
            "num_layers": 2,
            "num_heads": 2,
            "episode_steps": 20,
            "num_warmup_updates": 5,
            "target_return": 3.0,
            "return_scale": 2.0,
        }


class DT(Algorithm):
    Config: type = Config
    extra_columns: ClassVar[tuple[str, ...]] = ("mc_returns", "timesteps")
    follows_card = False  # target_return is a raw return, so rewards must not be preprocessed
    imitation_phases = ("update",)

    def prepare(self, dataset: Dataset) -> tuple[Dataset, Any]:
        """Return the data with the reward of each single step.

        Target return, return scale and episode steps follow from the data where they are null.
        """
        cfg, data = self.cfg, with_paid_rewards(self.cfg, dataset)
        returns = data.episode_returns()
        if cfg.target_return is None:
            cfg = replace(cfg, target_return=float(returns.max()))
        if cfg.return_scale is None:
            cfg = replace(cfg, return_scale=float(np.abs(returns).max()) or 1.0)
        if cfg.episode_steps is None:
            cfg = replace(cfg, episode_steps=int(data.episode_lengths().max()))
        return data, cfg

    def source(self, phase: str, sources: Sources) -> Source:
        return Sequences(super().source(phase, sources), self.cfg.context_length)

    def networks(self) -> dict[str, nn.Module]:
        spec, cfg = self.spec, self.cfg
        self.check_targets()
        names = (
            "target_return",
            "return_scale",
            "context_length",
            "dim_model",
            "num_layers",
            "num_heads",
        )
        options = {name: getattr(cfg, name) for name in (*names, "episode_steps")}
        return {
            "policy": DecisionTransformer(
                spec.observation_dim, spec.action_dim, dropout_rate=cfg.dropout, **options
            )
        }

    def check_targets(self) -> None:
        """Raise ValueError if the config is not completed by `prepare`."""
        if self.cfg.target_return is None or self.cfg.return_scale is None:
            raise ValueError(
                "target_return and return_scale are null. Call DT.prepare with the data."
            )

    def optimizers(self) -> dict[str, Adam]:
        cfg, schedule = self.cfg, warm_up(self.cfg.num_warmup_updates)
        decay, norm = cfg.weight_decay, cfg.max_grad_norm
        return {"policy": Adam(cfg.lr, weight_decay=decay, max_grad_norm=norm, schedule=schedule)}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update the policy by regression on every valid step of the windows."""
        s, a, valid = batch.observations, batch.actions, batch.valid  # [B, T, O], [B, T, A], [B, T]
        assert batch.timesteps is not None
        assert valid is not None
        returns, timesteps = batch.mc_returns, batch.timesteps.long()

        def policy_loss(policy):  # mean over valid steps and action dimensions
            error = policy(s, a, returns, timesteps, valid, state.random) - a
            return (error.square().mean(-1) * valid).sum() / valid.sum()

        state, policy_value = minimize(state, "policy", policy_loss)
        return state, {"policy_loss": policy_value}


def with_paid_rewards(cfg: Any, dataset: Dataset) -> Dataset:
    """Return the data with the reward of each single step.

    With `counted`, a reward in the data is the sum of all rewards of the episode so far. It is
    replaced by the difference from the previous row.
    """
    if not cfg.counted:
        return dataset
    growth = np.diff(dataset.rewards, prepend=np.float32(0))
    growth[dataset.episode_starts] = dataset.rewards[dataset.episode_starts]
    return replace(dataset, rewards=growth)
