"""A recurrent state-space model and an actor, trained by imitation with one loss.

The loss is the squared error to the actions of demonstrated sequences, plus the divergence of the
latent from a standard normal distribution. The state of the model is the memory of the policy.

Paper:   Hafner et al., ICML 2019, arXiv:1811.04551 (PlaNet), for the state.
Differs: an example; the model has no prior and predicts neither observations nor rewards.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from offline_rl.algorithms.common.base import Algorithm, Metrics, State, minimize
from offline_rl.algorithms.common.config import BaseConfig, Rate
from offline_rl.algorithms.common.optim import Adam
from offline_rl.algorithms.common.scan import scan
from offline_rl.replay.batch import Batch, Source, Sources
from offline_rl.replay.chunks import Sequences
from offline_rl.utils.options import Count, NonNegative, Positive, frozen
from policies.heads.recurrent import RecurrentActor


@frozen
class Config(BaseConfig):
    lr: Rate = 3e-4  # learning rate of all networks
    max_grad_norm: Positive = 100.0  # clip the joint norm of all gradients to this
    kl_weight: NonNegative = 0.01  # weight of the divergence in the loss
    length: Count = 16  # steps of a sequence
    recurrent: Count = 64  # size of the recurrent state, and of the hidden layers
    latent: Count = 16  # size of the latent
    discount: ClassVar[float] = 1.0  # required in batches; not an option, as imitation ignores it


class WorldModel(Algorithm):
    Config = Config
    acts = ("encoder", "model", "actor")
    imitation_phases = ("update",)

    @classmethod
    def uses_rewards(cls, cfg: Any) -> bool:
        return False

    def source(self, phase: str, sources: Sources) -> Source:
        return Sequences(super().source(phase, sources), self.cfg.length)

    def acting_head(self) -> RecurrentActor:
        cfg, sizes = self.cfg, (self.spec.observation_dim, self.spec.action_dim)
        return RecurrentActor(*sizes, [cfg.recurrent], recurrent=cfg.recurrent, latent=cfg.latent)

    def networks(self) -> dict[str, nn.Module]:
        return dict(self.acting_head().named_children())

    def optimizers(self) -> dict[str, Adam]:
        return dict.fromkeys(self.acts, Adam(self.cfg.lr))

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update all networks on sequences; each starts with a zero state."""
        cfg, size = self.cfg, len(batch.actions)
        s, a, valid = (x.transpose(0, 1) for x in (batch.observations, batch.actions, batch.valid))
        previous = torch.cat([torch.zeros_like(a[:1]), a[:-1]])  # [H, B, A]
        noise = state.random.normal((cfg.length, size, cfg.latent))
        first = torch.zeros(size, cfg.recurrent + cfg.latent, device=a.device)

        def loss(encoder, model, actor):
            def step(x, inputs):
                x, mean, std = model.step(x, *inputs)
                return x, (x, mean, std)

            _, (states, mean, std) = scan(step, first, (previous, encoder(s), noise))  # [H, B, …]
            error = (actor(states).tanh() - a).square().mean(-1)  # [H, B]
            kl = (mean.square() + std.square() - 1 - 2 * std.log()).sum(-1) / 2
            return ((error + cfg.kl_weight * kl) * valid).sum() / valid.sum()

        state, value = minimize(state, self.acts, loss, max_grad_norm=cfg.max_grad_norm)
        return state, {"policy_loss": value}
