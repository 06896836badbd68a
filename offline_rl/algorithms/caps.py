"""CAPS: several policies trained once, and a switch that keeps the cost within any limit.

Implicit Q-learning (IQL) is run twice on the same data, for returns and for costs. H policies share
their hidden layers. The first one imitates actions of high return, the last one actions of low
cost, and those in between both. In each step, critics select a policy: the one of highest return
whose cost is below the limit for the remaining budget, or the one of lowest cost if there is none.
The cost limit is an argument of the policy, so that one run serves every limit.

Paper:   Chemingui, Deshwal, Wei, Fern, Doppa, AAAI 2025, arXiv:2412.18946. IQL: arXiv:2110.06169;
         equation numbers refer to it.
Differs: from the authors' code (yassineCh/CAPS:osrl/algorthims/capsiql.py). Its cost critics learn
         the return of rewards -c, of which the smaller of two counts; ours learn costs, of which
         the larger counts, which is the same. It treats time limits as terminations; ours
         bootstraps there. The standard deviations of its Gaussian policies are not among the
         trained parameters and remain 1, so that its log-likelihood is a squared error; ours has no
         standard deviation. Online, which the authors do not do, the learning rate is constant.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.actor_critic import ActorCritic, ActorCriticConfig
from offline_rl.algorithms.common.base import (
    DATA_THEN_ONLINE,
    Algorithm,
    Metrics,
    Network,
    State,
    minimize,
    update_targets,
)
from offline_rl.algorithms.common.config import (
    BUILT,
    OFFLINE,
    Discount,
    Expectile,
    Rate,
    Sizes,
)
from offline_rl.algorithms.common.critics import Value, reduce_q
from offline_rl.algorithms.common.in_sample import expectile_loss
from offline_rl.algorithms.common.optim import Adam, cosine
from offline_rl.algorithms.common.safety.cost_critics import bootstrap_costs
from offline_rl.algorithms.common.safety.costs import CostConfig
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Count, NonNegative, Number, Range, frozen
from policies.heads.deterministic import DeterministicActor
from policies.heads.safety.switching import SwitchingActor


@frozen
class Config(CostConfig, ActorCriticConfig):
    """Defaults: the authors' code, for all tasks of DSRL except MetaDrive."""

    num_heads: Annotated[int, Range(2), BUILT] = 2  # number of policies (H)
    expectile: Expectile = 0.7  # expectile of Q that V learns; near 1: best action of the data
    cost_discount: Annotated[Discount, BUILT] = 0.99  # discount factor of the cost critics
    cost_expectile: Expectile = 0.7  # likewise for costs; near 1: action of lowest cost
    beta: NonNegative = 3.0  # weight of the advantage; 0 is behavior cloning
    cost_beta: NonNegative = 3.0  # weight of the cost advantage
    max_weight: NonNegative = 100.0  # cap on exp(beta * advantage), for returns and costs
    hidden: Sizes = (512, 512)  # units of each hidden layer
    value_lr: Rate = 3e-4  # learning rate of V
    decay_updates: Annotated[Count | None, OFFLINE] = (
        1_000_000  # updates of the policy's cosine decay to a learning rate of 0; null: constant
    )
    exploration_noise: Annotated[NonNegative, BUILT] = 0.1  # online: std of exploration noise
    reward_scale: Number = 0.1  # training uses rewards * reward_scale
    batch_size: Count = 512  # transitions per update; `batch_size=` sets it too


