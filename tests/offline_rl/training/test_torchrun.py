"""Two processes of torchrun on a CPU: equal to one process, resumed, interrupted, refused."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from close_training import assert_close
from safetensors.torch import load_file
from small_data import save_small

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
COMMAND = "from offline_rl.cli.main import main; raise SystemExit(main())"
FLOW = {"algorithm": "flow_policy", "task": "neorl2/DMSD", "dataset": "small.npz"}
FLOW |= {"algorithm.network": "mlp", "algorithm.widths": "[16,16]", "algorithm.levels": 2}
FLOW |= {"algorithm.num_warmup_updates": 2, "algorithm.decay_lr": "false"}
FLOW |= {"algorithm.mask_ends": "true", "algorithm.lr": 0.001}
FLOW |= {"batch_size": 8, "compile": "never", "device": "cpu", "tracker": "none"}
FLOW |= {"eval_episodes": 1, "num_updates": 20}
IMAGES = """
import sys
import numpy as np
import offline_rl
from offline_rl import Dataset

draw, rows = np.random.default_rng(0), 40
camera = draw.integers(0, 256, (rows, 12, 12, 3), dtype=np.uint8)
observations = {"camera": camera, "state": draw.normal(size=(rows, 2)).astype(np.float32)}
ends = np.isin(np.arange(rows), (12, 25, rows - 1))
data = Dataset.from_arrays(
    observations, draw.uniform(-1, 1, (rows, 2)), np.zeros(rows), ends & False, ends
)
small = {"num_keypoints": 3, "crop": 0.7, "horizon": 5, "n_action_steps": 2, "lr": 1e-3}
small |= {"dim_model": 8, "num_heads": 2, "dim_feedforward": 8, "num_layers": 1}
small |= {"num_vae_encoder_layers": 1, "latent_dim": 3}
result = offline_rl.train(
    algorithm="act", task="none", dataset=data, out=sys.argv[1], num_updates=6, batch_size=6,
    compile="never", device="cpu", tracker="none", seeds=2,
    **{f"algorithm.{name}": value for name, value in small.items()},
)
updates = [row["num_updates"] for row in result.results]
print("returned", updates, "offline_rl.engine.ranks" in sys.modules, flush=True)
"""


def start(arguments: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(arguments, cwd=folder, env=env, **pipes)


def run(arguments: Sequence[str], folder: Path, code: int = 0) -> str:
    process = start(arguments, folder)
    text, _ = process.communicate(timeout=900)
    assert process.returncode == code, text
    return text


def command(folder: Path, ranks: int, **changes: object) -> list[str]:
    """Return the command of a run in `folder`, in one process or by torchrun."""
    script = folder / "command.py"
    script.write_text(COMMAND)
    keys = {**FLOW, **changes}
    launcher = [sys.executable] if ranks == 1 else TORCHRUN
    return [*launcher, str(script), "train", *(f"{k}={v}" for k, v in keys.items())]


def newest(folder: Path, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return the newest checkpoint of the only run in a folder."""
    (seed_folder,) = folder.glob(f"*/*/*/seed_{seed}")
    return load_file(max(seed_folder.glob("checkpoints/*")))


def losses(folder: Path) -> list[float]:
    (file,) = folder.glob("*/*/*/seed_0/metrics.jsonl")
    return [json.loads(line)["train/policy_loss"] for line in file.read_text().splitlines()]


def test_two_processes_on_images_equal_one(tmp_path: Path) -> None:
    """Both return the results, and one process does not import what connects several."""
    script = tmp_path / "images.py"
    script.write_text(IMAGES)
    alone = run([sys.executable, str(script), "one"], tmp_path)
    together = run([*TORCHRUN, str(script), "two"], tmp_path)
    assert alone.count("returned [6, 6] False") == 1
    assert together.count("returned [6, 6] True") == 2
    assert together.count("act on none, seeds [0, 1]") == 1
    for seed in (0, 1):
        assert_close(newest(tmp_path / "one", seed), newest(tmp_path / "two", seed))
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(tmp_path / "one"), rtol=1e-5)
    (file,) = tmp_path.glob("two/*/*/*/seed_0/environment.json")
    assert json.loads(file.read_text())["world_size"] == 2


def test_a_run_continues_with_another_number_of_processes(tmp_path: Path) -> None:
    save_small(tmp_path / "small.npz")
    run(command(tmp_path, 1, num_updates=60, out="one"), tmp_path)
    for ranks, updates in ((2, 20), (1, 40), (2, 60)):
        run(command(tmp_path, ranks, num_updates=updates, out="changing"), tmp_path)
    assert_close(newest(tmp_path / "one"), newest(tmp_path / "changing"))
    for name in ("evaluations", "metrics"):
        (file,) = tmp_path.glob(f"changing/*/*/*/seed_0/{name}.jsonl")
        done = [json.loads(line)["updates"] for line in file.read_text().splitlines()]
        assert done == sorted(set(done))
        assert done[-1] == 60


def test_an_interrupted_command_saves_one_checkpoint_and_says_so_once(tmp_path: Path) -> None:
    save_small(tmp_path / "small.npz")
    keys = {"num_updates": 10**6, "checkpoint_every": 20, "task": "none", "out": "runs"}
    process = start(command(tmp_path, 2, **keys), tmp_path)
    deadline = time.monotonic() + 600
    while not list(tmp_path.glob("runs/*/*/*/seed_0/checkpoints/*")):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    text, _ = process.communicate(timeout=300)
    assert text.count("Interrupted. A checkpoint is written first.") == 1
    assert text.count("offline-rl: interrupted; repeat the command to continue") == 1
    (seed,) = tmp_path.glob("runs/*/*/*/seed_0")
    assert not (seed / "failed.json").exists()
    assert len(list(seed.glob("checkpoints/*"))) <= 2


def test_ranks_with_different_data_are_refused_in_one_sentence(tmp_path: Path) -> None:
    for rank, rows in enumerate((300, 303)):
        (tmp_path / str(rank)).mkdir()
        save_small(tmp_path / str(rank) / "small.npz", num_rows=rows)
    words = command(tmp_path, 2)
    script = tmp_path / "command.py"
    script.write_text(f"import os; os.chdir(os.environ['RANK'])\n{COMMAND}")
    text = run(words, tmp_path, code=1)
    (line,) = (line for line in text.splitlines() if line.startswith("offline-rl: "))
    assert line.startswith("offline-rl: rank 1 has data=")
    assert line.endswith("Start all ranks with the same command, versions and data.")
    assert not list(tmp_path.rglob("runs"))
    (tmp_path / "1" / "small.npz").unlink()
    text = run(words, tmp_path, code=1)
    (line,) = (line for line in text.splitlines() if line.startswith("offline-rl: "))
    assert line.startswith("offline-rl: rank 1: ")
    assert "small.npz" in line
