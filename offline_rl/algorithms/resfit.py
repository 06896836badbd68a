"""ResFiT: online RL fine-tuning of a residual policy on top of a frozen base policy.

The frozen base policy proposes an action at every step; it may be any policy. A residual actor,
initialized to zero, adds a small residual action. It is trained by TD3 with n-step returns. Half of
each batch is from demonstrations. There are ten LayerNorm critics, the target is the minimum over
two random ones, and each actor update follows several critic updates. Training starts with a
warm-up, in which the base acts with uniform noise. Then only the critics are trained for a while.
With a `gate`, the base acts alone where the critics do not prefer the residual action.

Paper:   Ankile, Jiang, Duan, Shi, Abbeel, Nagabandi, 2025, arXiv:2509.19301.
Use:     finetune algorithm=resfit base=<bundle or module:function> task=… dataset=<demonstrations>.
Differs: from the authors' code (amazon-science/residual-offpolicy-rl). It has no gate. Time-outs
         bootstrap; in the authors' code they terminate. The clipped action is stored. The error of
         each critic is squared before the mean over critics; `mean_first` selects the order of the
         authors' code. The critics share no layer; in the authors' code they share one that
         compresses images. Actor and critics each have their own image encoder; the authors' code
         has a single encoder, trained by the critics. Actions are in [-1, 1]; in the authors' code
         they are in the data's range, widened by a factor of (1 + scale). Weights have torch's
         initialization; the authors' is orthogonal. No experience is dropped; the authors' code
         drops all but the last 200,000 steps. Warm-up steps count as environment steps. Values are
         scalars; the authors' code can also learn distributions (C51, HL-Gauss).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from torch import Tensor, nn

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import (
    DelayedActor,
    Metrics,
    Mode,
    State,
    keep_where,
    minimize,
    soft_update,
)
from offline_rl.algorithms.common.config import (
    BUILT,
    AggregateConfig,
    Discount,
    Ensemble,
    Fraction,
    Rate,
    Sizes,
    Switch,
    Tau,
)
from offline_rl.algorithms.common.critics import reduce_q, sample_members
from offline_rl.algorithms.common.optim import Adam
from offline_rl.algorithms.common.vision import VisionConfig, build_head, input_options
from offline_rl.data import Dataset
from offline_rl.data.transform import Normalize, Transform
from offline_rl.replay.batch import Batch
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Amount, Count, NonNegative, Positive, frozen
from policies.channels import BASE_ACTION, Observations
from policies.heads.head import Head
from policies.heads.residual import ExecutedActionCritic, GatedActor, ResidualActor


@frozen
class Config(VisionConfig, AggregateConfig):
    """Defaults: the paper's."""

    normalize_observations: Normalize = True  # not applied to the base's observations and action
    min_std: Positive | None = 0.1  # lower bound on the divisor; null: divide by std + 0.001
    scale: Annotated[Fraction, BUILT] = 0.1  # largest residual action, relative to [-1, 1]
    noise: Annotated[NonNegative, BUILT] = 0.05  # std of the noise on acting and in the target
    noise_clip: NonNegative = 0.3  # largest magnitude of the target's noise
    target_noise: bool = True  # add noise to the target's next action
    clip_target: bool = False  # clip targets to [0, 1], for rewards of success only
    correction_weight: NonNegative = 0.0  # weight of the squared residual action in the actor loss
    mean_first: bool = False  # square the critics' mean |error|, as the authors' code does
    num_critics: Ensemble = 10  # number of critics (E)
    num_min_critics: Count = 2  # critics sampled in each update for the minimum in the target
    gate: Annotated[Literal["none", "mean", "all"], BUILT] = (
        "none"  # critics that must prefer the residual action; without them, the base acts
    )
    layer_norm: Switch = True  # layer normalization before the ReLUs of actor and critics
    discount: Discount = 0.99  # discount factor gamma
    tau: Tau = 0.005  # target update rate: share of the trained networks mixed into their targets
    actor_lr: Rate = 1e-6  # learning rate of the residual actor
    critic_lr: Rate = 1e-4  # learning rate of the critics
    weight_decay: NonNegative = 0.01  # weight decay of actor and critics
    max_grad_norm: Annotated[Positive, BUILT] = 1.0  # gradients are clipped to this norm
    hidden: Sizes = (1024, 1024)  # units of each hidden layer

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {"actor_lr": 1e-3}


