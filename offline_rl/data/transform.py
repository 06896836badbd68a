"""What is done to observations, rewards and actions before learning, in data and environment alike.

It is fitted once on the offline data, applied to everything that is learnt from, and stored with
every checkpoint. Scores are always computed from raw rewards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Checked, Number, Positive, Range
from policies import channels
from policies.channels import Normalisers
from policies.normaliser import Kind, Normaliser

if TYPE_CHECKING:
    from offline_rl.data.dataset import Dataset


ActionClip = Annotated[float, Range(1e-3, 1)]
Normalise = bool | Literal["min_max"]


@dataclass(frozen=True, kw_only=True)
class Preprocessing(Checked):
    """What a transform is made of; the defaults leave the data as it is."""

    normalise_observations: Normalise = False  # z-score by the offline data; min_max: to [-1, 1]
    least_deviation: Positive | None = None  # of a z-score; null: deviations as they are + 0.001
    normalise_returns: bool = False  # rewards * 1000 / (best - worst return); then the next two
    centre_rewards: bool = False  # rewards less the data's mean; only where nothing terminates
    reward_scale: Number = 1.0  # rewards * scale + shift
    reward_shift: Number = 0.0  # see reward_scale
    clip_actions: ActionClip = 1.0  # actions of the data are clipped to +- this


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


def centre_of(dataset: Dataset) -> float:
    """The mean reward, which may be taken off where no episode is over before its time.

    It then lowers every value by the same. Where episodes terminate it would pay for ending them,
    or for not. Raises UserError there.
    """
    if count := int(dataset.terminated.sum()):
        raise UserError(
            f"{dataset.path or dataset.name}: {count:,} episodes terminate, and centred rewards "
            "would pay for ending them, or for not: set algorithm.centre_rewards=false"
        )
    return float(dataset.rewards.mean(dtype=np.float64))


@dataclass(frozen=True)
class Transform:
    """observations -> normaliser(observations); rewards -> affine; actions clipped."""

    normaliser: Normaliser | Normalisers
    reward_scale: float = 1.0
    reward_shift: float = 0.0
    clip_actions: float = 1.0

    @classmethod
    def fit(cls, cfg: Preprocessing, dataset: Dataset | None, shape: Any) -> Transform:
        """Statistics from `dataset`; without data nothing is normalised.

        shape: of what is observed, or of each channel.
        Raises UserError where returns are to be normalised and all are the same, or rewards to be
        centred and episodes terminate.
        """
        normaliser, scale = channels.identity(shape), cfg.reward_scale
        if dataset is not None and cfg.normalise_observations:
            rows = slice(dataset.num_rows)
            seen = channels.take(dataset.observations, rows)
            by_range = cfg.normalise_observations == "min_max"
            normaliser = channels.fit(seen, by_range=by_range, least=cfg.least_deviation)
        if dataset is not None and cfg.normalise_returns:
            scale *= 1000 / range_of_returns(dataset)
        shift = cfg.reward_shift
        if dataset is not None and cfg.centre_rewards:
            shift -= scale * centre_of(dataset)
        return cls(normaliser, float(scale), float(shift), cfg.clip_actions)

    def rewards(self, rewards: np.ndarray) -> np.ndarray:
        """Raw rewards -> those that are learnt from, float32, whatever the raw ones are."""
        raw = np.asarray(rewards, np.float32)
        return (raw * self.reward_scale + self.reward_shift).astype(np.float32)

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

    @property
    def parts(self) -> Any:
        """The lone vector's normaliser, or that of each vector by its channel's name."""
        made = self.normaliser
        return made.of if isinstance(made, Normalisers) else made

    def raw(self, dataset: Dataset) -> Dataset:
        """The inverse of `dataset`, but for rounding, and for clipped actions."""
        return replace(
            dataset,
            observations=self.normaliser.inverse(dataset.observations),
            rewards=((dataset.rewards - self.reward_shift) / self.reward_scale).astype(np.float32),
        )

    def to_json(self) -> dict[str, Any]:
        """Numbers and lists; float32 values survive exactly."""
        return {
            "kind": channels.each(lambda part: part.kind, self.parts),
            "mean": channels.each(lambda part: part.mean.tolist(), self.parts),
            "scale": channels.each(lambda part: part.scale.tolist(), self.parts),
            "reward_scale": self.reward_scale,
            "reward_shift": self.reward_shift,
            "clip_actions": self.clip_actions,
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Transform:
        """The inverse of `to_json`."""
        kinds = channels.each(lambda _: "z-score", values["mean"])  # older ones do not say

        def part(mean: list[Any], scale: list[Any], kind: Kind) -> Normaliser:
            return Normaliser(np.asarray(mean, np.float32), np.asarray(scale, np.float32), kind)

        parts = channels.each(part, values["mean"], values["scale"], values.get("kind", kinds))
        rest = {k: values[k] for k in ("reward_scale", "reward_shift", "clip_actions")}
        return cls(Normalisers(parts) if isinstance(parts, dict) else parts, **rest)
