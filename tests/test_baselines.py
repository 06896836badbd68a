"""Baselines that a policy should exceed, on synthetic data and returns."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import envs
from benchmarks import baselines, pages, simglucose
from envs.suites.neorl2.simglucose import Simglucose, draw_start
from offline_rl.data import Dataset
from policies.runtimes.guardian import Guardian


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

    best = baselines.search(play, np.zeros((1, 2)), generations=12)
    assert best == pytest.approx(target, abs=0.02)


def test_the_search_returns_a_start_action_if_nothing_is_better():
    """Only that exact action is rewarded."""
    starts = np.array([[0.1], [0.123456]])
    best = baselines.search(lambda a: (a == starts[1]).astype(float), starts, generations=3)
    assert best == starts[1]


def test_best_tenth_is_the_top_10_percent_of_episodes_by_return():
    rewards = np.repeat(np.arange(20.0), 10)  # returns 0, 10, …, 190
    rows = baselines.data_rows(envs.task("Hopper-v4"), data(list(rewards), terminated=True))
    assert rows["behavior"]["return"] == pytest.approx(95.0)
    assert rows["best_tenth"] == {"return": 185.0, "error": 5.0, "episodes": 2}


def test_only_scores_over_all_initial_states_are_called_exact(monkeypatch):
    """A sample without variance, as with a reward that is always 0, is not called exact."""
    task, none = envs.task("Hopper-v4"), np.zeros((1, 100))
    rows = {"mean_action": baselines.row(task, none), "x": baselines.row(task, none, exact=True)}
    monkeypatch.setattr(pages, "measured_baselines", lambda _: {"rows": rows})
    sampled, played = pages.baselines([SimpleNamespace()], "return", 12)
    assert sampled[1:3] == ["0.0", "0.0"]
    assert played[1:3] == ["0.0", "exact"]


def test_constant_actions_are_played_in_a_task_with_images():
    play = baselines.player(envs.task("push/standard-pixels-expert"), [0])
    assert play(np.zeros((1, 2))).shape == (1, 1)


def test_a_truncated_episode_continues_at_the_reward_of_its_last_tenth():
    """Constant rewards of 2 have value 2 / (1 - 0.99) in each state, for any episode length."""
    values = baselines.data_values(data([2.0] * 10 + [1.0] * 10, terminated=False))
    assert values["value"] == pytest.approx(150.0, rel=1e-6)
    assert values["weight"] == pytest.approx(100.0, rel=1e-6)
    assert values["range_of_returns"] == pytest.approx(10.0)


def test_a_terminated_episode_has_no_value_after_its_end():
    """Ten rewards of 1, then termination: the mean over rows of sum(0.99^k) for k below 1 … 10."""
    values = baselines.data_values(data([1.0] * 10 + [0.0] * 10, terminated=True))
    by_row = [(1 - 0.99**left) / 0.01 for left in range(1, 11)]
    assert values["value"] == pytest.approx(sum(by_row) / 20, rel=1e-5)
    assert values["weight"] == pytest.approx(sum(by_row) / 10, rel=1e-5)


def test_the_value_of_data_uses_the_transformed_rewards_of_a_run(monkeypatch):
    """Rewards r become 1000 / 50 r - 1: 20 value - weight."""
    values = {"discount": 0.99, "range_of_returns": 50.0, "value": 3.0, "weight": 10.0}
    entry = {"dataset_sha256": "ab", "values": values}
    monkeypatch.setattr(pages, "load_baselines", lambda: {"toy": entry})
    config = {"data": "ab", "hyper.discount": 0.99, "hyper.normalize_returns": True}
    config |= {"hyper.reward_scale": 1.0, "hyper.reward_shift": -1.0}
    run = SimpleNamespace(task="toy", config=config)
    assert pages.value_of_data(run) == pytest.approx(50.0)
    assert pages.value_of_data(SimpleNamespace(task="toy", config={**config, "data": "cd"})) is None


def test_simglucoses_page_names_the_best_rate_of_all_starts_and_of_each_patient() -> None:
    """Three rates: the second is best in the mean, the third for the last patient only."""
    returns = np.full((3, 15, 24), 100.0)
    returns[1] = 300
    returns[2, 14, :12] = 460  # 460 at half of the hours, else 160: a mean of 310
    returns[2, 14, 12:] = 160
    lines = simglucose.page(np.array([0, 0.01, 5]), returns, "command").splitlines()
    score = 100 * (300 - 9.75) / (475 - 9.75)
    assert f"| best constant action | -0.99600 | 0.600 | 300.00 | {score:.2f} |" in lines
    assert any(line.startswith("| no insulin | -1.00000 | 0.000 | 100.00 |") for line in lines)
    mean = (14 * 300 + 310) / 15
    score = 100 * (mean - 9.75) / (475 - 9.75)
    assert f"| best constant action of each patient | | | {mean:.2f} | {score:.2f} |" in lines
    assert "| adolescent#001 | 0.600 | 300.0 | 300.0 |" in lines
    assert "| child#005 | 300.000 | 310.0 | 300.0 |" in lines


def test_simglucoses_policies_are_judged_by_the_steps_that_they_play(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Shares are of all steps. Five steps of the most insulin are as unlike the data as can be."""
    monkeypatch.setattr(Simglucose, "max_episode_steps", 5)
    points = np.full((9, 32), -1.0)
    guardian = Guardian("neighbor", points, np.zeros(31), np.full(31, 1e9), threshold=-1.0)
    calls = list[tuple[float, float]]()

    def act(observations: np.ndarray, rewards: np.ndarray, costs: np.ndarray) -> np.ndarray:
        calls.append((rewards.sum(), costs.sum()))
        return np.full((len(observations), 1), 1.0 if len(calls) > 2 else -1.0)

    # the distance is that of the action, plus the observed columns' constant 1: |(1, ..., 1)|
    near = replace(guardian, threshold=-np.sqrt(31) - 0.1)
    day = simglucose.play_day(act, near)
    assert len(calls) == 5
    assert day.glucose.shape == day.is_outside.shape == (5 * 360,)
    assert day.is_outside.reshape(5, 360).all(1).tolist() == [False, False, True, True, True]
    assert day.is_outside.sum() == 3 * 360
    assert calls[0] == (0, 0)
    assert calls[-1][0] > 0
    by_hand = simglucose.Day(
        np.array([9.75, 475.0]), np.array([69, 70, 180, 181.0]), np.array([True] + 3 * [False])
    )
    assert by_hand.numbers().tolist() == [50, 50, 25, 25, 2]


