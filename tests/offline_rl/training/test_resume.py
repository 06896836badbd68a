"""A run killed at any time after its first checkpoint ends like an uninterrupted one."""

import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from small_data import save_small

from offline_rl.algorithms.common.models.rollouts import ModelBased
from offline_rl.engine.engine import Engine
from offline_rl.runs.folder import SeedFolder
from offline_rl.training.train import train

OFFLINE = {
    "algorithm": "td3_bc",
    "task": "neorl2/DMSD",
    "num_updates": 600,
    "checkpoint_every": 60,
    "eval_every": 210,
}
ONLINE = {
    "algorithm": "sac",
    "task": "env:Pendulum-v1",
    "num_updates": 0,
    "num_env_steps": 600,
    "checkpoint_every": 110,  # in the middle of episodes of 200 steps
    "eval_every": 300,
    "online.warmup_steps": 200,
}
CHUNKS = {
    "algorithm": "qc",
    "task": "env:Pendulum-v1",
    "num_updates": 60,
    "num_env_steps": 452,
    "checkpoint_every": 113,  # in the middle of chunks of 5 steps
    "eval_every": 300,
    "online.warmup_steps": 50,
    "algorithm.num_samples": 3,
}
COMMON = {
    "seeds": [0, 5],
    "eval_episodes": 1,
    "batch_size": 32,
    "compile": "never",
    "tracker": "none",
    "algorithm.hidden": [16, 16],
    "device": "cpu",
}


def data_file(folder: Path, obs: int, act: int) -> Path:
    draw, rows = np.random.default_rng(0), 500
    columns = {
        "obs": draw.normal(size=(rows, obs)),
        "next_obs": draw.normal(size=(rows, obs)),
        "action": draw.uniform(-1, 1, (rows, act)),
        "reward": draw.normal(size=rows),
        "done": np.zeros(rows),
        "truncated": np.arange(rows) % 100 == 99,
    }
    columns["next_obs"][:-1] = columns["obs"][1:]
    path = folder / "data.npz"
    np.savez(path, **{k: v.astype(np.float32) for k, v in columns.items()})
    return path


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(OFFLINE, id="offline"),
        pytest.param(ONLINE, id="online", marks=pytest.mark.slow),
        pytest.param(CHUNKS, id="chunks", marks=pytest.mark.slow),
    ],
)
def test_a_killed_and_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, options: dict):
    keys = COMMON | options
    if "data" not in keys and keys["num_updates"]:
        size = (6, 2) if keys["task"] == OFFLINE["task"] else (3, 1)
        keys["dataset"] = str(data_file(tmp_path, *size))
    train(show=False, **keys, out=str(tmp_path / "whole"))
    keys["out"] = str(tmp_path / "killed")
    code = f"from offline_rl import train; train(show=False, **{keys!r})"
    killed = False
    for _ in range(
        5
    ):  # repeat until a process is killed at a random time after its first checkpoint
        shutil.rmtree(tmp_path / "killed", ignore_errors=True)
        process = subprocess.Popen([sys.executable, "-c", code])
        if not wait_for_checkpoint(process, tmp_path / "killed", random.randint(1, 120)):
            continue
        time.sleep(random.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        killed = process.wait() == -signal.SIGKILL
        killed = killed and not list((tmp_path / "killed").rglob("result.json"))
        if killed:
            break
    assert killed, "the run ended before it could be killed"
    result = train(show=False, **keys)
    run = result.path.relative_to(tmp_path / "killed")
    assert_equal_runs(*(tmp_path / w / run for w in ("whole", "killed")))


def assert_equal_runs(*paths: Path, logs: Sequence[str] = ("evaluations", "metrics")) -> None:
    """Assert that two runs ended with the same checkpoint and have the same logs, except times."""
    for seed in COMMON["seeds"]:
        one, two = (SeedFolder(path, seed) for path in paths)
        name = max(one.checkpoints())
        a, b = load_file(one.checkpoints()[name]), load_file(two.checkpoints()[name])
        assert a.keys() == b.keys()
        for key in a:
            assert (a[key] == b[key]).all(), key
        for log in logs:
            timeless = [
                [{k: v for k, v in row.items() if "second" not in k} for row in f.rows(log)]
                for f in (one, two)
            ]
            assert timeless[0] == timeless[1]


@pytest.mark.slow
def test_a_model_based_run_resumes_within_its_fit_and_between_two_rollouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ctrl_c: None
):
    """Ctrl-C comes in the second epoch, at the end of the fit, between two fills, and later.

    The fit ends after the second of its six epochs, which have 8 updates and a validation each.
    """
    keys: dict[str, Any] = COMMON | {"algorithm": "mopo", "task": "neorl2/DMSD", "num_updates": 6}
    keys |= {"eval_every": 4, "checkpoint_every": 1000, "algorithm.ends": "never"}
    model = {"members": 3, "elites": 2, "hidden": [8], "decay": [1e-5]}
    options = {f"dynamics_{k}" if k in ("hidden", "decay") else k: v for k, v in model.items()}
    options |= {"dynamics_epochs": 6, "patience": 1, "min_improvement": 0.95, "outside_max": 1.0}
    options |= {"starts": 16, "horizon": 2, "rollout_every": 3, "retain": 2}
    keys |= {f"algorithm.{k}": v for k, v in options.items()}
    keys["dataset"] = str(save_small(tmp_path / "small.npz"))
    in_parts = partialmethod(ModelBased.fill_pieces, chunk=10)
    monkeypatch.setattr(ModelBased, "fill_pieces", in_parts)
    whole = train(show=False, **keys, out=str(tmp_path / "whole"))
    keys["out"] = str(tmp_path / "stopped")
    true_run, true_fill, calls, last = Engine.run, Engine.fill, list[str](), ("", 0)

    def run(self: Engine, *args: Any) -> None:
        true_run(self, *args)
        count("run")

    def fill(self: Engine, *args: Any, **options: Any) -> None:
        true_fill(self, *args, **options)
        count("fill")

    def count(name: str) -> None:
        calls.append(name)
        if (name, calls.count(name)) == last:
            signal.raise_signal(signal.SIGINT)

    reached = []
    for last in (("run", 13), ("run", 6), ("fill", 1), ("run", 2)):  # noqa: B007 count() reads it
        calls.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "run", run)
            patch.setattr(Engine, "fill", fill)
            with pytest.raises(KeyboardInterrupt):
                train(show=False, **keys)
        folder = tmp_path / "stopped" / whole.path.relative_to(tmp_path / "whole")
        done = max(SeedFolder(folder, 0).checkpoints())
        reached.append((done.updates, done.rows))
    assert reached == [(13, 0), (1 + 6 * 9, 0), (56, 10), (58, 16)]
    result = train(show=False, **keys)
    assert_equal_runs(whole.path, result.path, logs=["evaluations"])  # Ctrl-C adds metrics


def wait_for_checkpoint(process: subprocess.Popen, folder: Path, updates: int) -> bool:
    """Return True once a checkpoint of so many updates exists; False if the process ended first."""
    while process.poll() is None:
        found = folder.rglob("seed_5/checkpoints/updates_*.safetensors")
        if any(int(re.findall(r"\d+", file.name)[0]) >= updates for file in found):
            return True
        time.sleep(0.01)
    return False
