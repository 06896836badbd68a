"""Guardians: scores of how similar a state and an action are to the data, in numpy.

A guardian compares a pair of observation and action with a sample of the data's pairs. Scores below
a quantile of the data's own scores are out of distribution. Yan et al., 2025, arXiv:2505.16242
(OGSRL), whose released guardian is the kernel density (`Runz96/SafeRL-OGSRL:guardian.py`).

    kde       logarithm of the mean Gaussian kernel over the sample
    neighbor  negative distance to the `neighbor`-th nearest pair of the sample

Differs: observations have the scale 1 / standard deviation instead of the range [-1, 1]; the sample
is at most a few thousand pairs; the threshold is a quantile over pairs outside the sample, because
the density at a pair of the sample includes its own kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log, pi, sqrt
from typing import Any, Literal

import numpy as np

Kind = Literal["kde", "neighbor"]
NEIGHBOR = 5  # rank of the neighbor whose distance is the score
CHUNK = 4096  # rows that are compared with the sample at once


@dataclass(frozen=True)
class Guardian:
    """A score with a threshold. Scores are computed in float64."""

    kind: Kind
    points: np.ndarray  # [N, O + A]: the data's sampled pairs; observations are scaled
    center: np.ndarray  # [O]: an observation s is scaled to (s - center) / width
    width: np.ndarray  # [O]
    threshold: float  # lowest score that is in distribution
    bandwidth: float = 1.0  # kde: standard deviation of the kernel
    neighbor: int = NEIGHBOR  # neighbor: rank of the neighbor, 1 is the nearest

    def __post_init__(self) -> None:
        observations, pairs = len(self.center), self.points.shape
        if self.kind not in ("kde", "neighbor"):
            raise ValueError(f"{self.kind!r} is not a kind of guardian. Use kde or neighbor")
        if len(pairs) != 2 or self.width.shape != (observations,) or pairs[1] <= observations:
            raise ValueError(f"the guardian's points {list(pairs)} do not fit its observations")
        if not self.bandwidth > 0:
            raise ValueError(f"the guardian's bandwidth={self.bandwidth} is not above 0")
        if self.kind == "neighbor" and not 1 <= self.neighbor <= pairs[0]:
            raise ValueError(f"the guardian has no neighbor={self.neighbor} among {pairs[0]} pairs")

    def scaled(self, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return pairs in the coordinates of `points`, [B, O + A] float64.

        observations: raw, [B, O].  actions: [B, A] in [-1, 1].
        """
        scaled = (np.asarray(observations, np.float64) - self.center) / self.width
        return np.concatenate([scaled, np.asarray(actions, np.float64)], 1)

    def score(self, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return the scores [B] of observations [B, O] and actions [B, A]; higher: more like data.

        Raises ValueError for other shapes.
        """
        sizes = len(self.center), self.points.shape[1] - len(self.center)
        shapes = [np.shape(x) for x in (observations, actions)]
        if [shape[1:] for shape in shapes] != [(n,) for n in sizes] or len({*shapes[0][:1]}) != 1:
            expected = f"[B, {sizes[0]}] and [B, {sizes[1]}]"
            raise ValueError(
                f"the guardian needs an observation and an action of shapes {expected}, found "
                f"{list(shapes[0])} and {list(shapes[1])}"
            )
        x = self.scaled(observations, actions)
        parts = [self._score(x[first : first + CHUNK]) for first in range(0, len(x), CHUNK)]
        return np.concatenate(parts) if parts else np.zeros(0)

    def in_distribution(
        self, observations: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return a mask of the pairs that are in distribution, and the scores, [B] each."""
        scores = self.score(observations, actions)
        return scores >= self.threshold, scores

    def with_threshold(
        self, observations: np.ndarray, actions: np.ndarray, quantile: float
    ) -> Guardian:
        """Return the guardian with the threshold at a quantile of the scores of these pairs."""
        return replace(
            self, threshold=float(np.quantile(self.score(observations, actions), quantile))
        )

    def _score(self, x: np.ndarray) -> np.ndarray:
        points = self.points.astype(np.float64)
        squared = (x * x).sum(1)[:, None] - 2 * x @ points.T + (points * points).sum(1)
        squared = np.maximum(squared, 0)  # [B, N]
        if self.kind == "neighbor":
            k = self.neighbor - 1
            return -np.sqrt(np.partition(squared, k, 1)[:, k])
        exponents = -squared / (2 * self.bandwidth**2)
        top = exponents.max(1)
        total = np.log(np.exp(exponents - top[:, None]).sum(1))
        return top + total - log(len(points)) - log(self.bandwidth * sqrt(2 * pi))

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the guardian as arrays, for a file."""
        numbers = {"threshold": self.threshold}
        numbers |= (
            {"bandwidth": self.bandwidth} if self.kind == "kde" else {"neighbor": self.neighbor}
        )
        arrays = {name: getattr(self, name) for name in ("points", "center", "width")}
        return arrays | {name: np.array(value, np.float64) for name, value in numbers.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray]) -> Guardian:
        """Return the guardian of `tensors`. Raises KeyError or ValueError if they are wrong."""
        arrays: Any = {name: tensors[name] for name in ("points", "center", "width")}
        threshold = float(tensors["threshold"])
        if "bandwidth" in tensors:
            return cls("kde", **arrays, threshold=threshold, bandwidth=float(tensors["bandwidth"]))
        neighbor = int(tensors["neighbor"])
        return cls("neighbor", **arrays, threshold=threshold, neighbor=neighbor)


def fit(
    observations: np.ndarray,
    actions: np.ndarray,
    kind: Kind,
    *,
    rows: int = 2000,
    quantile: float = 0.05,
    bandwidth: float | None = None,
    neighbor: int = NEIGHBOR,
    seed: int = 0,
) -> Guardian:
    """Return the guardian of a data set's pairs.

    observations: raw, [N, O].  actions: [N, A] in [-1, 1].
    rows: random pairs that the score compares with; as many others set the threshold. Small data is
    split into halves.
    quantile: share of the data's pairs that are out of distribution.
    bandwidth: of the kernel, for scaled pairs; None: Scott's rule, n^(-1 / (d + 4)), where d is the
    number of columns that vary. seed: of the choice of pairs. Raises ValueError if the data is too
    small.
    """
    half = len(actions) // 2
    rows = min(rows, half)
    if rows < (neighbor if kind == "neighbor" else 1):
        raise ValueError(f"a guardian needs more than {len(actions)} rows of data")
    order = np.random.default_rng(seed).permutation(len(actions))
    sample, others = order[:rows], order[rows : 2 * rows]
    center, width = observations.mean(0, np.float64), observations.std(0, dtype=np.float64)
    varies = width > 1e-6 * np.maximum(abs(center), 1)
    width = np.where(varies, width, 1.0)
    varying = int(varies.sum() + (actions.std(0) > 0).sum())
    if bandwidth is None:
        bandwidth = rows ** (-1 / (varying + 4))
    center, width = center.astype(np.float32), width.astype(np.float32)
    empty = np.zeros((rows, len(center) + actions.shape[1]), np.float32)
    unfitted = Guardian(kind, empty, center, width, 0.0, float(bandwidth), neighbor)
    points = unfitted.scaled(observations[sample], actions[sample]).astype(np.float32)
    guardian = replace(unfitted, points=points)
    return guardian.with_threshold(observations[others], actions[others], quantile)
