"""Cells on a Ray cluster and as Slurm jobs: the plan, lost workers, mistakes."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file
from small_data import save_small

from offline_rl.suite import queue, slurm
from offline_rl.suite.benchmark import benchmark
from offline_rl.suite.claims import claim, read_claim
from offline_rl.suite.plan import Cell, read_plan
from offline_rl.suite.slurm import SlurmLauncher
from offline_rl.utils.errors import UserError

CELL = {"algorithm": "td3_bc", "task": "none", "dataset": "small.npz", "num_updates": 4}
QUICK = {"algorithm.hidden": [8], "compile": "never", "tracker": "none", "batch_size": 8}
# runs the tasks of the array in order, as Slurm does if one node is free; squeue lists none
SBATCH = """#!{python}
import os, re, shlex, subprocess, sys
script = sys.argv[-1]
lines = re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", open(script).read(), re.M)
options = {{name: shlex.split(value)[0] for name, value in lines}}
with open("submitted", "a") as file:
    print(sys.argv[1:-1], options["array"], options.get("dependency"), file=file)
first, last = re.match(r"(\\d+)-(\\d+)", options["array"]).groups()
for task in range(int(first), int(last) + 1):
    log = options["output"].replace("%A", "7").replace("%a", str(task))
    with open(log, "a") as file:
        subprocess.run(
            ["bash", script], cwd=options["chdir"], stdout=file, stderr=file,
            env={{**os.environ, "SLURM_ARRAY_TASK_ID": str(task)}},
        )
print(f"{{sum(1 for _ in open('submitted')) + 6}};cluster")
"""


pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def local_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of a Ray cluster of this test. Its token is not written to the home folder."""
    pytest.importorskip("ray", reason="needs the extra ray")
    monkeypatch.setenv("RAY_worker_niceness", "0")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))


