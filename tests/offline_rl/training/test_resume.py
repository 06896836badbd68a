"""A run killed at any time after its first checkpoint ends like an uninterrupted one."""

import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

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
    for seed in COMMON["seeds"]:
        one, two = (SeedFolder(tmp_path / w / run, seed) for w in ("whole", "killed"))
        name = max(one.checkpoints())
        a, b = load_file(one.checkpoints()[name]), load_file(two.checkpoints()[name])
        assert a.keys() == b.keys()
        for key in a:
            assert (a[key] == b[key]).all(), key
        for log in ("evaluations", "metrics"):
            timeless = [
                [{k: v for k, v in row.items() if "second" not in k} for row in f.rows(log)]
                for f in (one, two)
            ]
            assert timeless[0] == timeless[1]


def wait_for_checkpoint(process: subprocess.Popen, folder: Path, updates: int) -> bool:
    """Return True once a checkpoint of so many updates exists; False if the process ended first."""
    while process.poll() is None:
        found = folder.rglob("seed_5/checkpoints/updates_*.safetensors")
        if any(int(re.findall(r"\d+", file.name)[0]) >= updates for file in found):
            return True
        time.sleep(0.01)
    return False
