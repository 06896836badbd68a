"""What is done to observations, rewards and actions before learning, in data and environment alike.

It is fitted once on the offline data, applied to everything that is learnt from, and stored with
every checkpoint. Scores are always computed from raw rewards.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from offline_rl.utils.errors import UserError
from policies.normaliser import Normaliser

if TYPE_CHECKING:
    from offline_rl.data.dataset import Dataset


RANGES = {  # of the fields that algorithms' configs share: (name or its ending, low, high)
    "discount": (0, 0.999999),
    "tau": (0, 1),
    "expectile": (0.5, 0.999999),
    "beta": (0, 1e9),
    "alpha": (0, 1e9),
    "lr": (0, 1e3),
    "clip_actions": (1e-3, 1),
    "top_fraction": (1e-9, 1),
    "dropout": (0, 0.999),
    "policy_delay": (1, 1e6),
    "value_updates": (1, 1e6),
    "batch_size": (1, 1e9),
    "critics": (2, 1e6),
    "samples": (1, 1e6),
    "hidden": (1, 1e6),
    "noise": (0, 1e3),
    "clip": (0, 1e3),
    "updates": (0, 1e12),
    "steps": (0, 1e12),
    "temperature": (1e-9, 1e9),
    "initial_alpha": (1e-9, 1e9),
    "huber": (1e-9, 1e9),
    "lam": (0, 1),
    "eta": (0, 1e9),
    "mixture": (0, 1),
    "gap": (0, 1e9),
    "reward_gap": (1e-9, 1e9),
    "conservatism": (0, 1e9),
    "smoothness": (0, 1e9),
    "uncertainty": (0, 1e9),
    "pessimism": (0, 1e9),
    "cloning": (0, 1e9),
    "decay": (0, 1),
    "max_norm": (1e-9, 1e9),
    "return_scale": (1e-9, 1e9),
    "weight": (0, 1e9),
    "bc": (0, 1e9),
    "share": (1e-9, 1),
    "window": (1, 1e6),
    "episode_steps": (1, 1e6),
    "size": (1, 1e6),
    "layers": (1, 1e6),
    "heads": (1, 1e6),
}


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """The options that every algorithm's config has; the defaults leave the data as it is."""

    normalise_observations: bool = False  # z-score with the offline data's statistics
    normalise_returns: bool = False  # rewards * 1000 / (best - worst return); then the next two
    reward_scale: float = 1.0  # rewards * scale + shift
    reward_shift: float = 0.0
    clip_actions: float = 1.0  # in (0, 1]: actions of the data are clipped to +- this
    batch_size: int = 256  # transitions in an update; `batch_size=` on the command line is the same
    ranges: ClassVar[dict[str, tuple[float, float]]] = {}  # an algorithm's own, before RANGES

    def __post_init__(self) -> None:
        """Raises ValueError naming a field that is not a number or out of range."""
        known = RANGES | self.ranges
        for name, value in vars(self).items():
            low, high = known.get(name) or known.get(name.rsplit("_", 1)[-1]) or (-inf, inf)
            numbers = value if isinstance(value, tuple) else (value,)
            plain = [x for x in numbers if isinstance(x, int | float) and not isinstance(x, bool)]
            if not all(low <= x <= high for x in plain):  # nan never is
                raise ValueError(f"{name}={value} is not between {low:g} and {high:g}")

    def refuse_unread(self, choice: str, *names: str) -> None:
        """Raises ValueError for a field of `names` that was set: `choice` does not read it."""
        defaults = {field.name: field.default for field in fields(self)}
        for name in names:
            value, default = getattr(self, name), defaults[name]
            if not isinstance(value, int | float | str) or value != default:  # or stacked
                chosen = f"{choice}={getattr(self, choice)}"
                remedy = f"set it to its default, {default}, also where a table set it"
                raise ValueError(f"{name} is not read by {chosen}: leave it out, or {remedy}")


def range_of_returns(dataset: Dataset) -> float:
    """The best episode's return less the worst one's. Raises UserError where all are the same."""
    returns = dataset.episode_returns()
    spread = float(returns.max() - returns.min())
    if spread <= 1e-6 * np.abs(returns).max():
        raise UserError(
            f"{dataset.path or dataset.name}: every episode returns {returns.max():g}: there is no "
            "range to divide rewards by; set algorithm.normalise_returns=false"
        )
    return spread


@dataclass(frozen=True)
class Transform:
    """observations -> normaliser(observations); rewards -> affine; actions clipped."""

    normaliser: Normaliser
    reward_scale: float = 1.0
    reward_shift: float = 0.0
    clip_actions: float = 1.0

    @classmethod
    def fit(cls, cfg: Preprocessing, dataset: Dataset | None, shape: tuple[int, ...]) -> Transform:
        """Statistics from `dataset`; without data nothing is normalised.

        Raises UserError where returns are to be normalised and all are the same.
        """
        normaliser, scale = Normaliser.identity(shape), cfg.reward_scale
        if dataset is not None and cfg.normalise_observations:
            normaliser = Normaliser.fit(dataset.observations[: dataset.num_rows])
        if dataset is not None and cfg.normalise_returns:
            scale *= 1000 / range_of_returns(dataset)
        return cls(normaliser, float(scale), cfg.reward_shift, cfg.clip_actions)

    def rewards(self, rewards: np.ndarray) -> np.ndarray:
        """Raw rewards -> those that are learnt from, float32."""
        return (np.asarray(rewards) * self.reward_scale + self.reward_shift).astype(np.float32)

    def dataset(self, dataset: Dataset) -> Dataset:
        """`dataset` as it is learnt from."""
        normalised = self.normaliser(dataset.observations)
        return replace(self.all_but_observations(dataset), observations=normalised)

    def all_but_observations(self, dataset: Dataset) -> Dataset:
        """`dataset` as it is learnt from, its observations raw."""
        clip = self.clip_actions
        return replace(
            dataset,
            rewards=self.rewards(dataset.rewards),
            actions=dataset.actions if clip == 1 else dataset.actions.clip(-clip, clip),
        )

    def to_json(self) -> dict[str, Any]:
        """Numbers and lists; float32 values survive exactly."""
        return {
            "mean": self.normaliser.mean.tolist(),
            "scale": self.normaliser.scale.tolist(),
            "reward_scale": self.reward_scale,
            "reward_shift": self.reward_shift,
            "clip_actions": self.clip_actions,
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Transform:
        """The inverse of `to_json`."""
        mean, scale = (np.asarray(values[k], np.float32) for k in ("mean", "scale"))
        rest = {k: values[k] for k in ("reward_scale", "reward_shift", "clip_actions")}
        return cls(Normaliser(mean, scale), **rest)
