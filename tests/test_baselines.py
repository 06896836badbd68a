"""What any policy must beat, on made data and made returns."""

from types import SimpleNamespace

import numpy as np
import pytest

import envs
from benchmarks import baselines, pages
from offline_rl.data import Dataset


def data(rewards: list[float], terminated: bool) -> Dataset:
    """Episodes of ten steps each."""
    count = len(rewards)
    ends = np.arange(count) % 10 == 9
    return Dataset.from_arrays(
        observations=np.arange(count, dtype=np.float32)[:, None],
        actions=np.zeros((count, 1), np.float32),
        rewards=np.asarray(rewards, np.float32),
        terminated=ends & terminated,
        truncated=ends & (not terminated),
        next_observations=np.arange(1, count + 1, dtype=np.float32)[:, None],
    )


def test_the_search_finds_the_best_of_a_parabola():
    target = np.array([0.3, -0.7])

    def play(actions: np.ndarray) -> np.ndarray:
        return -np.square(actions - target).sum(1, keepdims=True) * np.ones((1, 3))

    found = baselines.search(play, np.zeros((1, 2)), generations=12)
    assert found == pytest.approx(target, abs=0.02)


def test_a_known_action_that_nothing_beats_is_kept():
    """Only that very action earns anything."""
    known = np.array([[0.1], [0.123456]])
    found = baselines.search(lambda a: (a == known[1]).astype(float), known, generations=3)
    assert found == known[1]


def test_the_best_tenth_is_the_tenth_of_episodes_with_the_highest_returns():
    rewards = np.repeat(np.arange(20.0), 10)  # returns 0, 10, …, 190
    rows = baselines.of_data(envs.task("Hopper-v4"), data(list(rewards), terminated=True))
    assert rows["behavior"]["return"] == pytest.approx(95.0)
    assert rows["best_tenth"] == {"return": 185.0, "error": 5.0, "episodes": 2}


def test_only_what_was_played_from_every_start_is_called_exact(monkeypatch):
    """Not a sample that happens to agree, as where nothing is ever earned."""
    task, none = envs.task("Hopper-v4"), np.zeros((1, 100))
    rows = {"mean_action": baselines.row(task, none), "x": baselines.row(task, none, exact=True)}
    monkeypatch.setattr(pages, "measured_baselines", lambda _: {"rows": rows})
    sampled, played = pages.baselines([SimpleNamespace()], "return", 12)
    assert sampled[1:3] == ["0.0", "0.0"]
    assert played[1:3] == ["0.0", "exact"]


def test_constants_are_played_where_pictures_are_seen():
    play = baselines.player(envs.task("push/standard-pixels-expert"), [0])
    assert play(np.zeros((1, 2))).shape == (1, 1)


def test_a_cut_episode_goes_on_at_the_reward_of_its_last_tenth():
    """Constant rewards of 2: worth 2 / (1 - 0.99) everywhere, however long the record is."""
    found = baselines.values(data([2.0] * 10 + [1.0] * 10, terminated=False))
    assert found["value"] == pytest.approx(150.0, rel=1e-6)
    assert found["weight"] == pytest.approx(100.0, rel=1e-6)
    assert found["range_of_returns"] == pytest.approx(10.0)


def test_an_episode_that_ended_is_worth_what_it_earned():
    """Ten ones, then a true end: the mean over rows of sum(0.99^k) for k below 1 … 10."""
    found = baselines.values(data([1.0] * 10 + [0.0] * 10, terminated=True))
    by_row = [(1 - 0.99**left) / 0.01 for left in range(1, 11)]
    assert found["value"] == pytest.approx(sum(by_row) / 20, rel=1e-5)
    assert found["weight"] == pytest.approx(sum(by_row) / 10, rel=1e-5)


def test_what_data_is_worth_follows_the_rewards_that_a_run_learns_from(monkeypatch):
    """Rewards r become 1000 / 50 r - 1: 20 value - weight."""
    values = {"discount": 0.99, "range_of_returns": 50.0, "value": 3.0, "weight": 10.0}
    own = {"dataset_sha256": "ab", "values": values}
    monkeypatch.setattr(pages, "load_baselines", lambda: {"toy": own})
    config = {"data": "ab", "hyper.discount": 0.99, "hyper.normalize_returns": True}
    config |= {"hyper.reward_scale": 1.0, "hyper.reward_shift": -1.0}
    run = SimpleNamespace(task="toy", config=config)
    assert pages.value_of_data(run) == pytest.approx(50.0)
    assert pages.value_of_data(SimpleNamespace(task="toy", config={**config, "data": "cd"})) is None
