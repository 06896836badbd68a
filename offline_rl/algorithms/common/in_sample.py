"""What IQL, XQL, f-DVL and ReCOIL share: V looks up to the data's better actions, and leads Q.

    V       a statistic of Q over the data's actions, near their best: `value_loss` of Q - V
    Q       bootstraps from V, so that no unseen action is ever valued: `critic_loss`
    policy  clones the data's actions by exp(beta * (Q - V)): `policy_loss`

In the dual form of regularized RL, min_V (1 - l) E[V] + l E[f*(Q - V)], the four differ by what
they hand in for these losses and for the pairs that V is fitted to. Sikchi et al., ICLR 2024,
arXiv:2302.08560; the order of steps is ikostrikov/implicit_q_learning:learner.py's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from torch import Tensor, nn

from offline_rl.algorithms.common.base import (
    Algorithm,
    Metrics,
    Network,
    State,
    minimize,
    soft_update,
)
from offline_rl.algorithms.common.config import (
    OFFLINE,
    BaseConfig,
    Discount,
    Dropout,
    Rate,
    Sizes,
    Tau,
)
from offline_rl.algorithms.common.critics import Critic, Value
from offline_rl.algorithms.common.optim import Adam, cosine
from offline_rl.algorithms.common.schedule import ONLINE
from offline_rl.data.transform import ActionClip
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Count, NonNegative
from policies.heads.gaussian import GaussianActor
from policies.networks.init import orthogonal_init
from policies.networks.mlp import Activation


@dataclass(frozen=True)
class DualConfig(BaseConfig):
    """Defaults: IQL's for locomotion (arXiv:2110.06169, appendix B), which the others kept."""

    beta: NonNegative = 3.0  # 0 clones, more trusts the advantage
    max_weight: NonNegative = 100.0  # cap on exp(beta * advantage)
    dropout: Dropout = 0.0  # of the policy, while it learns
    discount: Discount = 0.99  # gamma
    tau: Tau = 0.005  # share of the critic that enters its target each update
    actor_lr: Rate = 3e-4  # learning rate of the policy at the start
    decay_actor_lr: Annotated[bool, OFFLINE] = True  # to 0 along half a cosine over num_updates
    critic_lr: Rate = 3e-4  # of the critics
    value_lr: Rate = 3e-4  # of V
    value_updates: Count = 1  # steps of V on each batch
    layer_norm: bool = False  # in V
    hidden: Sizes = (256, 256)  # units of each hidden layer
    activation: Activation = "relu"  # between layers, of all networks
    clip_actions: ActionClip = 1 - 1e-5  # of the data, to +- this, as the authors do