@dataclass(frozen=True, kw_only=True)
class Online(schedule.OneBuffer):
    """Defaults: IQL's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_step > 1:
            raise ValueError(
                f"n_step={self.n_step}: the costs of several steps have no discount of their own. "
                "Use n_step=1."
            )


class CAPS(ActorCritic):
    Config: type = Config
    Online: type = Online
    mode = DATA_THEN_ONLINE
    follows_card = False  # the cards' shifts of rewards are for reward_scale=1
    extra_columns = ("costs",)
    targets: ClassVar = {"critic_target": "critic", "cost_critic_target": "cost_critic"}
    acts = ("policy", "critic", "cost_critic")

    def networks(self) -> dict[str, nn.Module]:
        cfg = self.cfg
        networks = super().networks() | {"cost_critic": self.critic()}
        values = (
            Value(self.spec.observation_dim, cfg.hidden, activation=cfg.activation) for _ in "rc"
        )
        return networks | dict(zip(("value", "cost_value"), values, strict=True))

    def actor(self) -> nn.Module:
        """Return the network of all policies; its output is [..., H * A]."""
        cfg, sizes = (
            self.cfg,
            (self.spec.observation_dim, self.cfg.num_heads * self.spec.action_dim),
        )
        return DeterministicActor(*sizes, cfg.hidden, activation=cfg.activation)

    def acting_head(self) -> SwitchingActor:
        cfg = self.cfg
        arguments: Any = [self.modules[name].arguments for name in self.acts]
        names = ("num_heads", "target_cost", "episode_steps", "cost_discount")
        options: Any = {name: getattr(cfg, name) for name in names}
        if None in options.values():
            raise ValueError("target_cost and episode_steps are null. Set them, or pass a task.")
        return SwitchingActor(*arguments, **options, noise=cfg.exploration_noise)

    def for_phase(self, phase: str) -> Algorithm:
        """Return the algorithm for `phase`; online, the policy's learning rate is constant."""
        algorithm = super().for_phase(phase)
        if phase == schedule.ONLINE:
            algorithm.cfg = replace(algorithm.cfg, decay_updates=None)
        return algorithm

    def optimizers(self) -> dict[str, Adam]:
        cfg, decay = self.cfg, self.cfg.decay_updates
        adams = {"policy": Adam(cfg.actor_lr, schedule=None if decay is None else cosine(decay))}
        adams |= dict.fromkeys(("critic", "cost_critic"), Adam(cfg.critic_lr))
        return adams | dict.fromkeys(("value", "cost_value"), Adam(cfg.value_lr))

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update all networks, then the targets. Each loss reads the networks before the update."""
        s, a, s2, cfg = batch.observations, batch.actions, batch.next_observations, self.cfg
        old = state
        q, cost = (
            reduce_q(old, old.critic_target(s, a)),
            old.cost_critic_target(s, a).amax(0),
        )  # [B]
        y = batch.rewards + batch.discount * old.value(s2)
        y_cost = bootstrap_costs(cfg, batch, old.cost_value(s2))
        advantage, saving = q - old.value(s), old.cost_value(s) - cost  # [B]
        weights = self.weights(advantage, saving)  # [B, H]

        def value_loss(value: Network) -> Tensor:  # eq. 5
            return expectile_loss(q - value(s), cfg.expectile).mean()

        def cost_value_loss(value: Network) -> Tensor:
            return expectile_loss(value(s) - cost, cfg.cost_expectile).mean()

        def critic_loss(critic: Network) -> Tensor:  # eq. 6; [E, B] - [B]
            return (critic(s, a) - y).square().mean()

        def cost_critic_loss(critic: Network) -> Tensor:
            return (critic(s, a) - y_cost).square().mean()

        def policy_loss(policy: Network) -> Tensor:  # eq. 7, for each policy
            error = policy(s).unflatten(-1, (cfg.num_heads, -1)) - a[:, None]  # [B, H, A]
            return (weights * error.square().sum(-1) / 2).mean()

        losses = {"value": value_loss, "cost_value": cost_value_loss, "critic": critic_loss}
        losses |= {"cost_critic": cost_critic_loss, "policy": policy_loss}
        metrics = {"target": y.mean(), "cost_target": y_cost.mean(), "advantage": advantage.mean()}
        for name, loss in losses.items():
            state, metrics[f"{name}_loss"] = minimize(state, name, loss)
        return update_targets(state), metrics

    def weights(self, advantage: Tensor, saving: Tensor) -> Tensor:
        """Return the weights of the data's actions in the losses of the policies, [B, H].

        saving: [B], expected cost of the state minus that of the action.
        """
        cfg, last = self.cfg, self.cfg.num_heads - 1
        high_return = (cfg.beta * advantage).exp().clamp(max=cfg.max_weight)
        low_cost = (cfg.cost_beta * saving).exp().clamp(max=cfg.max_weight)
        between = [high_return + 2 * k / last * low_cost for k in range(1, last)]
        return torch.stack([high_return, *between, low_cost], -1)
