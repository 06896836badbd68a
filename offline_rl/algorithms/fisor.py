"""FISOR: feasibility-guided safe offline RL with a weighted diffusion policy.

The constraint signal h is positive in steps with a cost and negative in all others. Feasibility
critics Q_h learn the largest h of the future. V_h learns a low expectile of Q_h over the data's
actions, so V_h(s) <= 0 if some action of the data keeps the policy safe from s on. Rewards have
critics and a V as in IQL. The policy is a diffusion policy that imitates the data's actions. In
feasible states, safe actions are weighted by their reward advantage, and unsafe ones have weight 0.
In infeasible states, the weight depends on feasibility alone. In each decision, the moving average
of the policy samples N actions, and the one with the lowest feasibility value is executed. The
method aims at no cost at all, so it has no cost limit.

Paper:   Zheng et al., ICLR 2024, arXiv:2401.10700. Rewards: IQL (arXiv:2110.06169, eq. 5, 6).
Differs: from the authors' code (ZhengYinan-AIR/FISOR:jaxrl5/agents/fisor). It samples 2048 rows,
         trains the policy on each half, and the values on the first 256 rows. batch_size=2048,
         policy_updates=2 and critic_rows=256 do the same; by default, one batch trains everything.
         Its learning rate of the policy falls by a cosine over 3 million steps and stops after 2
         million; ours falls to 0. It treats time limits as terminations; we bootstrap. It scales
         rewards by the returns of the unfiltered data set; we use those of the data.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from offline_rl.algorithms import idql
from offline_rl.algorithms.common.base import Metrics, Mode, State
from offline_rl.algorithms.common.config import BUILT, Discount, Expectile
from offline_rl.algorithms.common.critics import Value, reduce_q
from offline_rl.algorithms.common.in_sample import update_values
from offline_rl.algorithms.common.optim import Adam, cosine
from offline_rl.data.dataset import Dataset
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Count, NonNegative, Number, Positive, Share, frozen
from policies.heads.best_of_n import BestOfN
from policies.networks.init import xavier_init


@frozen
class Config(idql.Config):
    """Defaults: the authors' configs/train_config.py, with a smaller batch; one for all tasks."""

    expectile: Expectile = 0.9  # expectile of Q that V learns; near 1: best action of the data
    cost_expectile: Expectile = 0.9  # near 1: V_h learns the safest action of the data
    cost_discount: Discount = 0.99  # discount factor of h; near 1: looks further ahead
    unsafe_signal: Positive = 25.0  # h of steps with a cost; steps without have h = -1
    beta: NonNegative = 3.0  # scale of the reward advantage in feasible states; 0: imitation
    max_weight: NonNegative = 100.0  # cap on the weight exp(beta * advantage) in feasible states
    cost_beta: NonNegative = 5.0  # scale of V_h - Q_h in infeasible states; 0: imitation
    max_cost_weight: NonNegative = 150.0  # cap on the weight in infeasible states
    num_samples: Annotated[Count, BUILT] = 16  # actions sampled per decision (N)
    weight_decay: Share = 0.0  # AdamW's weight decay of the policy
    policy_updates: Annotated[Count, BUILT] = 1  # updates of the policy per batch, on equal parts
    critic_rows: Annotated[Count | None, BUILT] = None  # rows for values and critics; null: all
    normalize_returns: bool = True  # rewards * 1000 / (best - worst return), then scale and shift
    reward_scale: Number | None = None  # type: ignore[assignment]  # of rewards; null: from the data

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("policy_updates", "critic_rows"):
            if (getattr(self, name) or 1) > self.batch_size:
                raise ValueError(
                    f"{name}={getattr(self, name)} is more than batch_size={self.batch_size}. "
                    "Lower it."
                )


