"""ARSQ: auto-regressive soft Q-learning over coarse-to-fine bins of actions.

Each action dimension is discretized in several levels of bins. The policy selects one bin per level
and dimension, one after another, and each decision depends on the earlier ones. Q is V plus the sum
of the decisions' soft advantages. The policy is the softmax of the advantages. V is then the soft
value of the policy, so TD targets need no next action. An imitation loss raises the advantages of
demonstrated bins above those of the other bins.

Paper:   Liu et al., ICML 2025, arXiv:2502.00288.
Differs: from the authors' code for D4RL (a copy: mihir-chauhan/CQN-AS-Franka:ARSQ-main/d4rl). All
         data rows of a batch count as demonstrations; in the authors' code, only the half that is
         sampled from the demonstration buffer does. Our imitation loss is therefore a mean over
         more rows, with the same expectation. Demonstrations cannot be restricted to a percentile
         range of returns. With imitation=margin, the authors' loss is a sum over all rows,
         including experience, because a [B] tensor is multiplied by a [B, 1] mask. Our loss is a
         mean over demonstrations, and its weights are theirs times the batch size. Online, updates
         follow each step; theirs follow each episode. With conditioning=level, acting and training
         use the same interval midpoints; theirs differ (`abl_skip`). Rewards are not scaled, as in
         their code. If you scale rewards, scale alpha and min_gap by the same factor.
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

    alpha: Annotated[Positive, BUILT] = 0.01  # temperature of the policy; larger: more exploration
    imitation: Annotated[Literal["cql", "margin"], BUILT] = (
        "cql"  # gap of the other bins. cql: of their log-sum-exp; margin: of each bin, averaged
    )
    imitation_weight: NonNegative = 5.0  # weight of the imitation loss
    imitation_temperature: Positive = 1.0  # imitation=cql: temperature of the log-sum-exp
    min_gap: Number = (
        -1.0
    )  # minimum gap: advantage of other bins minus that of the data's bin; no loss below it
    conditioning: Annotated[Conditioning, BUILT] = (
        "decision"  # advantages depend on all earlier decisions; level: on earlier levels, as CQN
    )
    num_critics: Ensemble = 2  # number of ensemble members, each with V and advantages
    hidden: Sizes = (512, 512, 512)  # units of each hidden layer; at least one layer
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
        """Update V and the advantages on a joint loss, then the target network of V."""
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
        """Return the gaps of other bins over the data's bins, summed over decisions, [E, B].

        A gap is the advantage of other bins minus that of the data's bin, at least `min_gap`.
        advantages: [E, B, D, K].  selected: [E, B, D], advantages of the data's bins.
        is_selected: [B, D, K], mask of the data's bins.
        """
        cfg = self.cfg
        if cfg.imitation == "cql":
            t = cfg.imitation_temperature
            others = torch.where(is_selected, -math.inf, advantages / t).logsumexp(-1) * t
            return (others - selected).clamp(min=cfg.min_gap).sum(-1)
        gaps = (advantages - selected[..., None]).clamp(min=cfg.min_gap)
        return torch.where(is_selected, 0, gaps).sum((-1, -2)) / (cfg.bins - 1)
