"""CDT: a Decision Transformer that is conditioned on a return and a cost limit.

A causal transformer reads (return-to-go, cost-to-go, observation, action) of past steps and
predicts a normal distribution over the next action, whose entropy is regularized, and the cost of
each step. New episodes are added to the data. Their target returns are above those of the data at
the same cost, and their steps are those of similar, safe episodes. Episodes of low cost are sampled
more often. The cost limit is an argument of the policy, so that one run serves every limit.

Paper:   Liu, Guo, Yao, Cen, Yu, Zhang, Zhao, ICML 2023, arXiv:2302.07351.
Differs: from the authors' code (liuzuxin/OSRL:osrl/algorithms/cdt.py, osrl/common/dataset.py).
         There, new episodes get the targets of other new episodes, because the two lists are in
         different orders; `as_released` does the same. A step has a cost if it is above 0; the
         authors round costs down, so that costs below 1 count as none. The temperature is stored in
         checkpoints; the authors' is not. Without a table, target returns are the best returns of
         the data at each cost. Steps beyond the last time step embedding use the last one. Next
         observations are not predicted; the authors give them the weight 0.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from torch import nn

from offline_rl.algorithms import decision_transformer as dt
from offline_rl.algorithms.common.base import Metrics, Network, State, minimize
from offline_rl.algorithms.common.config import BUILT, Rate
from offline_rl.algorithms.common.optim import Adam
from offline_rl.algorithms.common.safety.augmentation import (
    OFFSETS,
    append_episodes,
    best_returns,
    make_targets,
)
from offline_rl.algorithms.common.safety.costs import LimitConfig, Steps
from offline_rl.data.dataset import Dataset
from offline_rl.replay.batch import Batch, Source, Sources
from offline_rl.replay.chunks import WeightedSequences
from offline_rl.utils.options import (
    Amount,
    Count,
    NonNegative,
    Number,
    Positive,
    Range,
    Share,
    frozen,
)
from policies.heads.decision_transformer import ConstrainedTransformer
from policies.networks.mlp import Scalar

HEAD = (  # options of the policy
    *("target_cost", "target_return", "cost_limits", "target_returns", "cost_shift"),
    *("return_scale", "context_length", "dim_model", "num_layers", "num_heads", "episode_steps"),
)


@frozen
class Config(LimitConfig, dt.Config):
    """Defaults: the authors' code. They train for 100,000 updates, in MetaDrive for 200,000."""

    target_return: Number | None = None  # raw return to condition on; null: from target_returns
    cost_limits: Annotated[tuple[float, ...], Range(0), BUILT] = ()  # costs of target_returns
    target_returns: Annotated[
        tuple[float, ...], Range(), BUILT
    ] = ()  # raw returns to condition on at cost_limits, interpolated; []: best of the data
    return_scale: Positive | None = 10.0  # divides returns; null: the largest |return| of the data
    cost_shift: Annotated[Number, BUILT] = 50.0  # the network input is this minus the cost-to-go
    context_length: Count = 10  # steps in the context (K)
    num_heads: Count = 8  # attention heads in each layer
    episode_steps: Steps = None  # number of time step embeddings; null: the task's time limit
    num_warmup_updates: Amount = 500  # updates over which the learning rate rises
    temperature_lr: Rate = 1e-4  # learning rate of the temperature of the entropy
    initial_temperature: Positive = 0.1  # first weight of the entropy
    cost_weight: NonNegative = 0.02  # weight of the cross-entropy of predicted costs
    max_episode_cost: Annotated[Positive, BUILT] = (
        70.0  # episodes are sampled in proportion to this minus their cost
    )
    augmentation: Annotated[Share, BUILT] = 0.2  # new episodes, as a share of the episodes
    degree: Amount = 1  # degree of the polynomial that approximates the best return at each cost
    max_return: Number | None = (
        None  # largest return of new episodes; null: best of the data + 10 % of their range
    )
    min_gain: Annotated[Number, BUILT] = (
        1.0  # smallest distance of the returns of new episodes above the polynomial
    )
    max_decrease: NonNegative | None = (
        None  # returns of repeated episodes are at most this much lower; null: 10 % of the range
    )
    as_released: bool = False  # give new episodes the targets of others, as in the authors' code
    normalize_observations: bool = False
    batch_size: Count = 2048  # windows per update

    def __post_init__(self) -> None:
        super().__post_init__()
        costs = self.cost_limits
        if len(costs) != len(self.target_returns) or list(costs) != sorted({*costs}):
            raise ValueError(
                f"cost_limits={costs} must be increasing, with one of target_returns="
                f"{self.target_returns} for each."
            )


