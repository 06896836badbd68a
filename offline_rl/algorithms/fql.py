"""FQL: flow Q-learning, a one-step policy distilled from a flow policy and trained on Q.

A flow policy imitates the data: it learns the velocity from noise to actions. A second policy,
which acts, maps noise to actions in one step. It is trained to match the flow's action for the same
noise and to maximize Q. No gradient passes through the integration steps of the flow.

Paper:   Park, Li, Levine, ICML 2025, arXiv:2502.02538.
Differs: no known difference in updates from the authors' code (seohongpark/fql:agents/fql.py).
         Online, updates start after `batch_size` steps instead of one, and new steps do not replace
         rows of the data; in the authors' code they do if the data has 2 million rows or more. As
         there, the squared distance to the flow is a mean over the action dimensions; in the paper
         it is a sum. `alpha` refers to the mean. As there, target critics are updated with the
         critics from before the gradient step. With horizon > 1, it is `qc_fql`.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from offline_rl.algorithms.common.base import (
    LossAndMetrics,
    Metrics,
    Network,
    State,
    minimize,
    update_targets,
)
from offline_rl.algorithms.common.noising.flow_critic import FlowConfig, FlowCritic
from offline_rl.algorithms.common.optim import Adam
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import NonNegative, frozen
from policies.heads.chunk import OneStepActor


@frozen
class Config(FlowConfig):
    """Defaults: the authors' code, with the normalized Q loss that it recommends for new tasks."""

    alpha: NonNegative = 1.0  # weight of the squared distance to the flow's actions; larger: closer
    normalize_q: bool = True  # divide the Q term by the batch's mean |Q|; alpha then has no unit


class FQL(FlowCritic):
    Config: type = Config

    def networks(self) -> dict[str, nn.Module]:
        return super().networks() | {"flow": self.flow()}

    def actor(self) -> nn.Module:
        return self.build(OneStepActor, horizon=self.cfg.horizon)

    def optimizers(self) -> dict[str, Adam]:
        return super().optimizers() | {"flow": self.adam(self.cfg.actor_lr)}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update all networks. Each loss reads the other networks as before the update."""
        old, s2 = state, batch.next_observations
        a2, _ = old.policy.decide(s2, {}, old.random.normal(batch.actions.shape))
        target = self.target(old, batch, a2)
        state, critic_value = minimize(
            update_targets(state), "critic", self.critic_loss(batch, target)
        )
        state, flow_value = minimize(state, "flow", self.flow_loss(old, batch))
        state, policy_value, metrics = minimize(state, "policy", self.policy_loss(old, batch))
        metrics |= {"critic_loss": critic_value, "imitation_loss": flow_value}
        return state, metrics | {"policy_loss": policy_value, "target": target.mean()}

    def policy_loss(self, state: State, batch: Batch) -> Callable[[Network], LossAndMetrics]:
        """Return the loss of the policy: alpha * distance to the flow's chunks - Q."""
        z = state.random.normal(batch.actions.shape)  # [B, H, A]
        flow_chunks, _ = state.flow.decide(batch.observations, {}, z[:, None])

        def loss(policy: Network) -> LossAndMetrics:
            chunks = policy(batch.observations, z)  # not clipped: the distance limits them
            distance = (chunks - flow_chunks).square().mean()
            q = state.critic(batch.observations.flatten(1), chunks.clip(-1, 1).flatten(1)).mean(0)
            scale = 1 / q.detach().abs().mean() if self.cfg.normalize_q else 1.0
            value = self.cfg.alpha * distance - scale * q.mean()
            return value, {"student_loss": distance, "q": q.mean()}

        return loss
