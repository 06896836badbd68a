"""ResFiT: a small correction, learned online, of a policy that stays as it is.

The frozen base proposes an action at every step, whatever it is and however it plans; an actor that
begins at zero adds a few hundredths to it. TD3 from n-step returns teaches it, half of each batch
from demonstrations: ten normalized critics, of which two drawn at random make the target, several
critic updates for each of the actor's. Before, the base acts with uniform noise, and then the
critics learn alone.

Paper:   Ankile, Jiang, Duan, Shi, Abbeel, Nagabandi, 2025, arXiv:2509.19301.
Use:     finetune algorithm=resfit base=<bundle or module:function> task=… dataset=<demonstrations>.
Differs: from the authors' code (amazon-science/residual-offpolicy-rl) in that time-outs bootstrap,
         there they end; what is stored is the clipped action; the critics' error is squared before
         it is averaged over them (`mean_first` for the code's); the critics share no layer, there
         one that compresses pictures; each of actor and critics has its own encoder of pictures,
         there one, which the critics train; actions are in [-1, 1], there in the data's range,
         (1 + scale) times as wide; weights begin as torch's, there orthogonal; no experience is
         forgotten, there all but the last 200,000 steps; the warm-up's steps count; values are
         numbers, where the code can also learn distributions (C51, HL-Gauss). Layer normalization
         precedes ReLUs in both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
from torch import Tensor, nn

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import (
    DelayedActor,
    Metrics,
    State,
    keep_where,
    minimize,
    soft_update,
)
from offline_rl.algorithms.common.config import (
    BUILT,
    Discount,
    Ensemble,
    Fraction,
    Rate,
    Sizes,
    Switch,
    Tau,
)
from offline_rl.algorithms.common.critics import Critic, different
from offline_rl.algorithms.common.optim import Adam
from offline_rl.algorithms.common.vision import VisionConfig, build_head
from offline_rl.data import Dataset
from offline_rl.data.transform import Normalize, Transform
from offline_rl.replay.batch import Batch
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Amount, Count, NonNegative, Positive
from policies.channels import BASE_ACTION, Observations
from policies.heads.residual import ResidualActor
from policies.networks.encoders import Sees
from policies.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Config(VisionConfig):
    """Defaults: the paper's."""

    normalize_observations: Normalize = True  # not what the base sees, nor its action
    min_std: Positive | None = 0.1  # of a z-score; null: deviations as they are + 0.001
    scale: Fraction = 0.1  # the largest correction, in an action's [-1, 1]
    noise: Annotated[NonNegative, BUILT] = 0.05  # deviation of the exploration's, and the target's
    noise_clip: NonNegative = 0.3  # and the latter's largest size
    target_noise: bool = True  # on the next action of the target
    clip_target: bool = False  # to [0, 1], where only success is rewarded
    correction_weight: NonNegative = 0.0  # of the correction's square, in the actor's loss
    mean_first: bool = False  # squares the critics' mean error, as the code, not each one's
    num_critics: Ensemble = 10  # E
    num_min_critics: Count = 2  # critics whose least makes the target; drawn anew for every update
    layer_norm: Switch = True  # in actor and critics
    discount: Discount = 0.99  # gamma
    tau: Tau = 0.005  # share of the networks that enters their targets
    actor_lr: Rate = 1e-6  # learning rate of the correction
    critic_lr: Rate = 1e-4  # of the critics
    weight_decay: NonNegative = 0.01  # of both
    max_grad_norm: Annotated[Positive, BUILT] = 1.0  # of a gradient
    hidden: Sizes = (1024, 1024)  # units of each hidden layer


