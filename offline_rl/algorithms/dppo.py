"""DPPO: a policy that denoises, improved by reward, each denoising step a decision of its own.

What an environment answers to a chunk of actions is the reward of all the denoising steps that made
it. Proximal policy optimization raises or lowers their densities, those of the noisiest steps least
and within the narrowest clip; the critic sees the state alone. Steps before the last K' are taken
by the policy as it was.
`offline-rl finetune algorithm=dppo run=<run>` begins with one of diffusion_policy or flow_policy.

Paper:   Ren et al., ICLR 2025, arXiv:2409.00588. K' is `tuned`.
Differs: an update equals that of the authors' code (irom-princeton/dppo; benchmarks/conformance).
         Around it, a time-out is no part of the next episode: it bootstraps from what was seen
         last, and advantages are cut there; gamma is an environment step's, not a chunk's, inside
         chunks too, and in the sums that scale rewards, there always 0.99; these sums' variance is
         by their count, there by one less; actions which an episode's end left over do not count;
         what DDIM follows is the network's own noise, not that of the clipped guess; rates neither
         rise over the first iterations nor fall; networks have no residual connections. Their
         clip of values, quantiles of advantages and cloning term, off in all their settings, are
         left out. Flows are fine-tuned with the noise of arXiv:2509.05952.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import nn

from offline_rl.algorithms.common.base import Metrics, State, keep_where
from offline_rl.algorithms.common.config import Rate
from offline_rl.algorithms.common.on_policy.chains import ChainConfig, DenoisingRL
from offline_rl.algorithms.common.on_policy.ppo import clip_range, standardize
from offline_rl.algorithms.common.optim import Adam
from offline_rl.replay.rollouts import Decisions
from offline_rl.utils.options import NonNegative, Positive, Share
from policies.networks.mlp import Scalar


@dataclass(frozen=True)
class Config(ChainConfig):
    """Defaults: the authors' for gym (cfg/gym/finetune); the policy's own are its run's."""

    denoising_discount: Share = 0.99  # of an advantage, for each step before the last
    clip: Positive = 0.01  # of the last denoising step's ratio
    first_clip: Positive = 0.01  # of the first one's
    clip_rate: Positive = 3.0  # how late it widens
    target_kl: Positive = 1.0  # nats; beyond, an iteration's further updates change nothing
    policy_lr: Rate = 1e-4  # learning rate of the policy
    value_lr: Rate = 1e-3  # of the critic
    value_weight: NonNegative = 0.5  # of its loss


class DPPO(DenoisingRL):
    Config: ClassVar[type] = Config
    frozen = ("stopped",)

    def networks(self) -> dict[str, nn.Module]:
        """In `stopped` stands the rollout from which nothing more is learned."""
        return super().networks() | {"stopped": Scalar(-1.0)}

    def optimizers(self) -> dict[str, Adam]:
        return {"model": Adam(self.cfg.policy_lr), "value": Adam(self.cfg.value_lr)}

    def update(self, state: State, batch: Decisions, i: int) -> tuple[State, Metrics]:  # type: ignore[override]
        """One step of policy and critic; none where an iteration has gone as far as it may."""
        cfg, old, k = self.cfg, state, batch.step
        gained = standardize(batch.advantages) * cfg.denoising_discount ** (cfg.tuned - 1 - k)
        clip = clip_range(k, cfg.tuned, cfg.clip, cfg.first_clip, cfg.clip_rate)
        state, metrics = self.update_policy(state, batch, gained, clip)
        state = keep_where(old, state, self.in_critic_warmup(state))
        state, told = self.update_value(state, batch, 0.5 * cfg.value_weight)
        stopped = old.stopped()
        state = keep_where(old, self.copy_to_policy(state), stopped == batch.rollout)
        far = torch.where(
            metrics["divergence"] > cfg.target_kl, batch.rollout.to(stopped.dtype), stopped
        )
        state = replace(state, params={**state.params, "stopped": {"value": far}})
        return state, metrics | told
