"""Normalization of observations and actions, with statistics that stay fixed after fitting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from policies.arrays import as_array

Kind = Literal["identity", "z-score", "min-max"]


@dataclass(frozen=True)
class Normalizer:
    """The elementwise map (x - mean) / scale, and its inverse."""

    mean: np.ndarray  # [*shape] float32
    scale: np.ndarray  # [*shape] float32, > 0
    # z-score: mean and standard deviation; min-max: center and half width of the range
    kind: Kind = "z-score"

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind) or self.mean.shape != self.scale.shape:
            raise ValueError(
                f"normalizer of kind {self.kind!r}, with mean of shape {self.mean.shape} and scale "
                f"of shape {self.scale.shape}: use {', '.join(get_args(Kind))}, and equal shapes"
            )
        if not (np.isfinite(self.mean).all() and np.isfinite(self.scale).all()):
            raise ValueError("the normalizer contains NaN or infinite numbers")
        if not (self.scale > 0).all():
            raise ValueError("the normalizer's scale must be above 0")
        if self.kind == "identity" and not self.is_identity:
            raise ValueError("a normalizer of kind identity must have mean 0 and scale 1")

    @classmethod
    def identity(cls, shape: tuple[int, ...]) -> Normalizer:
        """Create a normalizer that leaves values of `shape` unchanged."""
        return cls(np.zeros(shape, np.float32), np.ones(shape, np.float32), "identity")

    @classmethod
    def fit(
        cls, observations: np.ndarray, epsilon: float = 1e-3, min_std: float | None = None
    ) -> Normalizer:
        """Fit a z-score normalizer to observations [N, *obs].

        epsilon: added to the standard deviation (TD3+BC, eq. 6).
        min_std: lower bound of the standard deviation. If it is given, epsilon is not added.
        """
        mean = observations.mean(0, dtype=np.float64)
        std = observations.std(0, dtype=np.float64)
        scale = std + epsilon if min_std is None else std.clip(min_std)
        return cls(mean.astype(np.float32), scale.astype(np.float32))

    @classmethod
    def fit_range(cls, values: np.ndarray, min_range: float = 1e-4) -> Normalizer:
        """Fit a normalizer that maps the range of `values`, [N, *shape], to [-1, 1].

        A dimension whose range is below `min_range` is centered at 0 but not scaled (Chi et al.,
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
        """True if the normalizer leaves all values unchanged."""
        return bool((self.mean == 0).all() and (self.scale == 1).all())


def center_and_half_width(low: float, high: float) -> tuple[float, float]:
    """Return center and half width of a range. The half width is 1 for a range below 1e-4."""
    half = (high - low) / 2
    return (high + low) / 2, half if 2 * half >= 1e-4 else 1.0
