"""Vectorized locomotion tasks compared with Gymnasium's v4 classes and with recorded contacts."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import gymnasium
import mujoco
import numpy as np
import pytest

from envs.adapters import SingleEnv
from envs.physics import load_model
from envs.suites.locomotion import ENVS


@pytest.fixture
def gymnasiums_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[str], gymnasium.Env]:
    """Return a maker of Gymnasium's environments, with the contact margins of MuJoCo < 3.5."""
    monkeypatch.chdir(tmp_path)  # MuJoCo logs a warning on half_cheetah.xml into a file
    if importlib.util.find_spec("imageio") is None:  # needed by its window only
        monkeypatch.setitem(sys.modules, "imageio", ModuleType("imageio"))

    def make(env_id: str) -> gymnasium.Env:
        env = gymnasium.make("Ant-v4" if env_id == "Ant-v2" else env_id)
        if env_id in ("Hopper-v4", "Ant-v2") and mujoco.mj_version() >= 3005000:
            env.unwrapped.model.geom_margin /= 2  # type: ignore[attr-defined]
        return env

    return make


@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
@pytest.mark.parametrize("env_id", ENVS)
def test_equals_gymnasiums_v4_to_the_bit(env_id: str, gymnasiums_own: Callable) -> None:
    """Compare resets, observations, rewards and flags; episodes of weak actions are longer."""
    theirs, ours = gymnasiums_own(env_id), ENVS[env_id](1)
    rng = np.random.default_rng(0)
    ends = set()
    for seed, strength in enumerate([1.0, 0.1, 1.0, 0.0]):
        observation, _ = theirs.reset(seed=seed)
        count = len(observation)  # our Ant appends zeros
        np.testing.assert_array_equal(ours.reset([seed])[0, :count], observation.astype(np.float32))
        terminated = truncated = False
        while not (terminated or truncated):
            action = strength * rng.uniform(-1, 1, ours.action_dim)
            observation, reward, terminated, truncated, info = theirs.step(action)
            step = ours.step(action[None])
            row = step.observations[0]
            np.testing.assert_array_equal(row[:count], observation.astype(np.float32))
            assert not row[count:].any()
            assert step.rewards[0] == pytest.approx(reward, abs=1e-12)
            assert step.infos["x_velocity"][0] == info["x_velocity"]
            assert (step.terminated[0], step.truncated[0]) == (terminated, truncated)
        ends.add("terminated" if terminated else "truncated")
    falls = {"HalfCheetah-v4": {"truncated"}, "Ant-v2": {"terminated", "truncated"}}
    assert ends == falls.get(env_id, {"terminated"})


def test_the_alive_bonus_is_paid_on_the_step_of_the_fall() -> None:
    """The hopper's last reward minus its speed, without actions, is 1, as in v4 and not v5."""
    env = ENVS["Hopper-v4"](1)
    env.reset([0])
    while not (step := env.step(np.zeros((1, 3)))).terminated[0]:
        pass
    assert step.rewards[0] - step.infos["x_velocity"][0] == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("env_id", ENVS)
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_neighbors_and_threads_change_nothing(env_id: str, num_threads: int) -> None:
    """Environment 2 of 4, with others reset and stepped at other times, equals a single one."""
    alone, crowd = ENVS[env_id](1), ENVS[env_id](4, num_threads=num_threads)
    rng = np.random.default_rng(1)
    first = alone.reset([7])
    np.testing.assert_array_equal(crowd.reset([5, 6, 7, 8])[2], first[0])
    for time in range(12):
        actions = rng.uniform(-1, 1, (4, alone.action_dim))
        if time == 5:
            crowd.reset([9], np.array([1]))
        indices = np.array([2, 0]) if time % 3 == 0 else np.array([1, 2, 3])
        step, single = crowd.step(actions[indices], indices), alone.step(actions[2:3])
        row = list(indices).index(2)
        np.testing.assert_array_equal(step.observations[row], single.observations[0])
        assert step.rewards[row] == single.rewards[0]
    crowd.close()


def test_hopper_reproduces_contacts_recorded_with_an_older_mujoco(data_dir: Path) -> None:
    """Data of RandomFrictionHopper (MuJoCo 3.1.5): Gymnasium's hopper with varied foot friction.

    Rows with a clipped velocity are skipped, because they do not contain the complete state.
    """
    path = data_dir / "neorl2/RandomFrictionHopper/RandomFrictionHopper-high-20000-val.npz"
    file = np.load(path)
    rows = slice(0, 1000)
    model = load_model("hopper.xml").__copy__()
    data = mujoco.MjData(model)
    foot = model.geom("foot_geom").id
    errors = []
    for before, action, after in zip(
        file["obs"][rows], file["action"][rows], file["next_obs"][rows], strict=True
    ):
        if (abs(before[6:12]) == 10).any():
            continue
        model.geom_friction[foot, 0] = round(float(before[12]), 2)
        mujoco.mj_resetData(model, data)
        data.qpos, data.qvel, data.ctrl = before[:6], before[6:12], action
        mujoco.mj_step(model, data, 4)
        state = np.concatenate([data.qpos, data.qvel.clip(-10, 10)])
        errors.append(abs(state - after[:12]).max())
    assert len(errors) > 900
    assert max(errors) < 1e-4


def test_one_environment_is_a_gymnasium_environment() -> None:
    env = SingleEnv(ENVS["HalfCheetah-v4"](1))
    observation, _ = env.reset(seed=3)
    assert env.observation_space.contains(observation)
    env.action_space.seed(0)
    for time in range(1000):
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        assert not terminated
        assert truncated == (time == 999)
    again, _ = env.reset(seed=3)
    np.testing.assert_array_equal(again, ENVS["HalfCheetah-v4"](1).reset([3])[0])