@frozen
class Online(schedule.HalfAndHalf):
    """Defaults: the paper's. warmup_policy=policy is the base with uniform noise."""

    warmup_steps: Amount = 10_000
    utd: Positive = 4.0
    n_step: Count = 3
    base_noise: NonNegative = 0.2  # largest uniform noise on the base's actions during warm-up
    critic_only_option: ClassVar[str] = "online.critic_updates"
    critic_updates: Amount = 10_000  # updates of the critics alone, all at the end of the warm-up

    def warmup_action(
        self, random: np.random.Generator, observations: Observations, size: int
    ) -> np.ndarray | None:
        if self.warmup_policy == "random":
            return super().warmup_action(random, observations, size)
        noise = random.uniform(-self.base_noise, self.base_noise, size)
        return (observations[BASE_ACTION] + noise).clip(-1, 1)

    def critic_only_updates(self, period: int) -> int:
        """Return the updates of the critics alone, in complete periods."""
        return -(-self.critic_updates // period) * period

    def updates_due(self, env_steps: int, batch_size: int, period: int) -> int:
        started = env_steps > max(self.warmup_steps, batch_size)
        first = self.critic_only_updates(period) if started else 0
        return first + super().updates_due(env_steps, batch_size, period)


class ResFiT(DelayedActor):
    Config: type = Config
    Online: type = Online
    targets: ClassVar = {"policy_target": "policy", "critic_target": "critic"}
    mode = Mode(start="base", learns=("data", "environment"))
    follows_card = vector_only = False

    def prepare(self, dataset: Dataset) -> tuple[Dataset, Any]:
        """Raise UserError if `clip_target` is set and a reward is outside [0, 1]."""
        if self.cfg.clip_target:
            transform = Transform.fit(replace(self.cfg, normalize_observations=False), dataset, ())
            rewards = transform.apply_to_rewards(dataset.rewards)
            if not 0 <= rewards.min() <= rewards.max() <= 1:
                raise UserError(
                    f"clip_target=true clips targets to [0, 1], but {dataset.path or dataset.name} "
                    f"has rewards from {rewards.min():g} to {rewards.max():g}. Remove clip_target."
                )
        return dataset, self.cfg

    def networks(self) -> dict[str, nn.Module]:
        cfg, act = self.cfg, self.spec.action_dim
        shape: dict[str, Any] = {"hidden": [*cfg.hidden], "layer_norm": cfg.layer_norm}
        options = {"scale": float(cfg.scale), "noise": cfg.noise}
        return {
            "policy": build_head(self.spec, cfg, ResidualActor, actions=act, **shape, **options),
            "critic": ExecutedActionCritic(
                **input_options(self.spec, cfg), actions=act, ensemble=cfg.num_critics, **shape
            ),
        }

    @property
    def acts(self) -> tuple[str, ...]:  # type: ignore[override]
        """The networks that act: with a gate, the critics as well."""
        return ("policy",) if self.cfg.gate == "none" else ("policy", "critic")

    def acting_head(self) -> Head:
        head: Any = self.modules["policy"]
        if self.cfg.gate == "none":
            return head
        critic: Any = self.modules["critic"]
        kind = type(head).__name__
        return GatedActor(kind, head.arguments, critic.arguments, gate=self.cfg.gate)

    def optimizers(self) -> dict[str, Adam]:
        cfg = self.cfg
        rates = {"policy": cfg.actor_lr, "critic": cfg.critic_lr}
        common = {"max_grad_norm": cfg.max_grad_norm, "undecayed": ("scale",)}
        return {k: Adam(lr, weight_decay=cfg.weight_decay, **common) for k, lr in rates.items()}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update critics and target; in the last step of a period also actor and its target."""
        s, a, cfg = batch.observations, batch.actions, self.cfg
        actor_learns = state.done >= self.updates_before_policy(schedule.ONLINE)[0]
        y = self.target(state, batch, actor_learns)  # [B]

        def critic_loss(critic):  # [E, B] - [B]
            errors = critic(s, a, state.random) - y
            return (errors.abs().mean(0) if cfg.mean_first else errors).square().mean()

        state, critic_value = minimize(state, "critic", critic_loss)
        state = soft_update(state, "critic_target", "critic", cfg.tau)
        metrics = {"critic_loss": critic_value, "target": y.mean()}
        if not self.updates_actor(i):
            return state, metrics

        base = (s if self.spec.single_vector else s[BASE_ACTION])[..., -self.spec.action_dim :]

        def policy_loss(policy):  # the mean over all critics
            residual = policy.residual_action(s, state.random)
            value = state.critic(s, (base + residual).clamp(-1, 1), state.random).mean()
            return cfg.correction_weight * residual.square().sum(-1).mean() - value

        correction = (state.policy(s) - base).abs().mean().detach()
        new, policy_value = minimize(state, "policy", policy_loss)
        new = soft_update(new, "policy_target", "policy", cfg.tau)
        state = keep_where(state, new, ~actor_learns)
        return state, metrics | {"policy_loss": policy_value, "correction": correction}

    def target(self, state: State, batch: Batch, noisy: Tensor) -> Tensor:
        """Return r + discount * min of sampled Q_i(s', a'), [B].

        a': the target policy's action, with noise on the residual where `noisy` is true.
        """
        s2, cfg = batch.next_observations, self.cfg
        noise = cfg.noise * state.random.normal(batch.actions.shape)
        noise = noise.clamp(-cfg.noise_clip, cfg.noise_clip) * noisy * cfg.target_noise
        next_a = state.policy_target(s2, state.random, noise)
        members = sample_members(state, cfg.num_critics, cfg.num_min_critics, replace=False)
        q = state.critic_target(s2, next_a, state.random, members)  # [num_min_critics, B]
        y = batch.rewards + batch.discount * reduce_q(state, q)
        return y.clamp(0, 1) if cfg.clip_target else y