class FISOR(idql.IDQL):
    Config: type = Config
    mode = Mode()
    follows_card = False  # the cards' shifts of rewards are for reward_scale=1
    extra_columns = ("costs",)
    targets: ClassVar = idql.IDQL.targets | {"cost_critic_target": "cost_critic"}
    offline_networks: ClassVar[tuple[str, ...]] = ()
    acts = ("policy", "cost_critic_target")
    acts_as: ClassVar = {"cost_critic_target": "critic"}

    def prepare(self, dataset: Dataset) -> tuple[Dataset, Any]:
        """Set `reward_scale`, if it is null, so that returns span the length of an episode."""
        cfg, scale = self.cfg, 1.0
        if cfg.reward_scale is not None:
            return dataset, cfg
        if cfg.normalize_returns:
            scale = float(dataset.episode_lengths().max()) / 1000
        return dataset, replace(cfg, reward_scale=scale)

    def networks(self) -> dict[str, nn.Module]:
        value = Value(self.spec.observation_dim, self.cfg.hidden, init=xavier_init)
        return super().networks() | {"cost_critic": self.critic(), "cost_value": value}

    def acting_head(self) -> BestOfN:
        arguments: Any = [self.modules[name].arguments for name in self.acts]
        options: Any = {"num_samples": self.cfg.num_samples, "aggregate": "least_max"}
        return BestOfN("DiffusionActor", *arguments, **options)

    def optimizers(self) -> dict[str, Adam]:
        adams, cfg = super().optimizers(), self.cfg
        if cfg.decay_actor_lr:
            schedule = cosine(cfg.policy_updates * self.num_updates)
            adams["model"] = replace(adams["model"], schedule=schedule)
        return adams | {"cost_critic": adams["critic"], "cost_value": adams["value"]}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update the policy with the old values; then V and Q; then V_h and Q_h."""
        cfg, metrics, size = self.cfg, Metrics(), len(batch.rewards)
        for k in range(cfg.policy_updates):
            part = rows(batch, size * k // cfg.policy_updates, size * (k + 1) // cfg.policy_updates)
            weight, feasible = self.weights(state, part)
            state, metrics["policy_loss"] = self.update_policy(state, part, weight)
            metrics |= {"weight": weight.mean(), "feasible": feasible}
        batch = rows(batch, 0, cfg.critic_rows or size)
        assert batch.costs is not None  # the run refuses data without costs
        s, a, mask = batch.observations, batch.actions, batch.bootstrap_mask
        h = torch.where(batch.costs > 0, cfg.unsafe_signal, -1.0)  # [B]

        def target(next_value: Tensor) -> Tensor:
            return batch.rewards + batch.discount * next_value

        def cost_target(next_value: Tensor) -> Tensor:
            """Return the largest h from now on, discounted toward the present h."""
            return h + mask * cfg.cost_discount * (next_value - h).clamp(min=0)

        q = reduce_q(state, state.critic_target(s, a))  # [B]
        state, reward_metrics = update_values(state, batch, q, cfg.expectile, target)
        q, low = state.cost_critic_target(s, a).amax(0), 1 - cfg.cost_expectile
        state, cost_metrics = update_values(state, batch, q, low, cost_target, "cost_")
        return state, metrics | reward_metrics | cost_metrics

    def weights(self, state: State, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the weight of each action in the policy loss [B], and the feasible share, 0-d."""
        s, a, cfg = batch.observations, batch.actions, self.cfg
        q, v = reduce_q(state, state.critic_target(s, a)), state.value(s)
        q_h, v_h = state.cost_critic_target(s, a).amax(0), state.cost_value(s)
        by_reward = (cfg.beta * (q - v)).exp().clamp(max=cfg.max_weight) * (q_h <= 0)
        by_cost = (cfg.cost_beta * (v_h - q_h)).exp().clamp(max=cfg.max_cost_weight)
        return torch.where(v_h > 0, by_cost, by_reward), (v_h <= 0).float().mean()


def rows(batch: Batch, start: int, stop: int) -> Batch:
    """Return consecutive rows of a batch."""
    return replace(batch, **{k: x[start:stop] for k, x in vars(batch).items() if x is not None})
