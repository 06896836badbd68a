"""Behaviour cloning (BC): do what the data does; with `top_fraction`, what its best part does.

The policy regresses on the data's actions with a squared error. The baseline to beat, and with the
best tenth of the trajectories (10%-BC) a strong one where the data is mixed.

Paper:   Pomerleau, 1991, for the idea; 10%-BC: Chen et al., NeurIPS 2021, arXiv:2106.01345.
Differs: trajectories are the file's own; tinkoff-ai/CORL (algorithms/offline/any_percent_bc.py),
         whose settings are used, cuts flattened data every 1000 rows and so mixes neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from torch import nn

from offline_rl.algorithms.common.base import Algorithm, Metrics, State, minimise
from offline_rl.algorithms.common.config import BUILT, Fraction, Rate, Sizes
from offline_rl.algorithms.common.optim import Adam
from offline_rl.algorithms.common.seeing import SeeingConfig, on
from offline_rl.replay.batch import Batch
from policies.heads.deterministic import DeterministicActor
from policies.networks.mlp import Activation

if TYPE_CHECKING:
    from offline_rl.data.dataset import Dataset


@dataclass(frozen=True)
class Config(SeeingConfig):
    """Defaults: tinkoff-ai/CORL's for all of D4RL."""

    top_fraction: Annotated[Fraction, BUILT] = 1.0  # share of the data to clone
    top_of: Literal["trajectories", "timesteps"] = "trajectories"  # what the share is counted in
    lr: Rate = 3e-4  # learning rate
    hidden: Sizes = (256, 256)  # units of each hidden layer
    activation: Activation = "relu"  # between layers
    normalise_observations: bool = True
    discount: ClassVar[float] = 1.0  # a batch has one; no option, since cloning never looks at it


class BC(Algorithm):
    Config = Config
    follows_card = False  # it clones
    vector_only = False

    @classmethod
    def uses_rewards(cls, cfg: Any) -> bool:
        return cfg.top_fraction < 1

    def prepare(self, dataset: Dataset) -> Dataset:
        """The episodes of highest return: a share of their number, or what fits a share of rows."""
        fraction = self.cfg.top_fraction
        if fraction == 1:
            return dataset
        if self.cfg.top_of == "trajectories":
            return dataset.top_episodes(fraction)
        return dataset.top_timesteps(fraction)

    def networks(self) -> dict[str, nn.Module]:
        spec, cfg = self.spec, self.cfg
        layers = {"hidden": [*cfg.hidden], "activation": cfg.activation}
        return {"policy": on(spec, cfg, DeterministicActor, actions=spec.action_dim, **layers)}

    def optimisers(self) -> dict[str, Adam]:
        return {"policy": Adam(self.cfg.lr)}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """One step of regression."""

        def policy_loss(policy):  # mean over batch and action dimensions
            answer = policy(batch.observations, state.random)  # by which pictures are cut
            return (answer - batch.actions).square().mean()

        state, policy_value = minimise(state, "policy", policy_loss)
        return state, {"policy_loss": policy_value}
