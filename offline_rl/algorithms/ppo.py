"""Proximal policy optimization (PPO): on-policy actor-critic with a Gaussian policy.

An iteration collects steps of the current policy and computes generalized advantages. Several
epochs of minibatch updates then minimize the clipped surrogate loss, which gives no incentive to
move a probability ratio out of 1 +- `clip`. Gradients of policy and critic are clipped jointly.

Paper:   Schulman et al., arXiv:1707.06347. Equation numbers refer to it.
Differs: The update equals that of vwxyzjn/cleanrl:cleanrl/ppo_continuous_action.py
         (benchmarks/conformance). A time-out bootstraps from the last observation instead of
         counting as a termination. Learning rates do not decay. Observations are not normalized.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common.base import Metrics, Network, State, minimize
from offline_rl.algorithms.common.config import Rate
from offline_rl.algorithms.common.critics import Value
from offline_rl.algorithms.common.on_policy.ppo import clipped_loss, standardize
from offline_rl.algorithms.common.on_policy.rollouts import GaussianConfig, GaussianRollouts
from offline_rl.algorithms.common.optim import Adam
from offline_rl.replay.rollouts import Decisions
from offline_rl.utils.options import Count, NonNegative, Positive, Range, frozen
from policies.networks.init import orthogonal_init


@frozen
class Config(GaussianConfig):
    """Defaults: CleanRL's for MuJoCo, with 4 environments instead of 1."""

    batch_size: Count = 64  # steps per update; must divide `decisions`
    epochs: Annotated[int, Range(1)] = 10  # passes over an iteration's steps
    clip: Positive = 0.2  # clip range of the ratio and, with value_clip, of the change of V
    value_clip: bool = True  # also clip the change of V in an update
    policy_lr: Rate = 3e-4  # learning rate of the policy
    value_lr: Rate = 3e-4  # learning rate of the critic
    value_weight: NonNegative = 0.5  # weight of the critic loss in the joint gradient norm
    entropy_weight: NonNegative = 0.0  # weight of the policy's entropy
    max_grad_norm: Positive = 0.5  # maximum of the joint gradient norm of policy and critic
    scale_rewards: bool = True  # divide rewards by the standard deviation of running returns

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decisions % self.batch_size:
            raise ValueError(
                f"batch_size={self.batch_size} does not divide decisions={self.decisions}. Use a "
                "divisor."
            )

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {"epochs": 2}


class PPO(GaussianRollouts):
    Config: type = Config

    def networks(self) -> dict[str, nn.Module]:
        cfg, inputs = self.cfg, self.spec.observation_dim
        value = Value(
            inputs, cfg.value_hidden, activation="tanh", init=orthogonal_init(last_gain=1.0)
        )
        return {"policy": self.actor(init=orthogonal_init(last_gain=0.01)), "value": value}

    def optimizers(self) -> dict[str, Adam]:
        rates = {"policy": self.cfg.policy_lr, "value": self.cfg.value_lr}
        return {name: Adam(rate, eps=1e-5) for name, rate in rates.items()}

    def update(self, state: State, batch: Decisions, i: int) -> tuple[State, Metrics]:  # type: ignore[override]
        cfg, s, returns = self.cfg, batch.observations[:, -1], batch.returns
        advantages = standardize(batch.advantages)
        old_values = returns - batch.advantages

        def loss(policy: Network, value: Network) -> tuple[Tensor, Metrics]:
            log_ratio = policy.log_prob(s, batch.samples) - batch.log_probs[:, 0]
            surrogate = clipped_loss(log_ratio, advantages, cfg.clip)  # eq. 7
            v = value(s)
            value_loss = (v - returns).square()
            if cfg.value_clip:
                near = old_values + (v - old_values).clamp(-cfg.clip, cfg.clip)
                value_loss = torch.maximum(value_loss, (near - returns).square())
            value_loss, entropy = 0.5 * value_loss.mean(), policy.entropy()
            total = surrogate.loss + cfg.value_weight * value_loss - cfg.entropy_weight * entropy
            metrics = {"policy_loss": surrogate.loss, "value_loss": value_loss}
            metrics |= {"divergence": surrogate.divergence, "clipped": surrogate.share}
            return total, metrics | {"entropy": entropy}  # eq. 9

        names = ("policy", "value")
        state, _, metrics = minimize(state, names, loss, max_grad_norm=cfg.max_grad_norm)
        return state, metrics | {"returns": returns.mean()}
