"""ReBRAC: TD3+BC with a behavior penalty in actor and critic loss, and LayerNorm critics.

The actor is penalized by the squared distance to the data's action. The critic target is reduced by
the squared distance between the next action and the data's next action. Each penalty has its own
weight. Three hidden layers, layer normalization in the critics and large batches complete the
method.

Paper:   Tarasov, Kurenkov, Nikulin, Kolesnikov, NeurIPS 2023, arXiv:2305.09836.
Differs: from the released code (tinkoff-ai/ReBRAC:src/algorithms/rebrac.py). The policy's target
         follows the updated policy; in the released code it follows the previous one. The actor is
         updated in the second of two updates; the released code updates it in the first. Layer
         normalization has torch's eps of 1e-5; the released code has 1e-6. Rows cut by a time limit
         are left out because the data has no next action for them; the released code leaves out
         rows as D4RL's `qlearning_dataset` does. Online training is that of
         corl-team/CORL:algorithms/finetune/rebrac.py, with two differences. An episode enters the
         buffer when it has ended, because its rows need their next actions. The last row of an
         episode that timed out has no next action, so the action of that row is used instead. This
         has an effect only with online.critic_bc. Both updates of a pair run after the second of
         two environment steps, as in `td3`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar

import numpy as np
from torch import Tensor, nn

from offline_rl.algorithms import td3
from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import (
    DATA_THEN_ONLINE,
    LossAndMetrics,
    Network,
    State,
    linear_decay,
)
from offline_rl.algorithms.common.config import BUILT, Rate, Sizes
from offline_rl.algorithms.common.critics import Critic, reduce_q
from offline_rl.data.dataset import Dataset
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Count, NonNegative, Share, frozen
from policies.heads.deterministic import DeterministicActor
from policies.networks.init import uniform_output_init


@frozen
class Config(td3.OfflineConfig):
    """Defaults: the paper's for locomotion. Both penalty weights are tuned for each data set."""

    policy_bc: NonNegative = 0.01  # beta 1: weight of squared action distance in the policy loss
    policy_bc_end: Share = 1.0  # online: share of policy_bc that remains at the end of training
    critic_bc: NonNegative = 0.01  # beta 2: weight of next-action distance in the target
    exploration_noise: Annotated[NonNegative, BUILT] = 0.0  # online: std of exploration noise
    actor_lr: Rate = 1e-3
    critic_lr: Rate = 1e-3
    batch_size: Count = 1024
    hidden: Sizes = (256, 256, 256)


@frozen
class Online(schedule.HalfAndHalf):
    """Defaults: corl-team/CORL:algorithms/finetune/rebrac.py and its configs.

    Half of each batch is offline data. The critic penalty is off. The policy penalty falls linearly
    with the updates done, to a share of its initial weight.
    """

    config_changes: ClassVar = {"critic_bc": 0.0, "policy_bc_end": 0.5}


class ReBRAC(td3.TD3):
    Config: type = Config
    Online: type = Online
    mode = DATA_THEN_ONLINE
    decay_ends = ("policy_bc_end",)
    follows_card = True  # unlike TD3, it is trained on data
    extra_columns = ("next_actions",)

    def prepare(self, dataset: Dataset) -> tuple[Dataset, Any]:
        """Drop transitions whose next action was never taken (episodes cut by a time limit)."""
        usable = np.where(dataset.truncated, -1, dataset.next_index)
        return replace(dataset, next_index=usable), self.cfg

    def actor(self) -> nn.Module:
        init = uniform_output_init(1e-3, hidden_bias=0.1)
        return self.build(DeterministicActor, noise=self.cfg.exploration_noise, init=init)

    def critic(self) -> nn.Module:
        norm: dict[str, Any] = {"layer_norm": True, "norm_after_activation": True}
        return self.build(Critic, init=uniform_output_init(3e-3, hidden_bias=0.1), **norm)

    def next_value(self, q: Tensor, batch: Batch, next_actions: Tensor) -> Tensor:
        """Return q minus critic_bc times the squared distance to the data's next actions."""
        assert batch.next_actions is not None
        return q - self.cfg.critic_bc * (next_actions - batch.next_actions).square().sum(-1)

    def policy_loss(self, policy: Network, state: State, batch: Batch) -> LossAndMetrics:
        """Return the action penalty minus Q, with Q normalized as in TD3+BC."""
        pi = policy(batch.observations)
        q = reduce_q(state, state.critic(batch.observations, pi))  # [B]
        distance = (pi - batch.actions).square().sum(-1)
        weight = self.cfg.policy_bc * linear_decay(state, self.cfg.policy_bc_end)
        return weight * distance.mean() - q.mean() / q.detach().abs().mean(), {}
