"""Errors of policies on recorded actions that were held out of the training data."""

import json
from pathlib import Path

import numpy as np
import pytest

from offline_rl.evaluation.evaluate import evaluate
from offline_rl.utils.errors import UserError
from policies import Normalizer, Spec, bundle
from policies.golden import seal

LENGTHS = (3, 1, 4)


def linear_policy(
    path: Path, bias: float, *, weight: float = 1.0, observations: int = 3, actions: int = 2
) -> Path:
    """Write a bundle that acts tanh(weight x_0 + bias) in the first dimension and 0 in others."""
    weights = {
        "trunk.weights.0": np.zeros((observations, actions), np.float32),
        "trunk.biases.0": np.zeros(actions, np.float32),
    }
    weights["trunk.weights.0"][0, 0], weights["trunk.biases.0"][0] = weight, bias
    arguments = {"observations": observations, "actions": actions, "hidden": []}
    normalizer = Normalizer(np.zeros(observations, np.float32), np.ones(observations, np.float32))
    spec = Spec((observations,), actions)
    policy = bundle.Bundle(spec, "DeterministicActor", arguments, weights, normalizer, {})
    path.parent.mkdir(parents=True, exist_ok=True)
    bundle.write(path, seal(policy))
    return path


@pytest.fixture
def data(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Return a file with three episodes in NeoRL-2's layout, and its arrays."""
    rng, n = np.random.default_rng(0), sum(LENGTHS)
    observations = rng.standard_normal((n + len(LENGTHS), 3)).astype(np.float32)
    last = np.cumsum([length + 1 for length in LENGTHS]) - 1
    present = np.setdiff1d(np.arange(len(observations)), last)
    columns = {
        "obs": observations[present],
        "action": rng.uniform(-1, 1, (n, 2)).astype(np.float32),
        "next_obs": observations[present + 1],
        "reward": rng.standard_normal(n).astype(np.float32),
        "done": np.zeros(n, np.float32),
        "truncated": np.zeros(n, np.float32),
    }
    columns["truncated"][np.cumsum(LENGTHS) - 1] = 1
    path = tmp_path / "held-out.npz"
    np.savez(path, **columns)
    return path, columns


def test_the_error_is_the_mean_squared_difference_over_rows_and_dimensions(data, tmp_path):
    file, columns = data
    paths = [linear_policy(tmp_path / f"seed_{k}" / "policy.bundle", 0.5 * k) for k in range(2)]
    result = evaluate(run=str(tmp_path), dataset=str(file))
    actions = columns["action"].astype(np.float64)
    x = columns["obs"][:, 0].astype(np.float64)
    variance = ((actions - actions.mean(0)) ** 2).mean()
    for k, path in enumerate(paths):
        predicted = np.stack([np.tanh(x + 0.5 * k), np.zeros(len(x))], 1)
        expected = ((predicted - actions) ** 2).mean()
        assert result.errors[path] == pytest.approx(expected, rel=1e-5)
        assert result.relative(path) == pytest.approx(expected / variance, rel=1e-5)
    text = str(result)
    assert "8 held-out rows in 3 episodes" in text
    assert "mean of 2 bundles" in text
    rows = json.loads(str(evaluate(run=str(paths[0]), dataset=str(file), json=True)))["bundles"]
    assert rows[0]["action_error"] == pytest.approx(result.errors[paths[0]])


def test_a_card_stands_for_its_validation_file(tmp_path, data_dir, monkeypatch):
    """Fusion's first 20 validation episodes are its training episodes, and are not used."""
    monkeypatch.setenv("OFFLINE_RL_DATA", str(data_dir))
    file = data_dir / "neorl2" / "Fusion" / "Fusion-high-20000-val.npz"
    if not file.exists():
        pytest.skip(f"{file.name} does not exist")
    path = linear_policy(tmp_path / "a.bundle", 0, weight=0, observations=15, actions=6)
    result = evaluate(run=str(path), dataset="neorl2/Fusion")
    assert (result.rows, result.episodes) == (18_000, 180)
    expected = np.square(np.load(file)["action"][2000:].astype(np.float64)).mean()
    assert result.errors[path] == pytest.approx(expected, rel=1e-6)


def test_an_option_for_environments_and_data_of_another_task_are_refused(data, tmp_path):
    path = linear_policy(tmp_path / "policy.bundle", 0.0)
    with pytest.raises(UserError, match="episodes= needs an environment"):
        evaluate(run=str(path), dataset=str(data[0]), episodes=3)
    other = tmp_path / "other.npz"
    columns = {**data[1], "obs": data[1]["obs"][:, :2], "next_obs": data[1]["next_obs"][:, :2]}
    np.savez(other, **columns)
    with pytest.raises(UserError, match="does not fit"):
        evaluate(run=str(path), dataset=str(other))
    narrow = tmp_path / "narrow.npz"
    np.savez(narrow, **{**data[1], "action": data[1]["action"][:, :1]})
    with pytest.raises(UserError, match="2 action dimensions, and the data 1"):
        evaluate(run=str(path), dataset=str(narrow))
