"""Tests of preprocessing: its values, and that data and environments get the same."""

import json
from dataclasses import replace

import numpy as np
import pytest

from offline_rl.algorithms.common.registry import algorithm_class
from offline_rl.data import Dataset
from offline_rl.data.transform import Preprocessing, Transform
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import build


def dataset() -> Dataset:
    """Return two episodes with returns 3 and 7."""
    draw = np.random.default_rng(0)
    return Dataset.from_arrays(
        draw.normal(3, 2, (4, 3)),
        draw.uniform(-1, 1, (4, 1)),
        [1.0, 2.0, 3.0, 4.0],
        np.array([False, True, False, True]),
        None,
        draw.normal(3, 2, (4, 3)),
    )


def test_nothing_changes_by_default():
    data = dataset()
    transform = Transform.fit(Preprocessing(), data, (3,))
    learned = transform.apply(data)
    assert np.array_equal(learned.observations, data.observations)
    assert np.array_equal(learned.rewards, data.rewards)
    assert np.array_equal(learned.actions, data.actions)


def test_observations_have_zero_mean_and_next_ones_use_the_same_statistics():
    data = dataset()
    transform = Transform.fit(Preprocessing(normalize_observations=True), data, (3,))
    rows = data.observations[:4].astype(np.float64)
    learned = transform.apply(data)
    expected = (data.next_observations - rows.mean(0)) / (rows.std(0) + 1e-3)
    assert learned.observations[:4].mean(0) == pytest.approx(0, abs=1e-6)
    assert learned.next_observations == pytest.approx(expected, abs=1e-5)


def test_small_columns_are_divided_by_min_std_and_others_by_their_standard_deviation():
    data = dataset()
    data.observations[:, 1] *= 1e-3
    cfg = Preprocessing(normalize_observations=True, min_std=0.1)
    normalizer = Transform.fit(cfg, data, (3,)).parts
    std = data.observations[:4].astype(np.float64).std(0)
    assert std[1] < 0.1 < min(std[0], std[2])
    assert normalizer.scale == pytest.approx([std[0], 0.1, std[2]], rel=1e-6)


def test_rewards_are_divided_by_the_range_of_returns_then_scaled_and_shifted():
    cfg = Preprocessing(normalize_returns=True, reward_scale=2.0, reward_shift=-1.0)
    transform = Transform.fit(cfg, dataset(), (3,))
    expected = 2 * 1000 / (7 - 3) * np.array([1.0, 2, 3, 4]) - 1
    assert transform.apply(dataset()).rewards == pytest.approx(expected)
    assert transform.apply_to_rewards(np.array([1.0, 2, 3, 4])) == pytest.approx(expected)


@pytest.mark.parametrize("rewards", [[1.0, 2.0, 2.0, 1.0], [0.0] * 4])
def test_equal_returns_have_no_range(rewards):
    data, cfg = replace(dataset(), rewards=np.array(rewards)), Preprocessing(normalize_returns=True)
    with pytest.raises(UserError, match=r"every episode has the return .*normalize_returns=false"):
        Transform.fit(cfg, data, (3,))


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("td3_bc", "alpha", -2.5),
        ("td3_bc", "alpha", float("nan")),
        ("mcq", "alpha", -0.2),
        ("decision_transformer", "max_grad_norm", 0.0),
        ("decision_transformer", "weight_decay", -1.0),
        ("decision_transformer", "target_return", float("nan")),
        ("msg", "beta", 8.0),
        ("msg", "conservatism", -1.0),
        ("iql", "beta", -3.0),
        ("iql", "expectile", 0.0),
        ("f_dvl", "lam", 0.3),
        ("recoil", "reward_gap", -2.0),
        ("cql", "gap", -1.0),
        ("ro2o", "uncertainty", -1.0),
        ("ro2o", "q_smoothness", -1.0),
        ("ro2o", "min_pessimism", -1.0),
        ("ro2o", "cloning", -1.0),
    ],
)
def test_a_field_out_of_its_range_is_refused(name, field, value):
    with pytest.raises(UserError, match=f"{field}={value} is not "):
        build(algorithm_class(name).Config, {field: value})


