"""IFQL: implicit flow Q-learning, which executes the best of N actions that a flow samples.

V regresses on an upper expectile of Q over dataset actions, and Q bootstraps from V, as in IQL. The
policy is a flow policy that only imitates the data. In each decision it samples N actions, and the
action with the highest Q is executed. It is IDQL with a flow policy instead of a diffusion policy.

Paper:   Park, Li, Levine, ICML 2025, arXiv:2502.02538. Critics: IQL (arXiv:2110.06169, eq. 5 and
         6). Selection: IDQL (arXiv:2304.10573).
Differs: no known difference in updates from the authors' code (seohongpark/fql:agents/ifql.py). The
         online phase has the differences of `fql`. As there, every loss uses the networks from
         before the update, and target critics follow the critics of the previous update. Chunks of
         actions (horizon > 1) are an addition. ColinQiyangLi/qam:agents/ifql.py also has chunks,
         but its V regresses on the mean minus standard deviations of ten critics, and it acts by
         their minimum.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from torch import Tensor, nn

from offline_rl.algorithms.common.base import Metrics, Network, State, minimize, update_targets
from offline_rl.algorithms.common.config import BUILT, Expectile, Rate
from offline_rl.algorithms.common.critics import Value, aggregate_q
from offline_rl.algorithms.common.in_sample import expectile_loss
from offline_rl.algorithms.common.noising.flow_critic import BestOfNChunks, FlowConfig
from offline_rl.algorithms.common.optim import Adam
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Count, frozen


@frozen
class Config(FlowConfig):
    """Defaults: the authors' code."""

    q_aggregate: Annotated[Literal["mean", "min"], BUILT] = "min"  # combination of critic values
    expectile: Expectile = 0.9  # expectile of Q that V learns; 0.5: mean, near 1: best action
    num_samples: Annotated[Count, BUILT] = 32  # actions sampled per decision (N)
    value_lr: Rate = 3e-4  # learning rate of V


class IFQL(BestOfNChunks):
    Config: type = Config

    def networks(self) -> dict[str, nn.Module]:
        value = Value(self.spec.observation_dim, self.cfg.hidden, **self.value_options)
        return super().networks() | {"value": value}

    def optimizers(self) -> dict[str, Adam]:
        return super().optimizers() | {"value": Adam(self.cfg.value_lr)}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update V, critics and policy. All losses read the networks as before the update."""
        next_value = state.value(batch.next_observations.flatten(1))
        target = batch.rewards + batch.discount * next_value  # [B]
        value_loss, mean_loss = self.value_loss(state, batch), self.critic_loss(batch, target)
        flow_loss = self.flow_loss(state, batch)

        def critic_loss(critic: Network) -> Tensor:  # summed over the critics
            return self.cfg.num_critics * mean_loss(critic)

        state, value_value = minimize(update_targets(state), "value", value_loss)
        state, critic_value = minimize(state, "critic", critic_loss)
        state, policy_value = minimize(state, "policy", flow_loss)
        losses = {"value": value_value, "critic": critic_value, "policy": policy_value}
        return state, {f"{k}_loss": x for k, x in losses.items()} | {"target": target.mean()}

    def value_loss(self, state: State, batch: Batch) -> Any:
        """Return the expectile loss of Q - V at the data's chunks, Q by the target critics."""
        s, cfg = batch.observations.flatten(1), self.cfg
        q = state.critic_target(s, batch.actions.flatten(1))  # [E, B]
        q = aggregate_q(q, cfg.q_aggregate, cfg.rho)

        def loss(value: Network) -> Tensor:
            error = expectile_loss(q - value(s), cfg.expectile)  # [B]
            return (error if batch.weights is None else error * batch.weights).mean()

        return loss
