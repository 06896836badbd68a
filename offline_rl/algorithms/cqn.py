"""CQN: coarse-to-fine Q-network, value-based learning over bins of actions.

Each level divides the interval of every action dimension into bins. The bin with the largest value
is the interval of the next level. The dimensions are independent of each other. The critic is
distributional: a value is the mean of a categorical distribution over returns. Two imitation losses
favor the bins of demonstrations: a margin loss and a stochastic dominance loss.

Paper:   Seo, Uruc, James, CoRL 2024, arXiv:2407.07787.
Differs: from the CQN baseline in ARSQ's code for D4RL (mihir-chauhan/CQN-AS-Franka:
         ARSQ-main/d4rl), which provides the settings. Targets do not bootstrap after a termination;
         the baseline's do (as_released=true). All data rows of a batch count as demonstrations; in
         the baseline, half of each batch does, with the same expectation. Linear layers before a
         layer normalization have biases; the baseline's do not. If values are equal, the first bin
         is selected; the baseline selects a random one. v_min and v_max are computed from the
         data's rewards; the baseline uses 0 and 4000. `dominance_weight` is the square of the
         baseline's `bc_fosd`. Images are not supported, unlike in younggyoseo/CQN.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar

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
from offline_rl.algorithms.common.config import BUILT, Discount, Rate, Sizes
from offline_rl.algorithms.common.discretized.demonstrations import (
    Discretized,
    DiscretizedConfig,
    demonstration_mean,
)
from offline_rl.algorithms.common.optim import Adam
from offline_rl.data import Dataset
from offline_rl.data.transform import Transform
from offline_rl.replay.batch import Batch
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Count, NonNegative, Number, Range, frozen
from policies.heads.discretized.coarse_to_fine import CoarseToFineActor


@frozen
class Config(DiscretizedConfig):
    """Defaults: the CQN baseline in ARSQ's code for D4RL."""

    discount: Annotated[Discount, BUILT] = 0.99  # discount factor gamma
    atoms: Annotated[int, Range(2), BUILT] = 51  # number of atoms of a return distribution
    v_min: Annotated[Number | None, BUILT] = (
        None  # return of the lowest atom; null: min(lowest reward, 0) / (1 - discount)
    )
    v_max: Annotated[Number | None, BUILT] = (
        None  # return of the highest atom; null: max(highest reward, 0) / (1 - discount)
    )
    critic_weight: NonNegative = 1.0  # weight of the critic loss, a cross-entropy
    margin: NonNegative = 1.0  # margin between the values of demonstrated bins and others
    margin_weight: NonNegative = 1.0  # weight of the margin loss on demonstrations
    dominance_weight: NonNegative = 1.0  # weight of the stochastic dominance loss on demonstrations
    exploration_noise: Annotated[NonNegative, BUILT] = 0.1  # standard deviation, online
    as_released: bool = False  # bootstrap after terminations, as the baseline does
    lr: Rate = 1e-4  # learning rate
    features: Annotated[Count, BUILT] = 64  # size of the observation features
    hidden: Sizes = (512, 512)  # units of each hidden layer

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.v_min is not None and self.v_max is not None and self.v_min >= self.v_max:
            raise ValueError(
                f"v_min={self.v_min:g} is not below v_max={self.v_max:g}. Raise v_max."
            )

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {"v_min": -10.0, "v_max": 10.0, "atoms": 11, "features": 8}


