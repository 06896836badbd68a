"""Diffusion-QL: a diffusion policy that imitates the data and maximizes Q.

The policy learns to denoise the data's actions. It also samples actions with few denoising steps,
and the gradient of Q is backpropagated through all of them. A moving average of the policy samples
the next actions in the critics' target. In each decision, the policy samples N actions, and one of
them is drawn with probabilities softmax(Q).

Paper:   Wang, Hunt, Zhou, ICLR 2023, arXiv:2208.06193. Equation numbers refer to it.
Differs: no known difference offline from the authors' code
         (Zhendong-Wang/Diffusion-Policies-for-Offline-RL) without its option `lr_decay`, which
         lowers the learning rates by about 0.1 % over a run. The authors report the best
         checkpoint, by score or by imitation loss; we report the last one. They have no online
         phase. Ours has one buffer that starts with the data, and the moving average follows the
         policy from the first online update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.actor_critic import ActorCritic
from offline_rl.algorithms.common.base import (
    DATA_THEN_ONLINE,
    LossAndMetrics,
    Metrics,
    Network,
    State,
    minimize,
    soft_update,
)
from offline_rl.algorithms.common.config import BUILT, CriticConfig, Rate, Sizes, Tau
from offline_rl.algorithms.common.critics import reduce_q, regress
from offline_rl.algorithms.common.noising.targets import diffusion_targets
from offline_rl.algorithms.common.optim import Adam, Number
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Amount, Count, NonNegative, Positive, frozen
from policies.heads.best_of_n import BestOfN, repeat_rows
from policies.heads.diffusion import DiffusionActor
from policies.heads.schedules import ddpm, variance_preserving_alphas
from policies.networks.mlp import Critic


@frozen
class Config(CriticConfig):
    """Defaults: the authors' code for D4RL locomotion, where `max_grad_norm` is 1 to 9."""

    eta: NonNegative = 1.0  # weight of the Q term, which is divided by the batch's mean |Q|
    num_inference_steps: Annotated[Count, BUILT] = 5  # denoising steps and noise levels (T)
    num_samples: Annotated[Count, BUILT] = 50  # actions sampled per decision (N)
    num_target_samples: Count = 1  # next actions sampled per target; each critic takes its maximum
    max_grad_norm: Positive = 5.0  # maximum gradient norm, of the policy and of the critics
    policy_tau: Tau = 0.005  # rate of the policy's moving average, which samples next actions
    average_start: Amount = 1000  # updates before the moving average starts to follow the policy
    average_every: Count = 5  # updates between two steps of the moving average
    actor_lr: Rate = 3e-4  # learning rate of the policy
    hidden: Sizes = (256, 256, 256)  # units of each hidden layer, of policy and critics

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {"num_inference_steps": 3, "average_start": 0, "average_every": 2}


@dataclass(frozen=True, kw_only=True)
class Online(schedule.OneBuffer):
    """Online training with one buffer. The moving average continues to follow the policy."""

    config_changes: ClassVar = {"average_start": 0}


class DiffusionQL(ActorCritic):
    Config: type = Config
    Online: type = Online
    mode = DATA_THEN_ONLINE
    targets: ClassVar = {"policy_target": "policy", "critic_target": "critic"}
    acts = ("policy", "critic_target")
    acts_as: ClassVar = {"critic_target": "critic"}
    samples_per_row = "num_target_samples"

    @property
    def alphas(self) -> tuple[float, ...]:
        """alpha-bar of each noise level."""
        return variance_preserving_alphas(self.cfg.num_inference_steps)

    def actor(self) -> nn.Module:
        obs, act, cfg = self.spec.observation_dim, self.spec.action_dim, self.cfg
        options = {"hidden": [*cfg.hidden], "time_size": 16, "time_hidden": 32}
        shape: Any = {"n_obs_steps": 1, "horizon": 1, "n_action_steps": 1}
        table = ddpm(self.alphas, cfg.num_inference_steps, "epsilon")
        return DiffusionActor(obs, act, network="mlp", options=options, table=table, **shape)

    def critic(self) -> nn.Module:
        return self.build(Critic, activation="mish")

    def acting_head(self) -> BestOfN:
        arguments: Any = [self.modules[name].arguments for name in self.acts]
        options: Any = {"num_samples": self.cfg.num_samples, "temperature": 1.0}
        return BestOfN("DiffusionActor", *arguments, **options)

    def adam(self, lr: Number) -> Adam:
        return Adam(lr, max_grad_norm=self.cfg.max_grad_norm)

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update the critics, the policy, the policy's moving average and the target critics."""
        cfg = self.cfg
        state, metrics = regress(state, batch, self.target(state, batch))

        loss = self.policy_loss(state, batch)
        state, policy_value, imitation = minimize(state, "policy", loss)

        is_due = (state.done >= cfg.average_start) & (state.done % cfg.average_every == 0)
        state = soft_update(state, "policy_target", "policy", is_due * cfg.policy_tau)
        state = soft_update(state, "critic_target", "critic", cfg.tau)
        return state, metrics | {"policy_loss": policy_value, "imitation_loss": imitation}

    def target(self, state: State, batch: Batch) -> Tensor:
        """Return r + discount * min Q(s', a') for actions a' of the moving average, [B] (eq. 5)."""
        s2 = repeat_rows(batch.next_observations, self.cfg.num_target_samples)  # [B * N, O]
        a2 = self.sample(state.policy_target, s2, self.noise(state, len(s2)))
        q = state.critic_target(s2, a2)  # [E, B * N]
        q = q.unflatten(1, (-1, self.cfg.num_target_samples)).amax(2)
        return batch.rewards + batch.discount * reduce_q(state, q)

    def noise(self, state: State, rows: int) -> Tensor:
        """Return the noise from which the policy samples `rows` actions."""
        head: Any = self.modules["policy"]
        return state.random.normal((rows, *head.noise_shape))

    def sample(self, policy: Network, s: Tensor, noise: Tensor) -> Tensor:
        """Return the actions [B, A] that the policy samples from the noise."""
        chunks: Tensor = policy.decide(s[:, None], {}, noise)[0]
        return chunks[:, 0]

    def policy_loss(self, state: State, batch: Batch) -> Any:
        """Return the loss: squared error of the predicted noise - eta * normalized Q (eq. 3)."""
        s, critic, random = batch.observations, state.critic, state.random
        x, times, noise = diffusion_targets(  # [1, B, 1, A], [1, B]
            random, batch.actions[:, None], 1, self.alphas, "epsilon"
        )
        policy_noise, coin = self.noise(state, len(s)), random.uniform(())

        def loss(policy: Network) -> LossAndMetrics:
            imitation = (policy(s[:, None], x, times) - noise).square().mean()
            q = critic(s, self.sample(policy, s, policy_noise))  # [2, B]
            # each critic is divided by the other one's mean |Q|
            normalized = q.mean(1) / q.detach().abs().mean(1).flip(0)
            value = torch.where(coin > 0.5, normalized[0], normalized[1])
            return imitation - self.cfg.eta * value, imitation

        return loss
