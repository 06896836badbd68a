"""What policies share that are taught whole chunks of a demonstrator's actions.

Batches are `replay.chunks.Chunks`. `model` learns; `policy`, its moving average, acts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from torch import Tensor, nn

from offline_rl.algorithms.common.base import Algorithm, State, soft_update
from offline_rl.algorithms.common.config import BUILT, BaseConfig, Dropout, Rate, Sizes
from offline_rl.algorithms.common.optim import Adam, warm_up, warm_up_cosine
from offline_rl.algorithms.common.vision import VisionConfig, input_options
from offline_rl.data.transform import Normalize
from offline_rl.replay.batch import Batch, Source, Sources
from offline_rl.replay.chunks import Chunks
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Amount, Count, Positive, Range, Share
from policies.heads.diffusion import DiffusionActor
from policies.heads.schedules import Table
from policies.networks.denoisers import Kind
from policies.spec import Spec

if TYPE_CHECKING:
    from offline_rl.data.dataset import Dataset

LARGE = 2_000_000  # parameters; beyond, seeds side by side gain nothing over one after another
PAPER_WIDTHS = {"unet": (256, 512, 1024), "mlp": (512,) * 3, "transformer": (256,) * 8}  # widths
GROUPS = 8  # of a U-Net's channels, normalized together
TEACHER_FIELDS = (  # what a student has of its teacher
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


@dataclass(frozen=True)
class ChunkShape(BaseConfig):
    """What a decision is; defaults: Diffusion Policy's for states (arXiv:2303.04137)."""

    n_obs_steps: Built = 2  # observations seen at once
    horizon: Built = 16  # actions predicted, the first beside the oldest of these observations
    n_action_steps: Built = 8  # of these, from the present one on, taken before the next decision
    action_low: Ends | None = None  # of each action, scaled to -1; null: the data's least
    action_high: Ends | None = None  # of each action, scaled to 1; null: the data's largest
    normalize_observations: Normalize = True  # z-score; min_max: to [-1, 1], as the authors do

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_action_steps > self.num_future_actions:
            raise ValueError(
                f"n_action_steps={self.n_action_steps}: of horizon={self.horizon} actions, with "
                f"n_obs_steps={self.n_obs_steps}, {max(self.ahead, 0)} lie ahead"
            )

    @property
    def num_future_actions(self) -> int:
        """Actions of a window from the present one on."""
        return self.horizon - self.n_obs_steps + 1


@dataclass(frozen=True)
class ChunkConfig(ChunkShape, VisionConfig):
    """Defaults: Diffusion Policy's for states (arXiv:2303.04137, appendix A)."""

    mask_ends: bool = False  # learn nothing from actions repeated beyond an episode's ends
    lr: Rate = 1e-4  # learning rate at its highest
    beta1: Share = 0.95  # of AdamW
    beta2: Share = 0.999  # of AdamW
    weight_decay: Share = 1e-6  # share of the weights, times lr, that an update takes off
    num_warmup_updates: Amount = 500  # over which lr rises
    decay_lr: bool = True  # then takes it to 0 along half a cosine over num_updates
    ema_power: Positive = 0.75  # decay of the moving average after n updates: 1 - n ** -ema_power
    ema_max: Share = 0.9999  # and at most this
    discount: ClassVar[float] = 1.0  # a batch has one; no option, since cloning never looks at it


