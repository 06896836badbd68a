"""SAC-N: soft actor-critic with the minimum over a large critic ensemble.

Target and policy loss use the minimum over N critics. Where the critics agree, on the data, the
minimum costs little. Where they disagree, it is a lower bound whose distance to the mean grows with
N. There is no other pessimism.

Paper:   An, Moon, Kim, Song, NeurIPS 2021, arXiv:2110.01548, algorithm 1 with eta = 0.
Differs: Temperature, policy and critics are updated one after the other, and each update uses the
         parameters that the previous one changed, as in
         tinkoff-ai/CORL:algorithms/offline/sac_n.py, whose settings are used. The authors take all
         losses at the old parameters (snu-mllab/EDAC:lifelong_rl/trainers/q_learning/sac.py).
         Target critics are initialized as copies of the critics. The weights of each critic and of
         the policy are initialized by fan-in; the authors initialize the first layer by fan-out
         (lifelong_rl/torch/pytorch_util.py). The log density is exact. The authors and CORL add
         1e-6 inside its logarithm, so that its gradient on saturated actions vanishes.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from offline_rl.algorithms.common.base import (
    LossAndMetrics,
    Metrics,
    Network,
    State,
    minimize,
    update_targets,
)
from offline_rl.algorithms.common.config import Ensemble, Sizes
from offline_rl.algorithms.common.critics import Critic
from offline_rl.algorithms.common.entropy import (
    SoftActorCritic,
    SoftConfig,
    soft_policy_loss,
    soft_target,
    update_temperature,
)
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import frozen
from policies.heads.gaussian import TanhGaussianActor
from policies.networks.init import fan_out_init, torch_init, uniform_output_init

CACHE = 2 << 20  # bytes of a core's L2 cache, typical of server CPUs
# edac: snu-mllab/EDAC:lifelong_rl/models/networks.py; fan_out: tinkoff-ai/lb-sac:lb_sac/networks.py
Initialization = Literal["edac", "fan_out"]


@frozen
class Config(SoftConfig):
    """Defaults: tinkoff-ai/CORL:configs/offline/sac_n/halfcheetah."""

    num_critics: Ensemble = 10  # number of critics (N): more are more pessimistic, and slower
    layer_norm: bool = False  # layer normalization in the critics
    init: Initialization = "edac"  # edac: small output layers, biases 0.1; fan_out: LB-SAC's
    hidden: Sizes = (256, 256, 256)


class SACN(SoftActorCritic):
    Config: type = Config

    def actor(self) -> nn.Module:
        init = uniform_output_init(1e-3, 0.1) if self.cfg.init == "edac" else torch_init
        return self.build(TanhGaussianActor, log_std_range=(-5, 2), init=init)

    def critic(self) -> nn.Module:
        cfg = self.cfg
        init = uniform_output_init(3e-3, 0.1) if cfg.init == "edac" else fan_out_init
        return self.build(Critic, ensemble=cfg.num_critics, layer_norm=cfg.layer_norm, init=init)

    def prefers_stacked_seeds(self, device: str) -> bool:
        """Return False on a CPU if a layer of one seed's critics exceeds the cache."""
        cfg = self.cfg
        return device != "cpu" or 4 * cfg.num_critics * cfg.batch_size * max(cfg.hidden) <= CACHE

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update temperature, policy and critics in this order, then the target."""
        _, log_pi = state.policy.sample(batch.observations, state.random)
        state = update_temperature(state, log_pi.mean(), -self.spec.action_dim)
        alpha, old = state.log_alpha().exp(), state

        def policy_loss(policy):
            return self.policy_loss(policy, old, batch, alpha)

        state, policy_value, entropy = minimize(state, "policy", policy_loss)
        y, updated = self.target(state, batch, alpha), state

        def critic_loss(critic):
            return self.critic_loss(critic, updated, batch, y)

        state, _, metrics = minimize(state, "critic", critic_loss)
        metrics |= {"policy_loss": policy_value, "target": y.mean(), "alpha": alpha}
        return update_targets(state), metrics | {"entropy": entropy}

    def policy_loss(
        self, policy: Network, state: State, batch: Batch, alpha: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return E[alpha log pi - min_i Q_i(s, a)] with a ~ pi, and the entropy."""
        loss, log_pi = soft_policy_loss(policy, state, batch.observations, alpha)
        return loss, -log_pi

    def target(self, state: State, batch: Batch, alpha: Tensor) -> Tensor:
        """Return r + discount * (min_i Q_i(s', a') - alpha log pi(a'|s')), [B]."""
        return soft_target(state, batch, alpha)

    def critic_loss(self, critic: Network, state: State, batch: Batch, y: Tensor) -> LossAndMetrics:
        """Return the squared error to y (mean over the batch, sum over critics) and metrics."""
        q = critic(batch.observations, batch.actions)  # [E, B]
        return squared_error(q, y)


def squared_error(q: Tensor, y: Tensor) -> LossAndMetrics:
    """Return the mean over the batch, sum over critics, of (Q_i - y)^2; and metrics.

    q: [E, B].  y: [B] or [E, B].
    """
    td = (q - y).square().mean(1).sum()
    return td, {"critic_loss": td, "disagreement": q.std(0, correction=0).mean()}
