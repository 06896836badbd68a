"""Behavior cloning (BC): supervised regression on the data's actions.

The policy minimizes the squared error to the data's actions, or to chunks of them, so it predicts
their mean. It is the baseline to beat. Trained on the top 10 % of trajectories by return (10%-BC,
`top_fraction`) it is a strong baseline on data of mixed quality.

Paper:   Pomerleau, 1991, for the idea; 10%-BC: Chen et al., NeurIPS 2021, arXiv:2106.01345.
Differs: Trajectories are those of the file. tinkoff-ai/CORL (algorithms/offline/any_percent_bc.py),
         whose settings are used, cuts the flattened data every 1000 rows and so mixes neighboring
         trajectories.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from torch import nn

from offline_rl.algorithms.common.base import Algorithm, Metrics, State, minimize
from offline_rl.algorithms.common.config import BUILT, Fraction, Rate, Sizes
from offline_rl.algorithms.common.optim import Adam
from offline_rl.algorithms.common.vision import VisionConfig, build_head
from offline_rl.data.dataset import Dataset
from offline_rl.data.transform import Normalize
from offline_rl.replay.batch import Batch, Source, Sources
from offline_rl.replay.chunks import Chunks
from offline_rl.utils.options import Count, frozen
from policies.heads.chunk import ChunkActor
from policies.heads.deterministic import DeterministicActor
from policies.networks.mlp import Activation


@frozen
class Config(VisionConfig):
    """Defaults: tinkoff-ai/CORL's for all of D4RL."""

    top_fraction: Annotated[Fraction, BUILT] = 1.0  # share of the data to imitate, by return
    top_of: Literal["trajectories", "timesteps"] = "trajectories"  # unit of top_fraction
    lr: Rate = 3e-4  # learning rate
    hidden: Sizes = (256, 256)  # units of each hidden layer
    activation: Activation = "relu"  # activation between layers
    n_obs_steps: Count = 1  # number of past observations in the input
    horizon: Count = 1  # number of predicted actions, from the current step on
    n_action_steps: Count = 1  # predicted actions that are executed before the next prediction
    normalize_observations: Normalize = True
    discount: ClassVar[float] = 1.0  # required in batches; not an option, as imitation ignores it

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_action_steps > self.horizon:
            raise ValueError(
                f"n_action_steps={self.n_action_steps} exceeds horizon={self.horizon}. Lower it."
            )

    @property
    def in_chunks(self) -> bool:
        """True if the policy maps several observations or predicts several actions."""
        return (self.n_obs_steps, self.horizon) != (1, 1)

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {"horizon": 4, "n_action_steps": 2}


class BC(Algorithm):
    Config: type = Config
    follows_card = False  # the preprocessing of dataset cards is for methods that learn values
    imitation_phases = ("update",)  # uses all rows, as it needs no next observations
    vector_only = False

    @classmethod
    def uses_rewards(cls, cfg: Any) -> bool:
        return cfg.top_fraction < 1

    def prepare(self, dataset: Dataset) -> tuple[Dataset, Any]:
        """Keep the episodes of highest return, by share of episodes or of time steps."""
        fraction = self.cfg.top_fraction
        if fraction < 1 and self.cfg.top_of == "trajectories":
            dataset = dataset.top_episodes(fraction)
        elif fraction < 1:
            dataset = dataset.top_timesteps(fraction)
        return dataset, self.cfg

    @classmethod
    def can_stream(cls, cfg: Any) -> bool:
        return not cfg.in_chunks

    def source(self, phase: str, sources: Sources) -> Source:
        cfg, data = self.cfg, super().source(phase, sources)
        sizes = {name: getattr(cfg, name) for name in ("n_obs_steps", "horizon", "n_action_steps")}
        return Chunks(data, chunk_start="present", **sizes) if cfg.in_chunks else data

    def networks(self) -> dict[str, nn.Module]:
        spec, cfg = self.spec, self.cfg
        options: dict[str, Any] = {"actions": spec.action_dim, "hidden": [*cfg.hidden]}
        options["activation"] = cfg.activation
        if cfg.in_chunks:
            sizes = {
                name: getattr(cfg, name) for name in ("n_obs_steps", "horizon", "n_action_steps")
            }
            return {"policy": build_head(spec, cfg, ChunkActor, **options, **sizes)}
        return {"policy": build_head(spec, cfg, DeterministicActor, **options)}

    def optimizers(self) -> dict[str, Adam]:
        return {"policy": Adam(self.cfg.lr)}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update the policy by regression on actions."""

        def policy_loss(policy):  # mean over batch, actions and valid steps
            actions = policy(batch.observations, state.random)  # random: image crops
            error = (actions - batch.actions).square()
            if batch.valid is None:
                return error.mean()
            return (error.mean(-1) * batch.valid).sum() / batch.valid.sum()

        state, policy_value = minimize(state, "policy", policy_loss)
        return state, {"policy_loss": policy_value}
