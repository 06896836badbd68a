"""LB-SAC: SAC-N with very large batches, which need fewer critics and fewer updates.

The batch size is 10,000, and learning rates are multiplied by sqrt(batch_size / 256). A small
ensemble then penalizes unseen actions earlier than a large ensemble with small batches.

Paper:   Nikulin, Kurenkov, Tarasov, Akimov, Kolesnikov, 2022, arXiv:2211.11092.
Differs: The differences of SAC-N (sac_n.py) apply, except that weights are initialized by fan-out
         like the authors', so that critics disagree from the start. The learning rates are exactly
         sqrt(10000 / 256) times 3e-4, which is 1.875e-3; the released configs
         (tinkoff-ai/CORL:configs/offline/lb-sac) round to 1.8e-3. With `layer_norm` each critic has
         its own gain and shift; in the released code all critics share one. Ten critics are
         tinkoff-ai/CORL's default and its setting for walker2d-medium and -medium-expert. No number
         is published outside locomotion.
"""

from __future__ import annotations

from math import sqrt
from typing import Literal

from torch import Tensor

from offline_rl.algorithms import sac_n
from offline_rl.algorithms.common.base import LossAndMetrics, Network, State
from offline_rl.algorithms.common.optim import Adam, Number
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Count, frozen


@frozen
class Config(sac_n.Config):
    """Defaults: tinkoff-ai/CORL:configs/offline/lb-sac. Learning rates are for a batch of 256."""

    batch_size: Count = 10_000
    init: Literal["edac", "fan_out"] = "fan_out"


class LBSAC(sac_n.SACN):
    Config: type = Config

    def adam(self, lr: Number) -> Adam:
        """Return Adam with a learning rate of `lr` times sqrt(batch_size / 256)."""
        return Adam(lr * sqrt(self.cfg.batch_size / 256))

    def critic_loss(self, critic: Network, state: State, batch: Batch, y: Tensor) -> LossAndMetrics:
        """Return SAC-N's loss divided by the number of critics."""
        td, metrics = super().critic_loss(critic, state, batch, y)
        return td / self.cfg.num_critics, metrics
