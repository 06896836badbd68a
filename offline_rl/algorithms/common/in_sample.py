"""Common learner of IQL, XQL, f-DVL and ReCOIL: V fitted near the best dataset actions.

    V       a statistic of Q over the data's actions, near their maximum: `value_loss` of Q - V
    Q       bootstraps from V, so that no unseen action is evaluated: `critic_loss`
    policy  imitates the data's actions, weighted by exp(beta * (Q - V)): `policy_loss`

In the dual form of regularized RL, min_V (1 - l) E[V] + l E[f*(Q - V)], the four methods differ in
these losses and in the pairs to which V is fitted. Sikchi et al., ICLR 2024, arXiv:2302.08560. The
order of steps is that of ikostrikov/implicit_q_learning:learner.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

from torch import Tensor, nn

from offline_rl.algorithms.common.actor_critic import ActorCritic, ActorCriticConfig
from offline_rl.algorithms.common.base import (
    Algorithm,
    Metrics,
    Network,
    State,
    minimize,
    soft_update,
    update_targets,
)
from offline_rl.algorithms.common.config import OFFLINE, Dropout, Rate
from offline_rl.algorithms.common.critics import Critic, Value, reduce_q
from offline_rl.algorithms.common.optim import Adam, cosine
from offline_rl.algorithms.common.schedule import ONLINE
from offline_rl.data.transform import ActionClip
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Count, NonNegative, frozen
from policies.heads.gaussian import GaussianActor
from policies.networks.init import orthogonal_init
from policies.networks.mlp import Activation


@frozen
class DualConfig(ActorCriticConfig):
    """Defaults: IQL's for locomotion (arXiv:2110.06169, appendix B), shared by all four."""

    beta: NonNegative = 3.0  # 0 is behavior cloning; larger values trust the advantage more
    max_weight: NonNegative = 100.0  # cap on the advantage weight exp(beta * advantage)
    dropout: Dropout = 0.0  # dropout rate of the policy during training
    actor_lr: Rate = 3e-4  # initial learning rate of the policy
    decay_actor_lr: Annotated[bool, OFFLINE] = True  # cosine decay to 0 over num_updates
    value_lr: Rate = 3e-4  # learning rate of V
    value_updates: Count = 1  # updates of V per batch
    layer_norm: bool = False  # layer normalization in V
    activation: Activation = "relu"  # activation between layers of all networks
    clip_actions: ActionClip = 1 - 1e-5  # clip the data's actions to +- this, as the authors do


