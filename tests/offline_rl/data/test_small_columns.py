"""Tests of the warnings for columns that vary too little."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from offline_rl.algorithms.common.registry import algorithm_class
from offline_rl.data import Dataset
from offline_rl.data.transform import Preprocessing, Transform, small_columns
from policies.spec import Channel, Spec

SIGN = np.tile([-1.0, 1.0], 50)
NAMED = Spec((Channel("observation", (4,), names=("x", "amperes", "fixed", "rounded")),), 1)


def data(size: float, actions: float = 0.5, rewards: float = 1.0) -> Dataset:
    """Return data; column 1 alternates by +-size, 2 is constant, 3 constant up to rounding."""
    rounded = np.where(SIGN > 0, np.float32(339), np.nextafter(np.float32(339), np.float32(400)))
    columns = np.stack([SIGN, size * SIGN, np.full(100, 0.1), rounded], 1)
    return Dataset.from_arrays(columns, actions * SIGN[:, None], rewards * SIGN, SIGN == 2)


def warnings(data: Dataset, spec: Spec = NAMED, cfg: Any = None, **keys: Any) -> list[str]:
    cfg = cfg or Preprocessing(**({"normalize_observations": True} | keys))
    transform = Transform.fit(cfg, data, spec.observation_shapes)
    return small_columns(transform, data, spec, cfg, rewards=True)


@pytest.mark.parametrize("size", [1e-4, 1e-6])
@pytest.mark.parametrize("normalize", [True, "min_max", False])
def test_a_small_signal_is_named_with_a_setting_that_scales_it_to_one(size: float, normalize: Any):
    if normalize == "min_max":
        size /= 10  # a range of 1e-4 or more is scaled
    (warning,) = warnings(data(size), normalize_observations=normalize)
    expected = (
        f"amperes has a standard deviation of {size:.1e} and will barely affect training. Set"
    )
    assert warning.startswith(expected)
    assert warning.endswith(" to scale it to 1")
    assert not any(name in warning for name in ("x ", "fixed", "rounded"))
    least = float(warning.split("min_std=")[1].split()[0])
    cfg = Preprocessing(normalize_observations=True, min_std=least)
    normalized = Transform.fit(cfg, data(size), (4,)).apply(data(size)).observations[:, 1]
    assert normalized == pytest.approx(SIGN, abs=1e-3)
    assert warnings(data(size), cfg=cfg) == []


def test_several_small_columns_are_listed():
    d = Dataset.from_arrays(np.outer(SIGN, [2e-5, 2e-6, 1]), SIGN[:, None], SIGN, SIGN == 2)
    (warning,) = warnings(d, Spec((3,), 1))
    assert warning == (
        "observation[0] (2.0e-05), observation[1] (2.0e-06) have small standard deviations and "
        "will "
        "barely affect training. Set algorithm.min_std=1e-06 to scale them to 1"
    )


def test_columns_of_usual_size_are_not_named():
    assert warnings(data(1e-3)) == []
    assert warnings(data(0.05), normalize_observations=False) == []


def test_a_rare_large_value_makes_a_column_visible():
    rare = np.where(np.arange(10_000) == 7, 10.0, 0.0)  # standard deviation 0.1
    d = Dataset.from_arrays(rare[:, None], 0 * rare[:, None], rare, rare == 20)
    cfg = Preprocessing(normalize_observations=True, min_std=1.0)
    assert warnings(d, Spec((1,), 1), cfg) == []
    less = replace(d, observations=d.observations / 10)  # at most 1, and still rare
    (warning,) = warnings(less, Spec((1,), 1), cfg)[:1]
    assert warning.startswith("observation[0] has a standard deviation of 1.0e-02")


def test_channels_are_named_and_images_are_not_checked():
    both = {"arm": 1e-5 * SIGN[:, None], "image": np.zeros((100, 4, 4, 3), np.uint8)}
    d = Dataset.from_arrays(both, SIGN[:, None], SIGN, SIGN == 2)
    (warning,) = warnings(d, Spec({"arm": (1,), "image": (4, 4, 3)}, 1))
    assert "arm[0] has a standard deviation of 1.0e-05" in warning


def test_small_actions_and_rewards_are_named_unless_they_are_scaled_up():
    small = data(1.0, actions=1e-3, rewards=1e-5)
    actions, rewards = warnings(small)
    assert "action[0] has a standard deviation of 1.0e-03" in actions
    assert "differ by at most 2.0e-05" in rewards
    assert "algorithm.reward_scale=5e+04" in rewards
    assert warnings(data(1.0, rewards=1e-5), reward_scale=5e4) == []
    diffusion = algorithm_class("diffusion_policy").Config()  # scales actions to their range
    assert not any("action[0]" in each for each in warnings(small, cfg=diffusion))
