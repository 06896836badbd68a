"""TD3+BC: TD3 whose actor is also pulled towards the data's actions.

Twin critics learn as in TD3; the actor maximises the first critic, its scale divided out, while a
squared error keeps it near the data, so that `alpha` alone trades improvement against imitation.

Paper:   Fujimoto and Gu, NeurIPS 2021, arXiv:2106.06860; TD3: arXiv:1802.09477.
Differs: nowhere known from the authors' code (sfujim/TD3_BC:TD3_BC.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from offline_rl.algorithms.common.base import Algorithm, Metrics, State, minimise, soft_update
from offline_rl.algorithms.common.critics import Critic, regress, td3_target
from offline_rl.algorithms.common.optim import Adam
from offline_rl.data.transform import Preprocessing
from offline_rl.replay.batch import Batch
from policies.heads.deterministic import DeterministicActor


@dataclass(frozen=True)
class Config(Preprocessing):
    """Defaults: the paper's, table 3."""

    alpha: float = 2.5  # >= 0: 0 clones, more trusts the critic
    discount: float = 0.99  # in [0, 1)
    tau: float = 0.005  # in (0, 1]: share of the networks that enters their targets
    policy_noise: float = 0.2  # >= 0: deviation of the noise on the target's action
    noise_clip: float = 0.5  # >= 0: and its largest size
    policy_delay: int = 2  # critic updates per actor and target update
    actor_lr: float = 3e-4
    critic_lr: float = 3e-4
    hidden: tuple[int, ...] = (256, 256)
    normalise_observations: bool = True


class TD3BC(Algorithm):
    Config = Config
    targets: ClassVar = {"policy_target": "policy", "critic_target": "critic"}

    @property
    def period(self) -> int:
        return self.cfg.policy_delay

    def networks(self) -> dict[str, nn.Module]:
        obs, act, hidden = self.spec.observation_dim, self.spec.action_dim, self.cfg.hidden
        return {
            "policy": DeterministicActor(obs, act, hidden),
            "critic": Critic(obs, act, hidden),
        }

    def optimisers(self) -> dict[str, Adam]:
        return {"policy": Adam(self.cfg.actor_lr), "critic": Adam(self.cfg.critic_lr)}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """The critics; every `policy_delay`-th time then the actor and both targets."""
        s, a, cfg = batch.observations, batch.actions, self.cfg
        y = td3_target(state, batch, cfg.policy_noise, cfg.noise_clip)  # [B]
        state, metrics = regress(state, batch, y)
        if i != cfg.policy_delay - 1:
            return state, metrics

        def policy_loss(policy):  # the paper's lambda divides by the batch's mean |Q|
            pi = policy(s)
            q = state.critic(s, pi)[0]
            scale = cfg.alpha / q.detach().abs().mean()
            return (pi - a).square().mean() - scale * q.mean()

        state, policy_value = minimise(state, "policy", policy_loss)
        state = soft_update(state, "policy_target", "policy", cfg.tau)
        state = soft_update(state, "critic_target", "critic", cfg.tau)
        return state, metrics | {"policy_loss": policy_value}