def test_simglucoses_search_refines_the_neighborhood_of_the_best_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A return with its maximum at 0.013 U/min; the fine rates are 1e-4 apart or closer."""

    def play(rates: np.ndarray) -> np.ndarray:
        return np.broadcast_to(-((rates - 0.013) ** 2)[:, None, None], (len(rates), 15, 24))

    monkeypatch.setattr(simglucose, "play", play)
    rates, returns = simglucose.search(24, 100)
    assert rates.size == 125
    assert (np.diff(rates) > 0).all()
    assert abs(rates[returns.mean((1, 2)).argmax()] - 0.013) < 1e-4


def test_simglucoses_constants_are_played_from_every_patient_and_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The player gets seeds; returns are sorted by the patient and the hour of each seed."""

    def player(task: Any, seeds: list[int]) -> Any:
        starts = [draw_start(seed) for seed in seeds]
        values = np.array([100 * patient + hour for hour, patient in starts])
        return lambda actions: actions.astype(float) + values

    monkeypatch.setattr(simglucose, "player", player)
    returns = simglucose.play(np.array([0, 2.5, 5]))
    expected = 100 * np.arange(15)[:, None] + np.arange(24)
    np.testing.assert_allclose(returns, np.array([-1, 0, 1])[:, None, None] + expected)
