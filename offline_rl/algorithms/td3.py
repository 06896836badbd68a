"""TD3: actor-critic, learning online, whose critics do not believe their own best news.

Twin critics learn from the smaller of their targets, the target's action is smoothed by clipped
noise, and the actor climbs the first critic at every second update only, when both have settled.

Paper:   Fujimoto, van Hoof, Meger, ICML 2018, arXiv:1802.09477, algorithm 1.
Differs: nowhere known from the authors' code (sfujim/TD3:TD3.py), whose networks, learning rates
         and exploration are used rather than the paper's (400-300 units, 1e-3).
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
    """Defaults: the authors' code's."""

    discount: float = 0.99  # in [0, 1)
    tau: float = 0.005  # in (0, 1]: share of the networks that enters their targets
    policy_noise: float = 0.2  # >= 0: deviation of the noise on the target's action
    noise_clip: float = 0.5  # >= 0: and its largest size
    policy_delay: int = 2  # critic updates per actor and target update
    actor_lr: float = 3e-4
    critic_lr: float = 3e-4
    hidden: tuple[int, ...] = (256, 256)
    exploration_noise: float = 0.1  # read when the policy is built: one value for all seeds
    random_steps: int = 25_000  # environment steps with uniform actions before the first update


class TD3(Algorithm):
    Config = Config
    targets: ClassVar = {"policy_target": "policy", "critic_target": "critic"}
    online = True
    follows_card = False  # it begins without data

    @property
    def period(self) -> int:
        return self.cfg.policy_delay

    def networks(self) -> dict[str, nn.Module]:
        obs, act, cfg = self.spec.observation_dim, self.spec.action_dim, self.cfg
        return {
            "policy": DeterministicActor(obs, act, cfg.hidden, noise=cfg.exploration_noise),
            "critic": Critic(obs, act, cfg.hidden),
        }

    def optimisers(self) -> dict[str, Adam]:
        return {"policy": Adam(self.cfg.actor_lr), "critic": Adam(self.cfg.critic_lr)}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """The critics; every `policy_delay`-th time then the actor and both targets."""
        s, cfg = batch.observations, self.cfg
        y = td3_target(state, batch, cfg.policy_noise, cfg.noise_clip)  # [B]
        state, metrics = regress(state, batch, y)
        if i != cfg.policy_delay - 1:
            return state, metrics

        def policy_loss(policy):
            return -state.critic(s, policy(s))[0].mean()

        state, policy_value = minimise(state, "policy", policy_loss)
        state = soft_update(state, "policy_target", "policy", cfg.tau)
        state = soft_update(state, "critic_target", "critic", cfg.tau)
        return state, metrics | {"policy_loss": policy_value}
