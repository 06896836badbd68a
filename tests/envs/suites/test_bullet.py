"""Bullet-Safety-Gym's tasks; they need packages that are no extra, see envs/suites/bullet.py."""

import sys
from importlib.util import find_spec

import gymnasium
import numpy as np
import pytest

import envs
from envs.suites.bullet import ENVS, INSTALL, TASKS, real_streams

SHAPES = {"Ant": (33, 8), "Ball": (7, 2), "Car": (7, 2), "Drone": (17, 4)}  # of Run; DSRL's


def test_without_the_package_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bullet_safety_gym", None)
    with pytest.raises(ValueError, match="bullet/BallRun needs bullet_safety_gym") as error:
        envs.make_vector("dsrl_data:BallRun", 2)
    assert str(error.value).endswith(INSTALL)


needs_package = pytest.mark.skipif(
    find_spec("bullet_safety_gym") is None, reason=f"needs {INSTALL}"
)


@needs_package
@pytest.mark.parametrize("task", ["BallCircle", "CarRun"])
def test_the_physics_is_that_of_the_package(task: str) -> None:
    env = ENVS[f"bullet/{task}"](1)
    ours = env.reset([5])
    with real_streams():
        theirs = gymnasium.make(f"Safety{task}-v0", disable_env_checker=True).unwrapped
    np.random.seed(5)  # noqa: NPY002
    np.testing.assert_array_equal(ours[0], theirs.reset()[0].astype(np.float32))
    for action in np.random.default_rng(1).uniform(-1, 1, (30, 1, 2)).astype(np.float32):
        step = env.step(action)
        observation, reward, _, _, info = theirs.step(action[0])
        np.testing.assert_array_equal(step.observations[0], observation.astype(np.float32))
        assert step.rewards[0] == reward
        assert step.infos["cost"][0] == info["cost"]
    env.close()


@needs_package
@pytest.mark.parametrize("task", TASKS)
def test_a_seed_determines_an_episode_of_dsrls_shapes(task: str) -> None:
    env = ENVS[f"bullet/{task}"](2)
    observation_dim, action_dim = SHAPES[task.removesuffix("Run").removesuffix("Circle")]
    width = observation_dim + task.endswith("Circle")
    actions = np.random.default_rng(0).uniform(-1, 1, (8, 2, action_dim))
    episodes = []
    for seeds in ([1, 2], [2, 1], [1, 2]):
        rows = [env.reset(seeds)]
        assert rows[0].shape == (2, width)
        for action in actions:
            step = env.step(action if seeds[0] == 1 else action[::-1])
            assert np.isin(step.infos["cost"], (0, 1)).all()
            rows.append(step.observations)
            if (step.terminated | step.truncated).any():
                break
        episodes.append(np.stack(rows))
    first, swapped, again = episodes
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, swapped[:, ::-1])
    assert envs.task(f"dsrl_data:{task}").cost_limits == (10, 20, 40)
    env.close()
