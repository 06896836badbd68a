"""Tests of training on LeRobot's videos, which are decoded during training."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lerobot_videos import CAMERAS, with_videos

from offline_rl import Dataset, train
from offline_rl.algorithms.common.schedule import Learn
from offline_rl.data.containers import video
from offline_rl.data.containers.video import VideoFrames
from offline_rl.data.formats import lerobot
from offline_rl.data.load import load_dataset
from offline_rl.replay import paging
from offline_rl.replay.mixtures import Marked
from offline_rl.replay.paging import PagedBuffer
from offline_rl.training.sources import allocate_images, must_stream
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from policies import bundle

SMALL: dict[str, dict[str, Any]] = {
    "bc": {"hidden": [8]},
    "diffusion_policy": {
        "network": "mlp",
        "widths": [8],
        "time_size": 4,
        "num_train_timesteps": 5,
        "num_inference_steps": 5,
        "n_obs_steps": 2,
        "horizon": 4,
        "n_action_steps": 2,
        "num_warmup_updates": 1,
    },
}


def learn(data: Path | Dataset, out: Path, algorithm: str = "diffusion_policy", **more: Any) -> Any:
    keys = {"algorithm": algorithm, "task": "none", "num_updates": 4}
    keys |= {"dataset": data if isinstance(data, Dataset) else str(data)}
    keys |= {"batch_size": 6, "observation_keys": CAMERAS, "compile": "never", "device": "cpu"}
    keys |= {"tracker": "none", "show": False, "out": str(out), "algorithm.num_keypoints": 2}
    return train(**keys | {f"algorithm.{k}": v for k, v in SMALL[algorithm].items()} | more)


def weights(result: Any, seed: int = 0) -> dict[str, np.ndarray]:
    return dict(bundle.read(result.path / f"seed_{seed}" / "policy.bundle").weights)


def assert_equal(a: Any, b: Any, seeds: int = 1) -> None:
    for seed in range(seeds):
        expected, actual = weights(a, seed), weights(b, seed)
        assert expected.keys() == actual.keys()
        for name, values in expected.items():
            np.testing.assert_array_equal(values, actual[name])


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of images of each block that is decoded. A block is one update."""
    monkeypatch.setattr(paging, "BLOCK_BYTES", 0)
    gather, sizes = PagedBuffer.gather, list[int]()

    def record(self: PagedBuffer, rows: np.ndarray) -> None:
        sizes.append(len(rows))
        gather(self, rows)

    monkeypatch.setattr(PagedBuffer, "gather", record)
    return sizes


def test_a_streamed_run_gives_the_weights_of_a_run_on_decoded_images(
    tmp_path: Path, blocks: list[int]
):
    folder = with_videos(tmp_path / "a")
    keys: dict[str, Any] = {"observation_keys": CAMERAS[:2]}
    decoded = learn(folder, tmp_path / "never", "bc", stream="never", **keys)
    assert not blocks
    assert_equal(decoded, learn(folder, tmp_path / "always", "bc", stream="always", **keys))
    assert len(blocks) >= 4  # updates
    assert max(blocks) <= 6  # the batch: no next observations


@pytest.mark.slow
@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_chunks_from_streamed_videos_give_the_weights_of_decoded_images(
    tmp_path: Path, blocks: list[int], version: str
):
    folder = with_videos(tmp_path / "a", version)
    decoded, streamed = (
        learn(folder, tmp_path / how, stream=how, seeds=2) for how in ("never", "always")
    )
    assert_equal(decoded, streamed, seeds=2)
    assert blocks


