"""TD3+BC: TD3 with a behavior-cloning term in the actor loss.

The critics are trained as in TD3. The actor maximizes the first critic, normalized by the batch's
mean |Q|, and minimizes the squared distance to the data's actions. `alpha` alone sets the trade-off
between the two.

Paper:   Fujimoto and Gu, NeurIPS 2021, arXiv:2106.06860; TD3: arXiv:1802.09477.
Differs: no known difference from the authors' code (sfujim/TD3_BC:TD3_BC.py).
"""

from __future__ import annotations

from torch import nn

from offline_rl.algorithms import td3
from offline_rl.algorithms.common.base import LossAndMetrics, Mode, Network, State
from offline_rl.algorithms.common.histories.encoding import HistoryConfig, WithHistories
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import NonNegative, frozen
from policies.heads.deterministic import DeterministicActor


@frozen
class BaseConfig(td3.OfflineConfig):
    """Defaults: the paper's, table 3."""

    alpha: NonNegative = 2.5  # 0 is behavior cloning; larger values trust the critic more
    normalize_observations: bool = True


@frozen
class Config(HistoryConfig, BaseConfig):
    """Defaults: the paper's, table 3."""


class TD3BC(WithHistories, td3.TD3):
    Config: type = Config
    mode = Mode()
    follows_card = True  # unlike TD3, it is trained on data

    def actor(self) -> nn.Module:
        return self.build(DeterministicActor)

    def policy_loss(self, policy: Network, state: State, batch: Batch) -> LossAndMetrics:
        """Return eq. 3 with lambda = alpha / mean |Q| (eq. 5)."""
        pi = policy(batch.observations)
        q = state.critic(batch.observations, pi)[0]  # [B]
        scale = self.cfg.alpha / q.detach().abs().mean()
        return (pi - batch.actions).square().mean() - scale * q.mean(), {}