@dataclass(frozen=True, kw_only=True)
class Online(schedule.HalfAndHalf):
    """Defaults: the paper's; who warms up by the policy does so by the base and uniform noise."""

    warmup_steps: Amount = 10_000
    utd: Positive = 4.0
    n_step: Count = 3
    base_noise: NonNegative = 0.2  # the largest, on the base's actions in the warm-up
    critic_only_option: ClassVar[str] = "online.critic_updates"
    critic_updates: Amount = 10_000  # before the actor learns too; all when the warm-up is over

    def warmup_action(
        self, random: np.random.Generator, observations: Observations, size: int
    ) -> np.ndarray | None:
        if self.warmup_policy == "random":
            return super().warmup_action(random, observations, size)
        noise = random.uniform(-self.base_noise, self.base_noise, size)
        return (observations[BASE_ACTION] + noise).clip(-1, 1)

    def critic_only_updates(self, period: int) -> int:
        """Updates of the critics alone: whole periods."""
        return -(-self.critic_updates // period) * period

    def updates_due(self, env_steps: int, batch_size: int, period: int) -> int:
        begun = env_steps > max(self.warmup_steps, batch_size)
        first = self.critic_only_updates(period) if begun else 0
        return first + super().updates_due(env_steps, batch_size, period)


class ResFiT(DelayedActor):
    Config: ClassVar[type] = Config
    Online: ClassVar[type[schedule.Online]] = Online
    targets: ClassVar = {"policy_target": "policy", "critic_target": "critic"}
    online, follows_card, vector_only, corrects = True, False, False, True

    @classmethod
    def complete_config(cls, cfg: Any, dataset: Dataset) -> Any:
        """As it is. Raises UserError where targets would be clipped to less than rewards are."""
        if cfg.clip_target:
            transform = Transform.fit(replace(cfg, normalize_observations=False), dataset, ())
            rewards = transform.rewards(dataset.rewards)
            if not 0 <= rewards.min() <= rewards.max() <= 1:
                raise UserError(
                    f"clip_target=true holds targets in [0, 1], and {dataset.path or dataset.name} "
                    f"has rewards from {rewards.min():g} to {rewards.max():g}: leave it out, or "
                    "give rewards of success alone"
                )
        return cfg

    def networks(self) -> dict[str, nn.Module]:
        cfg, act = self.cfg, self.spec.action_dim
        shape: dict[str, Any] = {"hidden": [*cfg.hidden], "layer_norm": cfg.layer_norm}
        options = {"scale": float(cfg.scale), "noise": cfg.noise}
        return {
            "policy": build_head(self.spec, cfg, ResidualActor, actions=act, **shape, **options),
            "critic": CriticOfAll(self.spec, cfg, ensemble=cfg.num_critics, **shape),
        }

    def optimizers(self) -> dict[str, Adam]:
        cfg = self.cfg
        rates = {"policy": cfg.actor_lr, "critic": cfg.critic_lr}
        same = {"max_grad_norm": cfg.max_grad_norm, "undecayed": ("scale",)}
        return {k: Adam(lr, weight_decay=cfg.weight_decay, **same) for k, lr in rates.items()}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Critics and their target; in the last place also the actor and its own."""
        s, a, cfg = batch.observations, batch.actions, self.cfg
        both = state.done >= self.updates_before_policy(schedule.ONLINE)[0]  # the actor learns too
        y = self.target(state, batch, both)  # [B]

        def critic_loss(critic):  # [E, B] - [B]
            errors = critic(s, a, state.random) - y
            return (errors.abs().mean(0) if cfg.mean_first else errors).square().mean()

        state, critic_value = minimize(state, "critic", critic_loss)
        state = soft_update(state, "critic_target", "critic", cfg.tau)
        metrics = {"critic_loss": critic_value, "target": y.mean()}
        if not self.updates_actor(i):
            return state, metrics

        base = (s if self.spec.lone else s[BASE_ACTION])[..., -self.spec.action_dim :]

        def policy_loss(policy):  # the mean over all critics
            added = policy.correction(s, state.random)
            value = state.critic(s, (base + added).clamp(-1, 1), state.random).mean()
            return cfg.correction_weight * added.square().sum(-1).mean() - value

        correction = (state.policy(s) - base).abs().mean().detach()
        before = state
        state, policy_value = minimize(state, "policy", policy_loss)
        state = soft_update(state, "policy_target", "policy", cfg.tau)
        state = keep_where(before, state, ~both)
        return state, metrics | {"policy_loss": policy_value, "correction": correction}

    def target(self, state: State, batch: Batch, noisy: Tensor) -> Tensor:
        """r + discount * least of a few Q_i(s', a'); a': the noise is the correction's; [B]."""
        s2, cfg = batch.next_observations, self.cfg
        noise = cfg.noise * state.random.normal(batch.actions.shape)
        noise = noise.clamp(-cfg.noise_clip, cfg.noise_clip) * noisy * cfg.target_noise
        next_a = state.policy_target(s2, state.random, noise)
        few = different(state, cfg.num_critics, cfg.num_min_critics)
        q = state.critic_target(s2, next_a, state.random, few)  # [num_min_critics, B]
        y = batch.rewards + batch.discount * q.amin(0)
        return y.clamp(0, 1) if cfg.clip_target else y


class CriticOfAll(nn.Module):
    """Q(s, a) of the combined action; what the base would do is the actor's to know alone."""

    def __init__(self, spec: Spec, cfg: VisionConfig, **shape: Any) -> None:
        super().__init__()
        self.eyes = None if spec.lone else Sees(spec.seen, **cfg.encoder_options)
        size = spec.observation_dim if self.eyes is None else self.eyes.features
        self.base, hidden = spec.action_dim, shape.pop("hidden")
        self.net = Critic(size - self.base, spec.action_dim, hidden, **shape)

    def forward(
        self,
        observations: Any,
        actions: Tensor,
        random: Any = None,
        members: Tensor | None = None,
    ) -> Tensor:
        """[..., O] or channels, the base's action last, and [..., A] -> [E, ...], as a Critic."""
        seen = observations if self.eyes is None else self.eyes(observations, random)
        return self.net(seen[..., : -self.base], actions, members)
