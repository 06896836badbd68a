"""SAC-Lagrangian: soft actor-critic with a cost critic and a Lagrange multiplier.

Twin cost critics with a discount of their own evaluate the costs of the policy. The actor maximizes
Q and the entropy minus the multiplier times the larger cost value. PID control sets the multiplier
from the mean cost value of the policy's actions minus the cost limit. With `start_cost`, the limit
moves during online training. The experience then contains episodes of low and of high cost, as a
constrained data set needs. Offline, nothing keeps the policy close to the data.

Paper:   Stooke, Achiam, Abbeel, ICML 2020, arXiv:2007.03964 (PID control); SAC: Haarnoja et al.,
         arXiv:1812.05905. Equation numbers refer to the latter.
Differs: from liuzuxin/FSRL (fsrl/policy/sac_lag.py), whose gains are used. Its error is the cost of
         the latest training episodes minus the limit; ours is the cost critic's, in each update.
         Its cost critics are combined by the minimum and include the entropy; ours are combined by
         the maximum and do not. Its proportional term may lower the multiplier. Other settings are
         those of `sac`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from offline_rl.algorithms import sac
from offline_rl.algorithms.common.base import (
    DATA_THEN_ONLINE,
    Algorithm,
    LossAndMetrics,
    Metrics,
    Network,
    State,
    minimize,
    update_targets,
)
from offline_rl.algorithms.common.critics import reduce_q, regress
from offline_rl.algorithms.common.entropy import update_temperature
from offline_rl.algorithms.common.optim import Adam
from offline_rl.algorithms.common.safety.cost_critics import bootstrap_costs
from offline_rl.algorithms.common.safety.costs import Limit, discounted_limit
from offline_rl.algorithms.common.safety.lagrangian import Multiplier, PIDConfig, pid
from offline_rl.algorithms.common.schedule import ONLINE
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import NonNegative, frozen


@frozen
class Config(PIDConfig, sac.Config):
    """Defaults: those of SAC, with the gains of liuzuxin/FSRL (fsrl/config/sacl_cfg.py)."""

    start_cost: Limit = None  # limit at the start; moves linearly to target_cost over num_env_steps
    proportional_gain: NonNegative = 0.05
    integral_gain: NonNegative = 0.0005
    derivative_gain: NonNegative = 0.1


class SACLag(sac.SAC):
    Config: type = Config
    mode = DATA_THEN_ONLINE
    extra_columns = ("costs",)
    targets: ClassVar = sac.SAC.targets | {"cost_critic_target": "cost_critic"}
    limit_moves = False

    def networks(self) -> dict[str, nn.Module]:
        costs = {"cost_critic": self.critic(), "multiplier": Multiplier()}
        return super().networks() | costs

    def optimizers(self) -> dict[str, Adam]:
        return super().optimizers() | {"cost_critic": self.adam(self.cfg.critic_lr)}

    def for_phase(self, phase: str) -> Algorithm:
        """Return the algorithm for `phase`. Online, the limit moves from `start_cost`."""
        algorithm: Any = super().for_phase(phase)
        if phase == ONLINE:
            algorithm.limit_moves = algorithm.cfg.start_cost is not None
        return algorithm

    def limit(self, state: State) -> Any:
        """Return the current limit on discounted costs."""
        cfg, limit = self.cfg, self.cfg.target_cost
        if self.limit_moves:
            progress = (state.done / max(self.num_updates, 1)).clamp(max=1)
            limit = cfg.start_cost + (cfg.target_cost - cfg.start_cost) * progress
        return discounted_limit(limit, cfg.episode_steps, cfg.cost_discount)

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update critics, cost critics, actor, temperature and multiplier, then the targets."""
        s, s2, cfg = batch.observations, batch.next_observations, self.cfg
        alpha, multiplier = state.log_alpha().exp().detach(), state.multiplier()
        a2, log_pi2 = state.policy.sample(s2, state.random)  # [B, A], [B]
        y = reduce_q(state, state.critic_target(s2, a2)) - alpha * log_pi2  # [B], eq. 3
        state, metrics = regress(state, batch, batch.rewards + batch.discount * y)
        y = bootstrap_costs(cfg, batch, state.cost_critic_target(s2, a2).amax(0))
        state, cost_metrics = regress(state, batch, y, network="cost_critic")
        old = state

        def policy_loss(policy: Network) -> LossAndMetrics:
            a, log_pi = policy.sample(s, state.random)
            soft_q = reduce_q(old, old.critic(s, a)) - alpha * log_pi  # [B], eq. 9
            cost = old.cost_critic(s, a).amax(0).mean()
            loss = (multiplier * cost - soft_q.mean()) / (1 + multiplier)
            return loss, {"entropy": -log_pi.mean(), "cost_excess": cost - self.limit(old)}

        state, value, extra = minimize(state, "policy", policy_loss)
        target_entropy = -cfg.entropy_scale * self.spec.action_dim
        state = update_temperature(state, -extra["entropy"], target_entropy)  # eq. 18
        state, _ = pid(state, extra["cost_excess"])
        metrics |= cost_metrics | extra | {"policy_loss": value, "alpha": alpha}
        return update_targets(state), metrics | {"multiplier": multiplier}
