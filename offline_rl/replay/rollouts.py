"""The rollout buffer of on-policy algorithms, and batches of complete rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offline_rl.replay.batch import Batch, Source
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.utils.random import Random

ORDER = 1 << 34  # separates the random numbers that shuffle minibatches from those of updates
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Decisions:
    """A minibatch of B pairs: a decision (action chunk), and one of its K' denoising steps."""

    columns: Mapping[str, Tensor]  # columns of the decision, [B, …]
    step: Tensor  # [B], index of the denoising step; 0 is the noisiest
    rollout: Tensor  # 0-d, number of updates that preceded the rollout

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("__") or name not in self.columns:
            raise AttributeError(f"no column {name!r}. The columns are {', '.join(self.columns)}.")
        return self.columns[name]


class Rollouts(Source):
    """T decisions of E environments for each seed, in tensors [S, T, E, …] with fixed addresses.

    All pairs of a decision and a denoising step are shuffled once per epoch (one pass over all
    pairs). A minibatch is a slice of the shuffled pairs.
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
        steps: K', the number of trained denoising steps per decision.
        carried: values that persist from one rollout to the next, {name: shape for one seed}.
        """
        self.size, self.steps, self.columns = size, steps, dict(columns)
        self.carried = dict(carried or {})
        shapes = {name: (*size, *shape) for name, shape in columns.items()} | self.carried
        self.data = {k: torch.zeros(seeds, *shape, device=device) for k, shape in shapes.items()}
        self.data["rollout"] = torch.zeros(seeds, dtype=torch.int64, device=device)
        self.filled_rows = 0  # number of filled rows, at most T

    def append(self, row: Mapping[str, np.ndarray]) -> None:
        """Append one decision of every environment, {column: [S, E, …]}.

        If the buffer is full, it is overwritten from the first row on.
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

    def write(self, rows: Mapping[str, Tensor], update: Tensor) -> None:
        """Store complete columns, {column: [S, T, E, …]}. Other columns keep their values.

        update: [S], number of updates before the rollout.
        """
        for name, values in rows.items():
            self.data[name].copy_(values)
        self.data["rollout"].copy_(update)

    def tensors(self) -> dict[str, Tensor]:
        """See `Source`."""
        return self.data

    def sample(
        self, data: Mapping[str, Tensor], random: Random, batch_size: int, discount: float | Tensor
    ) -> Decisions:
        """Return the minibatch of the update that `random` belongs to."""
        pairs = prod(self.size) * self.steps
        batches = pairs // batch_size
        updates = random.update - data["rollout"]
        epoch = torch.div(updates, batches, rounding_mode="floor")
        bits = Random(random.seed + ORDER, data["rollout"] + epoch).bits((pairs,))
        order = bits.argsort(stable=True)
        start = (updates - epoch * batches) * batch_size
        minibatch = order[start + torch.arange(batch_size, device=order.device)]
        decision, step = minibatch // self.steps, minibatch % self.steps
        columns = {name: data[name].flatten(0, 1)[decision] for name in self.columns}
        return Decisions(columns, step, data["rollout"])

    def stream_state(self, stream: int) -> dict[str, Tensor]:
        """Return the tensors of a seed that a checkpoint stores."""
        count = {"filled_rows": torch.tensor(self.filled_rows)}
        return {name: values[stream].clone() for name, values in self.data.items()} | count

    def load(self, stream: int, rows: Mapping[str, Tensor]) -> None:
        """Restore a seed from what `stream_state` returned.

        Raises ValueError that names a missing tensor or one of another shape.
        """
        for name, column in self.data.items():
            if name not in rows or rows[name].shape != column[stream].shape:
                raise ValueError(f"{name} is missing, or has another shape")
            column[stream] = rows[name].to(column.device)
        self.filled_rows = int(rows["filled_rows"])


@dataclass(frozen=True)
class Iteration:
    """A complete rollout, and rows of the data for each step of the episode."""

    rollout: Mapping[str, Tensor]  # columns of the rollout, [T, E, …]
    offline: Batch | None  # columns are [H, M, …]: M rows of each of the steps 0 to H - 1
    noise: Tensor  # [H, M, A], standard normal; the same in all updates on a rollout


class Iterations(Source):
    """Complete rollouts, with an equal number of rows of the data for each step of the episode.

    All updates on a rollout receive the same rows. With num_steps=1, rows are sampled from all.
    """

    def __init__(self, rollouts: Rollouts, offline: ReplayBuffer | None, num_steps: int) -> None:
        """Combine two sources. offline: with the column `timesteps`; None: rollouts alone."""
        self.rollouts, self.offline, self.num_steps = rollouts, offline, num_steps
        self.data: dict[str, Any] = {"rollouts": rollouts.tensors()}
        if offline is not None:
            data = offline.tensors()
            steps = data["timesteps"].clamp(max=num_steps - 1)  # [1, N]
            numbers = torch.arange(num_steps, device=steps.device)
            counts = (steps[..., None] == numbers).sum(1)  # [1, H]
            self.data |= {"offline": data, "order": steps.argsort(dim=1, stable=True)}
            self.data |= {"counts": counts, "starts": counts.cumsum(1) - counts}

    def tensors(self) -> dict[str, Any]:
        """See `Source`."""
        return self.data

    def sample(
        self, data: Mapping[str, Any], random: Random, batch_size: int, discount: float | Tensor
    ) -> Iteration:
        """Return the rollout, and batch_size // H rows of the data for each step."""
        rollout, rows = data["rollouts"], batch_size // self.num_steps
        random = Random(random.seed + ORDER, rollout["rollout"])
        noise = random.normal((self.num_steps, rows, rollout["samples"].shape[-1]))
        if self.offline is None:
            return Iteration(rollout, None, noise)
        places = random.integers(data["counts"][:, None], (self.num_steps, rows))
        index = data["order"][(data["starts"][:, None] + places).flatten()]
        batch = self.offline.batch_at(data["offline"], index, discount)
        columns = {name: x for name, x in vars(batch).items() if x is not None}
        shape = (self.num_steps, rows)
        return Iteration(
            rollout, Batch(**{k: x.unflatten(0, shape) for k, x in columns.items()}), noise
        )