@pytest.fixture
def commands(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the commands sbatch and squeue, which the launcher finds."""
    path = folder / "bin"
    path.mkdir()
    monkeypatch.setenv("PATH", f"{path}{os.pathsep}{os.environ['PATH']}")
    install(path / "sbatch", SBATCH.format(python=sys.executable))
    install(path / "squeue", "#!/bin/sh\nexit 1\n")
    return path


def install(path: Path, text: str) -> None:
    """Write an executable file."""
    path.write_text(text)
    path.chmod(0o755)


def suite(*entries: dict[str, Any], **changes: Any) -> str:
    """Write a suite file with these cells, and return its name."""
    Path("mine.yaml").write_text(
        json.dumps({"seeds": 1, "keys": QUICK, "cells": list(entries), **changes})
    )
    return "mine.yaml"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"launcher": "rai"}, "launcher='rai': expected one of local, ray, slurm"),
        ({"gpus": 1}, "gpus= needs launcher=ray or slurm, and launcher=local is used"),
        ({"launcher": "slurm", "address": "a:1"}, "address= needs launcher=ray"),
        ({"launcher": "slurm", "gpus": 0.5}, "gpus=0.5: a Slurm job has whole GPUs"),
        ({"launcher": "slurm", "sbatch": "--comment='a"}, "No closing quotation"),
    ],
)
@pytest.mark.usefixtures("commands")
def test_options_of_another_launcher_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        benchmark(suite="mine.yaml", show=False, **options)
    assert not Path("runs").exists()


def test_without_sbatch_the_slurm_launcher_says_where_to_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(UserError, match=r"sbatch is not installed .* login node"):
        benchmark(suite="mine.yaml", launcher="slurm")


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"launcher=ray needs the package ray.*\[ray\]"):
        benchmark(suite="mine.yaml", launcher="ray")


@pytest.mark.parametrize("reply", [None, b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_an_address_without_a_cluster_is_refused_in_one_sentence(
    reply: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing listens there, or a web server."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(reply or b"")

        if reply:
            server.listen()
            threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(UserError, match=rf"address={address}: no Ray cluster answers there"):
            benchmark(suite="mine.yaml", launcher="ray", address=address)


def plan_of(*entries: dict[str, Any]) -> list[Cell]:
    """Return cells of runs/mine with one seed."""
    return [Cell({"seeds": 1, "out": "runs/mine", **QUICK, **entry}) for entry in entries]


def test_slurm_jobs_read_their_cells_and_wait_for_the_cells_that_they_build_on(
    folder: Path, commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All cells run elsewhere, so the jobs end immediately. Quoted folders reach the jobs."""
    first = {**CELL, "task": "env:Pendulum-v1", "name": "first"}
    run = "runs/mine/env_Pendulum-v1/td3_bc/first"
    after = {"algorithm": "td3", "task": "env:Pendulum-v1", "num_env_steps": 4, "run": run}
    plan, out = plan_of(first, CELL, {**after, "num_updates": 0}), Path("runs/mi ne")
    monkeypatch.setattr(slurm, "REQUEUE_S", 0.0)  # the jobs do not wait for the cells
    launcher = SlurmLauncher(3, 2, 1.0, "--partition=gpu --comment='two words'")
    with ExitStack() as held:
        for cell in plan:
            assert held.enter_context(claim(out / "queue/claims", cell.id))
        assert launcher.run(plan, out, show=False) == {}
    options = "['--parsable', '--partition=gpu', '--comment=two words']"
    submitted = (folder / "submitted").read_text().splitlines()
    assert submitted == [f"{options} 0-1%3 None", f"{options} 0-0%3 afterany:7_0"]
    jobs = json.loads((out / "queue/slurm/jobs.json").read_text())
    assert jobs == dict(zip((cell.id for cell in plan), ("7_0", "7_1", "8_0"), strict=True))
    for task, texts in (("0", 2), ("1", 1)):
        log = (out / f"queue/slurm/7_{task}.log").read_text()
        assert log.count("another process runs this cell") == texts
    script = (out / f"queue/slurm/{plan[0].id}.sh").read_text()
    for option in ("--cpus-per-task=2", "--gres=gpu:1", "--requeue", "--signal=B:TERM@120"):
        assert f"#SBATCH {option}\n" in script

    install(commands / "squeue", '#!/bin/sh\necho "$@" >asked; echo 7_1; echo 8_0\n')
    install(commands / "sbatch", "#!/bin/sh\necho invalid partition >&2; exit 1\n")
    with pytest.raises(UserError, match=r"sbatch refused .*\(invalid partition\)"):
        launcher.run(plan, out, show=False)
    assert "--jobs=7,8" in (folder / "asked").read_text()
    assert launcher.run(plan[1:], out, show=False) == {}  # both have jobs


@pytest.mark.slow
@pytest.mark.usefixtures("commands")
def test_a_suite_runs_as_slurm_jobs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second cell fails, and the repeated command says why. A cell builds on another."""
    save_small(folder / "swings.npz", obs=3, act=1)
    base = {**CELL, "task": "env:Pendulum-v1", "dataset": "swings.npz", "eval_episodes": 1}
    after = {"algorithm": "td3", "from": "td3_bc/first", "task": "env:Pendulum-v1"}
    path = suite(
        {**base, "name": "first"},
        {**CELL, "dataset": "gone.npz"},
        {**after, "num_env_steps": 4, "eval_episodes": 1},
    )
    text = benchmark(suite=path, launcher="slurm", dry_run=True, show=False)
    assert "3 of 3 cells left, as Slurm jobs" in text
    text = benchmark(suite=path, launcher="slurm", show=False)
    assert text.startswith("td3_bc on none/gone is failed (gone.npz: no such file")
    assert [cell.finished for cell in read_plan(Path("runs/mine/plan.json"))] == [
        True,
        False,
        True,
    ]
    text = benchmark(suite=path, dry_run=True, show=False)
    assert "0, failed" in text or "to do, failed" in text
    assert "gone.npz: no such file" in text


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_a_ray_worker_killed_in_mid_run_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers run the same cell under two names. The one that is killed ends with equal bits.

    Its run continues from a checkpoint: its updates never fall below those of the checkpoint.
    """
    import ray

    long = {**CELL, "num_updates": 8_000, "checkpoint_every": 1000}
    path = suite({**long, "name": "killed"}, {**long, "name": "undisturbed"})
    text: list[str] = []
    monkeypatch.setattr(queue, "LOSSES", 2)
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        command = threading.Thread(
            target=lambda: text.append(benchmark(suite=path, launcher="ray", workers=2, show=False))
        )
        command.start()
        claims = Path("runs/mine/queue/claims")
        wait_for(lambda: Path("runs/mine/plan.json").is_file())
        cell, other = read_plan(Path("runs/mine/plan.json"))
        (seed,) = cell.folders
        wait_for(lambda: len(seed.checkpoints()) == 2)
        pid = read_claim(claims, cell.id).content["pid"]
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        os.kill(int(stat[1]), signal.SIGKILL)  # the Ray worker, which is its parent
        before = max(seed.checkpoints()).updates
        wait_for(lambda: read_claim(claims, cell.id).number == 2)
        least = []
        while command.is_alive():
            least.append(cell.count_done())
            time.sleep(0.02)
        command.join()
    finally:
        ray.shutdown()
    assert text
    assert "killed" in text[0]
    assert cell.finished
    assert other.finished
    assert before <= min(least) <= 8_000
    assert read_claim(claims, other.id).number == 1
    last = [list(c.folders[0].checkpoints().values())[-1] for c in (cell, other)]
    tensors = [load_file(file) for file in last]
    assert tensors[0].keys() == tensors[1].keys()
    for name, value in tensors[0].items():
        assert value.equal(tensors[1][name]), name


INTERRUPTED = """
import ray
from offline_rl.suite import queue
from offline_rl.suite.benchmark import benchmark
queue.NICENESS = 0
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
benchmark(suite="mine.yaml", launcher="ray", show=False)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_ctrl_c_saves_checkpoints_on_the_cluster() -> None:
    """The only checkpoint is that of the interruption. The cell that waits is not started."""
    long = {**CELL, "num_updates": 500_000, "checkpoint_every": 500_000}
    suite({**long, "name": "first"}, {**long, "name": "waits"})
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # else ignored in the background
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED], preexec_fn=heed) as command:
        wait_for(lambda: Path("runs/mine/plan.json").is_file())
        first, waits = read_plan(Path("runs/mine/plan.json"))
        (seed,) = first.folders
        wait_for(lambda: seed.rows("metrics") != [] and first.count_done() > 0)
        command.send_signal(signal.SIGINT)
        assert command.wait(300) != 0
    (done,) = seed.checkpoints()
    assert 0 < done.updates < 500_000
    claims = Path("runs/mine/queue/claims")
    assert read_claim(claims, first.id).content["released"]
    assert read_claim(claims, waits.id) is None


def wait_for(ready: Any, limit_s: float = 900.0) -> None:
    """Wait until `ready()` is true."""
    deadline = time.monotonic() + limit_s
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)
