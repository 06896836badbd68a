"""A deterministic policy of action chunks with a critic Q(s, chunk), trained in an environment.

The policy executes each chunk open loop. The critic regresses on the discounted rewards of the
executed steps and the target value of the policy's next chunk. The policy maximizes the critic.
Chunks that the end of an episode cuts short have the weight 0 in the critic's loss.

Paper:   Li, Zhou, Levine, NeurIPS 2025, arXiv:2507.07969 (Q-chunking), for the critic.
Differs: an example; the policy is deterministic, as in DDPG, and learns without data.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from torch import nn

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.actor_critic import ActorCritic, ActorCriticConfig
from offline_rl.algorithms.common.base import Metrics, Mode, State, minimize, update_targets
from offline_rl.algorithms.common.config import BUILT
from offline_rl.replay.batch import Batch, Source, Sources, require
from offline_rl.replay.chunks import Chunks
from offline_rl.utils.options import Count, NonNegative, frozen
from policies.heads.chunk import ChunkActor
from policies.networks.mlp import Critic


@frozen
class Config(ActorCriticConfig):
    horizon: Count = 4  # actions of a chunk; all of them are executed
    exploration_noise: Annotated[NonNegative, BUILT] = 0.1  # std of exploration noise on actions


class ChunkedCritic(ActorCritic):
    Config = Config
    Online = schedule.RandomStart
    mode = Mode(learns=("environment",))
    targets: ClassVar = {"policy_target": "policy", "critic_target": "critic"}

    def source(self, phase: str, sources: Sources) -> Source:
        steps, length = require(sources, "online"), self.cfg.horizon
        return Chunks(steps, n_obs_steps=1, horizon=length, n_action_steps=length, partial="drop")

    def actor(self) -> nn.Module:
        shape = {"horizon": self.cfg.horizon, "n_action_steps": self.cfg.horizon}
        return self.build(ChunkActor, noise=self.cfg.exploration_noise, **shape)

    def critic(self) -> nn.Module:
        obs, act = self.spec.observation_dim, self.spec.action_dim
        return Critic(obs, act * self.cfg.horizon, self.cfg.hidden)

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update the critic, then the policy and both targets."""
        s, s2, chunks = (
            x.flatten(1) for x in (batch.observations, batch.next_observations, batch.actions)
        )
        next_q = state.critic_target(s2, state.policy_target(s2).flatten(1)).amin(0)  # [B]
        target = batch.rewards + batch.discount * next_q

        def critic_loss(critic):
            return ((critic(s, chunks) - target).square().sum(0) * batch.weights).mean()

        state, critic_value = minimize(state, "critic", critic_loss)
        critic = state.critic

        def policy_loss(policy):
            return -critic(s, policy(s).flatten(1))[0].mean()

        state, policy_value = minimize(state, "policy", policy_loss)
        metrics = {"critic_loss": critic_value, "policy_loss": policy_value}
        return update_targets(state), metrics | {"target": target.mean()}
