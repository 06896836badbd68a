"""Implicit Q-learning (IQL): how good are the data's best actions, asked of the data alone.

V follows an upper expectile of Q over the actions in the data, Q bootstraps from V, and the policy
clones the data's actions weighted by exp(beta * advantage). No unseen action is ever valued.

Paper:   Kostrikov, Nair, Levine, ICLR 2022, arXiv:2110.06169. Equation numbers are the paper's.
Differs: nowhere known from the authors' code (ikostrikov/implicit_q_learning:learner.py).
         `deterministic` is tinkoff-ai/CORL's (algorithms/offline/iql.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from offline_rl.algorithm import Algorithm, Batch, Metrics, State, minimise, track
from offline_rl.critics import Critic, Value
from offline_rl.optim import Adam, cosine
from offline_rl.transform import Preprocessing
from policies.actors import DeterministicActor, GaussianActor
from policies.networks import orthogonal_init


@dataclass(frozen=True)
class Config(Preprocessing):
    """Defaults: the paper's for locomotion (appendix B)."""

    expectile: float = 0.7  # in [0.5, 1): 0.5 is the data's average action, towards 1 its best
    beta: float = 3.0  # >= 0: 0 clones, more trusts the advantage
    max_weight: float = 100.0  # cap on exp(beta * advantage)
    dropout: float = 0.0  # in [0, 1), of the policy; read when it is built: one value for all seeds
    deterministic: bool = False  # a policy without deviation, trained by a weighted squared error
    discount: float = 0.99  # in [0, 1)
    tau: float = 0.005  # in (0, 1]: share of the critic that enters its target each update
    actor_lr: float = 3e-4  # at the start; falls to 0 along half a cosine over num_updates
    critic_lr: float = 3e-4
    value_lr: float = 3e-4
    hidden: tuple[int, ...] = (256, 256)
    clip_actions: float = 1 - 1e-5  # the authors' dataset_utils.py


class IQL(Algorithm):
    Config = Config
    targets: ClassVar = {"critic_target": "critic"}

    def networks(self) -> dict[str, nn.Module]:
        obs, act, cfg = self.spec.observation_dim, self.spec.action_dim, self.cfg
        actor, init = DeterministicActor if cfg.deterministic else GaussianActor, orthogonal_init()
        return {
            "policy": actor(obs, act, cfg.hidden, dropout_rate=cfg.dropout, init=init),
            "critic": Critic(obs, act, cfg.hidden, init=init),
            "value": Value(obs, cfg.hidden, init=init),
        }

    def optimisers(self) -> dict[str, Adam]:
        return {
            "policy": Adam(self.cfg.actor_lr, schedule=cosine(self.num_updates)),
            "critic": Adam(self.cfg.critic_lr),
            "value": Adam(self.cfg.value_lr),
        }

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """The authors' order: V; then policy and Q, both with the new V; then the target."""
        s, a, cfg = batch.observations, batch.actions, self.cfg
        q = state.critic_target(s, a).amin(0)  # [B]

        def value_loss(value):  # eq. 5
            return expectile_loss(q - value(s), cfg.expectile).mean()

        state, v_loss = minimise(state, "value", value_loss)
        advantage = q - state.value(s)  # [B]
        weight = (cfg.beta * advantage).exp().clamp(max=cfg.max_weight)
        y = batch.rewards + batch.discount * state.value(batch.next_observations)  # [B]

        def policy_loss(policy):  # eq. 7
            if cfg.deterministic:
                return (weight * (policy(s, state.random) - a).square().sum(-1)).mean()
            return -(weight * policy.log_prob(s, a, state.random)).mean()

        def critic_loss(critic):  # eq. 6; [2, B] - [B]
            return (critic(s, a) - y).square().sum(0).mean()

        state, pi_loss = minimise(state, "policy", policy_loss)
        state, q_loss = minimise(state, "critic", critic_loss)
        state = track(state, "critic_target", "critic", cfg.tau)
        losses = {"value_loss": v_loss, "policy_loss": pi_loss, "critic_loss": q_loss}
        means = {"target": y.mean(), "advantage": advantage.mean(), "weight": weight.mean()}
        return state, losses | means


def expectile_loss(u: Tensor, expectile: float | Tensor) -> Tensor:
    """|expectile - 1(u < 0)| * u**2, elementwise; eq. 4 without its expectation."""
    return (expectile - (u < 0).float()).abs() * u.square()