@dataclass(frozen=True)
class DenoiserShape(ChunkShape):
    """A network that denoises; defaults: Diffusion Policy's."""

    network: Annotated[Kind, BUILT] = "unet"  # what denoises
    # a U-Net's channels by level, an MLP's units by layer, or for each layer of a transformer the
    # size of its tokens
    widths: Sizes | None = None  # by level or layer; null: 256 512 1024 (unet), 3 * 512, 8 * 256
    time_size: Even | None = None  # of a time's embedding; null: the first width, in an mlp 32
    num_heads: Built = 4  # of attention in each layer of a transformer

    def __post_init__(self) -> None:
        super().__post_init__()
        levels, sizes = len(self.widths or PAPER_WIDTHS[self.network]), set(self.widths or ())
        if self.widths == ():
            raise ValueError("widths=(): at least one is expected, or null")
        if self.network != "transformer":
            self.refuse_unread("network", "num_heads")
        elif self.time_size is not None:
            raise ValueError("time_size: a transformer's is that of its tokens")
        elif len(sizes) > 1 or (sizes and min(sizes) % self.num_heads):
            raise ValueError(
                f"widths={self.widths}: a transformer's tokens have one size, a multiple of "
                f"num_heads={self.num_heads}"
            )
        if self.network == "unet" and self.horizon % 2 ** (levels - 1):
            raise ValueError(
                f"horizon={self.horizon}: a U-Net of {levels} levels halves it {levels - 1} times, "
                f"so it is a multiple of {2 ** (levels - 1)}"
            )
        if self.network == "unet" and any(width % GROUPS for width in sizes):
            raise ValueError(f"widths={self.widths}: a U-Net's are multiples of {GROUPS}")
        if (self.network_options().get("time_size") or 4) % 2:
            raise ValueError(f"time_size={self.time_size} is odd")

    def head_options(self, spec: Spec) -> dict[str, Any]:
        """What a head of these sizes is made of, but for its table."""
        names = ("n_obs_steps", "horizon", "n_action_steps", "network", "action_low", "action_high")
        sizes = input_options(spec, self) | {"actions": spec.action_dim}
        return (
            sizes
            | {"options": self.network_options()}
            | {name: getattr(self, name) for name in names}
        )

    def network_options(self) -> dict[str, Any]:
        """Of the network of that name."""
        widths = [*(self.widths or PAPER_WIDTHS[self.network])]
        if self.network == "transformer":
            return {"size": widths[0], "layers": len(widths), "heads": self.num_heads}
        if self.network == "mlp":
            return {"hidden": widths, "time_size": self.time_size or 32}
        return {"widths": widths, "time_size": self.time_size or widths[0]}


@dataclass(frozen=True)
class DenoisingConfig(DenoiserShape, ChunkConfig):
    """How it is taught; defaults: Diffusion Policy's."""

    dropout: Dropout = 0.0  # of a network's hidden units, while it learns
    levels: Count = 1  # noise levels for each encoded observation


class ChunkCloning(Algorithm):
    """A subclass gives `head` and `update`, which ends in `averaged`."""

    targets = {"policy": "model"}
    follows_card = False  # it clones
    imitation_phases: ClassVar[tuple[str, ...]] = ("update",)
    vector_only = False
    beside: ClassVar[Literal["oldest", "present"]] = "oldest"  # where a window's first action lies

    @classmethod
    def uses_rewards(cls, cfg: Any) -> bool:
        return False

    @classmethod
    def complete_config(cls, cfg: Any, dataset: Dataset) -> Any:
        """Each action's range."""
        return with_action_ranges(cfg, dataset)

    def source(self, phase: str, sources: Sources) -> Source:
        cfg, data = self.cfg, super().source(phase, sources)
        sizes = {name: getattr(cfg, name) for name in ("n_obs_steps", "horizon", "n_action_steps")}
        return Chunks(data, beside=self.beside, **sizes)

    def head(self) -> nn.Module:
        """What acts, freshly initialized."""
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
        """Parts of the names of weights that do not decay."""
        return ()

    def unit(self, actions: Tensor) -> Tensor:
        """Actions as the network sees them, in [-1, 1]."""
        head: Any = self.modules["model"]
        return head.unit(actions)

    def masked_mean(self, error: Tensor, batch: Batch) -> Tensor:
        """Of an error [K, B, T, A] over levels, chunks, and the steps that are learned from."""
        if not self.cfg.mask_ends:
            return error.masked_mean()
        assert batch.real is not None
        return (error.masked_mean((0, -1)) * batch.real).sum() / batch.real.sum()

    def update_average(self, state: State) -> State:
        """The policy after an update: a plain copy of the model for two, then its moving average.

        The schedule of real-stanford/diffusion_policy:diffusion_policy/model/diffusion/
        ema_model.py.
        """
        before = (state.done.float() - 1).clamp(min=0)
        decay = (1 - (1 + before) ** -self.cfg.ema_power).clamp(max=self.cfg.ema_max)
        return soft_update(state, "policy", "model", 1 - decay)


