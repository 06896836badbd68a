"""Soft actor-critic parts: temperature update, soft target, policy loss.

Haarnoja et al., arXiv:1812.05905; equation numbers refer to it. Networks: policy, critic,
critic_target, log_alpha.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from offline_rl.algorithms.common.base import Network, State, minimize
from offline_rl.algorithms.common.optim import Adam
from offline_rl.replay.batch import Batch


def soft_optimizers(cfg: Any) -> dict[str, Adam]:
    """Return Adam for each network, with the learning rates of `cfg`."""
    return {
        "policy": Adam(cfg.actor_lr),
        "critic": Adam(cfg.critic_lr),
        "log_alpha": Adam(cfg.alpha_lr),
    }


def update_temperature(state: State, log_pi: Tensor, target_entropy: float | Tensor) -> State:
    """Update log alpha toward the target entropy. log_pi: mean over the batch, 0-d.

    The loss is eq. 18, but linear in log alpha instead of alpha, as in rlkit.
    """

    def alpha_loss(log_alpha: Network) -> Tensor:
        return -log_alpha() * (log_pi + target_entropy)

    return minimize(state, "log_alpha", alpha_loss)[0]


def soft_q(state: State, observations: Tensor, alpha: Tensor) -> Tensor:
    """Return Q_i(s, a) - alpha log pi(a|s) of each target critic, [B, O] -> [E, B]; eq. 3."""
    a, log_pi = state.policy.sample(observations, state.random)
    return state.critic_target(observations, a) - alpha * log_pi


def soft_target(state: State, batch: Batch, alpha: Tensor) -> Tensor:
    """Return r + discount * (min_i Q_i(s', a') - alpha log pi(a'|s')), [B]; a' ~ pi; eq. 2, 3."""
    return batch.rewards + batch.discount * soft_q(state, batch.next_observations, alpha).amin(0)


def ensemble_min(q: Tensor) -> Tensor:
    """Return the minimum over the ensemble, [E, B] -> [B]."""
    return q.amin(0)


def soft_policy_loss(
    policy: Network,
    state: State,
    observations: Tensor,
    alpha: Tensor,
    bound: Callable[[Tensor], Tensor] = ensemble_min,
) -> tuple[Tensor, Tensor]:
    """Return E[alpha log pi(a|s) - bound_i Q_i(s, a)] (eq. 9) and mean log pi, 0-d; a ~ pi."""
    a, log_pi = policy.sample(observations, state.random)
    return (alpha * log_pi - bound(state.critic(observations, a))).mean(), log_pi.mean()
