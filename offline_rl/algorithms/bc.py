"""Behavior cloning (BC): do what the data does; with `top_fraction`, what its best part does.

The policy regresses on the data's actions with a squared error, or on chunks of them: the mean of a
Gaussian. The baseline to beat, and with the best tenth of the trajectories (10%-BC) a strong one
where the data is mixed.

Paper:   Pomerleau, 1991, for the idea; 10%-BC: Chen et al., NeurIPS 2021, arXiv:2106.01345.
Differs: trajectories are the file's own; tinkoff-ai/CORL (algorithms/offline/any_percent_bc.py),
         whose settings are used, cuts flattened data every 1000 rows and so mixes neighbors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from torch import nn

from offline_rl.algorithms.common.base import Algorithm, Metrics, State, minimize
from offline_rl.algorithms.common.chunk_cloning import check_length
from offline_rl.algorithms.common.config import BUILT, Fraction, Rate, Sizes
from offline_rl.algorithms.common.optim import Adam
from offline_rl.algorithms.common.vision import VisionConfig, build_head
from offline_rl.data.transform import Normalize
from offline_rl.replay.batch import Batch, Source, Sources
from offline_rl.replay.chunks import Chunks
from offline_rl.utils.options import Count
from policies.heads.chunk import ChunkActor
from policies.heads.deterministic import DeterministicActor
from policies.networks.mlp import Activation

if TYPE_CHECKING:
    from offline_rl.data.dataset import Dataset


@dataclass(frozen=True)
class Config(VisionConfig):
    """Defaults: tinkoff-ai/CORL's for all of D4RL."""

    top_fraction: Annotated[Fraction, BUILT] = 1.0  # share of the data to clone
    top_of: Literal["trajectories", "timesteps"] = "trajectories"  # what the share is counted in
    lr: Rate = 3e-4  # learning rate
    hidden: Sizes = (256, 256)  # units of each hidden layer
    activation: Activation = "relu"  # between layers
    n_obs_steps: Count = 1  # observations seen at once
    horizon: Count = 1  # actions answered at once, from the present one on
    n_action_steps: Count = 1  # of these, taken before the next decision
    normalize_observations: Normalize = True
    discount: ClassVar[float] = 1.0  # a batch has one; no option, since cloning never looks at it

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_action_steps > self.horizon:
            raise ValueError(
                f"n_action_steps={self.n_action_steps} of a window of {self.horizon} actions"
            )

    @property
    def in_chunks(self) -> bool:
        """Whether it is more than from one observation to one action."""
        return (self.n_obs_steps, self.horizon) != (1, 1)


class BC(Algorithm):
    Config = Config
    follows_card = False  # it clones
    imitation_phases = ("update",)
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

    @classmethod
    def complete_config(cls, cfg: Any, dataset: Dataset) -> Any:
        check_length(cfg.horizon, dataset)
        return cfg

    @classmethod
    def can_stream(cls, cfg: Any) -> bool:
        return not cfg.in_chunks

    def source(self, phase: str, sources: Sources) -> Source:
        cfg, data = self.cfg, super().source(phase, sources)
        sizes = {name: getattr(cfg, name) for name in ("n_obs_steps", "horizon", "n_action_steps")}
        return Chunks(data, beside="present", **sizes) if cfg.in_chunks else data

    def networks(self) -> dict[str, nn.Module]:
        spec, cfg = self.spec, self.cfg
        made: dict[str, Any] = {"actions": spec.action_dim, "hidden": [*cfg.hidden]}
        made["activation"] = cfg.activation
        if cfg.in_chunks:
            sizes = {
                name: getattr(cfg, name) for name in ("n_obs_steps", "horizon", "n_action_steps")
            }
            return {"policy": build_head(spec, cfg, ChunkActor, **made, **sizes)}
        return {"policy": build_head(spec, cfg, DeterministicActor, **made)}

    def optimizers(self) -> dict[str, Adam]:
        return {"policy": Adam(self.cfg.lr)}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """One step of regression."""

        def policy_loss(policy):  # mean over batch, action dimensions and the episode's own steps
            answer = policy(batch.observations, state.random)  # by which pictures are cut
            error = (answer - batch.actions).square()
            if batch.real is None:
                return error.mean()
            return (error.mean(-1) * batch.real).sum() / batch.real.sum()

        state, policy_value = minimize(state, "policy", policy_loss)
        return state, {"policy_loss": policy_value}
