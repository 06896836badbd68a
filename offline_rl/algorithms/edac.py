"""EDAC: SAC-N with a diversity penalty on critic gradients, so that fewer critics are enough.

Critics whose gradients at the data's actions point in the same direction overestimate the same
unseen actions. EDAC penalizes the cosine similarity of these gradients. About a tenth of SAC-N's
critics then gives enough disagreement.

Paper:   An, Moon, Kim, Song, NeurIPS 2021, arXiv:2110.01548, algorithm 1.
Differs: The differences of SAC-N (sac_n.py) apply. For Adroit the settings are tinkoff-ai/CORL's:
         raw rewards and one learning rate. The authors normalize rewards, train 200,000 updates
         with a slower policy, and back up the best of ten actions on pen-cloned.
"""

from __future__ import annotations

import torch
from torch import Tensor

from offline_rl.algorithms import sac_n
from offline_rl.algorithms.common.base import LossAndMetrics, Network, State
from offline_rl.algorithms.sac_n import squared_error
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import NonNegative, frozen


@frozen
class Config(sac_n.Config):
    """Defaults: tinkoff-ai/CORL:configs/offline/edac/halfcheetah."""

    eta: NonNegative = 1.0  # weight of the gradient similarity penalty; 0 is SAC-N


class EDAC(sac_n.SACN):
    Config: type = Config

    def critic_loss(self, critic: Network, state: State, batch: Batch, y: Tensor) -> LossAndMetrics:
        """Return SAC-N's loss plus eta times the critics' gradient similarity."""
        count = self.cfg.num_critics
        s, a = (x.expand(count, *x.shape) for x in (batch.observations, batch.actions))

        def total(actions: Tensor) -> tuple[Tensor, Tensor]:  # one copy of the actions per critic
            q = critic.per_member(s, actions)
            return q.sum(), q

        gradients, q = torch.func.grad(total, has_aux=True)(a)  # [E, B, A], [E, B]
        td, metrics = squared_error(q, y)
        cosines = gradient_similarity(gradients)
        return td + self.cfg.eta * cosines, metrics | {"similarity": cosines}


def gradient_similarity(gradients: Tensor) -> Tensor:
    """Return E[sum_{i != j} <g_i, g_j>] / (N - 1) for unit vectors g, [E, B, A] -> 0-d.

    It is N for equal gradients. It uses sum_{i != j} <g_i, g_j> = |sum_i g_i|^2 - sum_i |g_i|^2.
    """
    unit = gradients / (torch.linalg.vector_norm(gradients, dim=-1, keepdim=True) + 1e-10)
    pairs = unit.sum(0).square().sum(-1) - unit.square().sum((0, -1))  # [B]
    return pairs.mean() / (len(gradients) - 1)
