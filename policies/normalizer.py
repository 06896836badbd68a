"""Normalization of observations and actions, with statistics frozen at training time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from policies.arrays import as_array

Kind = Literal["identity", "z-score", "min-max"]


@dataclass(frozen=True)
class Normalizer:
    """The elementwise map (x - mean) / scale. `inverse` undoes it."""

    mean: np.ndarray  # [*shape] float32
    scale: np.ndarray  # [*shape] float32, > 0
    # z-score: mean and standard deviation; min-max: center and half width of the range
    kind: Kind = "z-score"

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind) or self.mean.shape != self.scale.shape:
            raise ValueError(
                f"no normalizer has kind {self.kind!r}, mean of shape {self.mean.shape} and scale "
                f"of shape {self.scale.shape}"
            )
        if not (np.isfinite(self.mean).all() and np.isfinite(self.scale).all()):
            raise ValueError("the normalizer holds NaN or infinite numbers")
        if not (self.scale > 0).all():
            raise ValueError("the normalizer's scale is not above 0")
        if self.kind == "identity" and not self.is_identity:
            raise ValueError("the normalizer of kind identity is not the identity")

    @classmethod
    def identity(cls, shape: tuple[int, ...]) -> Normalizer:
        """Return the normalizer that leaves numbers of `shape` unchanged."""
        return cls(np.zeros(shape, np.float32), np.ones(shape, np.float32), "identity")

    @classmethod
    def fit(
        cls, observations: np.ndarray, epsilon: float = 1e-3, min_std: float | None = None
    ) -> Normalizer:
        """Return the z-score normalizer of observations [N, *obs].

        epsilon: added to the standard deviation (TD3+BC, eq. 6).
        min_std: lower bound of the standard deviation. If it is given, epsilon is not added.
        """
        mean = observations.mean(0, dtype=np.float64)
        std = observations.std(0, dtype=np.float64)
        scale = std + epsilon if min_std is None else std.clip(min_std)
        return cls(mean.astype(np.float32), scale.astype(np.float32))

    @classmethod
    def fit_range(cls, values: np.ndarray, min_range: float = 1e-4) -> Normalizer:
        """Return the normalizer that maps the range of values [N, *shape] to [-1, 1].

        A number with a smaller range than `min_range` is shifted to 0 and not scaled (Chi et al.,
        arXiv:2303.04137, released code).
        """
        low, high = values.min(0).astype(np.float64), values.max(0).astype(np.float64)
        scale = np.where(high - low < min_range, 1, (high - low) / 2)
        return cls(((low + high) / 2).astype(np.float32), scale.astype(np.float32), "min-max")

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Return normalized values [..., *shape], float32."""
        return ((as_array(values, np.float32) - self.mean) / self.scale).astype(np.float32)

    def inverse(self, values: np.ndarray) -> np.ndarray:
        """Undo the normalization of values [..., *shape]. Returns float32."""
        return (as_array(values, np.float32) * self.scale + self.mean).astype(np.float32)

    @property
    def is_identity(self) -> bool:
        """True if no value changes."""
        return bool((self.mean == 0).all() and (self.scale == 1).all())


def center_and_extent(low: float, high: float) -> tuple[float, float]:
    """Return the center and half width of a range. A range below 1e-4 gets the half width 1."""
    half = (high - low) / 2
    return (high + low) / 2, half if 2 * half >= 1e-4 else 1.0
