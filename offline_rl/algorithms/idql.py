"""IDQL: implicit Q-learning whose policy is the best of N actions of a diffusion policy.

V regresses on an upper expectile of Q over dataset actions, and Q bootstraps from V, as in IQL. The
policy is a diffusion policy that only imitates the data. In each decision, the moving average of
the policy samples N actions, and the action with the highest target Q is executed. Online, only the
critics and V are trained, unless `train_policy` is set.

Paper:   Hansen-Estruch et al., 2023, arXiv:2304.10573. Critics: IQL (arXiv:2110.06169, eq. 5, 6).
Differs: from the authors' code (philippe-eecs/IDQL:jaxrl5/agents/ddpm_iql, with the network of the
         finetuning script). It trains on 95 % of the rows and validates on the others. Its learning
         rate schedules have 2 or 3 million updates; ours has `num_updates`. Online, it trains on
         128 new and 128 old rows; ours on halves of `batch_size`, which is 512 in all phases, and
         the learning rate of the policy is constant. The authors' offline script uses
         ddpm_iql_simple, with policy_activation=silu, time_size=128, and a layer normalization of
         V's input.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from torch import Tensor, nn

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.actor_critic import ActorCritic
from offline_rl.algorithms.common.base import (
    DATA_THEN_ONLINE,
    Algorithm,
    Metrics,
    Network,
    State,
    minimize,
    soft_update,
)
from offline_rl.algorithms.common.config import (
    BUILT,
    OFFLINE,
    CriticConfig,
    Dropout,
    Expectile,
    Rate,
    Sizes,
    Tau,
)
from offline_rl.algorithms.common.critics import Critic, Value, reduce_q
from offline_rl.algorithms.common.in_sample import update_values
from offline_rl.algorithms.common.noising.targets import diffusion_targets
from offline_rl.algorithms.common.optim import Adam, cosine
from offline_rl.algorithms.common.schedule import ONLINE
from offline_rl.data.transform import ActionClip
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Amount, Count, Share, frozen
from policies.heads.best_of_n import BestOfN
from policies.heads.diffusion import DiffusionActor
from policies.heads.schedules import ddpm_clipping_x, variance_preserving_alphas
from policies.networks.init import xavier_init
from policies.networks.mlp import Activation


@frozen
class Config(CriticConfig):
    """Defaults: the authors' code, for D4RL locomotion."""

    expectile: Expectile = 0.7  # expectile of Q that V learns; 0.5: mean, near 1: best action
    num_samples: Annotated[Count, BUILT] = 64  # actions sampled per decision (N)
    num_inference_steps: Annotated[Count, BUILT] = 5  # denoising steps and noise levels (T)
    policy_tau: Tau = 0.001  # rate of the policy's moving average, which acts
    actor_lr: Rate = 3e-4  # initial learning rate of the policy
    decay_actor_lr: Annotated[bool, OFFLINE] = True  # cosine decay to 0 over num_updates
    weight_decay: Share = 1e-4  # AdamW's weight decay of the policy
    value_lr: Rate = 3e-4  # learning rate of V
    hidden: Sizes = (256, 256)  # units of each hidden layer of V and critics
    width: Annotated[Count, BUILT] = 256  # units of the policy's residual blocks
    blocks: Annotated[Count, BUILT] = 3  # residual blocks of the policy
    time_size: Annotated[Count, BUILT] = 64  # cosines and sines of the noise level; even
    policy_activation: Annotated[Activation, BUILT] = "mish"  # activation of the policy
    dropout: Dropout = 0.1  # dropout rate of the policy during training
    batch_size: Count = 512  # transitions per update; `batch_size=` sets it too
    clip_actions: ActionClip = 1 - 1e-5  # clip the data's actions to +- this, as the authors do

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.time_size % 2:
            raise ValueError(f"time_size={self.time_size} is odd. Use an even number.")

    @classmethod
    def small(cls) -> dict[str, Any]:
        sizes = {"width": 8, "blocks": 2, "time_size": 4, "num_inference_steps": 3}
        return super().small() | sizes


