"""EXPO: a flow policy trained by imitation, whose chunks a small policy edits to increase Q.

The flow policy imitates the data. The edit policy observes the flow's chunk and adds to it at most
`edit_scale`; it is trained by SAC. No gradient passes through the flow's sampler. To act, and for
the targets of the critics, N edited chunks are sampled, and that of the highest value counts.

Paper:   Dong et al., 2025, arXiv:2507.07986.
Differs: no known difference in updates from ColinQiyangLi/qam:agents/fedit.py, for complete chunks.
         A chunk that the end of an episode shortens bootstraps, and repeats its last action; that
         code leaves it out. In the paper, the chunks before the edit are candidates, too.
"""

from __future__ import annotations

from typing import Annotated, Any

from torch import Tensor, nn

from offline_rl.algorithms.common.base import (
    LossAndMetrics,
    Metrics,
    Network,
    State,
    minimize,
    update_targets,
)
from offline_rl.algorithms.common.config import BUILT, Ensemble, Sizes
from offline_rl.algorithms.common.critics import lower_bound
from offline_rl.algorithms.common.entropy import SoftConfig
from offline_rl.algorithms.fql import FQL
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Count, NonNegative, Number, frozen
from policies.heads.best_of_n import BestOfN
from policies.heads.gaussian import TanhGaussianActor
from policies.heads.residual import EditedActor
from policies.networks.init import xavier_init
from policies.networks.mlp import Activation, Scalar


@frozen
class Config(SoftConfig):
    """Defaults: ColinQiyangLi/qam:agents/fedit.py, with the edit scale of most of its tasks."""

    edit_scale: Annotated[NonNegative, BUILT] = 0.2  # largest change of an action in [-1, 1]
    num_samples: Annotated[Count, BUILT] = 1  # chunks sampled per decision (N)
    num_critics: Ensemble = 10  # number of critics (E)
    rho: NonNegative = 0.5  # targets are the critics' mean minus this many standard deviations
    entropy_scale: Number = 0.5  # target entropy is -entropy_scale * dimensions of a chunk
    num_inference_steps: Count = 10  # integration steps of the flow from noise to a chunk
    horizon: Annotated[Count, BUILT] = 1  # actions of a chunk; all of them are executed
    hidden: Sizes = (512, 512, 512, 512)
    activation: Activation = "gelu_tanh"


class EXPO(FQL):
    Config: type = Config
    acts = ("policy", "critic")

    def networks(self) -> dict[str, nn.Module]:
        networks: dict[str, nn.Module] = {"policy": self.actor(), "critic": self.critic()}
        return networks | {"log_alpha": Scalar(0.0)}

    def actor(self) -> nn.Module:
        flow: Any = self.flow()
        size, cfg = self.spec.action_dim * self.cfg.horizon, self.cfg
        sizes = self.spec.observation_dim + size, size, cfg.hidden
        edit = TanhGaussianActor(*sizes, activation=cfg.activation, init=xavier_init)
        scale = float(cfg.edit_scale)
        head = EditedActor(flow.arguments, edit.arguments, edit_scale=scale)
        head.flow, head.edit = flow, edit
        return head

    def acting_head(self) -> BestOfN:
        arguments: Any = [self.modules[name].arguments for name in self.acts]
        options: Any = {"num_samples": self.cfg.num_samples, "aggregate": "mean"}
        return BestOfN("EditedActor", *arguments, **options)

    def optimizers(self) -> dict[str, Any]:
        return super().optimizers() | {"log_alpha": self.adam(self.cfg.alpha_lr)}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update all networks; every loss uses the other networks from before the update."""
        old, y = state, self.target(state, batch)
        histories, alpha = batch.observations, old.log_alpha().exp()
        s, chunks = histories.flatten(1), batch.actions.flatten(1)

        def critic_loss(critic: Network) -> Tensor:  # [E, B] - [B]
            return (critic(s, chunks) - y).square().mean()

        state, critic_value = minimize(update_targets(state), "critic", critic_loss)
        flow_loss = self.flow_loss(old, batch)
        noise = state.random.normal(batch.actions.shape)[:, None]  # [B, 1, T, A]
        flow_chunks = old.policy.sample_flow(histories, noise)

        def policy_loss(policy: Network) -> LossAndMetrics:
            edited, log_pi = policy.sample_edited(histories, flow_chunks, state.random)
            q = old.critic(s, edited.flatten(1)).mean(0)
            parts = {"flow_loss": flow_loss(policy.flow), "entropy": -log_pi.mean()}
            return parts["flow_loss"] + (alpha * log_pi - q).mean(), parts

        state, policy_value, metrics = minimize(state, "policy", policy_loss)
        excess = -metrics["entropy"] - self.cfg.entropy_scale * chunks.shape[1]
        state, _ = minimize(state, "log_alpha", lambda log_alpha: -log_alpha().exp() * excess)
        metrics |= {"critic_loss": critic_value, "policy_loss": policy_value}
        return state, metrics | {"alpha": alpha.detach(), "target": y.mean()}

    def target(self, state: State, batch: Batch) -> Tensor:
        """Return r + discount * lower bound of Q(s', a'), [B]; a' is the best of N chunks."""
        count = self.cfg.num_samples
        histories = batch.next_observations.repeat_interleave(count, 0)  # [B * N, 1, O]
        noise = state.random.normal((len(histories), *self.modules["policy"].noise_shape))
        chunks, _ = state.policy.decide(histories, {}, noise)
        s2, a2 = histories.flatten(1), chunks.flatten(1)
        best = state.critic(s2, a2).mean(0).unflatten(0, (-1, count)).argmax(1, keepdim=True)
        values = lower_bound(state.critic_target(s2, a2), self.cfg.rho)  # [B * N]
        value = values.unflatten(0, (-1, count)).gather(1, best).squeeze(1)
        return batch.rewards + batch.discount * value
