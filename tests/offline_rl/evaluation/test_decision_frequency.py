"""Policies that decide every few steps, on DMSD, against loops over the environment."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from printed import evaluate

import envs
import offline_rl
from offline_rl.evaluation.decisions.frequency import averaged, bootstrap_interval, fas_cell
from offline_rl.evaluation.decisions.player import Pace, PacedPlayer
from offline_rl.evaluation.saved import saved_evaluations
from offline_rl.reporting.tables.evaluated import HEADER, row
from offline_rl.utils.errors import UserError
from offline_rl.utils.seeds import EVALUATION_SEED
from policies import Normalizer, Spec, bundle, load
from policies.golden import seal

TASK, EPISODES = "neorl2/DMSD", 3
LOW, HIGH = 30.6, 849.51  # DMSD's published references, polixir/NeoRL2:neorl2/envs/info.py
CHUNK = np.array([[0.9, 0.5], [0.2, -0.4], [-0.6, 0.1]])
GAIN = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)


def write(path: Path, kind: str, spec: Spec, arguments: Any, weight: Any, bias: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    weights = {"trunk.weights.0": np.float32(weight), "trunk.biases.0": np.float32(bias)}
    arguments = {"observations": 6, "actions": 2, "hidden": [], **arguments}
    identity = Normalizer.identity((6,))
    policy = bundle.Bundle(spec, kind, arguments, weights, identity, {"task": TASK})
    bundle.write(path, seal(policy))
    return path


@pytest.fixture
def chunks(tmp_path: Path) -> Path:
    """A policy that always predicts CHUNK, and executes its first action."""
    spec = Spec((6,), 2, chunk_size=3, n_action_steps=1)
    bias = np.arctanh(CHUNK).ravel()
    arguments = {"horizon": 3, "n_action_steps": 1}
    return write(
        tmp_path / "seed_0" / "policy.bundle", "ChunkActor", spec, arguments, np.zeros((6, 6)), bias
    )


@pytest.fixture
def linear(tmp_path: Path) -> Path:
    """The policy tanh(GAIN @ observation)."""
    return write(
        tmp_path / "policy.bundle", "DeterministicActor", Spec((6,), 2), {}, GAIN, np.zeros(2)
    )


def returns_by_a_loop(action: Callable[[list[np.ndarray]], np.ndarray]) -> list[float]:
    """Return the returns of a policy. action: function of all observations so far."""
    env, returns = envs.make(TASK), []
    for k in range(EPISODES):
        observation, _ = env.reset(seed=EVALUATION_SEED + k)
        seen, total, over = [observation], 0.0, False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(np.float32(action(seen)))
            seen.append(observation)
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return returns


def test_a_chunk_is_executed_completely_and_its_last_action_is_repeated(chunks: Path) -> None:
    result = offline_rl.evaluate(run=str(chunks), episodes=EPISODES, decision_every=[5, 2])
    played = result.paced[None][chunks]
    assert [pace.every for pace in played] == [2, 5]
    for pace, e in played.items():
        expected = returns_by_a_loop(
            lambda seen, every=pace.every: CHUNK[min((len(seen) - 1) % every, 2)]
        )
        np.testing.assert_allclose(e.returns, expected, rtol=1e-5)


def test_decisions_use_the_present_observation_or_a_late_one(linear: Path) -> None:
    keys = {"run": str(linear), "episodes": EPISODES, "decision_every": 3, "decision_delay": 2}
    every, late = offline_rl.evaluate(**keys).paced[None][linear].values()
    expected = returns_by_a_loop(lambda seen: np.tanh(seen[(len(seen) - 1) // 3 * 3] @ GAIN))
    np.testing.assert_allclose(every.returns, expected, rtol=1e-5)
    expected = returns_by_a_loop(lambda seen: np.tanh(seen[max(len(seen) - 3, 0)] @ GAIN))
    np.testing.assert_allclose(late.returns, expected, rtol=1e-5)


def test_a_late_chunk_is_executed_from_the_action_for_the_present_step(chunks: Path) -> None:
    player = PacedPlayer(load(chunks), Pace(delay=2))
    player.reset(0)
    actions = [player.step(np.zeros(6, np.float32)) for _ in range(4)]
    np.testing.assert_allclose(actions, CHUNK[[0, 1, 2, 2]], atol=1e-6)


def test_random_intervals_take_each_length_up_to_the_limit(chunks: Path) -> None:
    player = PacedPlayer(load(chunks), Pace(3, random=True))
    player.reset(np.arange(2))
    steps = [player.step(np.zeros((2, 6), np.float32))[:, 0] for _ in range(60)]
    starts = np.isclose(steps, CHUNK[0, 0])  # a decision executes its first action
    assert (starts[:, 0] != starts[:, 1]).any()  # each episode has intervals of its own
    for episode in starts.T:
        assert set(np.diff(np.flatnonzero(episode))) == {1, 2, 3}


def test_the_average_is_that_of_a_piecewise_linear_function() -> None:
    assert averaged(np.array([10.0, 20.0, 0.0]), (1, 2, 4)) == pytest.approx(35 / 3)
    lengths = np.array([1, 3, 8])
    assert averaged(5 - 2.0 * lengths, lengths) == pytest.approx(5 - 2 * 4.5)  # linear: midpoint


def test_the_bootstrap_interval_is_normal_for_many_episodes_and_covers_policies() -> None:
    values = np.random.default_rng(1).normal(3, 2, 2000)
    half = 1.96 * values.std() / np.sqrt(2000)
    expected = values.mean() - half, values.mean() + half
    np.testing.assert_allclose(bootstrap_interval([values]), expected, atol=0.02)
    same = bootstrap_interval([values, values])  # the same initial states: no gain by repetition
    np.testing.assert_allclose(same, bootstrap_interval([values]), rtol=1e-12)
    low, high = bootstrap_interval([np.full(9, 1.0), np.full(9, 3.0)])
    assert (low, high) == (1, 3)  # two policies: both draws can select the same one


def test_the_score_over_frequencies_is_printed_saved_and_in_reports(linear: Path) -> None:
    keys: dict[str, Any] = {"run": str(linear), "episodes": EPISODES, "decision_every": [1, 2, 6]}
    result = offline_rl.evaluate(**keys, decision_random=4)
    at = [
        np.array(returns_by_a_loop(lambda s, k=k: np.tanh(s[(len(s) - 1) // k * k] @ GAIN)))
        for k in (1, 2, 6)
    ]
    one, two, six = (100 * (x - LOW) / (HIGH - LOW) for x in at)
    expected = ((one + two) / 2 + 4 * (two + six) / 2) / 5
    (only,) = json.loads(evaluate(**keys, json=True))["bundles"]
    assert only["fas"] == pytest.approx(expected.mean(), rel=1e-4)
    low, high = only["fas_interval"]
    assert expected.min() - 0.01 <= low < high <= expected.max() + 0.01
    text = str(result)
    assert "1 to 4" in text
    saved = next(s for s in saved_evaluations(linear) if "decision_random" in s.keys)
    assert saved.keys["decision_every"] == [1, 2, 6]
    cell = fas_cell([saved.frequency])
    assert cell.startswith(f"{expected.mean():,.1f} [")
    assert cell in text
    assert dict(zip(HEADER, row("bc", [saved]), strict=True))["FAS"] == cell


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"decision_every": [1, 101]},
            "decision_every=101 is longer than an episode of neorl2/DMSD (100 steps). Use at most",
        ),
        ({"decision_every": 2, "decision_delay": 200}, "decision_delay=200 is longer than an"),
        ({"decision_every": [2, 2]}, "decision_every=[2,2] must have at least one interval"),
        ({"decision_random": 4}, "decision_random= needs decision_every="),
        (
            {"decision_every": 2, "stl": "reward > 0", "backup": "none.bundle"},
            "decision_every= does not work with backup=",
        ),
    ],
)
def test_intervals_that_do_not_fit_are_refused_in_one_sentence(
    linear: Path, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as error:
        offline_rl.evaluate(run=str(linear), episodes=1, **keys)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_episode_has_the_intervals_of_its_seed_and_as_many_decisions_as_it_needs(
    chunks: Path,
) -> None:
    """An episode of another seed that runs beside it has no effect."""

    def starts(seeds: list[int]) -> tuple[np.ndarray, list[int]]:
        player = PacedPlayer(load(chunks), Pace(3, random=True))
        player.reset(np.array(seeds))
        blank = np.zeros((len(seeds), 6), np.float32)
        steps = [player.step(blank)[:, 0] for _ in range(40)]
        return np.isclose(steps, CHUNK[0, 0]), player.episodes.decisions.tolist()

    both, decisions = starts([4, 5])
    assert decisions == both.sum(0).tolist()
    for k, seed in enumerate((4, 5)):
        np.testing.assert_array_equal(starts([seed])[0][:, 0], both[:, k])


@pytest.mark.parametrize("pace", [Pace(4), Pace(delay=2)])
def test_a_new_episode_starts_with_a_decision_on_its_first_observation(
    linear: Path, pace: Pace
) -> None:
    player, draw = PacedPlayer(load(linear), pace), np.random.default_rng(1)
    for _ in range(2):
        player.reset(0)
        first, *others = draw.normal(size=(3, 6)).astype(np.float32)
        np.testing.assert_allclose(player.step(first), np.tanh(first @ GAIN), atol=1e-6)
        for x in others:
            player.step(x)


def test_predictions_are_averaged_only_if_the_policy_decides_at_every_step(tmp_path: Path) -> None:
    """The second action is the mean of two predictions, because their weights are equal."""
    spec = Spec((6,), 2, chunk_size=3, n_action_steps=1, temporal_ensemble_coeff=0.0)
    arguments, bias = {"horizon": 3, "n_action_steps": 1}, np.arctanh(CHUNK).ravel()
    path = tmp_path / "policy.bundle"
    policy = load(write(path, "ChunkActor", spec, arguments, np.zeros((6, 6)), bias))
    second = {"1": (CHUNK[0] + CHUNK[1]) / 2, "2": CHUNK[1], "delay 1": CHUNK[1]}
    for pace in (Pace(), Pace(2), Pace(delay=1)):
        player = PacedPlayer(policy, pace)
        player.reset(0)
        actions = [player.step(np.zeros(6, np.float32)) for _ in range(2)]
        np.testing.assert_allclose(actions, [CHUNK[0], second[str(pace)]], atol=1e-6)
