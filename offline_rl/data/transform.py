"""What is done to observations, rewards and actions before learning, in data and environment alike.

It is fitted once on the offline data, applied to everything that is learned from, and stored with
every checkpoint. Scores are always computed from raw rewards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Checked, Number, Positive, Range
from policies import channels
from policies.channels import Normalizers
from policies.normalizer import Kind, Normalizer, center_and_extent

if TYPE_CHECKING:
    from offline_rl.data.dataset import Dataset
    from policies.spec import Spec


ActionClip = Annotated[float, Range(1e-3, 1)]
Normalize = bool | Literal["min_max"]


ROWS = 100_000  # of the data are looked at, evenly spaced
# Standard deviations as the network sees them. Measured with bc and iql, action = sign(column):
# above these the mean error is below 0.05 of 0.5 (normalized) and 0.2 of 0.5 (raw).
NORMALIZED = 0.25
RAW = 0.02
ACTIONS = 5e-3
SPAN = 5  # in these units; a rare but large value makes a column visible, whatever its deviation
REWARDS = 1e-3  # least difference between rewards that critics, whose first errors are 0.1, resolve
SHOWN = 5  # columns that are named


@dataclass(frozen=True, kw_only=True)
class Preprocessing(Checked):
    """What a transform is made of; the defaults leave the data as it is."""

    normalize_observations: Normalize = False  # z-score by the offline data; min_max: to [-1, 1]
    min_std: Positive | None = None  # of a z-score; null: deviations as they are + 0.001
    normalize_returns: bool = False  # rewards * 1000 / (best - worst return); then the next two
    center_rewards: bool = False  # rewards less the data's mean; only where nothing terminates
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
            "range to divide rewards by; set algorithm.normalize_returns=false"
        )
    return spread


def center_of(dataset: Dataset) -> float:
    """The mean reward, which may be taken off where no episode is over before its time.

    It then lowers every value by the same. Where episodes terminate it would pay for ending them,
    or for not. Raises UserError there.
    """
    if count := int(dataset.terminated.sum()):
        raise UserError(
            f"{dataset.path or dataset.name}: {count:,} episodes terminate, and centered rewards "
            "would pay for ending them, or for not: set algorithm.center_rewards=false"
        )
    return float(dataset.rewards.mean(dtype=np.float64))


@dataclass(frozen=True)
class Transform:
    """observations -> normalizer(observations); rewards -> affine; actions clipped."""

    normalizer: Normalizer | Normalizers
    reward_scale: float = 1.0
    reward_shift: float = 0.0
    clip_actions: float = 1.0

    @classmethod
    def fit(cls, cfg: Preprocessing, dataset: Dataset | None, shape: Any) -> Transform:
        """Statistics from `dataset`; without data nothing is normalized.

        shape: of what is observed, or of each channel.
        Raises UserError where returns are to be normalized and all are the same, or rewards to be
        centered and episodes terminate.
        """
        normalizer, scale = channels.identity(shape), cfg.reward_scale
        if dataset is not None and cfg.normalize_observations:
            rows = slice(dataset.num_rows)
            seen = channels.take(dataset.observations, rows)
            by_range = cfg.normalize_observations == "min_max"
            normalizer = channels.fit(seen, by_range=by_range, min_std=cfg.min_std)
        if dataset is not None and cfg.normalize_returns:
            scale *= 1000 / range_of_returns(dataset)
        shift = cfg.reward_shift
        if dataset is not None and cfg.center_rewards:
            shift -= scale * center_of(dataset)
        return cls(normalizer, float(scale), float(shift), cfg.clip_actions)

    def rewards(self, rewards: np.ndarray) -> np.ndarray:
        """Raw rewards -> those that are learned from, float32, whatever the raw ones are."""
        raw = np.asarray(rewards, np.float32)
        return (raw * self.reward_scale + self.reward_shift).astype(np.float32)

    def dataset(self, dataset: Dataset) -> Dataset:
        """`dataset` as it is learned from."""
        normalized = self.normalizer(dataset.observations)
        return replace(self.all_but_observations(dataset), observations=normalized)

    def all_but_observations(self, dataset: Dataset) -> Dataset:
        """`dataset` as it is learned from, its observations raw."""
        clip = self.clip_actions
        return replace(
            dataset,
            rewards=self.rewards(dataset.rewards),
            actions=dataset.actions if clip == 1 else dataset.actions.clip(-clip, clip),
        )

    @property
    def parts(self) -> Any:
        """The lone vector's normalizer, or that of each vector by its channel's name."""
        made = self.normalizer
        return made.by_channel if isinstance(made, Normalizers) else made

    def raw(self, dataset: Dataset) -> Dataset:
        """The inverse of `dataset`, but for rounding, and for clipped actions."""
        return replace(
            dataset,
            observations=self.normalizer.inverse(dataset.observations),
            rewards=((dataset.rewards - self.reward_shift) / self.reward_scale).astype(np.float32),
        )

    def to_json(self) -> dict[str, Any]:
        """Numbers and lists; float32 values survive exactly."""
        return {
            "kind": channels.map_channels(lambda part: part.kind, self.parts),
            "mean": channels.map_channels(lambda part: part.mean.tolist(), self.parts),
            "scale": channels.map_channels(lambda part: part.scale.tolist(), self.parts),
            "reward_scale": self.reward_scale,
            "reward_shift": self.reward_shift,
            "clip_actions": self.clip_actions,
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Transform:
        """The inverse of `to_json`."""
        kinds = channels.map_channels(lambda _: "z-score", values["mean"])  # older ones do not say

        def part(mean: list[Any], scale: list[Any], kind: Kind) -> Normalizer:
            return Normalizer(np.asarray(mean, np.float32), np.asarray(scale, np.float32), kind)

        parts = channels.map_channels(part, values["mean"], values["scale"], values.get("kind", kinds))
        rest = {k: values[k] for k in ("reward_scale", "reward_shift", "clip_actions")}
        return cls(Normalizers(parts) if isinstance(parts, dict) else parts, **rest)


def small_columns(
    transform: Transform, data: Dataset | None, spec: Spec, cfg: Any, *, rewards: bool
) -> list[str]:
    """Return a sentence with the remedy for each kind of column that is hardly visible.

    A network starts from inputs of about unit scale. A z-score divides by the standard deviation
    plus 0.001, so a column with a deviation of 1e-5, as of meters or amperes, reaches it as 1 % of
    that. Dividing by the deviation alone is no safe default: a sensor that only jitters in the
    data and moves in the environment would reach the network as 10,000. So the user decides.

    data: raw, if there is any.  cfg: the algorithm's.  rewards: whether it learns from them.
    """
    if data is None:
        return []
    parts, found = transform.parts, list[str]()
    for channel in spec.vectors:
        normalizer = parts.get(channel.name) if isinstance(parts, dict) else parts
        if normalizer is None or channel.name == channels.BASE_ACTION:
            continue
        seen = data.observations if spec.single_vector else data.observations[channel.name]
        values = sampled(seen[: data.num_rows]).reshape(-1, channel.size)
        limit = RAW if normalizer.kind == "identity" else NORMALIZED
        small = hardly_vary(values, normalizer.scale.reshape(-1), limit)
        if len(small):
            names = channel.names or [f"{channel.name}[{k}]" for k in range(channel.size)]
            least = float(values[:, small].std(0).min())
            it = "it" if len(small) == 1 else "them"
            found.append(
                f"{listed(names, values, small)}. "
                f"Set {remedy(normalizer, least)} to scale {it} to 1"
            )
    scale = np.ones(spec.action_dim)
    if hasattr(cfg, "action_low"):  # scaled to the data's range
        ends = zip(data.actions.min(0), data.actions.max(0), strict=True)
        scale = np.array([center_and_extent(float(low), float(high))[1] for low, high in ends])
    actions = sampled(data.actions).astype(np.float64)
    small = hardly_vary(actions, scale, ACTIONS)
    if len(small):
        names = spec.action_names or [f"action[{k}]" for k in range(spec.action_dim)]
        found.append(
            f"{listed(names, actions, small)}. With task=none, set action_range=data to scale "
            "actions to their range in the data"
        )
    spread = float(np.ptp(data.rewards)) * transform.reward_scale
    if rewards and 0 < spread < REWARDS:
        found.append(
            f"rewards differ by at most {spread:.1e} and will barely affect training. Set "
            f"algorithm.reward_scale={cfg.reward_scale / spread:.0e} or "
            "algorithm.normalize_returns=true"
        )
    return found


def sampled(values: np.ndarray) -> np.ndarray:
    """Return up to ROWS evenly spaced rows as float64."""
    return values[:: math.ceil(len(values) / ROWS)].astype(np.float64)


def hardly_vary(values: np.ndarray, scale: np.ndarray, limit: float) -> np.ndarray:
    """Return the columns [k] that vary by less than `limit` once divided by `scale`.

    A constant is not one of them, nor rounding noise around it.  values: [N, columns]; scale:
    [columns].
    """
    deviation, half = values.std(0), np.ptp(values, axis=0) / 2
    rounding = np.finfo(np.float32).eps * np.abs(values).max(0)
    small = (deviation < limit * scale) & (half < SPAN * limit * scale)
    return np.flatnonzero(small & (deviation > rounding))


def listed(names: Sequence[str], values: np.ndarray, columns: np.ndarray) -> str:
    """Return a sentence that names the columns with their standard deviations."""
    deviations = [f"{values[:, k].std():.1e}" for k in columns]
    if len(columns) == 1:
        small = f"{names[columns[0]]} has a standard deviation of {deviations[0]}"
    else:
        pairs = zip(columns[:SHOWN], deviations, strict=False)
        shown = ", ".join(f"{names[k]} {deviation}" for k, deviation in pairs)
        more = f" and {len(columns) - SHOWN} more" if len(columns) > SHOWN else ""
        small = f"{shown}{more} (standard deviations) vary little"
    return f"{small} and will barely affect training"


def remedy(normalizer: Normalizer, least: float) -> str:
    """Return the options that make a column with standard deviation `least` visible."""
    floor = f"algorithm.min_std={10.0 ** math.floor(math.log10(least)):g}"
    if normalizer.kind == "z-score":
        return floor
    return f"algorithm.normalize_observations=true {floor}"
