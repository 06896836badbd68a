"""What a policy decided, kept whole until it is learned from: the source of on-policy methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from offline_rl.utils.random import Random

ORDER = 1 << 34  # keeps the order of minibatches apart from an update's other numbers
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Decisions:
    """B pairs of a decision and one of its K' denoising steps; see `Rollouts`."""

    columns: Mapping[str, Tensor]  # of the decision, [B, …]
    step: Tensor  # [B], of the chain, 0 the noisiest
    rollout: Tensor  # 0-d, the update before which these were collected

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("__") or name not in self.columns:
            raise AttributeError(f"no column is called {name!r}; there are {[*self.columns]}")
        return self.columns[name]


class Rollouts:
    """T decisions of E environments for each seed, in tensors [S, T, E, …] that stay in place.

    A batch is a slice of a permutation of all pairs of a decision and a step of its chain, a new
    one each time that all were visited.
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
        """size: T, E.  columns: of a decision.  steps: K'.

        carried: [S, …] each, what goes on from one rollout to the next.
        """
        self.size, self.steps, self.columns = size, steps, dict(columns)
        self.carried = dict(carried or {})
        made = {name: (*size, *shape) for name, shape in columns.items()} | self.carried
        self.data = {k: torch.zeros(seeds, *shape, device=device) for k, shape in made.items()}
        self.data["rollout"] = torch.zeros(seeds, dtype=torch.int64, device=device)
        self.beside: dict[str, Tensor] = {}  # [S, …], what a checkpoint further holds
        self.filled_rows = 0  # of T

    def append(self, row: Mapping[str, np.ndarray]) -> None:
        """One decision of every environment, [S, E, …] each; after the last begins anew."""
        at = self.filled_rows % self.size[0]
        for name, values in row.items():
            own = self.data[name]
            own[:, at] = torch.as_tensor(values, dtype=own.dtype).to(own.device)
        self.filled_rows = at + 1

    @property
    def full(self) -> bool:
        """Whether all T are there."""
        return self.filled_rows == self.size[0]

    def put(self, columns: Mapping[str, Tensor], update: int) -> None:
        """What was made of a whole rollout; update: how many were done before it."""
        for name, values in columns.items():
            self.data[name].copy_(values)
        self.data["rollout"].fill_(update)

    def tensors(self) -> dict[str, Tensor]:
        """See `Source`."""
        return self.data

    def sample(
        self, data: Mapping[str, Tensor], random: Random, batch_size: int, discount: float | Tensor
    ) -> Decisions:
        """The update's slice of its epoch's permutation."""
        pairs = prod(self.size) * self.steps
        batches = pairs // batch_size
        done = random.update - data["rollout"]
        epoch = torch.div(done, batches, rounding_mode="floor")
        drawn = Random(random.seed + ORDER, data["rollout"] + epoch).bits((pairs,))
        order = drawn.argsort(stable=True)
        place = (done - epoch * batches) * batch_size
        own = order[place + torch.arange(batch_size, device=order.device)]
        decision, step = own // self.steps, own % self.steps
        columns = {name: data[name].flatten(0, 1)[decision] for name in self.columns}
        return Decisions(columns, step, data["rollout"])

    def filled(self, stream: int) -> dict[str, Tensor]:
        """A seed's part of a checkpoint."""
        everything = {**self.data, **self.beside}
        count = {"filled_rows": torch.tensor(self.filled_rows)}
        return {name: values[stream].clone() for name, values in everything.items()} | count

    def load(self, stream: int, rows: Mapping[str, Tensor]) -> None:
        """The inverse of `filled`. Raises ValueError naming what differs."""
        for name, own in {**self.data, **self.beside}.items():
            if name not in rows or rows[name].shape != own[stream].shape:
                raise ValueError(f"{name} is missing, or of another shape")
            own[stream] = rows[name].to(own.device)
        self.filled_rows = int(rows["filled_rows"])