class DualV(ActorCritic):
    """Learner with in-sample values.

    A subclass defines `value_loss` and overrides what differs.
    """

    def networks(self) -> dict[str, nn.Module]:
        networks, cfg = super().networks(), self.cfg
        options = {"activation": cfg.activation, "layer_norm": cfg.layer_norm}
        value = Value(self.input_size, cfg.hidden, init=orthogonal_init(), **options)
        return networks | {"value": value}

    def actor(self) -> nn.Module:
        return self.build(GaussianActor, dropout_rate=self.cfg.dropout, init=orthogonal_init())

    def critic(self) -> nn.Module:
        return self.build(Critic, init=orthogonal_init())

    def for_phase(self, phase: str) -> Algorithm:
        """Return the algorithm for `phase`; online, the policy's learning rate is constant."""
        algorithm = super().for_phase(phase)
        if phase == ONLINE:
            algorithm.cfg = replace(algorithm.cfg, decay_actor_lr=False)
        return algorithm

    def optimizers(self) -> dict[str, Adam]:
        schedule = cosine(self.num_updates) if self.cfg.decay_actor_lr else None
        adams = {"policy": Adam(self.cfg.actor_lr, schedule=schedule)}
        return super().optimizers() | adams | {"value": Adam(self.cfg.value_lr)}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update V; then policy and Q with the new V; then the target."""
        s, a, cfg = batch.observations, batch.actions, self.cfg
        q = self.aggregate_q(state, state.critic_target(s, a))  # [B]
        pair_s, pair_q = self.value_pairs(state, batch, q)  # [M, O], [M]

        def value_loss(value: Network) -> Tensor:
            return self.value_loss(pair_q - value(pair_s))

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
        state = update_targets(state)
        losses = {"value_loss": v_loss, "policy_loss": pi_loss, "critic_loss": q_loss}
        means = {"target": y.mean(), "advantage": advantage.mean(), "weight": weight.mean()}
        return state, losses | means

    def aggregate_q(self, state: State, q: Tensor) -> Tensor:
        """Return the Q that V and the policy are trained on, [E, B] -> [B]."""
        return reduce_q(state, q)

    def value_loss(self, u: Tensor) -> Tensor:
        """Return the loss of V, 0-d. u: Q - V [M] at the pairs of `value_pairs`."""
        raise NotImplementedError

    def value_pairs(self, state: State, batch: Batch, q: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states [M, O] and action values [M] to which V is fitted.

        q: [B], of the data's actions.
        """
        return batch.observations, q

    def target(self, batch: Batch, next_value: Tensor) -> Tensor:
        """Return the regression target of Q, [B]."""
        return batch.rewards + batch.discount * next_value

    def critic_loss(self, critic: Network, state: State, batch: Batch, y: Tensor) -> Tensor:
        """Return the squared error, mean over the batch, sum over both critics."""
        q = critic(batch.observations, batch.actions)
        return (q - y).square().sum(0).mean()

    def policy_loss(self, policy: Network, state: State, batch: Batch, weight: Tensor) -> Tensor:
        """Return the advantage-weighted imitation loss, -E[weight * log pi(a|s)]."""
        log_pi = policy.log_prob(batch.observations, batch.actions, state.random)
        return -(weight * log_pi).mean()


def update_values(
    state: State,
    batch: Batch,
    q: Tensor,
    expectile: float | Tensor,
    target: Callable[[Tensor], Tensor],
    prefix: str = "",
) -> tuple[State, Metrics]:
    """Update V toward an expectile of q [B]; then the critics with the new V; then their target.

    target: function from V(s') [B] to the regression target of the critics [B].
    prefix: networks are `<prefix>value`, `<prefix>critic`, `<prefix>critic_target`.
    """
    value, critic, tau = f"{prefix}value", f"{prefix}critic", state.algorithm.cfg.tau

    def value_loss(network: Network) -> Tensor:
        return expectile_loss(q - network(batch.observations), expectile).mean()

    state, v_loss = minimize(state, value, value_loss)
    y = target(getattr(state, value)(batch.next_observations))  # [B]

    def critic_loss(network: Network) -> Tensor:  # [E, B] - [B]
        return (network(batch.observations, batch.actions) - y).square().mean()

    state, q_loss = minimize(state, critic, critic_loss)
    state = soft_update(state, f"{critic}_target", critic, tau)
    metrics = {"value_loss": v_loss, "critic_loss": q_loss, "target": y.mean()}
    return state, {f"{prefix}{name}": x for name, x in metrics.items()}


def gumbel_loss(u: Tensor, temperature: float | Tensor, clip: float | Tensor) -> Tensor:
    """Return the Gumbel regression loss of XQL, eq. 11, elementwise.

    It is exp(z) - z - 1 with z = u / temperature, divided by exp(max z). For u = Q - V its minimum
    over V is temperature * log E[exp(Q / temperature)]. As released (Div99/XQL:offline/critic.py):
    z above `clip` counts as `clip` and has no gradient, and the division by the batch's largest
    exponential keeps float32 finite. The division gives batches with outliers less weight. The
    minimum over many batches is therefore lower than the minimum over one batch of all rows.
    """
    z = (u / temperature).clamp(max=clip)
    top = z.detach().amax().clamp(min=-1)
    return (z - top).exp() - (z + 1) * (-top).exp()


def expectile_loss(u: Tensor, expectile: float | Tensor) -> Tensor:
    """Return |expectile - 1(u < 0)| * u**2, elementwise; eq. 4 without its expectation."""
    return (expectile - (u < 0).float()).abs() * u.square()