def test_ranges_become_minus_one_to_one_and_constants_are_only_shifted():
    """Each vector channel has its own range: numbers from 2 to 6 become (x - 4) / 2."""
    observations = {
        "place": np.array([[2.0, 7.0], [6, 7.00001], [3, 7], [5, 7]], np.float32),
        "eye": np.full((4, 2, 2, 3), 9, np.uint8),
    }
    rows = np.zeros((4, 1)), np.zeros(4), np.zeros(4, bool), np.arange(4) == 3
    cfg = Preprocessing(normalize_observations="min_max")
    data = Dataset.from_arrays(observations, *rows)
    transform = Transform.fit(cfg, data, {"place": (2,), "eye": (2, 2, 3)})
    transform = Transform.from_json(json.loads(json.dumps(transform.to_json())))
    assert transform.parts["place"].kind == "min-max"
    normalized = transform.apply(data).observations
    np.testing.assert_allclose(normalized["place"][:, 0], [-1, 1, -0.5, 0.5])
    np.testing.assert_allclose(normalized["place"][:, 1], 0, atol=2e-5)
    np.testing.assert_array_equal(normalized["eye"], observations["eye"])
    np.testing.assert_allclose(
        transform.invert(transform.apply(data)).observations["place"], observations["place"]
    )


def test_a_transform_of_an_older_run_uses_z_scores():
    values = Transform.fit(Preprocessing(normalize_observations=True), dataset(), (3,)).to_json()
    values.pop("kind")
    assert Transform.from_json(values).normalizer.kind == "z-score"


@pytest.mark.parametrize("how", [True, "min_max"])
def test_json_restores_a_transform_exactly(how):
    cfg = Preprocessing(normalize_observations=how, normalize_returns=True, clip_actions=0.5)
    transform = Transform.fit(cfg, dataset(), (3,))
    again = Transform.from_json(json.loads(json.dumps(transform.to_json())))
    assert np.array_equal(again.normalizer.mean, transform.normalizer.mean)
    assert np.array_equal(again.normalizer.scale, transform.normalizer.scale)
    assert again.normalizer.kind == transform.normalizer.kind
    assert again.to_json() == transform.to_json()
    assert np.abs(again.apply(dataset()).actions).max() <= 0.5


@pytest.mark.parametrize("values", [{"clip_actions": 0.0}, {"clip_actions": 2.0}])
def test_values_out_of_range_are_refused_by_name(values: dict):
    with pytest.raises(ValueError, match="clip_actions"):
        Preprocessing(**values)


def test_centered_rewards_have_mean_zero_and_are_refused_where_episodes_terminate() -> None:
    """Centering follows scaling; the same mean is subtracted from an environment's rewards."""
    rewards = np.array([1.0, 2, 6, 3])
    rows = np.zeros((4, 2)), np.zeros((4, 1)), rewards
    cut = Dataset.from_arrays(*rows, np.zeros(4, bool), np.arange(4) % 2 == 1)
    cfg = Preprocessing(center_rewards=True, reward_scale=10.0, reward_shift=0.5)
    transform = Transform.fit(cfg, cut, (2,))
    np.testing.assert_allclose(transform.apply(cut).rewards, 10 * (rewards - 3) + 0.5)
    np.testing.assert_allclose(transform.apply_to_rewards(np.array([3.0])), 0.5)
    over = Dataset.from_arrays(*rows, np.arange(4) == 1)
    with pytest.raises(UserError, match=r"1 episodes terminate.*center_rewards=false"):
        Transform.fit(cfg, over, (2,))


def test_standardized_rewards_have_mean_zero_and_standard_deviation_one() -> None:
    """Scale and shift follow. Equal rewards, and a second normalization, are refused."""
    rewards = np.array([1.0, 2, 6, 3])  # mean 3, unbiased variance 14 / 3
    rows = np.zeros((4, 2)), np.zeros((4, 1))
    data = Dataset.from_arrays(*rows, rewards, np.arange(4) == 1)
    cfg = Preprocessing(standardize_rewards=True, reward_scale=10.0, reward_shift=0.5)
    transform = Transform.fit(cfg, data, (2,))
    expected = 10 * (rewards - 3) / np.sqrt(14 / 3) + 0.5
    np.testing.assert_allclose(transform.apply(data).rewards, expected, rtol=1e-5)
    np.testing.assert_allclose(transform.apply_to_rewards(np.array([3.0])), 0.5, atol=1e-6)
    equal = Dataset.from_arrays(*rows, np.ones(4), np.arange(4) == 1)
    with pytest.raises(UserError, match=r"every reward is 1.*standardize_rewards=false"):
        Transform.fit(cfg, equal, (2,))
    for other in ("normalize_returns", "center_rewards"):
        with pytest.raises(ValueError, match="already scales and centers rewards"):
            Preprocessing(standardize_rewards=True, **{other: True})


def test_a_reward_is_the_same_number_from_data_and_from_an_environment() -> None:
    """Cal-QL compares rewards; data is float32, environments often return float64."""
    transform = Transform.fit(Preprocessing(reward_scale=0.3, reward_shift=0.1), None, (2,))
    rewards = np.random.default_rng(0).normal(size=10_000)
    assert rewards.dtype == np.float64
    np.testing.assert_array_equal(
        transform.apply_to_rewards(rewards), transform.apply_to_rewards(np.float32(rewards))
    )
