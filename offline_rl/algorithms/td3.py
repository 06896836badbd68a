"""TD3: twin delayed deep deterministic policy gradient, trained online.

Both critics regress on the smaller of two target values. The target action carries clipped noise
(target policy smoothing). The actor maximizes the first critic and is updated at every second
critic update only.

Paper:   Fujimoto, van Hoof, Meger, ICML 2018, arXiv:1802.09477, algorithm 1.
Differs: from the authors' code (sfujim/TD3:TD3.py, main.py) in the timing of updates. Two updates
         run after every second environment step; the authors' code runs one update after each step.
         The actor that takes these steps is the same, because only the second of the two updates
         changes it. Network sizes, learning rates and exploration are the code's, not the paper's
         (400-300 units, 1e-3).
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from torch import Tensor, nn

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.actor_critic import ActorCritic, ActorCriticConfig
from offline_rl.algorithms.common.base import (
    LossAndMetrics,
    Metrics,
    Mode,
    Network,
    State,
    minimize,
    update_targets,
)
from offline_rl.algorithms.common.config import BUILT, Tau
from offline_rl.algorithms.common.critics import reduce_q, regress
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Amount, Count, NonNegative, frozen
from policies.heads.deterministic import DeterministicActor


@frozen
class OfflineConfig(ActorCriticConfig):
    """Options of TD3 and of the offline methods built on it. Defaults: the authors' code."""

    tau: Tau = 0.005  # target update rate: share of the trained networks mixed into their targets
    policy_noise: NonNegative = 0.2  # standard deviation of the noise added to the target action
    noise_clip: NonNegative = 0.5  # largest magnitude of the noise on the target action
    policy_delay: Count = 2  # critic updates per update of the actor and of all targets


@frozen
class Config(OfflineConfig):
    """Defaults: the authors' code."""

    exploration_noise: Annotated[NonNegative, BUILT] = 0.1  # std of exploration noise on actions


@frozen
class Online(schedule.RandomStart):
    """Defaults: the authors' code."""

    warmup_steps: Amount = 25_000


class TD3(ActorCritic):
    """TD3. A subclass replaces the networks, the critic target or the actor loss."""

    Config: type = Config
    Online: type = Online
    targets: ClassVar = {"policy_target": "policy", "critic_target": "critic"}
    mode = Mode(learns=("environment",))
    follows_card = False  # starts without data

    @property
    def period(self) -> int:
        return self.cfg.policy_delay

    def actor(self) -> nn.Module:
        return self.build(DeterministicActor, noise=self.cfg.exploration_noise)

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update the critics; at every `policy_delay`-th call also the actor and both targets."""
        cfg = self.cfg
        state, metrics = regress(state, batch, self.target(state, batch))
        if i != cfg.policy_delay - 1:
            return state, metrics
        updated = state

        def policy_loss(policy):
            return self.policy_loss(policy, updated, batch)

        state, policy_value, policy_metrics = minimize(state, "policy", policy_loss)
        state = update_targets(state)
        return state, metrics | policy_metrics | {"policy_loss": policy_value}

    def target(self, state: State, batch: Batch) -> Tensor:
        """Return the bootstrapped target r + discount * min_i Q_i(s', a'), [B].

        a' is the target policy's action plus clipped noise. Dropout of the policy, if any, is
        active here too.
        """
        s2, cfg = batch.next_observations, self.cfg
        noise = cfg.policy_noise * state.random.normal(batch.actions.shape)
        noise = noise.clamp(-cfg.noise_clip, cfg.noise_clip)
        next_a = (state.policy_target(s2, state.random) + noise).clamp(-1, 1)
        next_q = reduce_q(state, state.critic_target(s2, next_a))  # [B]
        return batch.rewards + batch.discount * self.next_value(next_q, batch, next_a)

    def next_value(self, q: Tensor, batch: Batch, next_actions: Tensor) -> Tensor:
        """Return the value [B] to bootstrap from; q: [B], of the next actions [B, A]."""
        return q

    def policy_loss(self, policy: Network, state: State, batch: Batch) -> LossAndMetrics:
        """Return the actor loss, 0-d, and metrics."""
        s = batch.observations
        return -state.critic(s, policy(s))[0].mean(), {}
