"""TD3+BC: TD3 whose actor is also pulled toward the data's actions.

Twin critics learn as in TD3; the actor maximizes the first critic, its scale divided out, while a
squared error keeps it near the data, so that `alpha` alone trades improvement against imitation.

Paper:   Fujimoto and Gu, NeurIPS 2021, arXiv:2106.06860; TD3: arXiv:1802.09477.
Differs: nowhere known from the authors' code (sfujim/TD3_BC:TD3_BC.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from offline_rl.algorithms import td3
from offline_rl.algorithms.common.base import Metrics, Network, State
from offline_rl.algorithms.common.critics import Critic
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import NonNegative
from policies.heads.deterministic import DeterministicActor


@dataclass(frozen=True)
class Config(td3.OfflineConfig):
    """Defaults: the paper's, table 3."""

    alpha: NonNegative = 2.5  # 0 clones, more trusts the critic
    normalize_observations: bool = True


class TD3BC(td3.TD3):
    Config = Config
    follows_card = True  # unlike TD3 it learns from data
    online = False

    def networks(self) -> dict[str, nn.Module]:
        obs, act, cfg = self.spec.observation_dim, self.spec.action_dim, self.cfg
        return {
            "policy": DeterministicActor(obs, act, cfg.hidden, activation=cfg.activation),
            "critic": Critic(obs, act, cfg.hidden, activation=cfg.activation),
        }

    def policy_loss(self, policy: Network, state: State, batch: Batch) -> tuple[Tensor, Metrics]:
        """Eq. 3 and 5: the paper's lambda divides by the batch's mean |Q|."""
        pi = policy(batch.observations)
        q = state.critic(batch.observations, pi)[0]  # [B]
        scale = self.cfg.alpha / q.detach().abs().mean()
        return (pi - batch.actions).square().mean() - scale * q.mean(), {}
