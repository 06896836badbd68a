"""FQL: flow Q-learning, a one-step policy distilled from a flow policy and trained on Q.

A flow policy imitates the data: it learns the velocity from noise to actions. The policy that acts
maps noise to actions in one step. It matches the flow's result for the same noise, and maximizes
the critics. So no gradient passes through the steps of the flow.

With horizon > 1, policy and critics have chunks of actions, which are executed open loop.

Paper:   Park, Li, Levine, ICML 2025, arXiv:2502.02538; chunks: Li, Zhou, Levine, NeurIPS 2025,
         arXiv:2507.07969 (QC-FQL).
Differs: no known difference from the authors' code (seohongpark/fql:agents/fql.py). As there, the
         squared distance to the flow is a mean over the dimensions of a chunk; in the paper it is
         a sum. `alpha` refers to the mean. Target critics follow the critics of the previous update.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from torch import Tensor, nn

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.actor_critic import ActorCritic, ActorCriticConfig
from offline_rl.algorithms.common.base import (
    DATA_THEN_ONLINE,
    LossAndMetrics,
    Metrics,
    Network,
    State,
    minimize,
    update_targets,
)
from offline_rl.algorithms.common.config import BUILT, Sizes
from offline_rl.algorithms.common.noising.targets import flow_targets
from offline_rl.replay.batch import Batch, Source, Sources
from offline_rl.replay.chunks import Chunks
from offline_rl.utils.options import Count, NonNegative, frozen
from policies.heads.chunk import OneStepActor
from policies.heads.diffusion import DiffusionActor
from policies.heads.schedules import euler
from policies.networks.init import xavier_init
from policies.networks.mlp import Activation, Critic


@frozen
class Config(ActorCriticConfig):
    """Defaults: the authors' code, with the normalized Q loss that it recommends for new tasks."""

    alpha: NonNegative = 1.0  # weight of the squared distance between policy and flow
    normalize_q: bool = True  # divide the Q term by the batch's mean |Q|, so that alpha has no unit
    q_aggregate: Annotated[Literal["mean", "min"], BUILT] = "mean"  # target value of the critics
    num_inference_steps: Count = 10  # integration steps of the flow from noise to a chunk
    horizon: Annotated[Count, BUILT] = 1  # actions of a chunk; all of them are executed
    hidden: Sizes = (512, 512, 512, 512)
    activation: Activation = "gelu_tanh"


class FQL(ActorCritic):
    Config: type = Config
    Online: type = schedule.OneBuffer
    mode = DATA_THEN_ONLINE

    def source(self, phase: str, sources: Sources) -> Source:
        shape = {"horizon": self.cfg.horizon, "n_action_steps": self.cfg.horizon}
        chunks = {name: Chunks(x, n_obs_steps=1, **shape) for name, x in sources.items()}
        return super().source(phase, chunks)

    def networks(self) -> dict[str, nn.Module]:
        return super().networks() | {"flow": self.flow()}

    def actor(self) -> nn.Module:
        return self.build(OneStepActor, horizon=self.cfg.horizon)

    def flow(self) -> nn.Module:
        """Return the flow policy, whose network predicts velocities."""
        obs, act, cfg = self.spec.observation_dim, self.spec.action_dim, self.cfg
        options = {"hidden": [*cfg.hidden], "activation": cfg.activation}
        shape = {"n_obs_steps": 1, "horizon": cfg.horizon, "n_action_steps": cfg.horizon}
        table = euler(cfg.num_inference_steps)
        return DiffusionActor(obs, act, network="plain", options=options, table=table, **shape)

    def critic(self) -> nn.Module:
        return self.q_network(self.spec.observation_dim, self.spec.action_dim * self.cfg.horizon)

    def q_network(self, observations: int, actions: int) -> nn.Module:
        """Return critics for inputs of these sizes, as many as the config has."""
        norm: dict[str, Any] = {"layer_norm": True, "norm_after_activation": True, "norm_eps": 1e-6}
        options = norm | {"activation": self.cfg.activation, "init": xavier_init}
        options |= {"ensemble": getattr(self.cfg, "num_critics", 2)}
        return Critic(observations, actions, self.cfg.hidden, **options)

    def optimizers(self) -> dict[str, Any]:
        return super().optimizers() | {"flow": self.adam(self.cfg.actor_lr)}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update all networks; every loss uses the other networks from before the update."""
        old, target = state, self.target(state, batch)
        s, chunks = batch.observations.flatten(1), batch.actions.flatten(1)

        def critic_loss(critic: Network) -> Tensor:  # [E, B] - [B]
            return (critic(s, chunks) - target).square().mean()

        state, critic_value = minimize(update_targets(state), "critic", critic_loss)
        state, flow_value = minimize(state, "flow", self.flow_loss(old, batch))
        z = state.random.normal(batch.actions.shape)

        def policy_loss(policy: Network) -> LossAndMetrics:
            return self.policy_loss(policy, old, batch, z)

        state, policy_value, metrics = minimize(state, "policy", policy_loss)
        losses = {"critic": critic_value, "flow": flow_value, "policy": policy_value}
        metrics |= {f"{name}_loss": value for name, value in losses.items()}
        return state, metrics | {"target": target.mean()}

    def target(self, state: State, batch: Batch) -> Tensor:
        """Return r + discount * Q(s', a') for actions a' of the policy, [B]."""
        s2 = batch.next_observations
        a2, _ = state.policy.decide(s2, {}, state.random.normal(batch.actions.shape))
        q = state.critic_target(s2.flatten(1), a2.flatten(1))  # [E, B]
        q = q.mean(0) if self.cfg.q_aggregate == "mean" else q.amin(0)
        return batch.rewards + batch.discount * q

    def flow_loss(self, state: State, batch: Batch) -> Any:
        """Return the loss of the flow: squared errors of velocities at uniform times."""
        x, times, velocity = flow_targets(state.random, batch.actions, 1, 1.0, 1.0)  # [1, B, T, A]

        def loss(flow: Network) -> Tensor:
            return (flow(batch.observations, x, times) - velocity).square().mean()

        return loss

    def policy_loss(self, policy: Network, state: State, batch: Batch, z: Tensor) -> LossAndMetrics:
        """Return alpha * distance to the flow's chunks - Q, for the noise z [B, T, A]."""
        flow_chunks, _ = state.flow.decide(batch.observations, {}, z[:, None])
        chunks = policy(batch.observations, z)  # not clipped, so that the distance pulls them back
        distance = (chunks - flow_chunks).square().mean()
        q = state.critic(batch.observations.flatten(1), chunks.clip(-1, 1).flatten(1)).mean(0)
        scale = 1 / q.detach().abs().mean() if self.cfg.normalize_q else 1.0
        return self.cfg.alpha * distance - scale * q.mean(), {"distance": distance, "q": q.mean()}
