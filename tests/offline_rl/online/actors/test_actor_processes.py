"""Runs with actor processes: a process is killed, an environment hangs, the disk is full."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError
from safetensors.torch import load_file

from offline_rl import UserError, train
from offline_rl.online.actors import learner as learner_module
from offline_rl.online.actors.processes import Process
from offline_rl.runs import folder as folder_module
from offline_rl.runs.folder import SeedFolder

pytestmark = pytest.mark.slow
STEPS, LENGTH = 120, 10
ENVIRONMENT = """
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium.spaces import Box


class Slow(gymnasium.Env):
    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)
    max_episode_steps = 10
    hang = Path(__file__).with_name("hang")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.t = seed, 0
        return np.array([self.seed % 1_000_000, 0], np.float32), {}

    def step(self, action):
        self.t += 1
        time.sleep(0.02)
        if self.t == 5 and sys.argv[-1] == "--child" and self.hang.exists():
            self.hang.unlink()
            time.sleep(3600)
        return np.array([self.seed % 1_000_000, self.t], np.float32), 1.0, False, False, {}
"""


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Any]:
    """Options of a short run with two actors."""
    file = tmp_path / f"{tmp_path.name}.py"  # a module's name can be used once in a process
    file.write_text(ENVIRONMENT)
    options: dict[str, Any] = {"algorithm": "sac", "task": f"env:{file}:Slow", "seeds": 1}
    options |= {"num_updates": 0, "num_env_steps": STEPS, "actors": 2, "batch_size": 8}
    options |= {"algorithm.hidden": [8], "online.warmup_steps": 10, "eval_episodes": 1}
    options |= {"eval_every": 1000, "checkpoint_every": 30, "tracker": "none"}
    return options | {"compile": "never", "out": str(tmp_path / "runs")}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Process]:
    """List of the processes that the learner in this process has started."""
    processes = list[Process]()

    def start(options: Any) -> Process:
        processes.append(Process(options))
        return processes[-1]

    monkeypatch.setattr(learner_module, "start_process", start)
    return processes


def check(run: Path) -> None:
    """Assert that the run is complete, and that each of its episodes counts once."""
    folder = SeedFolder(run, 0)
    assert folder.outcome()["num_env_steps"] == STEPS
    tensors = load_file([*folder.checkpoints().values()][-1])
    identities = tensors["buffer/actors/ids"].tolist()
    assert len(identities) == len(set(identities)) == STEPS // LENGTH
    rows = tensors["buffer/observations"]
    assert len(rows) == STEPS
    assert rows[:, 1].tolist() == [t for _ in range(STEPS // LENGTH) for t in range(LENGTH)]
    numbers = rows[:, 0].view(-1, LENGTH)
    assert (numbers == numbers[:, :1]).all()  # complete episodes


def checkpoints(keys: dict[str, Any]) -> list[Path]:
    """Return the checkpoints of the run so far."""
    return sorted(Path(keys["out"]).rglob("updates_*.safetensors"))


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_actor_is_started_again_and_the_run_is_complete(
    keys: dict[str, Any], started: list[Process], capfd: pytest.CaptureFixture[str]
) -> None:
    def kill() -> None:
        wait_for(lambda: checkpoints(keys))
        os.kill(started[0].pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    check(train(**keys, show=False).path)
    thread.join()
    assert len(started) == 3
    assert all(process.poll() is not None for process in started)
    assert "actor 0: " in capfd.readouterr().out


def test_an_environment_that_hangs_is_restarted_in_a_new_process(
    keys: dict[str, Any],
    started: list[Process],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "hang").touch()
    check(train(**keys | {"actors": 1}, env_timeout_s=5, show=False).path)
    assert len(started) == 2
    assert "made no progress for 5 s" in capfd.readouterr().out


def test_a_killed_learner_resumes_and_its_actors_end_with_it(keys: dict[str, Any]) -> None:
    """An actor on "another machine" lives on, and sends again what the learner had not saved."""
    port = free_port()
    keys = {**keys, "actor_address": f"127.0.0.1:{port}"}
    arguments = [f"{k}={v}".replace("'", "").replace(" ", "") for k, v in keys.items()]
    script = f"from offline_rl.cli.main import main; main({['train', *arguments]!r})"
    learner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL)
    elsewhere = subprocess.Popen(
        [
            *(sys.executable, "-m", "offline_rl.online.actors", f"address=127.0.0.1:{port}"),
            *(f"task={keys['task']}", "reconnect_s=300"),
        ]
    )
    try:
        wait_for(lambda: checkpoints(keys))
        children = children_of(learner.pid)
        assert len(children) == 2
        learner.kill()
        learner.wait()
        wait_for(lambda: not any(is_alive(pid) for pid in children))
        assert elsewhere.poll() is None
        options = {k: v for k, v in keys.items() if k != "actors"}
        check(train(**options, actors=1, show=False).path)
        assert elsewhere.wait(60) == 0
    finally:
        elsewhere.kill()
        learner.kill()


def test_with_a_full_disk_no_actor_forgets_an_episode(
    keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second checkpoint cannot be written. The run ends, and resumes after the first one."""
    write, calls, told = folder_module.save_file, list[Path](), list[int]()
    saved = learner_module.RemoteCollector.saved

    def save(tensors: Any, path: Path, metadata: Any) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise SafetensorError("No space left on device (os error 28)")
        write(tensors, path, metadata)

    def note(self: Any) -> None:
        told.append(len(calls))
        saved(self)

    monkeypatch.setattr(folder_module, "save_file", save)
    monkeypatch.setattr(learner_module.RemoteCollector, "saved", note)
    with pytest.raises(UserError, match="could not be written: No space left on device"):
        train(**keys, show=False)
    assert told == [1]
    assert len(checkpoints(keys)) == 1
    assert not [*Path(keys["out"]).rglob("*.tmp")]
    with pytest.raises(UserError, match="Continue with actors=1 or more"):
        train(**keys | {"actors": 0}, show=False)
    check(train(**keys, show=False).path)


def free_port() -> int:
    import socket

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def children_of(pid: int) -> list[int]:
    """Return the direct child processes of a process."""
    text = Path(f"/proc/{pid}/task/{pid}/children")
    files = [text, *Path(f"/proc/{pid}/task").glob("*/children")]
    return sorted({int(child) for file in files for child in file.read_text().split()})


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
