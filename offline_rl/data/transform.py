"""Preprocessing of observations, rewards and actions, the same for data and environments.

A transform is fitted once on the offline data, applied to all training data, and stored in every
checkpoint. Scores are always computed from raw rewards.
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
from policies.normalizer import Kind, Normalizer, center_and_half_width

if TYPE_CHECKING:
    from offline_rl.data.dataset import Dataset
    from policies.spec import Spec


ActionClip = Annotated[float, Range(1e-3, 1)]
Normalize = bool | Literal["min_max"]


ROWS = 100_000  # maximum number of rows that are checked, evenly spaced
# Minimum standard deviations of network inputs, normalized and raw. They were measured with bc and
# iql on data whose action is the sign of a column. In columns that vary more, the mean error of the
# action was below 0.05 (NORMALIZED) and below 0.2 (RAW), each of 0.5.
NORMALIZED = 0.25
RAW = 0.02
ACTIONS = 5e-3  # minimum standard deviation of actions
# A column is also large enough if half of its range is at least SPAN times the minimum standard
# deviation.
SPAN = 5
REWARDS = 1e-3  # minimum difference between rewards; the initial error of critics is 0.1
SHOWN = 5  # maximum number of columns that a message names


@dataclass(frozen=True, kw_only=True)
class Preprocessing(Checked):
    """Options of the preprocessing; the defaults leave the data unchanged."""

    normalize_observations: Normalize = False  # true: z-score over the data; min_max: to [-1, 1]
    min_std: Positive | None = None  # lower bound on the divisor; null: divide by std + 0.001
    normalize_returns: bool = False  # rewards * 1000 / (best - worst return), then scale and shift
    center_rewards: bool = False  # subtract the mean reward; only for data without terminations
    standardize_rewards: bool = False  # (rewards - mean) / standard deviation, then scale and shift
    reward_scale: Number = 1.0  # training uses rewards * reward_scale + reward_shift
    reward_shift: Number = 0.0  # training uses rewards * reward_scale + reward_shift
    clip_actions: ActionClip = 1.0  # clip the actions of the data to +- this number

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.standardize_rewards and (self.normalize_returns or self.center_rewards):
            raise ValueError(
                "standardize_rewards=true already scales and centers rewards. Remove "
                "normalize_returns and center_rewards."
            )


def range_of_returns(dataset: Dataset) -> float:
    """Return the best minus the worst episode return. Raises UserError if all are equal."""
    returns = dataset.episode_returns()
    spread = float(returns.max() - returns.min())
    if spread <= 1e-6 * np.abs(returns).max():
        raise UserError(
            f"{dataset.path or dataset.name}: every episode has the return {returns.max():g}, so "
            "rewards cannot be divided by the range of returns. Set "
            "algorithm.normalize_returns=false"
        )
    return spread


def center_of(dataset: Dataset) -> float:
    """Return the mean reward. Raises UserError if episodes terminate.

    Subtracting it decreases every value by the same amount if no episode terminates. Otherwise it
    would reward or penalize ending an episode.
    """
    if count := int(dataset.terminated.sum()):
        raise UserError(
            f"{dataset.path or dataset.name}: {count:,} episodes terminate, and centered rewards "
            "would reward or penalize ending them. Set algorithm.center_rewards=false"
        )
    return float(dataset.rewards.mean(dtype=np.float64))


def mean_and_std(dataset: Dataset) -> tuple[float, float]:
    """Return the mean and standard deviation of rewards. Raises UserError if all are equal."""
    rewards = np.asarray(dataset.rewards, np.float64)
    mean, std = float(rewards.mean()), float(rewards.std(ddof=1))
    if std <= 1e-6 * abs(mean):
        raise UserError(
            f"{dataset.path or dataset.name}: every reward is {mean:g}, so rewards cannot be "
            "divided by their standard deviation. Set algorithm.standardize_rewards=false"
        )
    return mean, std


@dataclass(frozen=True)
class Transform:
    """Normalization of observations, an affine map of rewards, and clipping of actions."""

    normalizer: Normalizer | Normalizers
    reward_scale: float = 1.0
    reward_shift: float = 0.0
    clip_actions: float = 1.0

    @classmethod
    def fit(cls, cfg: Preprocessing, dataset: Dataset | None, shape: Any) -> Transform:
        """Fit the statistics on `dataset`. Without a data set, nothing is normalized.

        shape: shape of an observation, or {channel: shape}.
        Raises UserError if `normalize_returns` or `standardize_rewards` is set and all returns or
        rewards are equal, or if `center_rewards` is set and episodes terminate.
        """
        normalizer, scale = channels.identity(shape), cfg.reward_scale
        if dataset is not None and cfg.normalize_observations:
            rows = slice(dataset.num_rows)
            observations = channels.take(dataset.observations, rows)
            by_range = cfg.normalize_observations == "min_max"
            normalizer = channels.fit(observations, by_range=by_range, min_std=cfg.min_std)
        if dataset is not None and cfg.normalize_returns:
            scale *= 1000 / range_of_returns(dataset)
        shift = cfg.reward_shift
        if dataset is not None and cfg.center_rewards:
            shift -= scale * center_of(dataset)
        if dataset is not None and cfg.standardize_rewards:
            mean, std = mean_and_std(dataset)
            scale /= std
            shift -= scale * mean
        return cls(normalizer, float(scale), float(shift), cfg.clip_actions)

    def apply_to_rewards(self, rewards: np.ndarray) -> np.ndarray:
        """Return the preprocessed rewards, float32."""
        raw = np.asarray(rewards, np.float32)
        return (raw * self.reward_scale + self.reward_shift).astype(np.float32)

    def apply(self, dataset: Dataset) -> Dataset:
        """Return the preprocessed data set."""
        normalized = self.normalizer(dataset.observations)
        return replace(self.apply_without_observations(dataset), observations=normalized)

    def apply_without_observations(self, dataset: Dataset) -> Dataset:
        """Return the data set with preprocessed rewards and actions, and raw observations."""
        clip = self.clip_actions
        return replace(
            dataset,
            rewards=self.apply_to_rewards(dataset.rewards),
            actions=dataset.actions if clip == 1 else dataset.actions.clip(-clip, clip),
        )

    @property
    def parts(self) -> Any:
        """The normalizer of a single vector, or the normalizers of all vector channels by name."""
        normalizer = self.normalizer
        return normalizer.by_channel if isinstance(normalizer, Normalizers) else normalizer

    def invert(self, dataset: Dataset) -> Dataset:
        """Invert `apply`, except for rounding. Clipped actions stay clipped."""
        return replace(
            dataset,
            observations=self.normalizer.inverse(dataset.observations),
            rewards=((dataset.rewards - self.reward_shift) / self.reward_scale).astype(np.float32),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the transform as JSON values, which represent float32 exactly."""
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
        """Build a transform from the result of `to_json`."""
        # earlier versions did not store the kind
        kinds = channels.map_channels(lambda _: "z-score", values["mean"])

        def part(mean: list[Any], scale: list[Any], kind: Kind) -> Normalizer:
            return Normalizer(np.asarray(mean, np.float32), np.asarray(scale, np.float32), kind)

        parts = channels.map_channels(
            part, values["mean"], values["scale"], values.get("kind", kinds)
        )
        rest = {k: values[k] for k in ("reward_scale", "reward_shift", "clip_actions")}
        return cls(Normalizers(parts) if isinstance(parts, dict) else parts, **rest)


