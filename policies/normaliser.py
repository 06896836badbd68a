"""Observations to zero mean and unit scale, with statistics frozen at training time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Normaliser:
    """(observation - mean) / scale, elementwise; the identity for mean 0 and scale 1."""

    mean: np.ndarray  # [*obs] float32
    scale: np.ndarray  # [*obs] float32, > 0

    @classmethod
    def identity(cls, shape: tuple[int, ...]) -> Normaliser:
        """Leaves observations of `shape` as they are."""
        return cls(np.zeros(shape, np.float32), np.ones(shape, np.float32))

    @classmethod
    def fit(cls, observations: np.ndarray, epsilon: float = 1e-3) -> Normaliser:
        """observations: [N, *obs]. z-score, `epsilon` added to the deviation (TD3+BC, eq. 6)."""
        mean = observations.mean(0, dtype=np.float64)
        scale = observations.std(0, dtype=np.float64) + epsilon
        return cls(mean.astype(np.float32), scale.astype(np.float32))

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        """observations: [..., *obs] -> the same, normalised, float32."""
        return ((np.asarray(observations, np.float32) - self.mean) / self.scale).astype(np.float32)

    @property
    def is_identity(self) -> bool:
        """True where nothing changes."""
        return bool((self.mean == 0).all() and (self.scale == 1).all())
