"""COptiDICE: offline constrained RL by correcting the stationary distribution of the data.

The ratio w between the stationary distribution of the optimal policy and that of the data has a
closed form, given nu, a function of the state that acts like a value function. The policy imitates
the data, weighted by w. A second function, chi, makes the estimated cost of this policy an upper
bound. The Lagrange multiplier grows while the bound exceeds the cost limit. No action outside the
data is evaluated. Costs are means per step, so the limit is target_cost / episode_steps.

Paper:   Lee et al., ICLR 2022, arXiv:2204.08957.
Differs: settings, f-divergence and order of updates are those of liuzuxin/OSRL
         (osrl/algorithms/coptidice.py), with two corrections; `as_released` removes them. OSRL
         compares the cost per step with the limit of a discounted sum, which is 63 to 100 times
         larger. OSRL fits the distribution before the tanh to the actions, but acts with tanh. OSRL
         also treats time limits as terminations; we bootstrap. The noise on the policy's data is
         scaled by the standard deviation of the batch, not of the data.
         deepmind/constrained_optidice adds gradient penalties, and its policy is a mixture.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from offline_rl.algorithms.common.actor_critic import ActorCritic
from offline_rl.algorithms.common.base import LossAndMetrics, Metrics, Network, State, minimize
from offline_rl.algorithms.common.config import Discount, Fraction, Rate, Sizes, Switch
from offline_rl.algorithms.common.critics import Critic
from offline_rl.algorithms.common.optim import Adam
from offline_rl.algorithms.common.safety.costs import LimitConfig, Steps, discounted_limit
from offline_rl.data.dataset import Dataset
from offline_rl.data.transform import ActionClip
from offline_rl.replay.batch import Batch
from offline_rl.replay.columns import timesteps
from offline_rl.utils.options import Count, NonNegative, Number, Positive, frozen
from policies.heads.gaussian import TanhGaussianActor
from policies.networks.mlp import Activation, Scalar


@frozen
class Config(LimitConfig):
    """Defaults: liuzuxin/OSRL's for all tasks."""

    episode_steps: Steps = None  # steps that the limit is for; null: the task's time limit
    discount: Discount = 0.99  # discount factor gamma, of rewards and of costs
    alpha: Positive = 0.5  # weight of the divergence from the data; larger: closer to the data
    cost_bound: NonNegative = 0.01  # larger: higher upper bound of the cost, more cautious
    noise: NonNegative = 0.1  # noise on the policy's data, in standard deviations of the batch
    actor_lr: Rate = 1e-4  # learning rate of the policy
    critic_lr: Rate = 1e-4  # learning rate of nu and chi
    multiplier_lr: Rate = 1e-4  # learning rate of the multiplier and of the bound's temperature
    hidden: Sizes = (256, 256)  # units of each hidden layer
    activation: Activation = "relu"  # activation between layers of all networks
    initial_share: Fraction | None = None  # share of first steps in the data; null: computed
    batch_size: Count = 512  # transitions per update; `batch_size=` sets it too
    reward_scale: Number = 0.1
    clip_actions: ActionClip = 0.999  # clip the data's actions to +- this; tanh never reaches 1
    as_released: Switch = False  # limit and density of the released code; see Differs

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {"episode_steps": 30, "initial_share": 0.05}