@dataclass(frozen=True, kw_only=True)
class Online(schedule.HalfAndHalf):
    """Defaults: the authors' finetuning script."""

    warmup_steps: Amount = 5000  # environment steps per seed before updates start
    train_policy: bool = False  # also train the policy, on data and experience


class IDQL(ActorCritic):
    Config: type = Config
    Online: type = Online
    mode = DATA_THEN_ONLINE
    targets: ClassVar = {"policy": "model", "critic_target": "critic"}
    offline_networks: ClassVar[tuple[str, ...]] = ("policy", "model")
    trains_policy = True
    acts = ("policy", "critic_target")
    acts_as: ClassVar = {"critic_target": "critic"}

    def networks(self) -> dict[str, nn.Module]:
        value = Value(self.spec.observation_dim, self.cfg.hidden, init=xavier_init)
        return {"model": self.actor(), "critic": self.critic(), "value": value}

    def actor(self) -> nn.Module:
        obs, act, cfg = self.spec.observation_dim, self.spec.action_dim, self.cfg
        options = {"width": cfg.width, "blocks": cfg.blocks, "time_size": cfg.time_size}
        options |= {"activation": cfg.policy_activation}
        shape: Any = {"n_obs_steps": 1, "horizon": 1, "n_action_steps": 1}
        shape |= {"table": ddpm_clipping_x(self.alphas), "dropout_rate": cfg.dropout}
        return DiffusionActor(obs, act, network="ln_resnet", options=options, **shape)

    def critic(self) -> nn.Module:
        return self.build(Critic, init=xavier_init)

    @property
    def alphas(self) -> tuple[float, ...]:
        """alpha-bar of each noise level."""
        return variance_preserving_alphas(self.cfg.num_inference_steps)

    def acting_head(self) -> BestOfN:
        arguments: Any = [self.modules[name].arguments for name in self.acts]
        return BestOfN("DiffusionActor", *arguments, num_samples=self.cfg.num_samples)

    def for_phase(self, phase: str) -> Algorithm:
        """Return the algorithm for `phase`. Online: frozen policy, or constant learning rate."""
        algorithm: Any = super().for_phase(phase)
        if phase == ONLINE:
            algorithm.cfg = replace(algorithm.cfg, decay_actor_lr=False)
            algorithm.trains_policy = algorithm.interaction.online.train_policy
        return algorithm

    def optimizers(self) -> dict[str, Adam]:
        cfg = self.cfg
        schedule = cosine(self.num_updates) if cfg.decay_actor_lr else None
        adam = Adam(cfg.actor_lr, schedule=schedule, weight_decay=cfg.weight_decay)
        return {"model": adam, "critic": Adam(cfg.critic_lr), "value": Adam(cfg.value_lr)}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update the policy and its moving average, V, the critics (with the new V), targets."""
        metrics = Metrics()
        if self.trains_policy:
            state, metrics["policy_loss"] = self.update_policy(state, batch)
        q = reduce_q(state, state.critic_target(batch.observations, batch.actions))  # [B]

        def target(next_value: Tensor) -> Tensor:
            return batch.rewards + batch.discount * next_value

        state, value_metrics = update_values(state, batch, q, self.cfg.expectile, target)
        return state, metrics | value_metrics

    def update_policy(
        self, state: State, batch: Batch, weight: Tensor | None = None
    ) -> tuple[State, Tensor]:
        """Update the policy and its moving average; also return the loss, 0-d.

        The loss is the squared error of the predicted noise, summed over the action dimensions.
        weight: [B], of each transition; None: all are 1.
        """
        x, times, noise = diffusion_targets(  # [1, B, 1, A], [1, B]
            state.random, batch.actions[:, None], 1, self.alphas, "epsilon"
        )

        def policy_loss(model: Network) -> Tensor:
            prediction = model(batch.observations[:, None], x, times, state.random)
            error = (prediction - noise).square().sum(-1)  # [1, B, 1]
            return (error if weight is None else weight[:, None] * error).mean()

        state, loss = minimize(state, "model", policy_loss)
        return soft_update(state, "policy", "model", self.cfg.policy_tau), loss
