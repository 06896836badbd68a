"""Best of N: of N chunks that a flow policy samples, the one of highest value is executed.

The policy imitates the chunks of the data: it matches the velocities from noise to a chunk. The
critic evaluates chunks, and bootstraps from the best of N chunks sampled in the next state.

Paper:   Ghasemipour, Schuurmans, Gu, ICML 2021, arXiv:2007.11091 (EMaQ).
Differs: an example; a flow policy samples chunks, and the smaller of two target values counts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from offline_rl.algorithms.common.actor_critic import ActorCritic, ActorCriticConfig
from offline_rl.algorithms.common.base import Metrics, State, minimize, update_targets
from offline_rl.algorithms.common.critics import regress
from offline_rl.algorithms.common.noising.targets import flow_targets
from offline_rl.replay.batch import Batch, Source, Sources, require
from offline_rl.replay.chunks import Chunks
from offline_rl.utils.options import Count, frozen
from policies.heads.best_of_n import BestOfN
from policies.heads.diffusion import DiffusionActor
from policies.heads.schedules import euler
from policies.networks.mlp import Critic


@frozen
class Config(ActorCriticConfig):
    horizon: Count = 2  # actions of a chunk; all of them are executed
    num_samples: Count = 4  # chunks that are sampled per decision (N)
    num_inference_steps: Count = 3  # integration steps from noise to a chunk


class BestOfNSamples(ActorCritic):
    Config = Config
    acts = ("policy", "critic")

    def source(self, phase: str, sources: Sources) -> Source:
        data, length = require(sources, "offline"), self.cfg.horizon
        return Chunks(data, n_obs_steps=1, horizon=length, n_action_steps=length)

    def actor(self) -> nn.Module:
        obs, act, cfg = self.spec.observation_dim, self.spec.action_dim, self.cfg
        shape = {"n_obs_steps": 1, "horizon": cfg.horizon, "n_action_steps": cfg.horizon}
        shape |= {"options": {"hidden": [*cfg.hidden]}, "table": euler(cfg.num_inference_steps)}
        return DiffusionActor(obs, act, network="mlp", **shape)

    def critic(self) -> nn.Module:
        obs, act = self.spec.observation_dim, self.spec.action_dim
        return Critic(obs, act * self.cfg.horizon, self.cfg.hidden)

    def acting_head(self) -> BestOfN:
        arguments: Any = [self.modules[name].arguments for name in self.acts]
        return BestOfN("DiffusionActor", *arguments, num_samples=self.cfg.num_samples)

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update the policy by imitation, then the critic."""
        x, times, velocity = flow_targets(state.random, batch.actions, 1, 1.0, 1.0)  # [1, B, H, A]

        def policy_loss(policy):
            return (policy(batch.observations, x, times) - velocity).square().mean()

        state, policy_value = minimize(state, "policy", policy_loss)

        target = batch.rewards + batch.discount * self.best_value(state, batch.next_observations)
        s, chunks = batch.observations.flatten(1), batch.actions.flatten(1)
        state, metrics = regress(state, replace(batch, observations=s, actions=chunks), target)
        return update_targets(state), metrics | {"policy_loss": policy_value}

    def best_value(self, state: State, s: Tensor) -> Tensor:
        """Return the highest target value of N sampled chunks, [B].  s: [B, 1, O]."""
        s = s.repeat_interleave(self.cfg.num_samples, 0)  # [B * N, 1, O]
        noise = state.random.normal((len(s), *self.modules["policy"].noise_shape))
        chunks, _ = state.policy.decide(s, {}, noise)
        q = state.critic_target(s.flatten(1), chunks.flatten(1)).amin(0)  # [B * N]
        return q.unflatten(0, (-1, self.cfg.num_samples)).amax(1)