class COptiDICE(ActorCritic):
    Config: type = Config
    follows_card = False  # the cards' shifts of rewards are for reward_scale=1
    extra_columns = ("costs", "timesteps")
    targets: ClassVar = {}

    def prepare(self, dataset: Dataset) -> tuple[Dataset, Any]:
        """Set `initial_share`, if it is null, to the share of first steps in the data."""
        if self.cfg.initial_share is not None:
            return dataset, self.cfg
        share = float((timesteps(dataset)[dataset.usable] == 0).mean())
        return dataset, replace(self.cfg, initial_share=share)

    def networks(self) -> dict[str, nn.Module]:
        networks: dict[str, nn.Module] = {"policy": self.build(TanhGaussianActor)}
        shape = self.spec.observation_dim, 0, self.cfg.hidden
        networks |= {k: Critic(*shape, activation=self.cfg.activation) for k in ("nu", "chi")}
        return networks | {name: Scalar(1.0) for name in ("raw_multiplier", "raw_temperature")}

    def optimizers(self) -> dict[str, Adam]:
        cfg = self.cfg
        rates = {"policy": cfg.actor_lr, "nu": cfg.critic_lr, "chi": cfg.critic_lr}
        rates |= dict.fromkeys(("raw_multiplier", "raw_temperature"), cfg.multiplier_lr)
        return {name: Adam(rate) for name, rate in rates.items()}

    @property
    def limit(self) -> Any:
        """Limit on the mean cost per step."""
        cfg = self.cfg
        if cfg.as_released:
            return discounted_limit(cfg.target_cost, cfg.episode_steps, cfg.discount)
        return cfg.target_cost / cfg.episode_steps

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update chi and its temperature, nu and the multiplier; then the policy with the new nu.

        Except for nu in the last step, each loss reads the parameters from before the update.
        """
        assert batch.costs is not None  # the run refuses data without costs
        cfg, multiplier, costs = self.cfg, softplus(state.raw_multiplier()), batch.costs
        temperature, reward = softplus(state.raw_temperature()), batch.rewards
        reward = reward - multiplier * costs  # [B]
        w = ratio(self.residual(state.nu, batch, reward) / cfg.alpha)  # [B]

        def chi_loss(chi: Network) -> LossAndMetrics:  # the weights v favor high residuals
            ell = self.initial_value(chi, batch) + w * self.residual(chi, batch, costs)  # [B]
            log_v = (ell / temperature).log_softmax(0) + math.log(len(ell))
            v = log_v.exp()  # [B], mean 1
            bound = {"cost": (v * w * costs).mean()}
            return (v * ell).mean(), bound | {"divergence": (v * log_v - v + 1).mean()}

        def nu_loss(nu: Network) -> Tensor:
            e = self.residual(nu, batch, reward)
            return (self.initial_value(nu, batch) + ratio_loss(e, cfg.alpha)).mean()

        state, chi_value, bound = minimize(state, "chi", chi_loss)
        slack, excess = cfg.cost_bound - bound["divergence"], bound["cost"] - self.limit
        state, _ = minimize(state, "raw_temperature", lambda raw: softplus(raw()) * slack)
        state, nu_value = minimize(state, "nu", nu_loss)
        state, _ = minimize(state, "raw_multiplier", lambda raw: -softplus(raw()) * excess)
        w = ratio(self.residual(state.nu, batch, reward) / cfg.alpha)
        state, policy_value = minimize(state, "policy", self.policy_loss(state, batch, w))
        metrics = {"nu_loss": nu_value, "chi_loss": chi_value, "policy_loss": policy_value}
        return state, metrics | {
            "weight": w.mean(),
            "multiplier": multiplier,
            "cost_excess": excess,
        }

    def policy_loss(self, state: State, batch: Batch, w: Tensor) -> Callable[[Network], Tensor]:
        """Return the loss of the policy: imitation of noisy data, weighted by w [B]."""
        s, a = (
            x + self.cfg.noise * x.std(0, correction=0) * state.random.normal(x.shape)
            for x in (batch.observations, batch.actions)
        )
        bound = self.cfg.clip_actions

        def loss(policy: Network) -> Tensor:
            if not self.cfg.as_released:
                return -(w * policy.log_prob(s, a.clamp(-bound, bound))).mean()
            mean, log_std = policy(s)
            z = (a - mean) / log_std.exp()
            log_pi = (-0.5 * z.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
            return -(w * log_pi).mean()

        return loss

    def residual(self, function: Network, batch: Batch, reward: Tensor) -> Tensor:
        """Return reward + gamma F(s') - F(s), [B]. function: F, which is nu or chi."""
        following = batch.discount * lowest(function, batch.next_observations)
        return reward + following - lowest(function, batch.observations)

    def initial_value(self, function: Network, batch: Batch) -> Tensor:
        """Return terms [B] whose mean is that of (1 - gamma) F over initial states."""
        assert batch.timesteps is not None  # every data set has them
        is_first = (batch.timesteps == 0).float()
        value = lowest(function, batch.observations) * is_first / self.cfg.initial_share
        return (1 - self.cfg.discount) * value


def lowest(function: Network, observations: Tensor) -> Tensor:
    """Return the minimum over the ensemble of a function of the state, [B]."""
    value: Tensor = function(observations, observations[..., :0])  # [E, B]
    return value.amin(0)


def ratio(x: Tensor) -> Tensor:
    """Return (f')^-1(x), elementwise, for f of `ratio_loss`; at least 0."""
    return torch.where(x < 0, x.clamp(max=0).exp(), x + 1)


def ratio_loss(e: Tensor, alpha: float | Tensor) -> Tensor:
    """Return max_w (w e - alpha f(w)), elementwise.

    The divergence is f(w) = w (log w - 1) + 1 below 1, and (w - 1)^2 / 2 above (soft chi-square).
    """
    w = ratio(e / alpha)
    divergence = torch.where(w < 1, w * ((w + 1e-10).log() - 1) + 1, 0.5 * (w - 1).square())
    return w * e - alpha * divergence
