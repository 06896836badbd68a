"""The combination lock: its rules, observations, data and the value of random choices."""

import numpy as np
import pytest

import envs
from envs.experts.lock import LockExpert
from envs.suites.lock import Lock, hadamard, probabilities
from envs.tasks import NATIVE


def lock(num_envs: int, horizon: int = 5) -> Lock:
    made = NATIVE[f"lock/{horizon}"](num_envs)
    assert isinstance(made, Lock)
    return made


def returns(env: Lock, exploration: float) -> np.ndarray:
    actor, everyone = LockExpert(env, exploration), np.arange(env.num_envs)
    observations, total = env.reset(range(env.num_envs)), np.zeros(env.num_envs)
    for t in range(env.max_episode_steps):
        step = env.step(actor(observations, everyone))
        assert step.terminated.all() == (t == env.max_episode_steps - 1)
        assert not step.truncated.any()
        observations, total = step.observations, total + step.rewards
    return total


def test_a_one_hot_action_makes_its_choice_almost_surely():
    """The odds of a softmax with temperature 0.1 over [0, 1] are e^10 to 1."""
    actions = np.full((1, 10), -1.0)
    actions[0, 3] = 1
    assert probabilities(actions)[0, 3] == pytest.approx(np.exp(10) / (np.exp(10) + 9), rel=1e-12)


def test_correct_choices_open_the_lock_and_random_ones_do_not():
    """Correct: (1 - 9 e^-10)^5. Random: 1e-5 plus 0.1 / 2 for the last choice."""
    env = lock(4000)
    assert returns(env, 0.0).mean() == pytest.approx(1.0, abs=0.005)
    assert returns(env, 1.0).mean() == pytest.approx(0.05, abs=0.004)


def test_the_behavior_data_open_about_a_third_of_the_locks():
    """A random action is correct with probability 1/10: (1 - 0.9 / H)^H of the episodes."""
    for horizon, expected in ((5, 0.82**5), (10, 0.91**10)):
        solved = (returns(lock(4000, horizon), 1 / horizon) == 1).mean()
        assert solved == pytest.approx(expected, abs=0.03)


def test_one_wrong_choice_locks_the_rest_of_the_episode():
    env = lock(200)
    env.reset(range(200))
    wrong = np.full((200, 10), -1.0)
    wrong[np.arange(200), (env.correct[env.states, 0] + 1) % 10] = 1
    env.step(wrong)
    assert (env.states == 2).mean() > 0.98
    fallen = env.states == 2
    for t in range(1, 5):
        best = np.where(np.arange(10) == env.correct[0, t], 1.0, -1.0)
        step = env.step(np.tile(best, (200, 1)))
    assert step.rewards[fallen].max() == pytest.approx(0.1)


@pytest.mark.parametrize(("horizon", "size"), [(5, 16), (10, 16), (15, 32)])
def test_the_observation_is_the_rotated_code_of_state_and_step(horizon: int, size: int):
    """Hadamard's matrix is its own inverse, times its size: 2^ceil(log2(H + 4)) numbers."""
    env = lock(300, horizon)
    observations = env.reset(range(300)).astype(np.float64)
    assert observations.shape == (300, size)
    code = observations @ hadamard(size) / size
    code[np.arange(300), env.states] -= 1
    code[:, 3] -= 1
    assert code[:, : horizon + 3].std() == pytest.approx(0.1, abs=0.01)
    assert np.abs(code[:, horizon + 3 :]).max(initial=0) < 1e-5


def test_an_episode_depends_on_its_seed_and_actions_only():
    alone, among = lock(1), lock(3)
    first = alone.reset([7])
    assert np.array_equal(first[0], among.reset([1, 7, 2])[1])
    actions = np.random.default_rng(0).uniform(-1, 1, (3, 10))
    assert np.array_equal(
        alone.step(actions[1:2]).observations[0], among.step(actions).observations[1]
    )


def test_data_and_environment_have_the_same_task():
    for horizon in (5, 10, 15):
        task = envs.task(f"lock/{horizon}")
        assert task.env_id == f"lock/{horizon}"
        assert task.max_episode_steps == horizon
        assert task.score([1.0])[0] == 100


def test_each_step_has_its_own_code_and_noise():
    """The code has 1 at the state and at 3 + step. The noise of two steps is uncorrelated."""
    env, rows = lock(400), np.arange(400)
    observed, noise = env.reset(range(400)), []
    for t in range(5):
        code = observed.astype(np.float64) @ hadamard(16) / 16
        code[rows, env.states] -= 1
        code[:, 3 + t] -= 1
        assert code[:, :8].std() == pytest.approx(0.1, abs=0.01)
        noise.append(code[:, :8].ravel())
        observed = env.step(np.tile(np.eye(10)[env.correct[0, t]] * 2 - 1, (400, 1))).observations
    correlation = np.corrcoef(noise) - np.eye(5)
    assert np.abs(correlation).max() < 0.1


def test_a_correct_choice_leads_to_either_good_state_with_equal_probability():
    env = lock(2000)
    env.reset(range(2000))
    for t in range(3):
        before = np.minimum(env.states, 1)  # hardly any choice is wrong
        env.step(np.eye(10)[env.correct[before, t]] * 2 - 1)
        assert (env.states < 2).mean() > 0.98
        assert (env.states == before).mean() == pytest.approx(0.5, abs=0.06)


def test_the_expert_in_the_bad_state_acts_as_in_the_second_good_state():
    env = lock(2)
    env.reset([0, 1])
    env.states[:] = 2, 1
    actions = LockExpert(env, 0.0)(np.zeros((2, 16)), np.arange(2))
    assert actions.argmax(1).tolist() == [env.correct[1, 0]] * 2
    assert env.correct[0, 0] != env.correct[1, 0]


def test_only_a_lock_that_opens_in_the_last_step_is_a_success():
    env, everyone = lock(100), np.arange(100)
    actor, observations = LockExpert(env, 0.0), env.reset(range(100))
    for t in range(5):
        step = env.step(actor(observations, everyone))
        assert np.array_equal(step.infos["success"], step.rewards == 1)
        assert step.infos["success"].any() == (t == 4)