class Denoising(ChunkCloning):
    """Of a network that denoises, in rounds of a `table`."""

    def table(self) -> Table:
        """Of the sampler; `policies.heads.schedules`."""
        raise NotImplementedError

    def head(self) -> DiffusionActor:
        return self.build_actor(self.table())

    def build_actor(self, table: Table, until: float | None = None) -> DiffusionActor:
        """A head of the config's sizes."""
        options = self.cfg.head_options(self.spec)
        return DiffusionActor(**options, table=table, until=until, dropout_rate=self.cfg.dropout)

    @property
    def undecayed(self) -> tuple[str, ...]:
        return ("bias", "norm", "place") if self.cfg.network == "transformer" else ()


class Student(Denoising):
    """A student of another run's policy, its `teacher`: it begins as that, and sees by its eyes."""

    frozen = ("teacher",)

    @property
    def undecayed(self) -> tuple[str, ...]:
        """The teacher's eyes, which nothing teaches here, stay as they are."""
        return (*super().undecayed, "eyes")

    def initialize_from(
        self, own: Mapping[str, Tensor], other: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The other's policy in rounds is the teacher, and where the student begins."""
        taken = {**own, "counters/update": other["counters/update"]}
        for name, value in own.items():
            if not name.startswith("params/"):
                continue
            _, network, parameter = name.split("/", 2)
            found = other.get(f"params/policy/{parameter}")
            if found is None:
                raise ValueError(f"{parameter} is missing")
            taken[name] = found if network == "teacher" else self.widen_parameter(found, value)
            if taken[name].shape != value.shape:
                raise ValueError(f"{parameter} is {[*found.shape]}, here it is {[*value.shape]}")
        return taken

    def widen_parameter(self, found: Tensor, own: Tensor) -> Tensor:
        """A teacher's weights as the student has them, whose own are `own`."""
        return found


def with_action_ranges(cfg: Any, dataset: Dataset) -> Any:
    """`cfg` with each action's range in the data, where it is left open. Raises UserError."""
    check_length(cfg.num_future_actions, dataset)
    low, high = cfg.action_low, cfg.action_high
    low = tuple(dataset.actions.min(0).tolist()) if low is None else low
    high = tuple(dataset.actions.max(0).tolist()) if high is None else high
    actions = dataset.actions.shape[1]
    for name, ends in (("action_low", low), ("action_high", high)):
        if len(ends) != actions:
            raise UserError(
                f"algorithm.{name}={[*ends]}: {len(ends)} numbers, where "
                f"{dataset.path or dataset.name} has {actions} actions; give one for each"
            )
    if any(least > most for least, most in zip(low, high, strict=True)):
        raise UserError(
            f"algorithm.action_low={[*low]} is not below algorithm.action_high={[*high]}, which is "
            "the data's where it is not given"
        )
    return replace(cfg, action_low=low, action_high=high)


def check_length(actions: int, dataset: Dataset) -> None:
    """Raises UserError where no episode is as long as a chunk of so many actions."""
    longest = int(dataset.episode_lengths().max())
    if actions > longest:
        raise UserError(
            f"{dataset.path or dataset.name}: the longest episode has {longest} steps, and a chunk "
            f"has {actions}; give a smaller algorithm.horizon"
        )
