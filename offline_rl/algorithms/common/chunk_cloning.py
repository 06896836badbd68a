"""Common parts of policies that are trained by imitation of action chunks.

Batches are `replay.chunks.Chunks`. `model` is trained; `policy`, its moving average, acts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from torch import Tensor, nn

from offline_rl.algorithms.common.base import (
    Algorithm,
    LossAndMetrics,
    Metrics,
    Network,
    State,
    minimize,
    soft_update,
)
from offline_rl.algorithms.common.config import BUILT, BaseConfig, Dropout, Rate, Sizes
from offline_rl.algorithms.common.noising.targets import TrainingTargets
from offline_rl.algorithms.common.optim import Adam, warm_up, warm_up_cosine
from offline_rl.algorithms.common.vision import VisionConfig, input_options
from offline_rl.data.dataset import Dataset
from offline_rl.data.transform import Normalize
from offline_rl.replay.batch import Batch, Source, Sources
from offline_rl.replay.chunks import Chunks
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Amount, Count, Positive, Range, Share, frozen
from offline_rl.utils.random import Random
from policies.heads.diffusion import DiffusionActor
from policies.heads.schedules import Table
from policies.spec import Spec

LARGE = 2_000_000  # parameters above which stacking seeds is not faster
PAPER_WIDTHS = {"unet": (256, 512, 1024), "mlp": (512,) * 3, "transformer": (256,) * 8}  # widths
GROUPS = 8  # groups of a U-Net's group normalization
TEACHER_FIELDS = (  # options that a student takes from its teacher
    *(
        "n_obs_steps",
        "horizon",
        "n_action_steps",
        "action_low",
        "action_high",
        "normalize_observations",
    ),
    *("network", "widths", "time_size", "num_heads", "encoder", "num_keypoints", "crop"),
)
Ends = Annotated[tuple[float, ...], Range(-1, 1), BUILT]
Built = Annotated[int, Range(1), BUILT]
Even = Annotated[int, Range(4), BUILT]


@frozen
class ChunkShape(BaseConfig):
    """Chunk and history sizes. Defaults: Diffusion Policy's for states (arXiv:2303.04137)."""

    n_obs_steps: Built = 2  # number of past observations in the input
    horizon: Built = 16  # predicted actions; the first belongs to the oldest observation
    n_action_steps: Built = 8  # executed actions per prediction, from the current step on
    action_low: Ends | None = None  # lower end of each action, mapped to -1; null: data's minimum
    action_high: Ends | None = None  # upper end of each action, mapped to 1; null: data's maximum
    normalize_observations: Normalize = True  # z-score, or min_max to [-1, 1] as the authors do

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_action_steps > self.num_future_actions:
            raise ValueError(
                f"n_action_steps={self.n_action_steps} exceeds the "
                f"{max(self.num_future_actions, 0)} actions from the current step on that "
                f"horizon={self.horizon} has with n_obs_steps={self.n_obs_steps}."
            )

    @property
    def num_future_actions(self) -> int:
        """Predicted actions from the current step on."""
        return self.horizon - self.n_obs_steps + 1

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {"horizon": 4, "n_action_steps": 2}


@frozen
class ChunkConfig(ChunkShape, VisionConfig):
    """Training options. Defaults: Diffusion Policy's for states (arXiv:2303.04137, appendix A)."""

    mask_ends: bool = False  # exclude actions padded beyond an episode's ends from the loss
    lr: Rate = 1e-4  # peak learning rate
    beta1: Share = 0.95  # beta1 of AdamW
    beta2: Share = 0.999  # beta2 of AdamW
    weight_decay: Share = 1e-6  # weight decay of AdamW
    num_warmup_updates: Amount = 500  # updates over which the learning rate rises
    decay_lr: bool = True  # cosine decay of the learning rate to 0 over num_updates
    ema_power: Positive = 0.75  # decay of the moving average after n updates: 1 - n ** -ema_power
    ema_max: Share = 0.9999  # upper bound on that decay
    discount: ClassVar[float] = 1.0  # required in batches; not an option, as imitation ignores it

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {"num_warmup_updates": 5}


