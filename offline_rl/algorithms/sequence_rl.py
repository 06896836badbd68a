"""Sequence Reinforcement Learning: SAC whose actor emits a sequence of actions.

A recurrent actor emits `horizon` actions from one observation, so the policy can act at a low
decision frequency. The critic evaluates single steps. In training, a learned dynamics model
predicts the later observations, at which the critic evaluates the later actions. Acting needs only
the actor.

Paper:   Patel, Siegelmann, ICLR 2025, arXiv:2410.08979.
Differs: The model predicts the change of the observation (predict_change=false: the observation
         itself, as in dee0512/Sequence-Reinforcement-Learning). The released code samples a
         second batch for model and actor, uses a fixed temperature in the first update, and adds
         1e-6 inside the logarithm of the log density. Here, an episode is added to the replay
         buffer when it ends.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import (
    Metrics,
    Mode,
    Network,
    State,
    minimize,
    update_targets,
)
from offline_rl.algorithms.common.config import BUILT, Rate, Sizes, Switch
from offline_rl.algorithms.common.critics import Critic, reduce_q, regress
from offline_rl.algorithms.common.entropy import SoftActorCritic, SoftConfig, update_temperature
from offline_rl.algorithms.common.models.dynamics import MeanDynamics
from offline_rl.algorithms.common.optim import Adam
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Amount, Positive, Range, frozen
from policies.heads.sequences.planner import SequenceActor
from policies.networks.init import xavier_init


@frozen
class Config(SoftConfig):
    """Defaults: the authors' code; the paper uses horizons of 2, 4, 8 and 16."""

    horizon: Annotated[int, Range(1), BUILT] = 8  # actions per decision; all of them are executed
    model_hidden: Sizes = (400, 300)  # units of each hidden layer of the model
    model_lr: Rate = 3e-4  # learning rate of the model
    predict_change: Switch = True  # the model predicts the change of the observation
    initial_alpha: Annotated[Positive, BUILT] = 1.0  # initial temperature

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {"horizon": 3, "model_hidden": (16,)}


@frozen
class Online(schedule.RandomStart):
    """Defaults: the authors' code."""

    warmup_steps: Amount = 10_000
    n_step: Literal[1] = 1  # not used: the model and the previous action are those of one step


class SequenceRL(SoftActorCritic):
    Config: type = Config
    Online: type = Online
    mode = Mode(learns=("environment",))
    follows_card = False  # starts without data
    targets: ClassVar = {"critic_target": "critic", "model_target": "model"}
    extra_columns = ("previous_actions",)

    def actor(self) -> nn.Module:
        return self.build(SequenceActor, horizon=self.cfg.horizon)

    def critic(self) -> nn.Module:
        return self.build(Critic, init=xavier_init)

    def networks(self) -> dict[str, nn.Module]:
        cfg = self.cfg
        model = self.build(MeanDynamics, cfg.model_hidden, predict_change=cfg.predict_change)
        return super().networks() | {"model": model}

    def optimizers(self) -> dict[str, Adam]:
        return super().optimizers() | {"model": self.adam(self.cfg.model_lr)}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update critics, model, actor, temperature and target networks, in this order."""
        s, a, s2 = batch.observations, batch.actions, batch.next_observations
        alpha = state.log_alpha().exp().detach()
        next_a, next_log_pi = state.policy.sample(s2, a, state.random, 1)  # [B, 1, A], [B, 1]
        next_q = reduce_q(state, state.critic_target(s2, next_a[:, 0]))  # [B]
        y = batch.rewards + batch.discount * (next_q - alpha * next_log_pi[:, 0])
        state, metrics = regress(state, batch, y)

        def model_loss(model: Network) -> Tensor:
            return (model(s, a) - s2).square().mean()

        state, model_value = minimize(state, "model", model_loss)
        updated = state

        def policy_loss(policy: Network) -> tuple[Tensor, Tensor]:
            return sequence_loss(policy, updated, batch, alpha)

        state, policy_value, log_pi = minimize(state, "policy", policy_loss)
        state = update_temperature(state, log_pi, -self.spec.action_dim)
        metrics |= {"model_loss": model_value, "policy_loss": policy_value}
        return update_targets(state), metrics | {"entropy": -log_pi, "alpha": alpha}


def sequence_loss(
    policy: Network, state: State, batch: Batch, alpha: Tensor
) -> tuple[Tensor, Tensor]:
    """Return sum_k E[alpha log pi(a_k) - min_i Q_i(s_k, a_k)] and the mean log density, 0-d.

    s_0 is the observation of the batch, and s_k+1 is predicted by the target model. No gradient
    passes through the model. Q of later steps trains earlier actions only through the recurrent
    inputs of the actor.
    """
    assert batch.previous_actions is not None
    s = batch.observations
    chunk, log_pi = policy.sample(s, batch.previous_actions, state.random)  # [B, J, A], [B, J]
    values = []
    for a in chunk.unbind(1):
        values.append(reduce_q(state, state.critic(s, a)))
        s = state.model_target(s, a.detach()).detach()
    return (alpha * log_pi - torch.stack(values, 1)).mean(0).sum(), log_pi.mean()
