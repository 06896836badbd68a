"""Fetch's observation and experts, and environments of other packages, if installed."""

import sys
from importlib.util import find_spec

import gymnasium
import numpy as np
import pytest

import envs
from envs.experts.cube import CubeExpert
from envs.experts.fetch import FetchExpert
from envs.suites.gymnasium_robotics import Fetch

pytestmark = pytest.mark.filterwarnings("ignore")


def needs(package: str) -> pytest.MarkDecorator:
    reason = f"{package} is not installed"
    return pytest.mark.skipif(find_spec(package) is None, reason=reason)


def final_success(name: str, skill: float, count: int = 12) -> float:
    env = Fetch(count, name=name)
    expert, observations = FetchExpert(env, skill, seed=0), env.reset(range(count))
    for _ in range(50):
        step = env.step(expert(observations, np.arange(count)))
        observations = step.observations
    assert step.truncated.all()
    return float(step.infos["is_success"].mean())


@needs("gymnasium_robotics")
@pytest.mark.parametrize("name", ["reach", "push", "pick-and-place"])
def test_the_expert_ends_at_the_goal(name: str):
    assert final_success(name, 1.0) >= 0.95


@needs("gymnasium_robotics")
def test_less_skill_succeeds_less():
    assert final_success("reach", 0.4, 24) < 0.8


@needs("ogbench")
def test_the_expert_places_the_cube_at_the_goal():
    def share(skill: float) -> float:
        env = envs.make_vector("ogbench/cube-single", 10)
        expert, observations = CubeExpert(env, skill), env.reset(range(10))
        running, success = np.arange(10), np.zeros(10, bool)
        while len(running):
            step = env.step(expert(observations[running], running), running)
            success[running] |= step.infos["success"].astype(bool)
            observations[running] = step.observations
            running = running[~(step.terminated | step.truncated)]
        return float(success.mean())

    assert share(1.0) >= 0.95
    assert share(0.4) <= 0.8


@needs("gymnasium_robotics")
def test_the_observation_is_the_librarys_followed_by_the_goal():
    env = envs.make_vector("fetch/push-expert", 1)
    theirs = gymnasium.make("FetchPush-v4").unwrapped
    before, _ = theirs.reset(seed=7)
    joined = np.concatenate([before["observation"], before["desired_goal"]])
    np.testing.assert_allclose(env.reset([7])[0], joined, rtol=1e-6)
    action = np.array([0.3, -0.2, 0.1, 0.0])
    after, reward, *_ = theirs.step(action)
    step = env.step(action[None])
    np.testing.assert_allclose(
        step.observations[0, :25], after["observation"], rtol=1e-4, atol=1e-6
    )
    assert step.rewards[0] == reward


@pytest.mark.parametrize(
    ("name", "package", "size", "extra"),
    [
        ("pusht", "gym_pusht", (5, 2), "pusht"),
        ("ogbench/cube-single", "ogbench", (28, 5), "ogbench"),
    ],
)
def test_environments_of_other_packages(name, package, size, extra, monkeypatch):
    if find_spec(package) is not None:
        env = envs.make_vector(name, 2)
        first = env.reset([0, 0])
        assert (first.shape[1], env.action_dim) == size
        np.testing.assert_array_equal(first[0], first[1])
        step = env.step(np.zeros((2, env.action_dim)))
        assert step.infos.keys() & {"success", "is_success"}
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=rf"extra \[{extra}\]"):
        envs.make_vector(name, 1)


def test_an_environments_name_is_a_task():
    task = envs.task("Hopper-v4")
    assert (task.env_id, task.card, task.max_episode_steps) == ("Hopper-v4", None, 1000)
    assert envs.task("push/long").max_episode_steps == 150
    assert envs.task("fetch/push").max_episode_steps == 50
    assert "push/long" in envs.names()
