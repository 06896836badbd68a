"""ARSQ: auto-regressive soft Q-learning over coarse-to-fine bins of actions.

An action is a sequence of decisions: for each level of bins, one decision per dimension. Q is V of
the state plus the soft advantages of all decisions, each of which depends on the earlier ones. The
policy is the softmax of these advantages, so that V is the soft value of the policy and targets
need no next action. A further loss keeps the bins of demonstrations ahead of the others.

Paper:   Liu et al., ICML 2025, arXiv:2502.00288.
Differs: from the authors' code for D4RL (a copy: mihir-chauhan/CQN-AS-Franka:ARSQ-main/d4rl). All
         rows of the data are demonstrations; there, half of each batch. Therefore the imitation
         loss is a mean over more rows, with the same expectation. There is no demonstration set of
         episodes of chosen returns. With imitation=margin, the loss there is the sum over all rows,
         experience included, because a [B] tensor is multiplied by a [B, 1] mask. Ours is a mean
         over demonstrations; its weights are those there times the batch size. Online, updates
         follow each step instead of each episode. With conditioning=level, acting and training use
         the same middles; with `abl_skip` there, they differ. Rewards are raw, as there. For scaled
         rewards, scale alpha and min_gap too.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common.base import (
    LossAndMetrics,
    Metrics,
    Network,
    State,
    minimize,
    update_targets,
)
from offline_rl.algorithms.common.config import BUILT, Ensemble, Sizes
from offline_rl.algorithms.common.discretized.demonstrations import (
    Discretized,
    DiscretizedConfig,
    demonstration_mean,
)
from offline_rl.algorithms.common.optim import Adam
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import NonNegative, Number, Positive, frozen
from policies.heads.discretized.autoregressive import AutoregressiveActor, Conditioning
from policies.networks.init import orthogonal_init
from policies.networks.mlp import MLP, Activation


@frozen
class Config(DiscretizedConfig):
    """Defaults: the authors' code for D4RL, with the temperature of all of its tasks."""

    alpha: Annotated[Positive, BUILT] = 0.01  # temperature; larger: more random exploration
    imitation: Annotated[Literal["cql", "margin"], BUILT] = (
        "cql"  # gap of the other bins: cql: of their soft maximum; margin: of each, averaged
    )
    imitation_weight: NonNegative = 5.0  # weight of the imitation loss
    imitation_temperature: Positive = 1.0  # imitation=cql: temperature of the soft maximum
    min_gap: Number = (
        -1.0
    )  # no imitation loss where the other bins' advantage minus the data's is less
    conditioning: Annotated[Conditioning, BUILT] = (
        "decision"  # decision: on all earlier decisions; level: on earlier levels only, as CQN
    )
    num_critics: Ensemble = 2  # number of pairs of V and advantages
    hidden: Sizes = (512, 512, 512)  # units of each hidden layer; at least one
    activation: Activation = "tanh"  # activation between layers

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.hidden:
            raise ValueError("hidden=[] has no layer. Use at least one.")
        if self.imitation == "margin":
            self.refuse_unread("imitation", "imitation_temperature")


class ARSQ(Discretized):
    Config: type = Config
    targets: ClassVar = {"value_target": "value"}

    def networks(self) -> dict[str, nn.Module]:
        cfg, observations = self.cfg, self.spec.observation_dim
        shape: dict[str, Any] = {"ensemble": cfg.num_critics, "activation": cfg.activation}
        names = ("levels", "bins", "alpha", "conditioning")
        options: Any = {name: getattr(cfg, name) for name in names} | shape
        policy = AutoregressiveActor(observations, self.spec.action_dim, cfg.hidden, **options)
        init = orthogonal_init(math.sqrt(2), 0.01)
        return {"policy": policy, "value": MLP(observations, 1, cfg.hidden, init=init, **shape)}

    def optimizers(self) -> dict[str, Adam]:
        return dict.fromkeys(("policy", "value"), Adam(self.cfg.lr))

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update V and the advantages by one loss, then the target of V."""
        s, cfg = batch.observations, self.cfg
        v2 = state.value_target(batch.next_observations)[..., 0].amin(0)  # [B]
        y = batch.rewards + batch.discount * v2

        def loss(value: Network, policy: Network) -> LossAndMetrics:
            advantages, is_selected = policy.evaluate(s, batch.actions)  # [E, B, D, K], [B, D, K]
            selected = (advantages * is_selected).sum(-1)  # [E, B, D]
            q = value(s)[..., 0] + selected.sum(-1)  # [E, B]
            td = (q - y).square().mean(1).sum()
            gaps = self.gaps(advantages, selected, is_selected)  # [E, B]
            imitation = demonstration_mean(gaps, batch).sum()
            metrics = {"critic_loss": td, "imitation_loss": imitation}
            return td + cfg.imitation_weight * imitation, metrics

        state, _, metrics = minimize(state, ("value", "policy"), loss)
        return update_targets(state), metrics | {"target": y.mean()}

    def gaps(self, advantages: Tensor, selected: Tensor, is_selected: Tensor) -> Tensor:
        """Return by how much other bins exceed the data's, each at least `min_gap`, [E, B].

        It is the sum over decisions. advantages: [E, B, D, K].  selected: [E, B, D], those of the
        data's bins.  is_selected: [B, D, K].
        """
        cfg = self.cfg
        if cfg.imitation == "cql":
            t = cfg.imitation_temperature
            others = torch.where(is_selected, -math.inf, advantages / t).logsumexp(-1) * t
            return (others - selected).clamp(min=cfg.min_gap).sum(-1)
        gaps = (advantages - selected[..., None]).clamp(min=cfg.min_gap)
        return torch.where(is_selected, 0, gaps).sum((-1, -2)) / (cfg.bins - 1)
