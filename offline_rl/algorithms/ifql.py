"""Implicit flow Q-learning (IFQL): implicit Q-learning whose policy is the best of N flow samples.

V regresses on an upper expectile of Q over dataset actions, and Q bootstraps from V, as in IQL. The
policy is a flow that imitates the data, without the critics. To act, it samples N actions, and the
one of highest value is executed. It is IDQL with a flow instead of a diffusion policy.

With horizon > 1, policy and critics have chunks of actions, which are executed open loop.

Paper:   Park, Li, Levine, ICML 2025, arXiv:2502.02538, section 5 and appendix C; the critics: IQL
         (arXiv:2110.06169, eq. 5 and 6); the selection: IDQL (arXiv:2304.10573).
Differs: no known difference from the authors' code (seohongpark/fql:agents/ifql.py), which has no
         chunks. As there, every loss uses the networks from before the update, and target critics
         follow the critics of the previous update.
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor, nn

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.actor_critic import ActorCritic, ActorCriticConfig
from offline_rl.algorithms.common.base import (
    DATA_THEN_ONLINE,
    Metrics,
    Network,
    State,
    minimize,
    update_targets,
)
from offline_rl.algorithms.common.config import BUILT, Expectile, Rate, Sizes
from offline_rl.algorithms.common.critics import Value
from offline_rl.algorithms.common.in_sample import expectile_loss
from offline_rl.algorithms.common.noising.flow import NORM, build_critic, build_flow, imitate
from offline_rl.algorithms.common.optim import Adam
from offline_rl.data.transform import ActionClip
from offline_rl.replay.batch import Batch, Source, Sources
from offline_rl.replay.chunks import Chunks
from offline_rl.utils.options import Count, frozen
from policies.heads.best_of_n import BestOfN
from policies.networks.init import xavier_init
from policies.networks.mlp import Activation


@frozen
class Config(ActorCriticConfig):
    """Defaults: the authors' code."""

    expectile: Expectile = 0.9  # expectile of Q that V learns; 0.5: mean action, near 1: best one
    num_samples: Annotated[Count, BUILT] = 32  # samples per decision, of which one is executed (N)
    num_inference_steps: Count = 10  # integration steps of the flow from noise to a chunk
    horizon: Annotated[Count, BUILT] = 1  # actions of a chunk; all of them are executed
    value_lr: Rate = 3e-4  # learning rate of V
    hidden: Sizes = (512, 512, 512, 512)
    activation: Activation = "gelu_tanh"
    clip_actions: ActionClip = 1 - 1e-5  # clip the data's actions to +- this, as the authors do


class IFQL(ActorCritic):
    Config: type = Config
    Online: type = schedule.OneBuffer
    mode = DATA_THEN_ONLINE
    acts = ("policy", "critic")

    def source(self, phase: str, sources: Sources) -> Source:
        shape = {"horizon": self.cfg.horizon, "n_action_steps": self.cfg.horizon}
        chunks = {name: Chunks(x, n_obs_steps=1, **shape) for name, x in sources.items()}
        return super().source(phase, chunks)

    def networks(self) -> dict[str, nn.Module]:
        obs, cfg, options = self.spec.observation_dim, self.cfg, NORM | {"init": xavier_init}
        value = Value(obs, cfg.hidden, activation=cfg.activation, **options)
        return super().networks() | {"value": value}

    def actor(self) -> nn.Module:
        return build_flow(self.spec, self.cfg)

    def critic(self) -> nn.Module:
        return build_critic(self.spec, self.cfg)

    def acting_head(self) -> BestOfN:
        policy, critic = (self.modules[name].arguments for name in self.acts)
        return BestOfN("DiffusionActor", policy, critic, num_samples=self.cfg.num_samples)

    def optimizers(self) -> dict[str, Adam]:
        return super().optimizers() | {"value": Adam(self.cfg.value_lr)}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update all networks; every loss uses the other networks from before the update."""
        s, s2 = batch.observations.flatten(1), batch.next_observations.flatten(1)
        a = batch.actions.flatten(1)  # [B, H * A]
        q = state.critic_target(s, a).amin(0)  # [B]
        target = batch.rewards + batch.discount * state.value(s2)  # [B]
        state = update_targets(state)

        def value_loss(value: Network) -> Tensor:
            return expectile_loss(q - value(s), self.cfg.expectile).mean()

        def critic_loss(critic: Network) -> Tensor:  # [E, B] - [B]
            return (critic(s, a) - target).square().sum(0).mean()

        state, value_value = minimize(state, "value", value_loss)
        state, critic_value = minimize(state, "critic", critic_loss)
        state, policy_value = imitate(state, "policy", batch)
        losses = {"value": value_value, "critic": critic_value, "policy": policy_value}
        return state, {f"{k}_loss": v for k, v in losses.items()} | {"target": target.mean()}