def small_columns(
    transform: Transform, data: Dataset | None, spec: Spec, cfg: Any, *, rewards: bool
) -> list[str]:
    """Return a warning with a remedy for each kind of column whose variation is too small.

    A network expects inputs of about unit scale. By default, a z-score divides by the standard
    deviation plus 0.001. A column with a standard deviation of 1e-5, for example in meters or
    amperes, then has a standard deviation of 0.01 at the network's input. Dividing by the standard
    deviation alone is not a safe default: if a sensor only jitters in the data and moves in the
    environment, the network's input could be 10,000. Therefore the user decides.

    data: raw data, or None.  cfg: the algorithm's config.  rewards: True if the algorithm uses
    rewards.
    """
    if data is None:
        return []
    parts, warnings = transform.parts, list[str]()
    for channel in spec.vectors:
        normalizer = parts.get(channel.name) if isinstance(parts, dict) else parts
        if normalizer is None or channel.name == channels.BASE_ACTION:
            continue
        observations = data.observations if spec.single_vector else data.observations[channel.name]
        values = sample_rows(observations[: data.num_rows]).reshape(-1, channel.size)
        limit = RAW if normalizer.kind == "identity" else NORMALIZED
        small = hardly_vary(values, normalizer.scale.reshape(-1), limit)
        if len(small):
            names = channel.names or [f"{channel.name}[{k}]" for k in range(channel.size)]
            min_std = float(values[:, small].std(0).min())
            it = "it" if len(small) == 1 else "them"
            warnings.append(
                f"{describe_columns(names, values, small)}. "
                f"Set {format_remedy(normalizer, min_std)} to scale {it} to 1"
            )
    scale = np.ones(spec.action_dim)
    if hasattr(cfg, "action_low"):  # the algorithm scales actions to their range in the data
        ends = zip(data.actions.min(0), data.actions.max(0), strict=True)
        scale = np.array([center_and_half_width(float(low), float(high))[1] for low, high in ends])
    actions = sample_rows(data.actions).astype(np.float64)
    small = hardly_vary(actions, scale, ACTIONS)
    if len(small):
        names = spec.action_names or [f"action[{k}]" for k in range(spec.action_dim)]
        warnings.append(
            f"{describe_columns(names, actions, small)}. With task=none, set action_range=data to "
            "scale actions to their range in the data"
        )
    spread = float(np.ptp(data.rewards)) * transform.reward_scale
    if rewards and 0 < spread < REWARDS:
        warnings.append(
            f"rewards differ by at most {spread:.1e} and will barely affect training. Set "
            f"algorithm.reward_scale={cfg.reward_scale / spread:.0e} or "
            "algorithm.normalize_returns=true"
        )
    return warnings