class CDT(dt.DT):
    Config: type = Config
    extra_columns = ("mc_returns", "mc_costs", "costs", "timesteps", "sampling_weights")

    def prepare(self, dataset: Dataset) -> tuple[Dataset, Any]:
        """Return the data with new episodes and sampling weights, and the completed config."""
        cfg, data = self.cfg, dt.with_paid_rewards(self.cfg, dataset)
        costs, returns = data.episode_costs(), data.episode_returns()
        if cfg.return_scale is None:
            cfg = replace(cfg, return_scale=float(np.abs(returns).max()) or 1.0)
        if cfg.target_return is None and not cfg.cost_limits:
            limits, targets = best_returns(costs, returns)
            cfg = replace(cfg, cost_limits=limits, target_returns=targets)
        margin = 0.1 * float(np.ptp(returns))
        new = make_targets(
            costs,
            returns,
            share=cfg.augmentation,
            degree=cfg.degree,
            max_return=float(returns.max()) + margin if cfg.max_return is None else cfg.max_return,
            min_gain=cfg.min_gain,
            max_decrease=margin if cfg.max_decrease is None else cfg.max_decrease,
            as_released=cfg.as_released,
        )
        return append_episodes(data, new, cfg.max_episode_cost), cfg

    def make_columns(self, dataset: Dataset) -> dict[str, np.ndarray]:
        """See `Algorithm.make_columns`. New episodes have other returns- and costs-to-go."""
        columns, none = super().make_columns(dataset), np.float32(0)
        return columns | {k: columns[k] + dataset.extras.get(v, none) for k, v in OFFSETS.items()}

    def source(self, phase: str, sources: Sources) -> Source:
        return WeightedSequences(self.offline_source(phase, sources), self.cfg.context_length)

    def networks(self) -> dict[str, nn.Module]:
        options: Any = {name: getattr(self.cfg, name) for name in HEAD}
        sizes = self.spec.observation_dim, self.spec.action_dim
        policy = ConstrainedTransformer(*sizes, dropout_rate=self.cfg.dropout, **options)
        return {"policy": policy, "log_alpha": Scalar(math.log(self.cfg.initial_temperature))}

    def optimizers(self) -> dict[str, Adam]:
        return super().optimizers() | {"log_alpha": Adam(self.cfg.temperature_lr)}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update the policy by imitation and the prediction of costs, then the temperature."""
        s, a, valid = batch.observations, batch.actions, batch.valid  # [B, T, O], [B, T, A], [B, T]
        assert batch.timesteps is not None
        assert batch.costs is not None
        assert valid is not None
        context = s, a, batch.mc_returns, batch.timesteps.long(), valid, state.random
        temperature, has_cost = state.log_alpha().exp().detach(), batch.costs > 0

        def policy_loss(policy: Network) -> Any:  # means over valid steps and action dimensions
            mean, log_std, logits = policy(*context, costs_to_go=batch.mc_costs)
            squares = ((a - mean) / log_std.exp()).square()
            log_prob = -0.5 * squares - log_std - 0.5 * math.log(2 * math.pi)  # [B, T, A]
            step_entropy = 0.5 + 0.5 * math.log(2 * math.pi) + log_std
            likelihood, entropy = (
                (x.mean(-1) * valid).sum() / valid.sum() for x in (log_prob, step_entropy)
            )
            log_probs = logits.log_softmax(-1)
            of_cost = log_probs[..., 1].where(has_cost, log_probs[..., 0])
            cost_loss = -(of_cost * valid).mean()  # padding counts as 0, as in the authors' code
            loss = -likelihood - temperature * entropy + self.cfg.cost_weight * cost_loss
            return loss, {"entropy": entropy, "cost_loss": cost_loss}

        state, loss, metrics = minimize(state, "policy", policy_loss)

        def temperature_loss(
            log_alpha: Network,
        ) -> Any:  # the target is minus the number of actions
            return log_alpha().exp() * (metrics["entropy"] + a.shape[-1])

        state, _ = minimize(state, "log_alpha", temperature_loss)
        return state, metrics | {"policy_loss": loss, "temperature": temperature}
