"""Hybrid natural policy gradient (HNPG): on-policy training that also uses offline data.

The critic regresses on Monte Carlo returns of the policy's own episodes, and on TD targets of the
data. The policy takes one natural-gradient step per iteration, with advantages at the states
of both. With num_steps=H, each of the H steps of an episode has a separate critic and policy. The
critics are fitted from the last step to the first.

Paper:   Zhou et al., ICLR 2024, arXiv:2311.08384, algorithms 1 and 2.
Differs: The natural-gradient step and the order of critic fits are from YifeiZhou02/HNPG:trpo.py.
         Here, the step and its advantages are computed in float64, because conjugate gradients
         amplify rounding errors. The critic evaluates actions clipped to [-1, 1], as they are
         executed. Evaluations use the mean action; there, a sampled one. `num_steps=1` is the form
         for other tasks, which the authors' code does not have: one critic and one policy, with a
         TD target of the same critic, and returns that bootstrap where a rollout is cut off.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import (
    DATA_THEN_ONLINE,
    Metrics,
    Network,
    State,
    minimize,
    reset_optimizer,
)
from offline_rl.algorithms.common.config import BUILT, Rate
from offline_rl.algorithms.common.critics import Critic
from offline_rl.algorithms.common.on_policy.rollouts import GaussianConfig
from offline_rl.algorithms.common.on_policy.stepwise import StepwiseRollouts, in_float64
from offline_rl.algorithms.common.optim import Adam
from offline_rl.data import Dataset
from offline_rl.replay.batch import Source, Sources, require
from offline_rl.replay.rollouts import Iteration, Iterations
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Count, Positive, Range, Share, frozen
from policies.heads.gaussian import StepGaussianActor, step_mask
from policies.networks.init import scaled_output_init


@frozen
class Config(GaussianConfig):
    """Defaults: table 1 of the paper, but with one critic and one policy for all steps."""

    batch_size: Count = 1000  # data rows per iteration, divided equally among the steps
    environments: Annotated[int, Range(1), BUILT] = 10
    decisions: Annotated[int, Range(1), BUILT] = 1000
    num_steps: Annotated[int, Range(1), BUILT] = 1  # steps with separate networks; 1: one for all
    discount: Share = 0.99  # discount factor gamma; 1 in tasks with a fixed number of steps
    trace: Share = 0.97
    hidden: Annotated[tuple[int, ...], Range(1), BUILT] = (16, 16)
    critic_lr: Rate = 3e-4  # learning rate of the critics
    critic_updates: Annotated[int, Range(1), BUILT] = 30  # updates of each step's critic
    value_samples: Annotated[int, Range(1), BUILT] = 10  # actions sampled to estimate V(s)
    max_kl: Positive = 0.01  # size of the natural-gradient step: KL divergence in nats
    damping: Positive = 0.1  # added to the diagonal of the Fisher matrix

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decisions % self.num_steps:
            raise ValueError(
                f"decisions={self.decisions} is not a multiple of num_steps={self.num_steps}. "
                "Use a multiple."
            )
        if self.num_steps > self.batch_size:
            raise ValueError(
                f"batch_size={self.batch_size} is less than num_steps={self.num_steps}. "
                f"Use at least {self.num_steps}."
            )

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {"critic_updates": 1, "value_samples": 2, "max_kl": 1e-3}


@frozen
class Online(schedule.OnPolicy):
    """Online training on new rollouts and on rows of the data."""

    offline_fraction: Share | Literal["rows"] = "rows"


class HNPG(StepwiseRollouts):
    Config: type = Config
    Online: type = Online
    mode = DATA_THEN_ONLINE
    extra_columns: ClassVar[tuple[str, ...]] = ("timesteps",)
    hybrid = True  # also learns from the data

    @property
    def period(self) -> int:
        return int(self.cfg.num_steps * self.cfg.critic_updates + 1)

    @property
    def updates(self) -> int:
        return self.period

    def equivalent_step(self, i: int) -> int:
        return i if i == self.period - 1 else 0

    def prepare(self, dataset: Dataset) -> tuple[Dataset, Any]:
        longest, num_steps = int(dataset.episode_lengths().max()), self.cfg.num_steps
        if num_steps > 1 and longest != num_steps:
            raise UserError(
                f"num_steps={num_steps}: the longest episode of the data has {longest} steps. Use "
                f"algorithm.num_steps={longest}, or 1 for networks that all steps share."
            )
        return dataset, self.cfg

    def source(self, phase: str, sources: Sources) -> Source:
        offline: Any = require(sources, "offline") if self.hybrid else None
        rollouts: Any = require(sources, "rollouts")
        return Iterations(rollouts, offline, self.cfg.num_steps)

    def networks(self) -> dict[str, nn.Module]:
        cfg, init = self.cfg, scaled_output_init(0.1)
        sizes = self.spec.observation_dim, self.spec.action_dim
        critic = Critic(
            *sizes, cfg.value_hidden, activation="tanh", ensemble=cfg.num_steps, init=init
        )
        policy = StepGaussianActor(*sizes, cfg.hidden, num_steps=cfg.num_steps, init=init)
        return {"policy": policy, "critic": critic}

    def optimizers(self) -> dict[str, Adam]:
        return {"critic": Adam(self.cfg.critic_lr)}

    def update(self, state: State, batch: Iteration, i: int) -> tuple[State, Metrics]:  # type: ignore[override]
        last = i == self.period - 1
        return self.improve(state, batch) if last else self.fit(state, batch)

    def fit(self, state: State, batch: Iteration) -> tuple[State, Metrics]:
        """Update the critic of one step. The critic of the last step is fitted first."""
        cfg, data, off = self.cfg, batch.rollout, batch.offline
        done = state.done % self.period
        state = reset_optimizer(state, "critic", done % cfg.critic_updates == 0)
        h = cfg.num_steps - 1 - torch.div(done, cfg.critic_updates, rounding_mode="floor")
        selected = step_mask(h, cfg.num_steps)  # [H]
        columns = data["observations"][:, :, -1], data["samples"].clip(-1, 1), data["returns"]
        mask, s, a, y = self.group(data, *columns)
        weights = mask / mask.sum(1, keepdim=True).clamp(min=1)
        target = None if off is None else self.td_target(state, batch)

        def loss(critic: Network) -> Tensor:
            each = (weights * (critic.per_member(s, a) - y).square()).sum(1)  # [H]
            if off is not None:
                q = critic.per_member(off.observations, off.actions)
                each = each + (q - target).square().mean(1)
            return (selected * each).sum()

        state, value = minimize(state, "critic", loss)
        return state, {"critic_loss": value}

    def td_target(self, state: State, batch: Iteration) -> Tensor:
        """Return r + gamma Q(s', a') [H, M] of the data, with the networks of the next step.

        If the data does not terminate after the last step, its networks are used there too.
        """
        off: Any = batch.offline
        # [H, 2 M]: network h evaluates the observations after step h - 1, and those after step h
        s2, noise = (torch.cat([x.roll(1, 0), x], 1) for x in (off.next_observations, batch.noise))
        mean, log_std = state.policy.per_step(s2)
        a2 = mean + log_std.exp() * noise
        after_previous, after_own = state.critic.per_member(s2, a2.clip(-1, 1)).chunk(2, 1)
        q = torch.cat([after_previous[1:], after_own[-1:]])
        target: Tensor = off.rewards + off.discount * q
        return target

    def improve(self, state: State, batch: Iteration) -> tuple[State, Metrics]:
        """Take a natural-gradient step with the fitted critics, in float64."""
        kept, cfg = state, self.cfg
        data, off = in_float64(batch.rollout), in_float64(batch.offline)
        state = replace(state, params=in_float64(state.params))
        advantages, _ = self.rollout_advantages(state, data, cfg.trace)
        columns = data["observations"][:, :, -1], data["samples"], advantages
        mask, s, a, adv = self.group(data, *columns)
        if off is not None:
            mean, log_std = state.policy.per_step(off.observations)
            off_a = mean + log_std.exp() * state.random.normal(mean.shape)
            t = torch.arange(cfg.num_steps, device=adv.device)[:, None].expand(off.rewards.shape)
            values = self.values(state, off.observations.flatten(0, 1), t.flatten())
            q = state.critic.per_member(off.observations, off_a.clip(-1, 1))
            off_adv = q - values.unflatten(0, t.shape)
            pairs = ((mask, torch.ones_like(off_adv)), (s, off.observations), (a, off_a))
            mask, s, a, adv = (torch.cat(pair, 1) for pair in (*pairs, (adv, off_adv)))
        policy, metrics = self.step_policy(state, mask, s, a, adv)
        return replace(kept, params={**kept.params, "policy": policy}), metrics