@frozen
class DenoiserShape(ChunkShape):
    """Network of a diffusion or flow policy. Defaults: Diffusion Policy's."""

    network: Annotated[Literal["unet", "transformer", "mlp"], BUILT] = "unet"  # denoising network
    # channels per level of a U-Net, units per layer of an MLP, token size per transformer layer
    widths: Sizes | None = (
        None  # of levels or layers; null: 256 512 1024 (unet), 3 * 512 (mlp), 8 * 256 (transformer)
    )
    time_size: Even | None = None  # size of the time embedding; null: first width (mlp: 32)
    num_heads: Built = 4  # attention heads in each layer of a transformer

    def __post_init__(self) -> None:
        super().__post_init__()
        levels, sizes = len(self.widths or PAPER_WIDTHS[self.network]), set(self.widths or ())
        if self.widths == ():
            raise ValueError("widths=() is empty. Give at least one width, or null.")
        if self.network != "transformer":
            self.refuse_unread("network", "num_heads")
        elif self.time_size is not None:
            raise ValueError(
                "time_size is not used with network=transformer: it equals the token size."
            )
        elif len(sizes) > 1 or (sizes and min(sizes) % self.num_heads):
            raise ValueError(
                f"widths={self.widths}: the layers of a transformer need one width, a multiple of "
                f"num_heads={self.num_heads}."
            )
        if self.network == "unet" and self.horizon % 2 ** (levels - 1):
            raise ValueError(
                f"horizon={self.horizon}: a U-Net of {levels} levels halves it {levels - 1} times. "
                f"Use a multiple of {2 ** (levels - 1)}."
            )
        if self.network == "unet" and any(width % GROUPS for width in sizes):
            raise ValueError(f"widths={self.widths}: a U-Net needs multiples of {GROUPS}.")
        if (self.network_options().get("time_size") or 4) % 2:
            raise ValueError(f"time_size={self.time_size} is odd. Use an even number.")

    def head_options(self, spec: Spec) -> dict[str, Any]:
        """Return the arguments of a `DiffusionActor`, except its sampler table."""
        names = ("n_obs_steps", "horizon", "n_action_steps", "network", "action_low", "action_high")
        sizes = input_options(spec, self) | {"actions": spec.action_dim}
        return (
            sizes
            | {"options": self.network_options()}
            | {name: getattr(self, name) for name in names}
        )

    def network_options(self) -> dict[str, Any]:
        """Return the arguments of the denoising network."""
        widths = [*(self.widths or PAPER_WIDTHS[self.network])]
        if self.network == "transformer":
            return {"size": widths[0], "layers": len(widths), "heads": self.num_heads}
        if self.network == "mlp":
            return {"hidden": widths, "time_size": self.time_size or 32}
        return {"widths": widths, "time_size": self.time_size or widths[0]}

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {"network": "mlp", "widths": (8, 16), "num_inference_steps": 5}


@frozen
class DenoisingConfig(DenoiserShape, ChunkConfig):
    """Training options of a diffusion or flow policy. Defaults: Diffusion Policy's."""

    dropout: Dropout = 0.0  # dropout rate of hidden units during training
    levels: Count = 1  # noise levels per encoded observation


class ChunkCloning(Algorithm):
    """Imitation of action chunks.

    A subclass defines `head`, and an `update` that ends in `update_model`.
    """

    targets = {"policy": "model"}
    follows_card = False  # the preprocessing of dataset cards is for methods that learn values
    imitation_phases: ClassVar[tuple[str, ...]] = ("update",)
    vector_only = False
    # observation at whose time step a chunk starts
    chunk_start: ClassVar[Literal["oldest", "present"]] = "oldest"

    @classmethod
    def uses_rewards(cls, cfg: Any) -> bool:
        return False

    def prepare(self, dataset: Dataset) -> tuple[Dataset, Any]:
        """Set each action's range from the data."""
        return dataset, with_action_ranges(self.cfg, dataset)

    def source(self, phase: str, sources: Sources) -> Source:
        cfg, data = self.cfg, super().source(phase, sources)
        sizes = {name: getattr(cfg, name) for name in ("n_obs_steps", "horizon", "n_action_steps")}
        return Chunks(data, chunk_start=self.chunk_start, **sizes)

    def head(self) -> nn.Module:
        """Return a freshly initialized policy head."""
        raise NotImplementedError

    def networks(self) -> dict[str, nn.Module]:
        return {"model": self.head()}

    def prefers_stacked_seeds(self, device: str) -> bool:
        return sum(p.numel() for p in self.modules["model"].parameters()) < LARGE

    def optimizers(self) -> dict[str, Adam]:
        cfg = self.cfg
        schedule = warm_up(cfg.num_warmup_updates)
        if cfg.decay_lr:
            schedule = warm_up_cosine(cfg.num_warmup_updates, self.num_updates)
        betas = {"beta1": cfg.beta1, "beta2": cfg.beta2}
        decay = {"weight_decay": cfg.weight_decay, "undecayed": self.undecayed}
        return {"model": Adam(cfg.lr, schedule=schedule, **betas, **decay)}

    @property
    def undecayed(self) -> tuple[str, ...]:
        """Parts of the names of parameters without weight decay."""
        return ()

    def normalize_actions(self, actions: Tensor) -> Tensor:
        """Return actions scaled to [-1, 1], as the network uses them."""
        head: Any = self.modules["model"]
        return head.normalize_actions(actions)

    def masked_mean(self, error: Tensor, batch: Batch) -> Tensor:
        """Return the mean of an error [K, B, T, A] over levels, chunks, and unmasked steps.

        With several processes, the number of unmasked steps is averaged over their slices, so that
        the average of the results is the mean over the batch.
        """
        if not self.cfg.mask_ends:
            return error.mean()
        assert batch.valid is not None
        count = batch.valid.sum()
        if self.average is not None:
            count = self.average(count.float())
        return (error.mean((0, -1)) * batch.valid).sum() / count

    def update_model(
        self, state: State, loss: Callable[[Network], LossAndMetrics]
    ) -> tuple[State, Metrics]:
        """Update the model, then the policy. loss: returns the model's loss and further metrics."""
        state, value, metrics = minimize(state, "model", loss)
        return self.update_average(state), metrics | {"policy_loss": value}

    def update_average(self, state: State) -> State:
        """Update the policy, which is a moving average of the model's weights.

        In the first two updates it is a copy of the model. The schedule is that of
        real-stanford/diffusion_policy:diffusion_policy/model/diffusion/ema_model.py.
        """
        previous = (state.done.float() - 1).clamp(min=0)
        decay = (1 - (1 + previous) ** -self.cfg.ema_power).clamp(max=self.cfg.ema_max)
        return soft_update(state, "policy", "model", 1 - decay)


