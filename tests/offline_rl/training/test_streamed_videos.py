"""Tests of training on LeRobot's videos, which are decoded during training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot_videos import CAMERAS, with_videos

from offline_rl import train
from offline_rl.data.containers.video import VideoFrames
from offline_rl.data.formats import lerobot
from offline_rl.data.load import load_dataset
from offline_rl.replay.paging import PagedBuffer
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


def learn(folder: Path, out: Path, algorithm: str = "diffusion_policy", **more: Any) -> Any:
    keys = {"algorithm": algorithm, "task": "none", "dataset": str(folder), "num_updates": 4}
    keys |= {"batch_size": 6, "observation_keys": CAMERAS, "compile": "never", "device": "cpu"}
    keys |= {"tracker": "none", "show": False, "out": str(out), "algorithm.num_keypoints": 2}
    return train(**keys | {f"algorithm.{k}": v for k, v in SMALL[algorithm].items()} | more)


def weights(result: Any, seed: int = 0) -> dict[str, np.ndarray]:
    return dict(bundle.read(result.path / f"seed_{seed}" / "policy.bundle").weights)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize("algorithm", SMALL)
def test_a_streamed_run_gives_the_weights_of_a_run_on_decoded_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, algorithm: str
):
    folder, blocks = with_videos(tmp_path / "a", version), list[int]()
    gather = PagedBuffer.gather
    monkeypatch.setattr(
        PagedBuffer, "gather", lambda self, rows: (blocks.append(len(rows)), gather(self, rows))[1]
    )
    decoded = learn(folder, tmp_path / "never", algorithm, stream="never", seeds=2)
    assert not blocks
    streamed = learn(folder, tmp_path / "always", algorithm, stream="always", seeds=2)
    assert blocks
    for seed in range(2):
        expected, actual = weights(decoded, seed), weights(streamed, seed)
        assert expected.keys() == actual.keys()
        for name, values in expected.items():
            np.testing.assert_array_equal(values, actual[name])


def test_videos_above_the_limit_are_streamed_and_smaller_ones_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder, cameras = with_videos(tmp_path / "a"), 2 * 10 * 16 * 20 * 3
    for limit, streams in ((cameras, False), (cameras - 1, True)):
        monkeypatch.setattr(lerobot, "DECODED_BYTES", limit)
        data = load_dataset(folder, observation_keys=CAMERAS)
        assert isinstance(data.observations["top"], VideoFrames) == streams
        assert any("decoded when they are used" in note for note in data.notes) == streams
