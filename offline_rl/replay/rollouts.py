"""The rollout storage of on-policy algorithms that fine-tune the denoising steps of a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from offline_rl.utils.random import Random

ORDER = 1 << 34  # offset of the seed that shuffles minibatches, unlike an update's other seeds
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Decisions:
    """A minibatch of B pairs of a decision (action chunk) and one of its K' denoising steps."""

    columns: Mapping[str, Tensor]  # columns of the decision, [B, …]
    step: Tensor  # [B], index of the denoising step; 0 is the noisiest
    rollout: Tensor  # 0-d, number of updates that preceded the rollout

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("__") or name not in self.columns:
            raise AttributeError(f"no column is called {name!r}; there are {[*self.columns]}")
        return self.columns[name]


class Rollouts:
    """T decisions of E environments for each seed, in tensors [S, T, E, …] with fixed addresses.

    A minibatch is a slice of a permutation of all pairs of a decision and a denoising step. Each
    epoch, one pass over all pairs, has a new permutation.
    """

    def __init__(
        self,
        seeds: int,
        size: tuple[int, int],
        columns: Shapes,
        *,
        steps: int = 1,
        carried: Shapes | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """Allocate empty storage.

        size: (T, E).
        columns: shape of each column of one decision.
        steps: K', the number of denoising steps of a decision that are trained.
        carried: shape of each value per seed that persists from one rollout to the next.
        """
        self.size, self.steps, self.columns = size, steps, dict(columns)
        self.carried = dict(carried or {})
        shapes = {name: (*size, *shape) for name, shape in columns.items()} | self.carried
        self.data = {k: torch.zeros(seeds, *shape, device=device) for k, shape in shapes.items()}
        self.data["rollout"] = torch.zeros(seeds, dtype=torch.int64, device=device)
        self.checkpoint_extras: dict[str, Tensor] = {}  # [S, …], saved and restored as well
        self.filled_rows = 0  # rows of the T that are filled

    def append(self, row: Mapping[str, np.ndarray]) -> None:
        """Append one decision of every environment, [S, E, …] each.

        A full storage starts again at its first row.
        """
        at = self.filled_rows % self.size[0]
        for name, values in row.items():
            column = self.data[name]
            column[:, at] = torch.as_tensor(values, dtype=column.dtype).to(column.device)
        self.filled_rows = at + 1

    @property
    def is_full(self) -> bool:
        """True if all T rows are filled."""
        return self.filled_rows == self.size[0]

    def set_columns(self, columns: Mapping[str, Tensor], update: int) -> None:
        """Store columns that were computed from a complete rollout.

        update: the number of updates before it.
        """
        for name, values in columns.items():
            self.data[name].copy_(values)
        self.data["rollout"].fill_(update)

    def tensors(self) -> dict[str, Tensor]:
        """See `Source`."""
        return self.data

    def sample(
        self, data: Mapping[str, Tensor], random: Random, batch_size: int, discount: float | Tensor
    ) -> Decisions:
        """Return the update's minibatch, a slice of its epoch's permutation."""
        pairs = prod(self.size) * self.steps
        batches = pairs // batch_size
        done = random.update - data["rollout"]
        epoch = torch.div(done, batches, rounding_mode="floor")
        bits = Random(random.seed + ORDER, data["rollout"] + epoch).bits((pairs,))
        order = bits.argsort(stable=True)
        start = (done - epoch * batches) * batch_size
        chosen = order[start + torch.arange(batch_size, device=order.device)]
        decision, step = chosen // self.steps, chosen % self.steps
        columns = {name: data[name].flatten(0, 1)[decision] for name in self.columns}
        return Decisions(columns, step, data["rollout"])

    def filled(self, stream: int) -> dict[str, Tensor]:
        """Return a seed's part of a checkpoint."""
        everything = {**self.data, **self.checkpoint_extras}
        count = {"filled_rows": torch.tensor(self.filled_rows)}
        return {name: values[stream].clone() for name, values in everything.items()} | count

    def load(self, stream: int, rows: Mapping[str, Tensor]) -> None:
        """Restore a seed from what `filled` returned.

        Raises ValueError that names a missing tensor or one of another shape.
        """
        for name, column in {**self.data, **self.checkpoint_extras}.items():
            if name not in rows or rows[name].shape != column[stream].shape:
                raise ValueError(f"{name} is missing, or of another shape")
            column[stream] = rows[name].to(column.device)
        self.filled_rows = int(rows["filled_rows"])