class Denoising(ChunkCloning):
    """Imitation by a diffusion or flow policy, sampled by a `table`."""

    def table(self) -> Table:
        """Return the sampler's table, see `policies.heads.schedules`."""
        raise NotImplementedError

    def head(self) -> DiffusionActor:
        return self.build_actor(self.table())

    def build_actor(self, table: Table, until: float | None = None) -> DiffusionActor:
        """Return a head of the config's sizes."""
        options = self.cfg.head_options(self.spec)
        return DiffusionActor(**options, table=table, until=until, dropout_rate=self.cfg.dropout)

    def training_targets(self, random: Random, actions: Tensor) -> TrainingTargets:
        """Return noised chunks at `levels` noise levels each. actions: [B, T, A] in [-1, 1]."""
        raise NotImplementedError

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        """Update the model by regression on `training_targets`."""
        actions = self.normalize_actions(batch.actions)  # [B, T, A]
        x, times, target = self.training_targets(state.random, actions)

        def policy_loss(model: Network) -> LossAndMetrics:
            prediction = model(batch.observations, x, times, state.random)
            return self.masked_mean((prediction - target).square(), batch), {}

        return self.update_model(state, policy_loss)

    @property
    def undecayed(self) -> tuple[str, ...]:
        return ("bias", "norm", "place") if self.cfg.network == "transformer" else ()


class Student(Denoising):
    """Distillation of another run's policy, the `teacher`.

    The student starts with the teacher's weights and uses the teacher's image encoder.
    """

    frozen_networks = ("teacher",)

    @property
    def undecayed(self) -> tuple[str, ...]:
        """Parts of the names of parameters without weight decay, with the teacher's encoder."""
        return (*super().undecayed, "observation_encoder")

    def initialize_from(
        self, initial: Mapping[str, Tensor], other: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Initialize teacher and student from the multi-step policy of another run."""
        result = {**initial, "counters/update": other["counters/update"]}
        for name, value in initial.items():
            if not name.startswith("params/"):
                continue
            _, network, parameter = name.split("/", 2)
            weights = other.get(f"params/policy/{parameter}")
            if weights is None:
                raise ValueError(f"{parameter} is missing")
            is_teacher = network == "teacher"
            result[name] = weights if is_teacher else self.widen_parameter(weights, value)
            if result[name].shape != value.shape:
                raise ValueError(f"{parameter} is {[*weights.shape]}, here it is {[*value.shape]}")
        return result

    def widen_parameter(self, teacher: Tensor, student: Tensor) -> Tensor:
        """Return a teacher's parameter in the shape of the student's."""
        return teacher


def with_action_ranges(cfg: Any, dataset: Dataset) -> Any:
    """Return `cfg` with null action limits set from the data. Raise UserError if not valid."""
    low, high = cfg.action_low, cfg.action_high
    low = tuple(dataset.actions.min(0).tolist()) if low is None else low
    high = tuple(dataset.actions.max(0).tolist()) if high is None else high
    actions = dataset.actions.shape[1]
    for name, ends in (("action_low", low), ("action_high", high)):
        if len(ends) != actions:
            raise UserError(
                f"algorithm.{name}={[*ends]} has {len(ends)} numbers, but "
                f"{dataset.path or dataset.name} has {actions} actions. Give one number for each."
            )
    if any(minimum > maximum for minimum, maximum in zip(low, high, strict=True)):
        raise UserError(
            f"algorithm.action_low={[*low]} is not below algorithm.action_high={[*high]} in "
            "every action. Limits that are not set are the data's."
        )
    return replace(cfg, action_low=low, action_high=high)