class CQN(Discretized):
    Config: type = Config
    targets: ClassVar = {"policy_target": "policy"}
    acts = ("policy_target",)

    def prepare(self, dataset: Dataset) -> tuple[Dataset, Any]:
        """Set `v_min` and `v_max` to bounds on the return if they are null. Raises UserError."""
        dataset, cfg = super().prepare(dataset)
        plain = replace(cfg, normalize_observations=False)
        rewards = Transform.fit(plain, dataset, (0,)).apply_to_rewards(dataset.rewards)
        low, high = min(float(rewards.min()), 0.0), max(float(rewards.max()), 0.0)
        low, high = low / (1 - cfg.discount), high / (1 - cfg.discount)
        bounds = {"v_min": low, "v_max": 1.0 if low == high else high}
        try:
            return dataset, replace(
                cfg, **{k: v for k, v in bounds.items() if getattr(cfg, k) is None}
            )
        except ValueError as error:  # the bound that is set contradicts the bound from the data
            raise UserError(str(error)) from None

    def networks(self) -> dict[str, nn.Module]:
        cfg, spec = self.cfg, self.spec
        if cfg.v_min is None or cfg.v_max is None:
            raise ValueError("v_min and v_max are null. Set them, or train on data with rewards.")
        names = ("features", "levels", "bins", "atoms", "v_min", "v_max")
        options: Any = {name: getattr(cfg, name) for name in names}
        options["noise"] = cfg.exploration_noise
        sizes = spec.observation_dim, spec.action_dim, cfg.hidden
        return {"policy": CoarseToFineActor(*sizes, **options)}

    def optimizers(self) -> dict[str, Adam]:
        return {"policy": Adam(self.cfg.lr)}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update the critic on the TD and imitation losses, then its target network."""
        s, s2, cfg = batch.observations, batch.next_observations, self.cfg
        a2 = state.policy.act(s2)
        logits, is_selected = state.policy_target.evaluate(s2, a2)  # [B, L, A, K, M], [B, L, A, K]
        target = self.project(batch, of_selected(logits.softmax(-1), is_selected))  # [B, L, A, M]

        def loss(policy: Network) -> LossAndMetrics:
            logits, is_selected = policy.evaluate(s, batch.actions)
            log_probs = of_selected(logits.log_softmax(-1), is_selected)
            critic = -(target * log_probs).sum(-1).mean()
            imitation = self.imitation_loss(policy, logits, is_selected, batch)
            metrics = {"critic_loss": critic, "imitation_loss": imitation}
            return cfg.critic_weight * critic + imitation, metrics

        state, _, metrics = minimize(state, "policy", loss)
        mean = (target @ self.head.support(target)).mean()
        return update_targets(state), metrics | {"target": mean}

    @property
    def head(self) -> CoarseToFineActor:
        """The critic network, which is also the policy."""
        head: Any = self.modules["policy"]
        return head

    def project(self, batch: Batch, probs: Tensor) -> Tensor:
        """Return the distributions of r + discount * return, projected onto the atoms (C51).

        probs: [B, ..., M], distributions of the return in the next state.
        """
        support, discount = self.head.support(probs), batch.discount  # [M]
        if self.cfg.as_released:
            discount = torch.where(batch.bootstrap_mask == 0, self.cfg.discount, discount)
        low, high = self.head.v_min, self.head.v_max
        returns = (batch.rewards[:, None] + discount[:, None] * support).clamp(low, high)  # [B, M]
        width = (high - low) / (len(support) - 1)
        share = (1 - (returns[..., None] - support).abs() / width).clamp(min=0)  # [B, M, M]
        return torch.einsum("blam,bmn->blan", probs, share)

    def imitation_loss(
        self, policy: Network, logits: Tensor, is_selected: Tensor, batch: Batch
    ) -> Tensor:
        """Return the weighted margin and dominance losses, means over the demonstrations."""
        cfg, q = self.cfg, policy.mean(logits)  # [B, L, A, K]
        selected_q = (q * is_selected).sum(-1, keepdim=True)
        margin = (cfg.margin - (selected_q - q)).clamp(min=0).mean((1, 2, 3))  # [B]
        cdf = logits.softmax(-1).cumsum(-1)  # [B, L, A, K, M]
        excess = of_selected(cdf, is_selected)[..., None, :] - cdf
        dominance = excess.clamp(min=0).sum(-1).mean((1, 2, 3))  # [B]
        values = cfg.margin_weight * margin + cfg.dominance_weight * dominance
        return demonstration_mean(values, batch)


def of_selected(values: Tensor, is_selected: Tensor) -> Tensor:
    """Return the values of the selected bins, [..., K, M] -> [..., M]."""
    return (values * is_selected[..., None]).sum(-2)
