"""ReBRAC: TD3+BC with the pull towards the data in both places, and critics that are normalised.

The actor stays near the data's action, the critics' target loses value where the next action leaves
the data's next one, each with a weight of its own. Three hidden layers, layer normalisation in the
critics, and large batches do the rest.

Paper:   Tarasov, Kurenkov, Nikulin, Kolesnikov, NeurIPS 2023, arXiv:2305.09836.
Differs: from the released code (tinkoff-ai/ReBRAC:src/algorithms/rebrac.py) in that the policy's
         target follows the new policy, not the one before; layer normalisation has torch's eps
         (1e-5, there 1e-6). Rows cut by a time limit are left out, there as in D4RL's
         `qlearning_dataset`: the data has no next action for them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from torch import nn

from offline_rl.algorithms.common.base import Algorithm, Metrics, State, minimise, soft_update
from offline_rl.algorithms.common.critics import Critic, regress, td3_target
from offline_rl.algorithms.common.optim import Adam
from offline_rl.data.transform import Preprocessing
from offline_rl.replay.batch import Batch
from policies.heads.deterministic import DeterministicActor
from policies.networks.init import uniform_output_init

if TYPE_CHECKING:
    from offline_rl.data.dataset import Dataset


@dataclass(frozen=True)
class Config(Preprocessing):
    """Defaults: the paper's for locomotion; the two weights are tuned for each data set."""

    policy_bc: float = 0.01  # >= 0 (beta 1): weight of the squared distance in the policy's loss
    critic_bc: float = 0.01  # >= 0 (beta 2): and in the critics' target
    discount: float = 0.99  # in [0, 1)
    tau: float = 0.005  # in (0, 1]: share of the networks that enters their targets
    policy_noise: float = 0.2  # >= 0: deviation of the noise on the target's action
    noise_clip: float = 0.5  # >= 0: and its largest size
    policy_delay: int = 2  # critic updates per actor and target update
    actor_lr: float = 1e-3
    critic_lr: float = 1e-3
    batch_size: int = 1024
    hidden: tuple[int, ...] = (256, 256, 256)


class ReBRAC(Algorithm):
    Config = Config
    targets: ClassVar = {"policy_target": "policy", "critic_target": "critic"}
    needs = ("next_actions",)

    @property
    def period(self) -> int:
        return self.cfg.policy_delay

    def prepare(self, dataset: Dataset) -> Dataset:
        """Without transitions whose next action nobody took."""
        return replace(dataset, next_index=np.where(dataset.truncated, -1, dataset.next_index))

    def networks(self) -> dict[str, nn.Module]:
        obs, act, hidden = self.spec.observation_dim, self.spec.action_dim, self.cfg.hidden
        policy, critic = (uniform_output_init(bound, hidden_bias=0.1) for bound in (1e-3, 3e-3))
        norm = {"layer_norm": True, "norm_after_relu": True}
        return {
            "policy": DeterministicActor(obs, act, hidden, init=policy),
            "critic": Critic(obs, act, hidden, init=critic, **norm),
        }

    def optimisers(self) -> dict[str, Adam]:
        return {"policy": Adam(self.cfg.actor_lr), "critic": Adam(self.cfg.critic_lr)}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """The critics; every `policy_delay`-th time then the actor and both targets."""
        s, a, cfg = batch.observations, batch.actions, self.cfg

        def penalty(next_a):  # sums over action dimensions, not means
            return cfg.critic_bc * (next_a - batch.next_actions).square().sum(-1)  # [B]

        y = td3_target(state, batch, cfg.policy_noise, cfg.noise_clip, penalty)  # [B]
        state, metrics = regress(state, batch, y)
        if i != cfg.policy_delay - 1:
            return state, metrics

        def policy_loss(policy):  # Q's scale divided out, as in TD3+BC
            pi = policy(s)
            q = state.critic(s, pi).amin(0)  # [B]
            distance = (pi - a).square().sum(-1)
            return cfg.policy_bc * distance.mean() - q.mean() / q.detach().abs().mean()

        state, policy_value = minimise(state, "policy", policy_loss)
        state = soft_update(state, "policy_target", "policy", cfg.tau)
        state = soft_update(state, "critic_target", "critic", cfg.tau)
        return state, metrics | {"policy_loss": policy_value}
