"""NeoRL-2's simulators compared with the published data, transition by transition."""

import json
from pathlib import Path

import mujoco
import numpy as np
import pytest

from benchmarks import neorl2_simulators
from benchmarks.neorl2_simulators import SIMULATORS, Recording, read_recording, replay
from envs.suites.neorl2 import DMSD, Pipeline, SafetyHalfCheetah
from envs.tasks import NATIVE
from envs.vector import VectorEnv


def read(data_dir: Path, name: str, episode_length: int) -> dict[str, np.ndarray]:
    """Return a file's columns [E, T, ...] with episodes of equal length; skip if it is missing."""
    path = data_dir / "neorl2" / name
    if not path.exists():
        pytest.skip(f"{name} does not exist")
    file = np.load(path)
    return {key: file[key].reshape(-1, episode_length, *file[key].shape[1:]) for key in file}


def build(task: str, num_envs: int, *, num_threads: int = 1) -> VectorEnv:
    if task == "neorl2/RocketRecovery":
        pytest.importorskip("Box2D", reason="RocketRecovery needs the extra [box2d]")
    return NATIVE[task](num_envs, num_threads=num_threads)


OPEN_LOOP = {  # maximum error of observations and of rewards; episodes (None: all)
    # DMSD's reward, ln(error + 0.01) of two masses, magnifies differences of 2e-7 up to 200 times.
    "DMSD-high-100000-train": (1e-6, 4e-5, None),
    "DMSD-high-20000-val": (1e-6, 4e-5, None),
    "Pipeline-high-100000-train": (0, 2e-6, 20),
    "Pipeline-high-20000-val": (0, 2e-6, None),
    "RocketRecovery-high-20000-val": (1e-4, 1e-2, None),
    "RandomFrictionHopper-high-20000-val": (1e-5, 1e-3, None),
    # Glucose up to 600 mg/dL: the pump rounds actions, which the files store in float32.
    "Simglucose-high-20000-val": (1e-3, 1e-5, 20),
    "Simglucose-high-100000-train": (5e-3, 1e-5, None),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.slow] * (n == "Simglucose-high-100000-train"))
        for n in OPEN_LOOP
    ],
)
def test_every_episode_is_reproduced_from_its_number(data_dir: Path, name: str) -> None:
    """Open loop: reset(n), then the recorded actions; compare observations, rewards and flags.

    Values that upstream draws without a seed (Pipeline's first target, the wind's phase) are read
    from the data.
    """
    task, limits = name.split("-")[0], OPEN_LOOP[name]
    path = data_dir / "neorl2" / task / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"{name} does not exist")
    data = read_recording(path, limits[2])
    env, seeds = SIMULATORS[task].find(build(f"neorl2/{task}", len(data.lengths)), data)
    errors = replay(env, seeds, data)
    env.close()
    assert errors.ends.all()
    assert errors.starts.max() <= max(limits[0], 1e-6)
    assert np.nanmax(errors.observations) <= limits[0]
    assert np.nanmax(errors.rewards) <= limits[1]
    assert np.isfinite(errors.rewards).sum() == data.lengths.sum()


def record(seeds: range) -> Recording:
    """Return random episodes of DMSD's simulator."""
    env, rng = DMSD(len(seeds)), np.random.default_rng(0)
    observations, columns = [env.reset(seeds)], []
    for _ in range(100):
        actions = rng.uniform(-1, 1, (len(seeds), 2)).astype(np.float32)
        step = env.step(actions)
        columns.append((actions, step.rewards, step.terminated, step.truncated))
        observations.append(step.observations)
    stacked = np.stack(observations, 1)
    actions, rewards, terminated, truncated = (
        np.stack(column, 1) for column in zip(*columns, strict=True)
    )
    lengths = np.full(len(seeds), 100)
    return Recording(
        stacked[:, :-1], actions, rewards, terminated, truncated, stacked[:, 1:], lengths
    )


def test_a_replay_reports_exactly_the_changed_values() -> None:
    data = record(range(3))
    errors = replay(DMSD(3), range(3), data)
    assert (errors.observations.max(), errors.rewards.max(), errors.ends.all()) == (0, 0, True)
    data.next_observations[0, 40, 1] += 0.5
    data.rewards[1, 7] -= 2
    data.terminated[2, 60] = True
    errors = replay(DMSD(3), range(3), data)
    assert np.argwhere(errors.observations > 0).tolist() == [[0, 40, 1]]
    assert np.argwhere(errors.rewards > 0).tolist() == [[1, 7]]
    assert errors.ends.tolist() == [True, True, False]
    assert np.isnan(errors.rewards[2]).tolist() == [False] * 61 + [True] * 39
    one_step = replay(DMSD(3), range(3), data, SIMULATORS["DMSD"].force)
    assert one_step.observations[0, 41, 1] > 0.1  # from the recorded position, not the simulated
    other_seeds = replay(DMSD(3), range(3, 6), record(range(3)))
    assert (other_seeds.starts.max(1) > 0).all()


