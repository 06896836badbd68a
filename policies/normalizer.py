"""Numbers to a common scale, with statistics frozen at training time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from policies.arrays import as_array

Kind = Literal["identity", "z-score", "min-max"]


@dataclass(frozen=True)
class Normalizer:
    """(x - mean) / scale, elementwise; `inverse` undoes it. The identity for mean 0 and scale 1."""

    mean: np.ndarray  # [*shape] float32
    scale: np.ndarray  # [*shape] float32, > 0
    kind: Kind = "z-score"  # what mean and scale are: of a distribution, or of a range's two ends

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind) or self.mean.shape != self.scale.shape:
            raise ValueError(f"no normalizer {self.kind} of {self.mean.shape}, {self.scale.shape}")
        if not (np.isfinite(self.mean).all() and np.isfinite(self.scale).all()):
            raise ValueError("the normalizer holds NaN or infinite numbers")
        if not (self.scale > 0).all():
            raise ValueError("the normalizer's scale is not above 0")
        if self.kind == "identity" and not self.is_identity:
            raise ValueError("the normalizer called identity changes something")

    @classmethod
    def identity(cls, shape: tuple[int, ...]) -> Normalizer:
        """Leaves numbers of `shape` as they are."""
        return cls(np.zeros(shape, np.float32), np.ones(shape, np.float32), "identity")

    @classmethod
    def fit(
        cls, observations: np.ndarray, epsilon: float = 1e-3, least: float | None = None
    ) -> Normalizer:
        """observations: [N, *obs]. z-score, `epsilon` added to the deviation (TD3+BC, eq. 6).

        least: of the deviation, to which nothing is added then.
        """
        mean = observations.mean(0, dtype=np.float64)
        deviation = observations.std(0, dtype=np.float64)
        scale = deviation + epsilon if least is None else deviation.clip(least)
        return cls(mean.astype(np.float32), scale.astype(np.float32))

    @classmethod
    def fit_range(cls, values: np.ndarray, least: float = 1e-4) -> Normalizer:
        """values: [N, *shape]; the smallest becomes -1, the largest 1.

        What moves by less than `least` is shifted to 0 and not blown up (Chi et al.,
        arXiv:2303.04137, released code).
        """
        low, high = values.min(0).astype(np.float64), values.max(0).astype(np.float64)
        scale = np.where(high - low < least, 1, (high - low) / 2)
        return cls(((low + high) / 2).astype(np.float32), scale.astype(np.float32), "min-max")

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """values: [..., *shape] -> the same, normalized, float32."""
        return ((as_array(values, np.float32) - self.mean) / self.scale).astype(np.float32)

    def inverse(self, values: np.ndarray) -> np.ndarray:
        """values: [..., *shape], normalized -> the same as they were, float32."""
        return (as_array(values, np.float32) * self.scale + self.mean).astype(np.float32)

    @property
    def is_identity(self) -> bool:
        """True where nothing changes."""
        return bool((self.mean == 0).all() and (self.scale == 1).all())


def center_and_extent(low: float, high: float) -> tuple[float, float]:
    """Of a number's range; one that hardly moves is shifted alone, and not scaled up."""
    half = (high - low) / 2
    return (high + low) / 2, half if 2 * half >= 1e-4 else 1.0
