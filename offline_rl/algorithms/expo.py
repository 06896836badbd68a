"""EXPO: a flow policy trained by imitation, and a small policy that edits its chunks to raise Q.

The flow policy imitates the data. The edit policy observes a chunk of the flow policy and changes
each action by at most `edit_scale`. SAC trains it. No gradient passes through the flow's sampler.
In each decision and in the critics' target, N edited chunks are sampled and the best one is used.

Paper:   Dong et al., 2025, arXiv:2507.07986.
Differs: no known difference in updates from ColinQiyangLi/qam:agents/fedit.py. A chunk that the end
         of an episode cuts short bootstraps here; that code leaves it out of the losses of critics
         (partial=drop) and flow, and it adds rewards after a step that terminates. In the paper,
         the unedited chunks are candidates, too.
"""

from __future__ import annotations

from math import prod
from typing import Annotated

from torch import nn

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import (
    LossAndMetrics,
    Metrics,
    Network,
    State,
    minimize,
    update_targets,
)
from offline_rl.algorithms.common.config import BUILT, Ensemble, Rate
from offline_rl.algorithms.common.noising.flow_critic import BestOfNChunks, FlowConfig
from offline_rl.algorithms.common.optim import Adam
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Count, NonNegative, Number, frozen
from policies.heads.gaussian import TanhGaussianActor
from policies.heads.residual import EditedActor
from policies.networks.init import xavier_init
from policies.networks.mlp import Scalar


@frozen
class Config(FlowConfig):
    """Defaults: ColinQiyangLi/qam:agents/fedit.py, with the edit scale of most of its tasks."""

    edit_scale: Annotated[NonNegative, BUILT] = 0.2  # largest change of an action, in [-1, 1]
    num_samples: Annotated[Count, BUILT] = 1  # chunks sampled per decision (N)
    num_critics: Ensemble = 10  # number of critics (E)
    rho: NonNegative = 0.5  # target values: mean - rho * standard deviation of the critics
    alpha_lr: Rate = 3e-4  # learning rate of the temperature
    entropy_scale: Number = 0.5  # target entropy is -entropy_scale * dimensions of a chunk


class EXPO(BestOfNChunks):
    Config: type = Config
    Online = schedule.Chunked
    samples_per_row = "num_samples"

    def networks(self) -> dict[str, nn.Module]:
        return super().networks() | {"log_alpha": Scalar(0.0)}

    @property
    def chunk_shape(self) -> tuple[int, int]:
        """The shape of a chunk, [H, A]."""
        return self.cfg.horizon, self.spec.action_dim

    def actor(self) -> nn.Module:
        flow, size, cfg = self.flow(), prod(self.chunk_shape), self.cfg
        sizes = self.spec.observation_dim + size, size, cfg.hidden
        edit = TanhGaussianActor(*sizes, activation=cfg.activation, init=xavier_init)
        scale = float(cfg.edit_scale)
        head = EditedActor(flow.arguments, edit.arguments, edit_scale=scale)
        head.flow, head.edit = flow, edit
        return head

    def optimizers(self) -> dict[str, Adam]:
        return super().optimizers() | {"log_alpha": self.adam(self.cfg.alpha_lr)}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update all networks. Each loss reads the other networks as before the update."""
        old, s, alpha = state, batch.observations, state.log_alpha().exp()
        y = self.target(old, batch, self.best_chunks(old, batch.next_observations))
        critic_loss, flow_loss = self.critic_loss(batch, y), self.flow_loss(old, batch)
        noise = old.random.normal(batch.actions.shape)[:, None]  # [B, 1, H, A]
        flow_chunks = old.policy.sample_flow(s, noise)

        def policy_loss(policy: Network) -> LossAndMetrics:
            edited, log_pi = policy.sample_edited(s, flow_chunks, old.random)
            q = old.critic(s.flatten(1), edited.flatten(1)).mean(0)
            parts = {"imitation_loss": flow_loss(policy.flow), "entropy": -log_pi.mean()}
            return parts["imitation_loss"] + (alpha * log_pi - q).mean(), parts

        state, critic_value = minimize(update_targets(state), "critic", critic_loss)
        state, policy_value, metrics = minimize(state, "policy", policy_loss)
        excess = -metrics["entropy"] - self.cfg.entropy_scale * prod(self.chunk_shape)
        state, _ = minimize(state, "log_alpha", lambda log_alpha: -log_alpha().exp() * excess)
        metrics |= {"critic_loss": critic_value, "policy_loss": policy_value}
        return state, metrics | {"alpha": alpha.detach(), "target": y.mean()}
