"""Common parts of on-policy methods with a critic and a policy for each step of an episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from offline_rl.algorithms.common.base import Metrics, Network, Params, State
from offline_rl.algorithms.common.on_policy.ppo import gae
from offline_rl.algorithms.common.on_policy.rollouts import GaussianRollouts
from offline_rl.algorithms.common.on_policy.trust_region import natural_step
from offline_rl.replay.batch import Batch
from offline_rl.replay.rollouts import Shapes
from policies.heads.gaussian import step_mask

NEXT = "next_observations"


class StepwiseRollouts(GaussianRollouts):
    """Base of on-policy methods whose `policy` and `critic` have one member per episode step."""

    def columns(self) -> tuple[Shapes, Shapes]:
        return {**super().columns()[0], "timesteps": ()}, {}

    def decide(self, state: State, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        t, s = inputs["timesteps"], inputs["observations"][:, -1]
        samples = state.policy.sample(s, t, inputs["noise"])
        return {"samples": samples, "actions": samples.clip(-1, 1)[:, None], "timesteps": t}

    def compute_advantages(self, state: State, data: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return Monte Carlo returns. They bootstrap where an episode was cut off."""
        advantages, values = self.rollout_advantages(state, data, 1.0)
        return {"returns": advantages + values}

    def values(self, state: State, s: Tensor, t: Tensor) -> Tensor:
        """Return V [B] of states [B, O] at steps [B]: the mean of Q over sampled actions."""
        count, mask = self.cfg.value_samples, step_mask(t, self.cfg.num_steps)
        mean, log_std = state.policy.at(s, t)
        a = mean + log_std.exp() * state.random.normal((count, *mean.shape))  # [K, B, A]
        q = state.critic(s.expand(count, *s.shape), a.clip(-1, 1))  # [H, K, B]
        return (q * mask[:, None]).sum(0).mean(0)

    def rollout_advantages(
        self, state: State, data: Mapping[str, Tensor], trace: float | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return advantages and values of a rollout, [T, E]."""
        ended, t = data["terminated"] + data["truncated"], data["timesteps"]
        s, s2 = (data[name][:, :, -1].flatten(0, 1) for name in ("observations", NEXT))
        values = self.values(state, s, t.flatten()).unflatten(0, t.shape)
        next_values = self.values(state, s2, t.flatten() + 1).unflatten(0, t.shape)
        within = torch.cat([1 - ended[:-1], torch.zeros_like(ended[:1])])
        next_values = torch.where(within > 0, values.roll(-1, 0), next_values)
        discount = self.cfg.discount * (1 - data["terminated"])
        rewards = data["rewards"][..., 0]
        return gae(rewards, values, next_values, discount, ended, trace), values

    def group(self, data: Mapping[str, Tensor], *columns: Tensor) -> tuple[Tensor, ...]:
        """Return a mask [H, M] and columns [H, M, …] of a rollout, sorted by step.

        If the steps have different numbers of rows, the mask excludes rows of other steps.
        """
        count = self.cfg.num_steps
        t = data["timesteps"].flatten().clamp(max=count - 1)
        order = t.argsort(stable=True).unflatten(0, (count, -1))
        steps = torch.arange(count, device=t.device)[:, None]
        return (t[order] == steps).float(), *(x.flatten(0, 1)[order] for x in columns)

    def step_policy(
        self, state: State, mask: Tensor, s: Tensor, a: Tensor, adv: Tensor
    ) -> tuple[dict[str, Tensor], Metrics]:
        """Return the policy's float32 parameters after a natural-gradient step, and metrics.

        mask, adv: [H, M], weights and advantages of samples a [H, M, A] in states s [H, M, O].
        """
        cfg = self.cfg
        weights = mask / mask.sum(1, keepdim=True).clamp(min=1)  # [H, M]
        mean, log_std = state.policy.per_step(s)
        policy = self.modules["policy"]

        def normal_terms(params: Params) -> tuple[Tensor, Tensor]:
            result: tuple[Tensor, Tensor] = Network(policy, params).per_step(s)
            return result

        def surrogate(params: Params) -> Tensor:
            new_mean, new_log_std = normal_terms(params)
            z, z_old = (a - new_mean) / new_log_std.exp(), (a - mean) / log_std.exp()
            log_ratio = 0.5 * (z_old.square() - z.square()) - (new_log_std - log_std)
            return -(weights * adv * log_ratio.sum(-1).exp()).sum(1)

        def divergence(params: Params) -> Tensor:
            new_mean, new_log_std = normal_terms(params)
            squares = (2 * log_std).exp() + (mean - new_mean).square()
            terms = new_log_std - log_std + squares / (2 * (2 * new_log_std).exp()) - 0.5
            return (weights * terms.sum(-1)).sum(1)

        options: Any = {"max_kl": cfg.max_kl, "damping": cfg.damping}
        step = natural_step(state.params["policy"], surrogate, divergence, **options)
        metrics = {"policy_loss": surrogate(step.params).mean()}
        metrics |= {"divergence": divergence(step.params).mean(), "accepted": step.accepted.mean()}
        new = {name: x.float() for name, x in step.params.items()}
        return new, {name: x.float() for name, x in metrics.items()}


def in_float64(tree: Any) -> Any:
    """Return a batch, a mapping or a tensor with floating-point numbers in float64."""
    if isinstance(tree, Batch):
        return replace(tree, **in_float64(vars(tree)))
    if isinstance(tree, Mapping):
        return {name: in_float64(x) for name, x in tree.items()}
    return tree.double() if isinstance(tree, Tensor) and tree.is_floating_point() else tree
