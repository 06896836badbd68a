"""TD3+BC: TD3 with a behavior-cloning term in the actor loss.

The critics are trained as in TD3. The actor maximizes the first critic, normalized by the batch's
mean |Q|, and minimizes the squared distance to the data's actions. `alpha` alone sets the trade-off
between the two.

Paper:   Fujimoto and Gu, NeurIPS 2021, arXiv:2106.06860; TD3: arXiv:1802.09477.
Differs: no known difference from the authors' code (sfujim/TD3_BC:TD3_BC.py).
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

    alpha: NonNegative = 2.5  # 0 is behavior cloning; larger values trust the critic more
    normalize_observations: bool = True


class TD3BC(td3.TD3):
    Config = Config
    follows_card = True  # unlike TD3, it is trained on data
    online = False

    def networks(self) -> dict[str, nn.Module]:
        obs, act, cfg = self.spec.observation_dim, self.spec.action_dim, self.cfg
        return {
            "policy": DeterministicActor(obs, act, cfg.hidden, activation=cfg.activation),
            "critic": Critic(obs, act, cfg.hidden, activation=cfg.activation),
        }

    def policy_loss(self, policy: Network, state: State, batch: Batch) -> tuple[Tensor, Metrics]:
        """Return eq. 3 with lambda = alpha / mean |Q| (eq. 5)."""
        pi = policy(batch.observations)
        q = state.critic(batch.observations, pi)[0]  # [B]
        scale = self.cfg.alpha / q.detach().abs().mean()
        return (pi - batch.actions).square().mean() - scale * q.mean(), {}
