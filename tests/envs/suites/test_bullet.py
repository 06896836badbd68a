"""Bullet-Safety-Gym's tasks; they need packages that are no extra, see envs/suites/bullet.py."""

import sys
from importlib.util import find_spec

import numpy as np
import pytest

import envs
from envs.suites.bullet import ENVS, INSTALL, TASKS

SHAPES = {"Ant": (33, 8), "Ball": (7, 2), "Car": (7, 2), "Drone": (17, 4)}  # of Run; DSRL's


def test_without_the_package_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bullet_safety_gym", None)
    with pytest.raises(ValueError, match="bullet/BallRun needs bullet_safety_gym") as error:
        envs.make_vector("dsrl_data:BallRun", 2)
    assert str(error.value).endswith(INSTALL)


@pytest.mark.skipif(find_spec("bullet_safety_gym") is None, reason=f"needs {INSTALL}")
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
    np.testing.assert_allclose(first, swapped[:, ::-1], atol=1e-5)
    assert envs.task(f"dsrl_data:{task}").cost_limits == (10, 20, 40)
    env.close()
