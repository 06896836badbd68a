"""RocketRecovery's mechanics, ends and rewards; test_neorl2_simulators compares episodes."""

import sys

import numpy as np
import pytest

import envs
from envs.suites.neorl2 import RocketRecovery

STARTS = range(60)
OFF = np.tile([-1.0, 0.0], (len(STARTS), 1))
SPEED = np.array([5, 7.5])  # m/s of a velocity of 1
HULL = [(-14, 17), (-17, 0), (-17, -10), (17, -10), (17, 0), (14, 17)]


@pytest.fixture
def rockets() -> RocketRecovery:
    pytest.importorskip("Box2D", reason="RocketRecovery needs the extra [box2d]")
    env = RocketRecovery(len(STARTS))
    env.reset(STARTS)
    return env


def mass() -> float:
    """kg: the hull's area (shoelace formula) at density 5, two legs of 4 by 16 at density 1."""
    x, y = np.array(HULL).T / 30
    area = abs(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1))) / 2
    return 5 * area + 2 * 4 * 16 / 30**2


def gained(env: RocketRecovery, actions: np.ndarray) -> np.ndarray:
    """Return the velocity change of a step without gravity and wind, [B, 2] m/s."""
    before = env._observation[:, 2:4].copy()
    after = env.step(actions).observations
    wind = np.stack([after[:, 6] / mass() / 50, np.full(len(after), -10 / 50)], 1)
    return (after[:, 2:4] - before) * SPEED - wind


def test_without_engines_only_gravity_and_wind_act(rockets: RocketRecovery) -> None:
    """The legs are light and reach their limits only after about twenty steps."""
    for _ in range(10):
        gain = gained(rockets, OFF)
    assert abs(np.median(gain, 0)).max() < 1e-4
    assert abs(gain).max() < 1e-3


@pytest.mark.parametrize(("action", "thrust"), [(1.0, 1.0), (0.2, 0.6), (1e-6, 0.5), (0.0, 0.0)])
def test_the_main_engine_lifts_from_half_to_full_thrust(
    rockets: RocketRecovery, action: float, thrust: float
) -> None:
    """13 N s times the lever arm of 4/30, with noise, along a nearly upright body."""
    gain = gained(rockets, np.tile([action, 0.5], (len(STARTS), 1))).mean(0)
    np.testing.assert_allclose(gain, [0, 13 * thrust * 4 / 30 / mass()], atol=0.04)


@pytest.mark.parametrize("action", [-1.0, -0.6, 0.6, 1.0])
def test_side_engines_push_to_their_side_and_turn(rockets: RocketRecovery, action: float) -> None:
    turning = rockets._observation[:, 5].copy()
    gain = gained(rockets, np.tile([-1.0, action], (len(STARTS), 1)))
    assert gain[:, 0].mean() == pytest.approx(0.6 * action * 12 / 30 / mass(), abs=0.008)
    assert ((rockets._observation[:, 5] - turning) * action < 0).mean() > 0.9


def test_the_wind_continues_from_the_seeds_phase(rockets: RocketRecovery) -> None:
    first = rockets.first_wind(7)
    assert first == RocketRecovery(1).first_wind(7) != rockets.first_wind(8)
    assert -9999 <= first < 9999
    for time in range(first + 1, first + 4):  # one has passed in the reset
        force = 10 * np.tanh(np.sin(0.02 * time) + np.sin(0.01 * np.pi * time))
        assert rockets.step(OFF).observations[7, 6] == pytest.approx(force, abs=1e-5)


FLYING = [0.3, 0.4, 0.06, -0.08, 0.1, 0.0, 2.0]  # potential -100 (0.5 + 0.1 + 0.1)
ENDS = {
    "flying": ([0.3, 0.4, 0.0, -0.3, -0.1, 0.0, 1.0], 70 - 100 * (0.5 + 0.3 + 0.1) - 0.3 - 0.018),
    "gently": ([2.0, 0.05, 0.49, 1.99, -0.29, 9.0, 0.0], 100),
    "beneath": ([0.0, -0.05, 0.0, 0.0, 0.0, 0.0, 0.0], 100),
    "tilted": ([0.0, 0.01, 0.0, 0.0, 0.3, 0.0, 0.0], -100),
    "sideways": ([0.0, 0.01, -0.5, 0.0, 0.0, 0.0, 0.0], -100),
    "fast": ([0.0, 0.01, 0.0, -2.0, 0.0, 0.0, 0.0], -100),
}


@pytest.mark.parametrize("end", ENDS)
def test_landings_replace_the_shaped_reward(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    pytest.importorskip("Box2D", reason="RocketRecovery needs the extra [box2d]")
    env, (state, reward) = RocketRecovery(1), ENDS[end]
    env.reset([0])
    env._observation[0] = FLYING
    monkeypatch.setattr(env, "_simulate", lambda index, main, side: state)
    step = env.step(np.array([[1.0, -0.6]]))
    assert step.rewards[0] == pytest.approx(reward, abs=1e-4)
    assert step.terminated[0] == (end != "flying")
    assert step.infos["success"][0] == (reward == 100)


def test_without_box2d_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "Box2D", None)  # as if it were not installed
    for make in (envs.make, lambda task: envs.make_vector(task, 2)):
        with pytest.raises(ValueError, match=r"needs Box2D\. Install box2d.*\[box2d\]"):
            make("neorl2/RocketRecovery")
