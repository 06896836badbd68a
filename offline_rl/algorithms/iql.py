"""Implicit Q-learning (IQL): expectile regression of V, without evaluating unseen actions.

V regresses on an upper expectile of Q over dataset actions, and Q bootstraps from V. The policy is
trained by advantage-weighted regression. Actions outside the dataset are never evaluated.

Paper:   Kostrikov, Nair, Levine, ICLR 2022, arXiv:2110.06169. Equation numbers refer to it. The
         order of the steps, eq. 6 and eq. 7 are in common/in_sample.py.
Differs: Offline, no known difference from the authors' code
         (ikostrikov/implicit_q_learning:learner.py). Online, the policy's learning rate returns to
         its full value after its decay to 0 offline; in the authors' code (train_finetune.py) it
         never decays. Online rewards are scaled like the data's; the authors use raw rewards in
         locomotion. `deterministic` follows tinkoff-ai/CORL (algorithms/offline/iql.py), but
         explores online with a standard deviation of 0.1; CORL uses 0.03. `num_critics` and
         `num_min_critics` follow zhouzypaul/wsrl (wsrl/agents/iql.py). They and `squashed` are for
         runs that WSRL continues; the policy of that file is not squashed. The options of such a
         run are algorithm.num_critics=10 algorithm.num_min_critics=2 algorithm.squashed=true
         algorithm.layer_norm=true.
"""

from __future__ import annotations

from torch import Tensor, nn

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import DATA_THEN_ONLINE, Network, State
from offline_rl.algorithms.common.config import Ensemble, Expectile, Switch
from offline_rl.algorithms.common.critics import Critic, reduce_q, sampled_q
from offline_rl.algorithms.common.histories.encoding import HistoryConfig, WithHistories
from offline_rl.algorithms.common.in_sample import DualConfig, DualV, expectile_loss
from offline_rl.algorithms.common.safety.guardian import GuardianConfig
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import Count, frozen
from policies.heads.deterministic import DeterministicActor
from policies.heads.gaussian import TanhGaussianActor
from policies.networks.init import orthogonal_init


@frozen
class Config(HistoryConfig, DualConfig, GuardianConfig):
    """Defaults: the paper's for locomotion (appendix B)."""

    expectile: Expectile = 0.7  # expectile of Q that V learns; 0.5: mean action, near 1: best one
    deterministic: Switch = False  # deterministic policy, trained by a weighted squared error
    squashed: Switch = False  # CQL's tanh-Gaussian policy, and layer norm in policy and critics
    num_critics: Ensemble = 2  # number of critics (E)
    num_min_critics: Count | None = None  # critics sampled for the minimum of Q; null: all

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.squashed and (self.deterministic or self.dropout):
            raise ValueError("squashed=true needs deterministic=false and dropout=0")


class IQL(WithHistories, DualV):
    Config: type = Config
    Online: type = schedule.OneBuffer
    mode = DATA_THEN_ONLINE

    def aggregate_q(self, state: State, q: Tensor) -> Tensor:
        """Return the value of all or of `num_min_critics` sampled critics, [E, B] -> [B]."""
        return reduce_q(state, sampled_q(state, q, self.cfg.num_min_critics))

    def value_loss(self, u: Tensor) -> Tensor:
        """Return the expectile loss of Q - V (eq. 5)."""
        return expectile_loss(u, self.cfg.expectile).mean()

    def actor(self) -> nn.Module:
        """Return a Gaussian, a tanh-squashed Gaussian, or a deterministic tanh policy."""
        init, dropout = orthogonal_init(), self.cfg.dropout
        if self.cfg.squashed:
            return self.build(TanhGaussianActor, affine=(1.0, -1.0), layer_norm=True, init=init)
        if self.cfg.deterministic:
            return self.build(DeterministicActor, dropout_rate=dropout, init=init)
        return super().actor()

    def critic(self) -> nn.Module:
        shape = {"ensemble": self.cfg.num_critics, "layer_norm": self.cfg.squashed}
        return self.build(Critic, init=orthogonal_init(), **shape)

    def policy_loss(self, policy: Network, state: State, batch: Batch, weight: Tensor) -> Tensor:
        """Return the loss of eq. 7, or the squared error with the same weights."""
        if self.cfg.squashed:
            return -(weight * policy.log_prob(batch.observations, batch.actions)).mean()
        if not self.cfg.deterministic:
            return super().policy_loss(policy, state, batch, weight)
        error = policy(batch.observations, state.random) - batch.actions
        return (weight * error.square().sum(-1)).mean()
