"""Observation histories for actor-critic methods: one encoder between histories and networks.

    history [B, n_obs_steps, O]  ->  encoder  ->  features z [B, F]  ->  policy, critic, value

All networks receive the features instead of an observation. The loss of the critics alone trains
the encoder, as in SAC-AE (Yarats et al., AAAI 2021, arXiv:1910.01741). Target networks and V
receive the features of the target encoder. With n_obs_steps=1 there is no encoder.

`bisimulation` adds an auxiliary loss to that of the critics; see `bisimulation_loss`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, cast

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common.actor_critic import ActorCritic
from offline_rl.algorithms.common.base import LossAndMetrics, Metrics, State
from offline_rl.algorithms.common.config import BUILT, BaseConfig
from offline_rl.algorithms.common.models.dynamics import WIDTH_WEIGHT, Ensemble
from offline_rl.algorithms.common.optim import Adam
from offline_rl.replay.batch import Batch, Source, Sources
from offline_rl.replay.chunks import Histories
from offline_rl.utils.options import Count, NonNegative, frozen
from policies.heads.head import Head
from policies.heads.sequences.history import HistoryActor
from policies.networks.sequences.history import HistoryEncoder, Kind


@frozen
class HistoryConfig(BaseConfig):
    """Options of observation histories."""

    n_obs_steps: Annotated[Count, BUILT] = 1  # number of past observations in the input
    history_encoder: Annotated[Kind, BUILT] = "mlp"  # MLP of the stacked observations, or a GRU
    history_features: Annotated[Count, BUILT] = 128  # size of an encoded history
    bisimulation: Annotated[NonNegative, BUILT] = (
        0.0  # weight of the bisimulation loss: similar histories get similar features; 0: none
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_obs_steps == 1:
            names = ("history_encoder", "history_features", "bisimulation")
            self.refuse_unread("n_obs_steps", *names)


class WithHistories(ActorCritic):
    """Actor-critic method that can observe histories. List it before the other base class."""

    trained_with: ClassVar = {"critic": ("encoder", "model")}

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.n_obs_steps: int = getattr(self.cfg, "n_obs_steps", 1)
        if self.n_obs_steps > 1:
            self.targets = {**self.targets, "encoder_target": "encoder"}  # type: ignore[misc]
            self.acts = ("encoder", "policy")

    @property
    def input_size(self) -> int:
        """Size of an encoded history, or of an observation."""
        return self.cfg.history_features if self.n_obs_steps > 1 else super().input_size

    def encoder_of(self, network: str) -> str | None:
        if self.n_obs_steps == 1 or network in ("encoder", "encoder_target", "model"):
            return None
        # The critics are trained towards V. If V received the features that they train, both would
        # grow without bound.
        return "encoder_target" if network in self.targets or network == "value" else "encoder"

    def networks(self) -> dict[str, nn.Module]:
        networks, cfg, spec = super().networks(), self.cfg, self.spec
        if self.n_obs_steps > 1:
            options = {"features": cfg.history_features, "kind": cfg.history_encoder}
            networks["encoder"] = HistoryEncoder(
                spec.observation_dim, n_obs_steps=cfg.n_obs_steps, **options
            )
            if cfg.bisimulation:
                size = cfg.history_features
                networks["model"] = Ensemble(size + spec.action_dim, size + 1, (256, 256), 1)
        return networks

    def optimizers(self) -> dict[str, Adam]:
        encoder = self.adam(self.cfg.critic_lr)
        return super().optimizers() | {"encoder": encoder, "model": encoder}

    def acting_head(self) -> Head:
        if self.n_obs_steps == 1:
            return super().acting_head()
        encoder, policy = (cast("Any", self.modules[name]) for name in self.acts)
        head = HistoryActor(encoder.arguments, type(policy).__name__, policy.arguments)
        head.encoder, head.policy = encoder, policy
        return head

    @classmethod
    def can_stream(cls, cfg: Any) -> bool:
        single = getattr(cfg, "n_obs_steps", 1) == 1
        return single and cls.source is WithHistories.source

    def source(self, phase: str, sources: Sources) -> Source:
        if self.n_obs_steps > 1:
            sources = {k: Histories(x, self.n_obs_steps) for k, x in sources.items()}
        return super().source(phase, sources)

    def run_update(self, phase: str, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        if self.n_obs_steps == 1 or not self.cfg.bisimulation:
            return super().run_update(phase, state, batch, i)
        state = replace(state, extra_loss=partial(bisimulation_loss, batch=batch))
        state, metrics = super().run_update(phase, state, batch, i)
        return state, metrics | state.extra_metrics


def bisimulation_loss(state: State, batch: Batch) -> LossAndMetrics:
    """Return the loss of the encoder and of a model of its features, and metrics.

    The L1 distance between the features z of two histories learns to be the bisimulation distance
    of a model of rewards and next features,

        |r_i - r_j| + gamma * W2(N_i, N_j),  W2^2 = |mean_i - mean_j|^2 + |std_i - std_j|^2,

    where r and N = (mean, std) are the model's predictions for z and the data's action. Pairs are
    neighboring rows of the batch, which is sampled at random. The model is fitted by maximum
    likelihood to the reward and to the target encoder's features of the next history. Its gradient
    does not reach the encoder.

    Hong, Dragan, Levine, ICLR 2024, arXiv:2310.20663, whose code is not public: a learned model of
    rewards and next features. The form of the loss is that of deep bisimulation (Zhang et al., ICLR
    2021, arXiv:2006.10742). It differs from facebookresearch/deep_bisimulation_for_control: the
    distances are norms, the rewards are predictions, and the model does not train the encoder.
    """
    cfg = state.algorithm.cfg
    z = state.encoder(batch.observations)  # [B, F]
    next_z = state.encoder_target(batch.next_observations)
    label = torch.cat([next_z, batch.rewards[:, None]], -1)  # [B, F + 1]
    mean, log_variance = (x[0] for x in state.model(torch.cat([z.detach(), batch.actions], -1)))
    error = (mean - label).square()
    likelihood = (error * (-log_variance).exp() + log_variance).mean()
    model_loss = likelihood + WIDTH_WEIGHT * state.model.width()
    target = bisimulation_distance(mean.detach(), log_variance.detach(), cfg.discount)
    distance = (z - z.roll(1, 0)).abs().sum(-1)  # [B]
    loss = (distance - target).square().mean()
    metrics = {"bisimulation_loss": loss, "bisimulation_distance": target.mean()}
    metrics |= {"feature_std": z.std(0).mean(), "model_loss": model_loss}
    return cfg.bisimulation * loss + model_loss, metrics


def bisimulation_distance(mean: Tensor, log_variance: Tensor, discount: float | Tensor) -> Tensor:
    """Return the distance of each row to the row before it, the last one for the first, [B].

    mean, log_variance: predictions of the next features and, in the last column, of the reward,
    [B, F + 1].
    """
    std = (0.5 * log_variance).exp()
    reward = (mean - mean.roll(1, 0))[:, -1].abs()
    squares = (mean - mean.roll(1, 0)).square() + (std - std.roll(1, 0)).square()
    return reward + discount * squares[:, :-1].sum(-1).sqrt()