def sample_rows(values: np.ndarray) -> np.ndarray:
    """Return up to ROWS evenly spaced rows as float64."""
    return values[:: math.ceil(len(values) / ROWS)].astype(np.float64)


def hardly_vary(values: np.ndarray, scale: np.ndarray, limit: float) -> np.ndarray:
    """Return the indices of columns with a standard deviation below `limit * scale`, [k].

    Constants, and rounding noise around constants, are not included.
    values: [N, columns]; scale: [columns].
    """
    std, half_range = values.std(0), np.ptp(values, axis=0) / 2
    rounding = np.finfo(np.float32).eps * np.abs(values).max(0)
    small = (std < limit * scale) & (half_range < SPAN * limit * scale)
    return np.flatnonzero(small & (std > rounding))


def describe_columns(names: Sequence[str], values: np.ndarray, columns: np.ndarray) -> str:
    """Return a sentence that names the columns with their standard deviations."""
    stds = [f"{values[:, k].std():.1e}" for k in columns]
    if len(columns) == 1:
        small = f"{names[columns[0]]} has a standard deviation of {stds[0]}"
    else:
        pairs = zip(columns[:SHOWN], stds, strict=False)
        shown = ", ".join(f"{names[k]} ({std})" for k, std in pairs)
        more = f" and {len(columns) - SHOWN} more" if len(columns) > SHOWN else ""
        small = f"{shown}{more} have small standard deviations"
    return f"{small} and will barely affect training"


def format_remedy(normalizer: Normalizer, min_std: float) -> str:
    """Return the options that scale a column with standard deviation `min_std` to about 1."""
    option = f"algorithm.min_std={10.0 ** math.floor(math.log10(min_std)):g}"
    if normalizer.kind == "z-score":
        return option
    return f"algorithm.normalize_observations=true {option}"
