"""Soft actor-critic parts: temperature update, soft target, policy loss.

Haarnoja et al., arXiv:1812.05905; equation numbers refer to it. Networks: policy, critic,
critic_target, log_alpha.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log

from torch import Tensor, nn

from offline_rl.algorithms.common.actor_critic import ActorCritic, ActorCriticConfig
from offline_rl.algorithms.common.base import Metrics, Network, State, minimize
from offline_rl.algorithms.common.config import Rate
from offline_rl.algorithms.common.critics import reduce_q
from offline_rl.algorithms.common.optim import Adam
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import frozen
from policies.networks.mlp import Scalar


@frozen
class SoftConfig(ActorCriticConfig):
    """Options of methods with a learned temperature."""

    alpha_lr: Rate = 3e-4  # learning rate of the temperature


class SoftActorCritic(ActorCritic):
    """Method with a learned temperature, exp(`log_alpha`)."""

    def networks(self) -> dict[str, nn.Module]:
        alpha = getattr(self.cfg, "initial_alpha", 1.0)
        return super().networks() | {"log_alpha": Scalar(log(alpha))}

    def optimizers(self) -> dict[str, Adam]:
        return super().optimizers() | {"log_alpha": self.adam(self.cfg.alpha_lr)}


def ensemble_min(q: Tensor) -> Tensor:
    """Return the minimum over the ensemble, [E, B] -> [B]."""
    return q.amin(0)


def update_temperature(state: State, log_pi: Tensor, target_entropy: float | Tensor) -> State:
    """Update log alpha toward the target entropy. log_pi: mean over the batch, 0-d.

    The loss is eq. 18, but linear in log alpha instead of alpha, as in rlkit.
    """

    def alpha_loss(log_alpha: Network) -> Tensor:
        return -log_alpha() * (log_pi + target_entropy)

    return minimize(state, "log_alpha", alpha_loss)[0]


def update_policy(
    state: State,
    old: State,
    observations: Tensor,
    alpha: Tensor,
    bound: Callable[[Tensor], Tensor] | None = None,
) -> tuple[State, Tensor, Metrics]:
    """Update the policy on `soft_policy_loss` with the critics of `old`.

    Also returns the mean log density of the policy before the update, 0-d.
    """

    def policy_loss(policy: Network) -> tuple[Tensor, Tensor]:
        return soft_policy_loss(policy, old, observations, alpha, bound)

    state, value, log_pi = minimize(state, "policy", policy_loss)
    return state, log_pi, {"policy_loss": value, "entropy": -log_pi, "alpha": alpha}


def soft_q(state: State, observations: Tensor, alpha: Tensor) -> Tensor:
    """Return Q_i(s, a) - alpha log pi(a|s) of each target critic, [B, O] -> [E, B]; eq. 3."""
    a, log_pi = state.policy.sample(observations, state.random)
    return state.critic_target(observations, a) - alpha * log_pi


def soft_target(state: State, batch: Batch, alpha: Tensor) -> Tensor:
    """Return r + discount * (min_i Q_i(s', a') - alpha log pi(a'|s')), [B]; a' ~ pi; eq. 2, 3.

    The minimum is the default of `q_aggregate`.
    """
    soft = reduce_q(state, soft_q(state, batch.next_observations, alpha))
    return batch.rewards + batch.discount * soft


def soft_policy_loss(
    policy: Network,
    state: State,
    observations: Tensor,
    alpha: Tensor,
    bound: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return E[alpha log pi(a|s) - bound_i Q_i(s, a)] (eq. 9) and mean log pi, 0-d; a ~ pi.

    bound: how the critics' values are combined, [E, B] -> [B]; None: as the config says.
    """
    a, log_pi = policy.sample(observations, state.random)
    q = state.critic(observations, a)
    value = reduce_q(state, q) if bound is None else bound(q)
    return (alpha * log_pi - value).mean(), log_pi.mean()
