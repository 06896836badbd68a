"""Common parts of on-policy methods: the schedule of iterations, and advantages of rollouts.

An iteration collects decisions of the current policy, computes advantages once
(`compute_advantages`), and then learns. `DenoisingRL` does this for denoising steps,
`GaussianRollouts` for Gaussian policies with one action per decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import Algorithm, Mode, Network, State
from offline_rl.algorithms.common.config import BUILT, BaseConfig, Discount, Sizes
from offline_rl.algorithms.common.on_policy.ppo import (
    FIRST_COUNT,
    gae,
    normalize_rewards,
    running_returns,
    update_moments,
)
from offline_rl.replay.batch import Source, Sources, require
from offline_rl.replay.rollouts import Shapes
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Range, Share, frozen
from policies.heads.gaussian import GaussianActor

Built = Annotated[int, Range(1), BUILT]


class OnPolicy(Algorithm):
    """Base of methods that train on rollouts of the current policy, in iterations."""

    Online: type = schedule.OnPolicy
    follows_card = False
    needs_fp32 = True  # likelihood ratios of actions, natural gradients

    @property
    def updates(self) -> int:
        """Number of updates in an iteration."""
        return self.cfg.epochs * (self.cfg.decisions * self.cfg.tuned // self.cfg.batch_size)

    def schedule(
        self, num_updates: int, num_env_steps: int, pretrain: int | None
    ) -> list[schedule.Piece]:
        cfg, phase = self.cfg, schedule.ONLINE
        size = cfg.decisions * cfg.n_action_steps
        if num_updates:
            raise UserError(
                f"num_updates={num_updates} is not used: all training is on rollouts. Remove it."
            )
        if num_env_steps % size:
            raise UserError(
                f"num_env_steps={num_env_steps}: one iteration takes {size:,} steps "
                f"({cfg.decisions:,} decisions × {cfg.n_action_steps} actions). Set num_env_steps "
                f"to a multiple of {size}, or lower algorithm.decisions."
            )
        collect = schedule.Collect(phase, cfg.decisions, cfg.n_action_steps)
        return [collect, schedule.Learn(phase, self.updates)] * (num_env_steps // size)

    def source(self, phase: str, sources: Sources) -> Source:
        return require(sources, "rollouts")

    def advantages_of(self, value: Network, data: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return advantages, returns and the statistics of returns of a rollout."""
        cfg, moments, n = self.cfg, data["moments"], data["executed"].sum(-1)  # [T, E]
        gamma = torch.ones_like(n) * cfg.discount
        rewards = (
            data["rewards"] * gamma[..., None] ** torch.arange(cfg.n_action_steps, device=n.device)
        ).sum(-1)
        ended = data["terminated"] + data["truncated"]
        so_far = running_returns(rewards, ended, data["so_far"], gamma**n)
        columns = {"so_far": so_far[-1] * (1 - ended[-1])}
        if cfg.scale_rewards:
            initial = moments.new_tensor([FIRST_COUNT, 0.0, 1.0])
            moments = update_moments(torch.where(moments[0] > 0, moments, initial), so_far)
            rewards = normalize_rewards(rewards, moments)
        values, next_values = (
            value(data[name].flatten(2)) for name in ("observations", "next_observations")
        )
        discount = gamma**n * (1 - data["terminated"])
        advantages = gae(rewards, values, next_values, discount, ended, cfg.trace)
        return columns | {
            "moments": moments,
            "advantages": advantages,
            "returns": advantages + values,
        }


@frozen
class GaussianConfig(BaseConfig):
    """Options of on-policy methods with a Gaussian policy."""

    environments: Built = 4  # parallel environments per seed
    decisions: Built = 2048  # environment steps per iteration, over all environments
    hidden: Sizes = (64, 64)  # units of each hidden layer of the policy
    value_hidden: Sizes = (64, 64)  # units of each hidden layer of the critic
    discount: Discount = 0.99  # discount factor gamma
    trace: Share = 0.95  # lambda of generalized advantage estimation

    # one action per decision, from one observation; see `RolloutSink` and `Rollouts`
    n_obs_steps: ClassVar[int] = 1
    n_action_steps: ClassVar[int] = 1
    tuned: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decisions % self.environments:
            raise ValueError(
                f"decisions={self.decisions} is not a multiple of "
                f"environments={self.environments}. Use a multiple."
            )

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {"environments": 4, "decisions": 32, "value_hidden": (16,)}


class GaussianRollouts(OnPolicy):
    """Base of on-policy methods with a Gaussian policy. Define `optimizers` and `update`.

    The column `samples` contains the actions before clipping to [-1, 1]. The policy's density is
    the density of the samples.
    """

    mode = Mode(learns=("environment",))

    @classmethod
    def starts_online(cls) -> bool:
        return True

    def columns(self) -> tuple[Shapes, Shapes]:
        """Return the column shapes of a decision, and of values carried to the next rollout."""
        history, actions = (1, *self.spec.observation_shape), (self.spec.action_dim,)
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(
            ("terminated", "truncated", "advantages", "returns"), ()
        )
        shapes |= {"observations": history, "next_observations": history, "samples": actions}
        shapes |= dict.fromkeys(("log_probs", "rewards", "executed"), (1,))
        return shapes, {"moments": (3,), "so_far": (self.cfg.environments,)}

    @property
    def noise_shape(self) -> tuple[int, ...]:
        """Shape of the standard normal noise of one exploring decision."""
        return (self.spec.action_dim,)

    def actor(self, **options: Any) -> nn.Module:
        """Return the policy; its mean is not squashed. options: of `GaussianActor`."""
        sizes = self.spec.observation_dim, self.spec.action_dim, self.cfg.hidden
        return GaussianActor(*sizes, activation="tanh", tanh_mean=False, **options)

    def decide(self, state: State, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return samples and actions [E, 1, A] for observations [E, 1, O] and noise [E, A]."""
        samples = state.policy.sample(inputs["observations"][:, -1], inputs["noise"])
        return {"samples": samples, "actions": samples.clip(-1, 1)[:, None]}

    def compute_advantages(self, state: State, data: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return advantages, returns and log densities before any update on a rollout."""
        log_probs = state.policy.log_prob(data["observations"][:, :, -1], data["samples"])
        return self.advantages_of(state.value, data) | {"log_probs": log_probs[..., None]}
