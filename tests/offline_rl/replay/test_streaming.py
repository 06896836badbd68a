"""Tests of streaming: data on the host gives the same batches as data on the device."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_data import save_small

from offline_rl.data import Dataset
from offline_rl.engine.engine import Engine
from offline_rl.replay.batch import Batch
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.streaming import Stream
from offline_rl.training.train import train
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_json
from offline_rl.utils.random import Random

SEEDS = [3, 5]


def dataset(rows: int = 400) -> Dataset:
    """Return episodes of 50 steps; every second one terminates, the others end without a next."""
    draw, t = np.random.default_rng(0), np.arange(rows)
    ends = t % 50 == 49
    terminated = ends & (t // 50 % 2 == 0)
    return Dataset.from_arrays(
        draw.normal(size=(rows, 3)),
        draw.uniform(-1, 1, (rows, 2)),
        draw.normal(size=rows),
        terminated,
        ends & ~terminated,
    )


def stream(data: Dataset, **keys: Any) -> Stream:
    return Stream(data, SEEDS, 8, normalize=lambda x: x, columns=further_columns(data), **keys)


def further_columns(data: Dataset) -> dict[str, np.ndarray]:
    return {"mc_returns": data.monte_carlo_returns(0.9), "steps": np.arange(data.num_rows) % 5 + 1}


def columns_of_batch(batch: Batch) -> set[str]:
    return {name for name, values in vars(batch).items() if values is not None}


@pytest.mark.parametrize("period", [1, 3])
def test_batches_are_the_replay_buffers(period: int):
    data = dataset()
    assert not data.usable.all()
    resident = ReplayBuffer.from_dataset(data, columns=further_columns(data))
    streamed = stream(data, period=period)
    for update in (0, 1, 62, 63, 64, 200, 12):  # on, over the edge of a window, and back
        streamed.prefetch(update)
        for s, seed in enumerate(SEEDS):
            now = [Random(torch.tensor(seed), torch.tensor(update)) for _ in range(2)]
            tensors = {k: v[0] for k, v in resident.tensors().items()}
            a = resident.sample(tensors, now[0], 8, 0.99)
            b = streamed.sample({k: v[s] for k, v in streamed.tensors().items()}, now[1], 8, 0.99)
            for name in columns_of_batch(a):
                assert torch.equal(getattr(a, name), getattr(b, name)), name
            assert columns_of_batch(a) == columns_of_batch(b) > {"mc_returns", "bootstrap_mask"}
            assert now[0].site == now[1].site


def test_a_batch_of_another_size_is_refused():
    with pytest.raises(ValueError, match="batches of 8 rows are streamed, not 9"):
        stream(dataset()).sample({}, Random(torch.tensor(0), torch.tensor(0)), 9, 0.99)


def options(folder: Path, **more: Any) -> dict[str, Any]:
    keys = {"algorithm": "td3_bc", "task": "neorl2/DMSD", "seeds": SEEDS, "num_updates": 100}
    keys |= {"dataset": str(save_small(folder / "small.npz")), "eval_episodes": 1}
    keys |= {"tracker": "none", "compile": "never", "algorithm.hidden": [8], "show": False}
    return keys | more


@pytest.mark.parametrize("seeds", [[3], [0, 3]], ids=["one seed", "two"])
def test_streamed_training_gives_the_same_parameters(tmp_path: Path, seeds: list[int]):
    runs = {
        how: train(**options(tmp_path, seeds=seeds, stream=how, out=str(tmp_path / how)))
        for how in ("always", "never")
    }
    a, b = (read_json(run.path / "seed_3" / "result.json") for run in runs.values())
    assert a["returns"] == b["returns"]


def test_data_that_does_not_fit_is_streamed_or_refused_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hardware, "free_memory", lambda device: 10_000)
    with pytest.raises(UserError, match=r"rows need .* rows would fit"):
        train(**options(tmp_path, stream="never", out=str(tmp_path / "a")))
    streams: list[Stream] = []
    monkeypatch.setattr(Stream, "prefetch", lambda self, update: streams.append(self))
    train(**options(tmp_path, out=str(tmp_path / "b")))
    assert streams
    online = options(tmp_path, algorithm="iql", num_env_steps=100, out=str(tmp_path / "c"))
    with pytest.raises(UserError, match="iql learns online, which does not work with streaming"):
        train(**online)


def test_out_of_memory_names_a_number_of_seeds_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def run(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Engine, "run", run)
    with pytest.raises(UserError, match=r"2 seeds in parallel .* 1 seeds at a time would need"):
        train(**options(tmp_path, out=str(tmp_path / "a")))


def test_a_row_needs_sixty_percent_of_one_that_stores_both_observations():
    """The comparison is D4RL's float32 columns: both observations, actions, rewards and flags."""
    for obs, act in ((11, 3), (17, 6), (29, 8)):
        rows = 10_000
        data = Dataset.from_arrays(
            np.zeros((rows, obs)),
            np.zeros((rows, act)),
            np.zeros(rows),
            np.zeros(rows, bool),
            np.arange(rows) % 1000 == 999,
            np.zeros((rows, obs)),
        )
        tensors = ReplayBuffer.from_dataset(data).tensors().values()
        size = sum(x.numel() * x.element_size() for x in tensors)
        assert size == ReplayBuffer.bytes_for(data) + 24  # and three counters
        assert size <= 0.6 * 4 * rows * (2 * obs + act + 3)
