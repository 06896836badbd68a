"""WSRL: goes on online from what was learned offline, without the data that it was learned from.

Offline pessimism makes values that collapse where the first online batches look. A short warm-up by
the learned policy, in which nothing is updated, fills the buffer with what that policy meets; then
a fast online learner starts from its networks: SAC with ten normalized critics of which two drawn
at random make the target, several critic updates for each of the actor's, no entropy in the target.

Paper:   Zhou, Peng, Li, Levine, Kumar, ICLR 2025, arXiv:2412.07762.
Use:     finetune run=<run of cal_ql, cql or iql> algorithm=wsrl num_env_steps=…; that run learned
         with num_critics=10 num_min_critics=2 layer_norm=true, IQL's with num_critics=10 num_min_critics=2 squashed=true.
Differs: from the authors' code (zhouzypaul/wsrl:wsrl/agents/sac.py) in that the temperature is exp
         of what is learned, as in the checkpoints, there softplus; the policy's deviation has CQL's
         learned scale and shift and lies in [e^-20, e^2], there none and in [1e-5, 10] (and in
         AntMaze it depends on the state, there not); the actor's step takes the last of a block's
         batches, there all; networks that a step leaves out stay as they are, there Adam's momentum
         carries them on; every critic has an output layer of its own, there all share one; layer
         normalization has torch's eps (1e-5, there 1e-6); the binary hands' episodes do not end
         with success. After IQL, which has none, the temperature is new.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Annotated, Any, ClassVar

from torch import Tensor, nn

from offline_rl.algorithms import rlpd
from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import State
from offline_rl.algorithms.common.config import (
    BUILT,
    BaseConfig,
    Discount,
    Ensemble,
    Rate,
    Sizes,
    Tau,
)
from offline_rl.algorithms.common.critics import Critic, some
from offline_rl.algorithms.common.entropy import ensemble_min
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Amount, Count, Number, Positive
from policies.heads.gaussian import TanhGaussianActor
from policies.networks.init import orthogonal_init
from policies.networks.mlp import Activation, Scalar


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Defaults: the authors' for locomotion (experiments/configs)."""

    num_critics: Ensemble = 10  # E
    num_min_critics: Count = (
        2  # critics whose least makes the target; drawn anew, perhaps the same twice
    )
    max_target_backup: bool = False  # bootstrap from the best of `num_samples` actions, not one
    num_samples: Count = 10  # see max_target_backup
    backup_entropy: bool = False  # entropy in the target, as in SAC
    entropy_scale: Number = 1.0  # target entropy is -entropy_scale * |A|
    initial_alpha: Annotated[Positive, BUILT] = 1.0  # the temperature where none was learned
    discount: Discount = 0.99  # gamma
    tau: Tau = 0.005  # share of the critics that enters their targets each update
    actor_lr: Rate = 1e-4  # learning rate of the policy
    critic_lr: Rate = 3e-4  # of the critics
    alpha_lr: Rate = 1e-4  # of the temperature
    policy_hidden: Sizes = (256, 256)  # units of each hidden layer, of the policy
    critic_hidden: Sizes = (256, 256)  # of the critics
    activation: Activation = "relu"  # between layers, of policy and critics


@dataclass(frozen=True, kw_only=True)
class Online(schedule.Online):
    """Defaults: the authors'; the policy warms up, and no data is kept."""

    warmup_steps: Amount = 5_000
    utd: Positive = 4.0


class WSRL(rlpd.RLPD):
    Config: ClassVar[type] = Config
    Online: ClassVar[type[schedule.Online]] = Online

    def networks(self) -> dict[str, nn.Module]:
        obs, act, cfg = self.spec.observation_dim, self.spec.action_dim, self.cfg
        options: dict[str, Any] = {"activation": cfg.activation, "layer_norm": True}
        options |= {"init": orthogonal_init(last_gain=1e-2)}
        return {
            "policy": TanhGaussianActor(obs, act, cfg.policy_hidden, affine=(1.0, -1.0), **options),
            "critic": Critic(obs, act, cfg.critic_hidden, ensemble=cfg.num_critics, **options),
            "log_alpha": Scalar(log(cfg.initial_alpha)),
        }

    def initialize_from(
        self, own: Mapping[str, Tensor], other: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """As ever, but a temperature of its own where the other learned without."""
        new = {} if "params/log_alpha/value" in other else own
        kept = {name: x for name, x in new.items() if "/log_alpha/" in name}
        return super().initialize_from(own, {**other, **kept})

    def target(self, state: State, batch: Batch, alpha: Tensor) -> Tensor:
        """r + discount * (least of a few Q_i(s', a')), a' ~ pi or the best of several; [B]."""
        cfg, s = self.cfg, batch.next_observations
        count = cfg.num_samples if cfg.max_target_backup else 1
        pi, log_pi = state.policy.sample(s, state.random, count)  # [N, B, A], [N, B]
        few = some(state, cfg.num_critics, cfg.num_min_critics)
        q = ensemble_min(state.critic_target(s.expand(count, *s.shape), pi, few))  # [N, B]
        q = q - alpha * log_pi if cfg.backup_entropy else q
        return batch.rewards + batch.discount * q.amax(0)

    def entropy_log_prob(self, old: State, batch: Batch, log_pi: Tensor) -> Tensor:
        """In the next states, of the policy before its step."""
        return old.policy.sample(batch.next_observations, old.random)[1].mean()

    def actor_q(self, q: Tensor) -> Tensor:
        """What the actor climbs, [E, B] -> [B]: the least critic."""
        return ensemble_min(q)
