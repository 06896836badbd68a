"""The NeoRL-2 simulators against the published data, transition by transition."""

from pathlib import Path

import mujoco
import numpy as np
import pytest

from envs.neorl2 import DMSD, ENVS, Pipeline, SafetyHalfCheetah


def read(data_dir: Path, name: str, episode_length: int) -> dict[str, np.ndarray]:
    """A file's columns [E, T, ...], its episodes being equally long. Skips where it is absent."""
    path = data_dir / "neorl2" / name
    if not path.exists():
        pytest.skip(f"{name} is not there")
    file = np.load(path)
    return {key: file[key].reshape(-1, episode_length, *file[key].shape[1:]) for key in file}


@pytest.mark.parametrize("split", ["100000-train", "20000-val"])
def test_dmsd_reproduces_every_episode_from_its_number(data_dir: Path, split: str) -> None:
    """Open loop: reset(n), then the recorded actions.

    The reward, ln(error + 0.01) of two masses, magnifies differences of 2e-7 up to 200 times.
    """
    data = read(data_dir, f"DMSD/DMSD-high-{split}.npz", 100)
    env = DMSD(len(data["obs"]))
    np.testing.assert_allclose(env.reset(range(env.num_envs)), data["obs"][:, 0], atol=1e-6)
    for time in range(100):
        step = env.step(data["action"][:, time])
        np.testing.assert_allclose(step.observations, data["next_obs"][:, time], atol=1e-6)
        np.testing.assert_allclose(step.rewards, data["reward"][:, time], atol=4e-5)
        assert not step.terminated.any()
        assert (step.truncated == (time == 99)).all()


@pytest.mark.parametrize("split", ["100000-train", "20000-val"])
def test_pipeline_reproduces_every_episode_from_its_number(data_dir: Path, split: str) -> None:
    """Open loop in float32. Each first target is read: upstream draws it without a seed."""
    data = read(data_dir, f"Pipeline/Pipeline-high-{split}.npz", 1000)
    env = Pipeline(len(data["obs"]))
    first = env.reset(range(env.num_envs))
    others = np.delete(np.arange(52), 1)
    np.testing.assert_array_equal(first[:, others], data["obs"][:, 0, others])
    env._observation[:, 1] = data["obs"][:, 0, 1]
    for time in range(1000):
        step = env.step(data["action"][:, time])
        np.testing.assert_array_equal(step.observations, data["next_obs"][:, time])
        np.testing.assert_allclose(step.rewards, data["reward"][:, time], atol=2e-6)
        assert not step.terminated.any()
        assert (step.truncated == (time == 999)).all()


def test_pipeline_flows_follow_data_of_lively_actions(data_dir: Path) -> None:
    """Episodes of good policies, with clipped gates; the targets come from the data.

    Those flows were summed in float64, hence the tolerance (float32: 3e-4).
    """
    data = read(data_dir, "Pipeline/Pipeline-substitute-val.npz", 1000)
    env = Pipeline(len(data["obs"]))
    env.reset(range(env.num_envs))
    env._observation[:] = data["obs"][:, 0]
    env._gate[:] = data["obs"][:, 0, :1]
    flows = np.delete(np.arange(52), 1)
    for time in range(1000):
        step = env.step(data["action"][:, time])
        difference = abs(step.observations - data["next_obs"][:, time])[:, flows]
        assert difference.max() < 1e-3
        env._observation[:, 1] = data["next_obs"][:, time, 1]


def test_a_pipeline_gate_is_felt_nineteen_steps_later() -> None:
    env = Pipeline(1)
    before = env.reset([0])[0, 0]
    outflows = [env.step(np.ones((1, 1))).observations[0, 0] for _ in range(25)]
    assert outflows[18] == before
    np.testing.assert_allclose(outflows[19:22], before + np.array([1, 2, 3]), atol=1e-4)


def test_pipeline_targets_depend_on_the_seed_only() -> None:
    """Upstream's first target survives a reset; ours must not depend on the last episode."""
    env, fresh = Pipeline(1), Pipeline(1)
    seen = set()
    for seed in range(40):
        observation = env.reset([seed])
        env.step(np.zeros((1, 1)))
        np.testing.assert_array_equal(env.reset([seed]), observation)
        seen.add(observation[0, 1])
    np.testing.assert_array_equal(fresh.reset([39]), observation)
    assert seen == set(Pipeline.TARGETS)


@pytest.mark.parametrize("split", ["100000-train", "20000-val"])
def test_safety_half_cheetah_agrees_step_by_step(data_dir: Path, split: str) -> None:
    """One step from every 20th recorded state (open loop is chaotic on recent MuJoCo)."""
    data = read(data_dir, f"SafetyHalfCheetah/SafetyHalfCheetah-high-{split}.npz", 1000)
    obs, after = (data[key][:, ::20].reshape(-1, 18) for key in ("obs", "next_obs"))
    env = SafetyHalfCheetah(len(obs))
    env.reset([0] * len(obs))
    for sim, state in zip(env._data, obs, strict=True):
        sim.qpos, sim.qvel = state[:9], state[9:]
        mujoco.mj_forward(env.model, sim)
    env._read(np.arange(len(obs)))
    step = env.step(data["action"][:, ::20].reshape(-1, 6))
    np.testing.assert_allclose(step.observations[:, :9], after[:, :9], atol=1e-4)
    np.testing.assert_allclose(step.observations[:, 9:], after[:, 9:], atol=1e-2)
    np.testing.assert_allclose(step.rewards, data["reward"][:, ::20].reshape(-1), atol=1e-3)


def test_safety_half_cheetah_resets_as_its_data(data_dir: Path) -> None:
    """The two val episodes are those of seeds 3 and 14: the others broke the speed limit."""
    data = read(data_dir, "SafetyHalfCheetah/SafetyHalfCheetah-high-20000-val.npz", 1000)
    first = SafetyHalfCheetah(2).reset([3, 14])
    np.testing.assert_allclose(first, data["obs"][:, 0], atol=1e-6)


def test_a_step_above_the_speed_limit_is_paid_minus_hundred_and_ends_nothing() -> None:
    env = SafetyHalfCheetah(2)
    env.reset([0, 1])
    env._data[0].qvel[0] = 8.0
    actions = np.full((2, 6), 0.5)
    step = env.step(actions)
    assert step.infos["x_velocity"][0] > 3.2096 > step.infos["x_velocity"][1]
    assert step.rewards[0] == -100
    assert step.rewards[1] == pytest.approx(step.infos["x_velocity"][1] - 0.1 * 6 * 0.25)
    assert step.infos["cost"].tolist() == [1, 0]
    assert not step.terminated.any()


@pytest.mark.parametrize("name", ENVS)
def test_neighbours_change_nothing(name: str) -> None:
    alone, crowd = ENVS[name](1), ENVS[name](3)
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(crowd.reset([4, 5, 6])[1:2], alone.reset([5]))
    for time in range(60):
        indices = np.array([1, 2]) if time % 2 else np.array([0, 1])
        actions = rng.uniform(-1, 1, (2, alone.action_dim))
        row = 0 if time % 2 else 1
        step, single = crowd.step(actions, indices), alone.step(actions[row : row + 1])
        np.testing.assert_array_equal(step.observations[row], single.observations[0])
        assert step.rewards[row] == single.rewards[0]