@pytest.mark.slow
def test_a_video_that_is_damaged_during_training_stops_the_run_which_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: list[int]
):
    folder, keys = with_videos(tmp_path / "a"), {"stream": "always", "checkpoint_every": 1}
    expected = learn(folder, tmp_path / "whole", "bc", **keys)
    file = folder / "videos" / "observation.images.top" / "chunk-000" / "file-000.mp4"
    content, gather = file.read_bytes(), PagedBuffer.gather

    def damage(self: PagedBuffer, rows: np.ndarray) -> None:
        if len(blocks) == 3:
            file.write_bytes(content[:100] + bytes(len(content) - 100))
        gather(self, rows)

    blocks.clear()
    monkeypatch.setattr(video, "MAX_OPEN", 0)  # an open file may be in a buffer
    with monkeypatch.context() as patched:
        patched.setattr(PagedBuffer, "gather", damage)
        with pytest.raises(
            UserError, match=r"file-000\.mp4: the video cannot be decoded \(.*again"
        ):
            learn(folder, tmp_path / "stopped", "bc", **keys)
    file.write_bytes(content)
    blocks.clear()
    assert_equal(expected, learn(folder, tmp_path / "stopped", "bc", **keys))
    assert len(blocks) <= 3  # two of four updates, and a block that is not used


@pytest.mark.slow
def test_a_data_set_in_memory_is_streamed_too(tmp_path: Path, blocks: list[int]):
    folder = with_videos(tmp_path / "a")
    options: dict[str, Any] = {"observation_keys": CAMERAS[:2]}
    lazy = load_dataset(folder, stream="always", **options)
    decoded = load_dataset(folder, stream="never", **options)
    a, b = (
        learn(data, tmp_path / name, "bc", observation_keys=None)
        for name, data in (("lazy", lazy), ("decoded", decoded))
    )
    assert_equal(a, b)
    assert blocks


def test_videos_above_the_limit_are_streamed_and_smaller_ones_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder, cameras = with_videos(tmp_path / "a"), 2 * 10 * 16 * 20 * 3
    for limit, streams in ((cameras, False), (cameras - 1, True)):
        monkeypatch.setattr(lerobot, "DECODED_BYTES", limit)
        data = load_dataset(folder, observation_keys=CAMERAS)
        assert isinstance(data.observations["top"], VideoFrames) == streams
        assert any("decoded when they are used" in note for note in data.notes) == streams


def prepared(stream: str, **facts: Any) -> Any:
    """Return the parts of a prepared run that decide how its data is read."""
    run = SimpleNamespace(
        compute=SimpleNamespace(stream=stream),
        budget=SimpleNamespace(num_env_steps=facts.get("num_env_steps", 0)),
        method=SimpleNamespace(name="bc"),
    )
    learner = SimpleNamespace(dynamics_model=None, for_phase=lambda phase: learner)
    return SimpleNamespace(run=run, expert=None, learner=learner, schedule=[Learn("update", 1)])


def test_streamed_videos_are_decoded_first_if_the_run_cannot_stream_and_they_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    data = load_dataset(with_videos(tmp_path / "a"), observation_keys=CAMERAS, stream="always")
    cpu = torch.device("cpu")
    assert must_stream(prepared("auto"), data, cpu)
    assert not must_stream(prepared("never"), data, cpu)
    assert not must_stream(prepared("auto", num_env_steps=10), data, cpu)
    with pytest.raises(UserError, match="bc learns online, which does not work with streaming"):
        must_stream(prepared("always", num_env_steps=10), data, cpu)
    monkeypatch.setattr(hardware, "free_memory", lambda device: 1000)
    with pytest.raises(UserError, match="bc learns online, which does not work with streaming"):
        must_stream(prepared("auto", num_env_steps=10), data, cpu)


def test_a_source_that_combines_streamed_videos_with_other_rows_is_refused(tmp_path: Path):
    data = load_dataset(with_videos(tmp_path / "a"), observation_keys=CAMERAS, stream="always")
    run, buffer = prepared("always"), PagedBuffer(data, [0], 2, columns={})
    run.learner.source = lambda phase, sources: Marked(buffer, "demonstrations", 1.0)
    with pytest.raises(UserError, match=r"bc combines the data with other rows.*stream=never"):
        allocate_images(run, {"offline": buffer})
    buffer.close()