def test_pipeline_flows_agree_with_data_of_varied_actions(data_dir: Path) -> None:
    """Compare episodes of good policies, with clipped gates; the targets come from the data.

    These flows were summed in float64, hence the tolerance (float32: 3e-4).
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


def test_the_table_is_written_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a file in NeoRL-2's layout with one velocity shifted by 0.25."""
    data = record(range(4))
    data.next_observations[..., 2] += 0.25
    path = tmp_path / "neorl2" / "DMSD" / "DMSD-high-20000-val.npz"
    path.parent.mkdir(parents=True)
    columns = {
        "obs": data.observations,
        "action": data.actions,
        "reward": data.rewards,
        "done": data.terminated,
        "truncated": data.truncated,
        "next_obs": data.next_observations,
    }
    rows = {name: np.float32(x.reshape(400, *x.shape[2:])) for name, x in columns.items()}
    np.savez(path, **rows)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OFFLINE_RL_DATA", str(tmp_path))
    neorl2_simulators.main(["tasks=DMSD"])
    results = tmp_path / "benchmarks" / "results"
    (row,) = json.loads((results / "neorl2-simulators.json").read_text())["results"]
    assert (row["episodes"], row["rows"], row["ends_alike"]) == (4, 400, 4)
    assert row["groups"]["velocities"]["episode_max"] == 0.25
    assert row["groups"]["positions"]["episode_max"] == 0
    assert (
        "| DMSD-high-20000-val.npz | velocities |" in (results / "neorl2-simulators.md").read_text()
    )


def test_speed_is_measured_with_resets() -> None:
    assert neorl2_simulators.steps_per_second("DMSD", 2, seconds=0.1) > 100


def test_a_change_of_pipelines_gate_arrives_nineteen_steps_later() -> None:
    env = Pipeline(1)
    before = env.reset([0])[0, 0]
    outflows = [env.step(np.ones((1, 1))).observations[0, 0] for _ in range(25)]
    assert outflows[18] == before
    np.testing.assert_allclose(outflows[19:22], before + np.array([1, 2, 3]), atol=1e-4)


def test_pipeline_targets_depend_on_the_seed_only() -> None:
    """Upstream's first target survives a reset; ours does not depend on the last episode."""
    env, fresh = Pipeline(1), Pipeline(1)
    targets = set()
    for seed in range(40):
        observation = env.reset([seed])
        env.step(np.zeros((1, 1)))
        np.testing.assert_array_equal(env.reset([seed]), observation)
        targets.add(observation[0, 1])
    np.testing.assert_array_equal(fresh.reset([39]), observation)
    assert targets == set(Pipeline.TARGETS)


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


def test_safety_half_cheetah_has_the_initial_states_of_its_data(data_dir: Path) -> None:
    """The two val episodes have seeds 3 and 14; the others exceeded the speed limit."""
    data = read(data_dir, "SafetyHalfCheetah/SafetyHalfCheetah-high-20000-val.npz", 1000)
    first = SafetyHalfCheetah(2).reset([3, 14])
    np.testing.assert_allclose(first, data["obs"][:, 0], atol=1e-6)


def test_a_step_above_the_speed_limit_gets_minus_100_without_termination() -> None:
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


@pytest.mark.parametrize("name", [n for n in NATIVE if n.startswith("neorl2/")])
def test_neighbors_and_threads_change_nothing(name: str) -> None:
    """Environment 20 of 33, with others at different times, equals a single one."""
    k, alone, crowd = 20, build(name, 1), build(name, 33, num_threads=2)
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(crowd.reset(range(33))[k], alone.reset([k])[0])
    for time in range(60):
        indices = np.arange(33) if time % 2 else np.arange(30, 5, -1)
        actions = rng.uniform(-1, 1, (33, alone.action_dim)).astype(np.float32)
        step, single = crowd.step(actions[indices], indices), alone.step(actions[[k]])
        row = list(indices).index(k)
        for ours, theirs in zip(step[:4], single[:4], strict=True):
            np.testing.assert_array_equal(ours[row], theirs[0])
        over = indices[step.terminated | step.truncated]
        if len(over):
            crowd.reset([100 * time + int(index) for index in over], over)
        if single.terminated[0] or single.truncated[0]:
            alone.reset([100 * time + k])
    alone.close()
    crowd.close()
