"""WSRL: online fine-tuning of an offline run without keeping its data.

The pessimistic values of offline training collapse on the first online batches. WSRL therefore
starts with a short warm-up: the pretrained policy acts, nothing is updated, and its experience
fills the buffer. SAC then starts from the pretrained networks. There are ten LayerNorm critics, and
the target is the minimum over two random ones, without entropy. Each actor update follows several
critic updates.

Paper:   Zhou, Peng, Li, Levine, Kumar, ICLR 2025, arXiv:2412.07762.
Use:     finetune run=<run of cal_ql, cql or iql> algorithm=wsrl num_env_steps=…; train that run
         with num_critics=10 num_min_critics=2 layer_norm=true, an IQL run with
         num_critics=10 num_min_critics=2 squashed=true.
Differs: from the authors' code (zhouzypaul/wsrl:wsrl/agents/sac.py). The temperature is exp of the
         learned parameter, as in the checkpoints; the authors use softplus. The policy's standard
         deviation has CQL's learned scale and shift, and lies in [e^-20, e^2]. In the authors'
         code, the standard deviation has no scale and shift, and lies in [1e-5, 10]. In AntMaze,
         the standard deviation depends on the state; in the authors' code, it does not. The actor's
         update uses the last batch of a block; the authors' uses all batches of the block. Networks
         that a step does not train do not change; in the authors' code Adam's momentum moves them.
         Every critic has its own output layer; in the authors' code all critics share one. Layer
         normalization has torch's eps of 1e-5; the authors' code has 1e-6. The episodes of the
         binary Adroit tasks do not end with success. After IQL, which has no temperature, the
         temperature starts from `initial_alpha`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from torch import Tensor, nn

from offline_rl.algorithms import rlpd
from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import State
from offline_rl.algorithms.common.config import (
    BUILT,
    CriticConfig,
    Ensemble,
    Rate,
    Sizes,
)
from offline_rl.algorithms.common.critics import Critic, aggregate_q, candidate_values
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Amount, Count, Number, Positive, frozen
from policies.heads.gaussian import TanhGaussianActor
from policies.networks.init import orthogonal_init
from policies.networks.mlp import Activation


@frozen
class Config(CriticConfig):
    """Defaults: the authors' for locomotion (experiments/configs)."""

    num_critics: Ensemble = 10  # number of critics (E)
    num_min_critics: Count = 2  # critics sampled (with replacement) for the target
    max_target_backup: bool = False  # bootstrap from the best of `num_samples` actions, not one
    num_samples: Count = 10  # next actions for max_target_backup
    backup_entropy: bool = False  # include the entropy in the target, as SAC
    entropy_scale: Number = 1.0  # target entropy is -entropy_scale * |A|
    initial_alpha: Annotated[Positive, BUILT] = 1.0  # initial temperature if the run has none
    actor_lr: Rate = 1e-4  # learning rate of the policy
    alpha_lr: Rate = 1e-4  # learning rate of the temperature
    policy_hidden: Sizes = (256, 256)  # units of each hidden layer of the policy
    critic_hidden: Sizes = (256, 256)  # units of each hidden layer of the critics
    activation: Activation = "relu"  # activation between layers, of policy and critics


@frozen
class Online(schedule.Online):
    """Defaults: the authors'. The policy acts during the warm-up, and no offline data is used."""

    warmup_steps: Amount = 5_000
    utd: Positive = 4.0


class WSRL(rlpd.RLPD):
    Config: type = Config
    Online: type = Online
    norm_and_init: Any = {"layer_norm": True, "init": orthogonal_init(last_gain=1e-2)}

    def actor(self) -> nn.Module:
        head = {"affine": (1.0, -1.0)} | self.norm_and_init
        return self.build(TanhGaussianActor, self.cfg.policy_hidden, **head)

    def critic(self) -> nn.Module:
        ensemble = {"ensemble": self.cfg.num_critics} | self.norm_and_init
        return self.build(Critic, self.cfg.critic_hidden, **ensemble)

    def initialize_from(
        self, initial: Mapping[str, Tensor], other: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Initialize from another run; the temperature is new if that run has none."""
        if "params/log_alpha/value" not in other:
            alpha = {name: x for name, x in initial.items() if "/log_alpha/" in name}
            other = {**other, **alpha}
        return super().initialize_from(initial, other)

    def target(self, state: State, batch: Batch, alpha: Tensor) -> Tensor:
        """Return the critic target r + discount * min_i Q_i(s', a'), [B].

        i: the critics sampled for this update. a': one sampled action, or with max_target_backup
        the best of `num_samples`.
        """
        q, log_pi = candidate_values(state, self.cfg, batch.next_observations)  # [N, B]
        q = q - alpha * log_pi if self.cfg.backup_entropy else q
        return batch.rewards + batch.discount * q.amax(0)

    def entropy_log_prob(self, old: State, batch: Batch, log_pi: Tensor) -> Tensor:
        """Return the mean log density in the next states, of the policy before its update."""
        return old.policy.sample(batch.next_observations, old.random)[1].mean()

    def actor_q(self, q: Tensor) -> Tensor:
        """Return the value that the actor maximizes, [E, B] -> [B], as in the target."""
        return aggregate_q(q, self.cfg.q_aggregate, self.cfg.rho)
