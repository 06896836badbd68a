"""DPPO: policy gradient fine-tuning of diffusion and flow policies, per denoising step.

Each denoising step is one action of a Markov decision process, and the environment's reward for an
action chunk is the reward of all denoising steps that produced it. PPO raises or lowers their log
densities; noisier steps get less weight and a narrower clip. The critic observes the state only.
Denoising steps before the last K' (`tuned`) use the pretrained policy. `offline-rl finetune
algorithm=dppo run=<run>` starts with a run of diffusion_policy or flow_policy.

Paper:   Ren et al., ICLR 2025, arXiv:2409.00588.
Differs: An update equals that of the authors' code (irom-princeton/dppo; benchmarks/conformance).
         The rest differs as follows. A time-out ends an episode: the return bootstraps from the
         last observation, and advantages do not continue into the next episode. gamma applies per
         environment step, also inside chunks, instead of per chunk. The sums that scale rewards use
         this gamma too; the authors' code always uses 0.99 for them. The variance of these sums is
         biased (divided by their count); the authors divide by the count minus one. Actions of a
         chunk that were not executed because the episode ended do not count. DDIM continues with
         the noise that the network predicts; the authors' code recomputes the noise from the
         clipped prediction. Learning rates have no warm-up over the first iterations and no decay.
         Networks have no residual connections. The authors' value clip, advantage quantiles and
         cloning term, which all of their settings switch off, are left out. Flow policies are
         fine-tuned with the noise of arXiv:2509.05952.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from offline_rl.algorithms.common.base import Metrics, State, keep_where
from offline_rl.algorithms.common.config import Rate
from offline_rl.algorithms.common.on_policy.chains import ChainConfig, DenoisingRL
from offline_rl.algorithms.common.on_policy.ppo import clip_range, standardize
from offline_rl.algorithms.common.optim import Adam
from offline_rl.replay.rollouts import Decisions
from offline_rl.utils.options import NonNegative, Positive, Share, frozen
from policies.networks.mlp import Scalar


@frozen
class Config(ChainConfig):
    """Defaults: the authors' for gym (cfg/gym/finetune). Policy sizes are those of the run."""

    denoising_discount: Share = 0.99  # advantage factor for each denoising step before the last
    clip: Positive = 0.01  # PPO clip of the last denoising step
    first_clip: Positive = 0.01  # PPO clip of the first denoising step
    clip_rate: Positive = 3.0  # exponent of the rise from first_clip to clip; larger: later
    target_kl: Positive = 1.0  # KL in nats above which training stops for this iteration
    policy_lr: Rate = 1e-4  # learning rate of the policy
    value_lr: Rate = 1e-3  # learning rate of the critic
    value_weight: NonNegative = 0.5  # weight of the critic loss


class DPPO(DenoisingRL):
    Config: type = Config
    frozen_networks = ("stopped",)

    def networks(self) -> dict[str, nn.Module]:
        """Return the networks and `stopped`, the rollout in which target_kl was exceeded, or -1."""
        return super().networks() | {"stopped": Scalar(-1.0)}

    def optimizers(self) -> dict[str, Adam]:
        rates = {"model": self.cfg.policy_lr, "value": self.cfg.value_lr}
        return {name: Adam(rate, seeds_stop=True) for name, rate in rates.items()}

    def update(self, state: State, batch: Decisions, i: int) -> tuple[State, Metrics]:  # type: ignore[override]
        """Update policy and critic, unless the KL has exceeded target_kl in this iteration."""
        cfg, old, k = self.cfg, state, batch.step
        advantages = standardize(batch.advantages) * cfg.denoising_discount ** (cfg.tuned - 1 - k)
        clip = clip_range(k, cfg.tuned, cfg.clip, cfg.first_clip, cfg.clip_rate)
        state, metrics = self.update_policy(state, batch, advantages, clip)
        state = keep_where(old, state, self.in_critic_warmup(state))
        state, value_metrics = self.update_value(state, batch, 0.5 * cfg.value_weight)
        stopped = old.stopped()
        state = keep_where(old, self.copy_to_policy(state), stopped == batch.rollout)
        stopped_at = torch.where(
            metrics["divergence"] > cfg.target_kl, batch.rollout.to(stopped.dtype), stopped
        )
        state = replace(state, params={**state.params, "stopped": {"value": stopped_at}})
        return state, metrics | value_metrics