class DualV(Algorithm):
    """A subclass gives `value_loss`, and whatever else it does in its own way."""

    targets: ClassVar = {"critic_target": "critic"}

    def networks(self) -> dict[str, nn.Module]:
        obs, cfg = self.spec.observation_dim, self.cfg
        options: dict[str, Any] = {"activation": cfg.activation, "init": orthogonal_init()}
        return {
            "policy": self.actor(),
            "critic": self.critic(),
            "value": Value(obs, cfg.hidden, layer_norm=cfg.layer_norm, **options),
        }

    def actor(self) -> nn.Module:
        """The policy's network."""
        obs, act, cfg = self.spec.observation_dim, self.spec.action_dim, self.cfg
        options: dict[str, Any] = {"activation": cfg.activation, "dropout_rate": cfg.dropout}
        return GaussianActor(obs, act, cfg.hidden, init=orthogonal_init(), **options)

    def critic(self) -> nn.Module:
        """The network of Q."""
        obs, act, cfg = self.spec.observation_dim, self.spec.action_dim, self.cfg
        return Critic(obs, act, cfg.hidden, activation=cfg.activation, init=orthogonal_init())

    def for_phase(self, phase: str) -> Algorithm:
        """Online the policy learns at its first rate again, and stays there."""
        now = super().for_phase(phase)
        if phase == ONLINE:
            now.cfg = replace(now.cfg, decay_actor_lr=False)
        return now

    def optimizers(self) -> dict[str, Adam]:
        schedule = cosine(self.num_updates) if self.cfg.decay_actor_lr else None
        return {
            "policy": Adam(self.cfg.actor_lr, schedule=schedule),
            "critic": Adam(self.cfg.critic_lr),
            "value": Adam(self.cfg.value_lr),
        }

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """V; then policy and Q, both with the new V; then the target."""
        s, a, cfg = batch.observations, batch.actions, self.cfg
        q = self.aggregate_q(state, state.critic_target(s, a))  # [B]
        at, q_at = self.value_pairs(state, batch, q)  # [M, O], [M]

        def value_loss(value: Network) -> Tensor:
            return self.value_loss(q_at - value(at))

        for _ in range(cfg.value_updates):
            state, v_loss = minimize(state, "value", value_loss)
        old, advantage = state, q - state.value(s)  # [B]
        weight = (cfg.beta * advantage).exp().clamp(max=cfg.max_weight)
        y = self.target(batch, old.value(batch.next_observations))  # [B]

        def policy_loss(policy: Network) -> Tensor:
            return self.policy_loss(policy, old, batch, weight)

        def critic_loss(critic: Network) -> Tensor:
            return self.critic_loss(critic, old, batch, y)

        state, pi_loss = minimize(state, "policy", policy_loss)
        state, q_loss = minimize(state, "critic", critic_loss)
        state = soft_update(state, "critic_target", "critic", cfg.tau)
        losses = {"value_loss": v_loss, "policy_loss": pi_loss, "critic_loss": q_loss}
        means = {"target": y.mean(), "advantage": advantage.mean(), "weight": weight.mean()}
        return state, losses | means

    def aggregate_q(self, state: State, q: Tensor) -> Tensor:
        """The value that V and the policy follow, [E, B] -> [B]."""
        return q.amin(0)

    def value_loss(self, u: Tensor) -> Tensor:
        """What V descends on, 0-d; u: Q - V [M] at the pairs of `fitted`."""
        raise NotImplementedError

    def value_pairs(self, state: State, batch: Batch, q: Tensor) -> tuple[Tensor, Tensor]:
        """The states [M, O] and values of actions [M] that V is fitted to; q: [B], of the data."""
        return batch.observations, q

    def target(self, batch: Batch, next_value: Tensor) -> Tensor:
        """What Q regresses on, [B]."""
        return batch.rewards + batch.discount * next_value

    def critic_loss(self, critic: Network, state: State, batch: Batch, y: Tensor) -> Tensor:
        """Squared error, mean over the batch, sum over both critics; [2, B] - [B]."""
        q = critic(batch.observations, batch.actions)
        return (q - y).square().sum(0).mean()

    def policy_loss(self, policy: Network, state: State, batch: Batch, weight: Tensor) -> Tensor:
        """Weighted cloning, -E[weight * log pi(a|s)]."""
        log_pi = policy.log_prob(batch.observations, batch.actions, state.random)
        return -(weight * log_pi).mean()


def gumbel_loss(u: Tensor, temperature: float | Tensor, clip: float | Tensor) -> Tensor:
    """exp(z) - z - 1 with z = u / temperature, elementwise, divided by exp(max z): XQL, eq. 11.

    Its minimum over V for u = Q - V lies at temperature * log E[exp(Q / temperature)]. As released
    (Div99/XQL:offline/critic.py): above `clip` z counts as `clip` and has no gradient, and the
    division by the batch's largest exponential keeps float32 finite. That weighs batches with
    outliers down, so that the minimum over many batches lies lower than over all of them as one.
    """
    z = (u / temperature).clamp(max=clip)
    top = z.detach().amax().clamp(min=-1)
    return (z - top).exp() - (z + 1) * (-top).exp()


def expectile_loss(u: Tensor, expectile: float | Tensor) -> Tensor:
    """|expectile - 1(u < 0)| * u**2, elementwise; eq. 4 without its expectation."""
    return (expectile - (u < 0).float()).abs() * u.square()
