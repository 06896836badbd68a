"""Common parts of methods that discretize actions and imitate demonstrations.

Rows of the data are marked as demonstrations; online experience is not. Online, half of each batch
is sampled from the demonstrations, and the other half from all rows, data and experience.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Tensor

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import DATA_THEN_ONLINE, Algorithm
from offline_rl.algorithms.common.config import BUILT, BaseConfig, Discount, Rate, Tau
from offline_rl.data import Dataset
from offline_rl.data.transform import ActionClip
from offline_rl.replay.batch import Batch, Source, Sources
from offline_rl.replay.mixtures import Marked, Mixture
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Count, Range, frozen
from policies.heads.discretized.bins import discretize

MOST_BINS = 2**20  # maximum bins per action dimension; float32 distinguishes more
MARK = "demonstrations"


@frozen
class DiscretizedConfig(BaseConfig):
    """Options of methods with discretized actions."""

    levels: Annotated[int, Range(1), BUILT] = 1  # levels of bins (L); resolution: bins**levels
    bins: Annotated[int, Range(2), BUILT] = 41  # bins per level and action dimension (K)
    discount: Discount = 0.99  # discount factor gamma
    tau: Tau = 0.005  # target update rate: share of the networks mixed into their targets
    lr: Rate = 3e-4  # learning rate
    batch_size: Count = 512  # transitions per update; `batch_size=` sets it too
    clip_actions: ActionClip = 1 - 1e-5  # bound on the magnitude of the data's actions

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bins**self.levels > MOST_BINS:
            raise ValueError(
                f"levels={self.levels} with bins={self.bins} is more than {MOST_BINS:,} bins per "
                "action, which float32 cannot distinguish. Lower one of them."
            )

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {"levels": 2, "bins": 3}


class Discretized(Algorithm):
    """Method with discretized actions whose batches have the column `demonstrations`."""

    Online: type = schedule.HalfAndHalf
    mode = DATA_THEN_ONLINE
    follows_card = False  # weights and temperatures are for unscaled rewards

    def prepare(self, dataset: Dataset) -> tuple[Dataset, Any]:
        """Check that the bins resolve the data's actions. Raises UserError."""
        check_bins(dataset, self.cfg.levels, self.cfg.bins)
        return dataset, self.cfg

    def source(self, phase: str, sources: Sources) -> Source:
        """Return a source that marks demonstrations; see the module docstring for the mixture."""
        marked = {
            name: Marked(source, MARK, float(name != schedule.ONLINE))
            for name, source in sources.items()
        }
        source = super().source(phase, marked)
        if not isinstance(source, Mixture) or source.ratio is None:
            return source
        return Mixture(source.first, Mixture(source.first, source.second, None), source.ratio)


def check_bins(dataset: Dataset, levels: int, bins: int) -> None:
    """Raise UserError if an action dimension varies in the data, but only within one bin."""
    actions = torch.from_numpy(dataset.actions)
    ends = torch.stack([actions.amin(0), actions.amax(0)])  # [2, A]
    indices, _ = discretize(ends.clamp(-1, 1), levels, bins)  # [2, L, A]
    is_useless = (indices[0] == indices[1]).all(0) & (ends[0] < ends[1])
    for k in is_useless.nonzero().flatten().tolist():
        low, high = ends[:, k].tolist()
        raise UserError(
            f"{dataset.path or dataset.name}: action dimension {k} varies between {low:.3g} and "
            f"{high:.3g}, within one of its {bins**levels} bins of width {2 / bins**levels:.3g}. "
            "Increase algorithm.bins or algorithm.levels."
        )


def demonstration_mean(values: Tensor, batch: Batch) -> Tensor:
    """Return the mean of values [..., B] over the demonstrations of a batch; 0 if there are none.

    Without marks, all rows are demonstrations.
    """
    marks = batch.demonstrations
    if marks is None:
        return values.mean(-1)
    return (values * marks).sum(-1) / marks.sum().clamp(min=1)
