"""Tests against other projects' libraries, if installed: they read and write the same data."""

import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from d4rl_files import save, two_episodes, with_next
from foreign_layouts import column, episodes, observations_after, observations_before, zipped
from test_ogbench_layout import trajectories
from test_zarr_layout import ENDS, assert_is_pusht, pusht

from offline_rl.data.read import read
from offline_rl.data.writers.minari import write_minari


def library(name: str) -> Any:
    """Import a library, or skip the test if it is missing."""
    return pytest.importorskip(name, reason=f"{name} cannot be imported", exc_type=ImportError)


@pytest.fixture
def minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return library("minari")


def test_minari_reads_what_we_write(tmp_path: Path, minari: Any):
    costs = np.arange(1003, dtype=np.float32)
    data = read(save(tmp_path / "a.hdf5", with_next(two_episodes()) | {"costs": costs}))
    write_minari(data, tmp_path / "own" / "hopper" / "mixed-v0", dataset_id="own/hopper/mixed-v0")
    assert "own/hopper/mixed-v0" in minari.list_local_datasets()
    loaded = minari.load_dataset("own/hopper/mixed-v0")
    assert (loaded.total_episodes, loaded.total_steps) == (2, 1003)
    spans = zip(data.episode_starts, data.episode_ends + 1, strict=True)
    for episode, (start, stop) in zip(loaded.iterate_episodes(), spans, strict=True):
        np.testing.assert_array_equal(episode.observations[:-1], data.observations[start:stop])
        np.testing.assert_array_equal(episode.observations[1:], data.next_observations[start:stop])
        np.testing.assert_array_equal(episode.actions, data.actions[start:stop])
        np.testing.assert_array_equal(episode.rewards, data.rewards[start:stop])
        np.testing.assert_array_equal(episode.terminations, data.terminated[start:stop])
        np.testing.assert_array_equal(episode.truncations, data.truncated[start:stop])
        np.testing.assert_array_equal(episode.infos["cost"][1:], costs[start:stop])
        assert loaded.observation_space.contains(episode.observations[-1])
        assert loaded.action_space.contains(episode.actions[0])
    assert len(loaded.filter_episodes(lambda episode: bool(episode.terminations[-1]))) == 1


def test_minari_reads_our_images_bit_for_bit(tmp_path: Path, minari: Any):
    from offline_rl.data import Dataset

    images = np.random.default_rng(0).integers(0, 256, (4, 32, 40, 3), dtype=np.uint8)
    ended = np.array([False, False, True])
    data = Dataset.from_arrays(
        images[:3], np.zeros((3, 2)), np.zeros(3), ended, next_observations=images[1:]
    )
    write_minari(data, tmp_path / "seen-v0")
    (episode,) = minari.load_dataset("seen-v0").iterate_episodes()
    np.testing.assert_array_equal(episode.observations, images)


