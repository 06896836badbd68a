"""MSG: independent critic targets and a policy that maximizes a lower confidence bound.

Each of N critics bootstraps only from its own target network. A pessimistic target that all critics
share can become optimistic. Independent targets differ most where data is scarce. The policy
maximizes mean + beta * standard deviation over the critics, beta < 0. A small CQL penalty lowers
each critic's values of the policy's actions.

Paper:   Ghasemipour, Gu, Nachum, NeurIPS 2022, arXiv:2205.13703.
Differs: from the authors' code (google-research/google-research:jrl/agents/msg). The temperature's
         loss is linear in log alpha instead of alpha. The policy's standard deviation is the
         exponential of a clipped network output; the authors apply softplus and add 0.01. Weights
         have torch's default initialization. The authors' pair of networks for each critic, which
         they use on locomotion, is left out.
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor, nn

from offline_rl.algorithms.common.actor_critic import CloningFirst
from offline_rl.algorithms.common.base import Metrics, State, minimize, update_targets
from offline_rl.algorithms.common.config import Ensemble, Rate, Sizes
from offline_rl.algorithms.common.critics import Critic, aggregate_q
from offline_rl.algorithms.common.entropy import (
    SoftActorCritic,
    SoftConfig,
    soft_policy_loss,
    update_temperature,
)
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Amount, NonNegative, Number, Range, frozen
from policies.heads.gaussian import TanhGaussianActor


@frozen
class Config(SoftConfig):
    """Defaults: the authors' README, the only published setting."""

    num_critics: Ensemble = 64  # number of critics (N)
    beta: Annotated[float, Range(high=0)] = -8.0  # the policy maximizes mean Q + beta * std of Q
    conservatism: NonNegative = 0.1  # weight of Q(policy's action) - Q(data's action)
    random_weights: bool = True  # weight errors by U[0, 2], drawn anew for each critic and sample
    target_entropy: Number = 0.0  # target entropy of the temperature
    bc_updates: Amount = 50_000  # preliminary updates in which the policy is trained by imitation
    actor_lr: Rate = 3e-5
    hidden: Sizes = (256, 256, 256)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_unread("beta", "q_aggregate", "rho")  # each critic has its own target


class MSG(CloningFirst, SoftActorCritic):
    Config: type = Config

    def actor(self) -> nn.Module:
        return self.build(TanhGaussianActor, log_std_range=(-5, 2))

    def critic(self) -> nn.Module:
        return self.build(Critic, ensemble=self.cfg.num_critics)

    def learn(self, state: State, batch: Batch, *, clone: bool) -> tuple[State, Metrics]:
        """Update critics, policy and temperature, each at the old parameters; then the targets."""
        s, cfg, old = batch.observations, self.cfg, state
        s_E, a_E, s2_E = (
            x.expand(cfg.num_critics, *x.shape) for x in (s, batch.actions, batch.next_observations)
        )
        next_a, _ = old.policy.sample(
            batch.next_observations, old.random, cfg.num_critics
        )  # [E, B, A]
        pi, _ = old.policy.sample(s, old.random, cfg.num_critics)
        y = batch.rewards + batch.discount * old.critic_target.per_member(s2_E, next_a)  # [E, B]
        weight = 2 * old.random.uniform(y.shape) if cfg.random_weights else 1.0

        def critic_loss(critic):  # summed over critics
            q = critic.per_member(s_E, a_E)
            error = (q - y).square()
            penalty = (critic.per_member(s_E, pi) - q).mean(1)  # [E]
            loss = (weight * error).mean(1) / 2 + cfg.conservatism * penalty
            return loss.sum(), (error.mean(1).sum(), penalty.mean(), q.std(0, correction=0).mean())

        state, _, (td, penalty, spread) = minimize(state, "critic", critic_loss)
        alpha = old.log_alpha().exp()

        def policy_loss(policy):
            if clone:
                log_pi = policy.log_prob(s, batch.actions).mean()
                return -log_pi, log_pi
            return soft_policy_loss(policy, old, s, alpha, self.lower_bound)

        state, policy_value, log_pi = minimize(state, "policy", policy_loss)
        if not clone:
            state = update_temperature(state, log_pi, cfg.target_entropy)
        state = update_targets(state)
        metrics = {"critic_loss": td, "penalty": penalty, "disagreement": spread}
        metrics |= {"policy_loss": policy_value, "target": y.mean()}
        return state, metrics if clone else metrics | {"entropy": -log_pi, "alpha": alpha}

    def lower_bound(self, q: Tensor) -> Tensor:
        """Return mean + beta * standard deviation over the critics, [E, B] -> [B]."""
        return aggregate_q(q, "mean", -self.cfg.beta)