def test_we_read_what_minari_writes(tmp_path: Path, minari: Any):
    theirs = library("minari.data_collector.episode_buffer")
    all_episodes = episodes([3, 1, 4, 2, 5, 2, 2, 3, 1, 2, 6], obs=5)
    buffers = [
        theirs.EpisodeBuffer(
            observations={"goal": e["observations"][:, :2], "pos": e["observations"][:, 2:]},
            actions=e["actions"] * 3,
            rewards=list(e["rewards"]),
            terminations=list(e["terminations"]),
            truncations=list(e["truncations"]),
            infos={"cost": np.arange(len(e["rewards"]) + 1.0)},
        )
        for e in all_episodes
    ]
    space = gymnasium.spaces.Dict(
        pos=gymnasium.spaces.Box(-9, 9, (3,)), goal=gymnasium.spaces.Box(-9, 9, (2,))
    )
    limits = gymnasium.spaces.Box(-3, 3, (2,), np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on metadata it would like to have
        minari.create_dataset_from_buffers(
            "theirs/x-v0", buffers, observation_space=space, action_space=limits
        )
    data = read(tmp_path / "theirs" / "x-v0")
    np.testing.assert_array_equal(
        data.observations[: data.num_rows], observations_before(all_episodes)
    )
    np.testing.assert_array_equal(data.next_observations, observations_after(all_episodes))
    np.testing.assert_allclose(data.actions, column(all_episodes, "actions"), atol=1e-6)
    np.testing.assert_array_equal(data.rewards, column(all_episodes, "rewards").astype(np.float32))
    np.testing.assert_array_equal(data.terminated, column(all_episodes, "terminations"))
    np.testing.assert_array_equal(data.truncated, column(all_episodes, "truncations"))
    assert data.extras["costs"][:4].tolist() == [1, 2, 3, 1]


def test_images_written_by_minari_are_read_as_minari_reads_them(tmp_path: Path, minari: Any):
    theirs = library("minari.data_collector.episode_buffer")
    images = np.random.default_rng(0).integers(0, 256, (4, 32, 40, 3), dtype=np.uint8)
    buffer = theirs.EpisodeBuffer(
        observations=list(images),
        actions=np.zeros((3, 2), np.float32),
        rewards=[0.0] * 3,
        terminations=[False, False, True],
        truncations=[False] * 3,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = minari.create_dataset_from_buffers(
            "seen-v0",
            [buffer],
            observation_space=gymnasium.spaces.Box(0, 255, (32, 40, 3), np.uint8),
            action_space=gymnasium.spaces.Box(-1, 1, (2,), np.float32),
        )
    (episode,) = dataset.iterate_episodes()
    data = read(tmp_path / "seen-v0")
    np.testing.assert_array_equal(data.observations[:3], episode.observations[:3])
    np.testing.assert_array_equal(data.next_observations, episode.observations[1:])


def test_we_read_what_lerobot_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    written = library("lerobot.datasets.lerobot_dataset")
    vector = {"dtype": "float32", "names": None}
    flag = {"dtype": "bool", "shape": (1,), "names": None}
    features = {
        "observation.state": vector | {"shape": (3,)},
        "observation.image": {"dtype": "image", "shape": (16, 20, 3), "names": ["h", "w", "c"]},
        "action": vector | {"shape": (2,)},
        "next.reward": vector | {"shape": (1,)},
        "next.done": flag,
        "next.success": flag,
    }
    dataset = written.LeRobotDataset.create(
        "me/x", fps=10, features=features, root=tmp_path / "x", use_videos=False
    )
    rng, frames = np.random.default_rng(0), []
    for number, steps in enumerate((3, 5)):
        for step in range(steps):
            last = step == steps - 1
            frame = {
                "observation.state": rng.normal(size=3).astype(np.float32),
                "observation.image": rng.integers(0, 256, (16, 20, 3), dtype=np.uint8),
                "action": rng.uniform(-1, 1, 2).astype(np.float32),
                "next.reward": rng.normal(size=1).astype(np.float32),
                "next.done": np.array([last]),
                "next.success": np.array([last and number == 0]),
            }
            frames.append(frame)
            dataset.add_frame({**frame, "task": "push"})
        dataset.save_episode()
    dataset.finalize()
    data = read(tmp_path / "x")
    expected = {key: np.stack([frame[key] for frame in frames]) for key in features}
    np.testing.assert_array_equal(data.observations, expected["observation.state"])
    np.testing.assert_array_equal(data.actions, expected["action"])
    np.testing.assert_array_equal(data.rewards, expected["next.reward"][:, 0])
    assert np.flatnonzero(data.terminated).tolist() == [2]
    assert np.flatnonzero(data.truncated).tolist() == [7]
    images = read(tmp_path / "x", observation_keys=["observation.image"])
    np.testing.assert_array_equal(images.observations, expected["observation.image"])


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize("version", [2, 3])
def test_we_read_what_zarr_writes(tmp_path: Path, archive: bool, version: int):
    zarr, arrays = library("zarr"), pusht()
    path = tmp_path / "a.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=version)
    for key, array in arrays.items():
        group.create_array(key, data=array, chunks=(4, *array.shape[1:]))
    assert arrays["meta/episode_ends"].tolist() == ENDS
    path = zipped(path, tmp_path / "a.zarr.zip") if archive else path
    assert_is_pusht(read(path, action_range=[0, 512]), arrays)


def test_ogbench_reads_the_same_transitions(tmp_path: Path):
    utils = library("ogbench.utils")
    path = save(tmp_path / "antmaze-v0.npz", trajectories())
    theirs, ours = utils.load_dataset(str(path), add_info=True), read(path, infos=True)
    np.testing.assert_array_equal(ours.observations[: ours.num_rows], theirs["observations"])
    np.testing.assert_array_equal(ours.next_observations, theirs["next_observations"])
    np.testing.assert_array_equal(ours.actions, theirs["actions"])
    np.testing.assert_array_equal(ours.truncated, theirs["terminals"] != 0)
    np.testing.assert_array_equal(ours.extras["infos/qpos"], theirs["qpos"])
