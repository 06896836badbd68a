"""Attempts to run a cell: retries, lost machines, the process of a worker, requests to clusters."""

import io
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offline_rl.suite import claims, queue, ray_cluster, worker
from offline_rl.suite.claims import STALE_S, claim
from offline_rl.suite.plan import Cell
from offline_rl.suite.queue import Ended, Request, request_of, run_plan
from offline_rl.suite.ray_cluster import RayAttempt, RayLauncher
from offline_rl.suite.slurm import SlurmLauncher
from offline_rl.utils.errors import UserError
from offline_rl.version import __version__

pytestmark = pytest.mark.usefixtures("folder")
LOST, FAILED = Ended(1, "the machine was lost", True), Ended(1, "first line\nno memory\n")
CELL = {"algorithm": "td3_bc", "task": "none", "dataset": "small.npz", "num_updates": 4}


class Attempts:
    """A launcher whose processes end as planned. It keeps their requests."""

    def __init__(self, *ends: Ended) -> None:
        self.ends, self.requests = iter(ends), list[Request]()

    def __call__(self, request: Request) -> Any:
        self.requests.append(request)
        end = next(self.ends)
        return SimpleNamespace(wait=lambda: end, stop=lambda: None)


def cell(**changes: Any) -> Cell:
    return Cell({**CELL, "seeds": 1, "out": "runs", **changes})


@pytest.mark.parametrize(
    ("ends", "error"),
    [
        ([Ended(0, "")], None),
        ([Ended(worker.BUSY, "")], None),  # another command runs the cell
        ([FAILED, Ended(0, "")], None),
        ([FAILED, FAILED], "no memory"),
        ([Ended(2, "a mistake")], "a mistake"),  # it would recur
        ([*[LOST] * 9, Ended(0, "")], None),  # a lost machine is no try
        ([LOST, FAILED, LOST, FAILED], "no memory"),
        ([LOST] * 10, "the machine was lost"),
        ([Ended(-9, ""), Ended(-9, "")], "ended by signal 9"),
    ],
)
def test_a_cell_has_two_tries_and_ten_lost_machines(
    ends: list[Ended], error: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "POLL_S", 0.02)
    launcher, one = Attempts(*ends), cell()
    failed = run_plan([one], tmp_path, 1, launcher, show=False)
    assert failed == ({} if error is None else {one.label: error})
    assert len(launcher.requests) == len(ends)
    # the ended process can still have the cell until its claim is void
    first, *later = (request.wait_s for request in launcher.requests)
    assert first == 0
    assert all(seconds > STALE_S for seconds in later)


def test_an_interruption_stops_the_processes_and_starts_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C arrives when the first of two cells runs. Its process ends when it is told to."""
    monkeypatch.setattr(queue, "POLL_S", 0.02)
    stopped = queue.threading.Event()

    def wait() -> Ended:
        assert stopped.wait(20)
        return Ended(130, "interrupted")

    started: list[Request] = []

    def start(request: Request) -> Any:
        started.append(request)
        return SimpleNamespace(wait=wait, stop=stopped.set)

    def interrupt(display: Any, progress: Any) -> None:
        if progress.attempts:
            raise KeyboardInterrupt

    monkeypatch.setattr(queue.Display, "update", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_plan([cell(), cell(name="b")], tmp_path, 1, start, show=False)
    assert [request.id for request in started] == [cell().id]


# the process of a cell


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Options with which `worker.main` runs a cell here."""
    options = list[Any]()
    monkeypatch.setattr(worker, "lower_priority", lambda niceness: None)
    monkeypatch.setattr(worker, "run", options.append)
    return options


def work(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> int:
    """Return the exit code of a process with this request."""
    request = request_of(cell(), Path("runs")).to_json()
    text = json.dumps(json.loads(request) | changes)
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    return worker.main()


def test_a_worker_runs_its_cell_and_removes_the_error_of_an_earlier_try(
    ran: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = Path("runs/queue") / f"{cell().id}.json"

    def fail(keys: Any) -> None:
        raise UserError("no such file") if ran else RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(worker, "run", fail)
        with pytest.raises(RuntimeError):
            work(monkeypatch)
        assert json.loads(failure.read_text())["error"] == "RuntimeError: a bug"
        ran.append(None)
        assert work(monkeypatch) == 2
        assert json.loads(failure.read_text())["error"] == "no such file"
    assert work(monkeypatch) == 0
    assert ran[-1] == cell().keys
    assert not failure.exists()


def test_a_worker_of_another_version_runs_nothing(
    ran: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert work(monkeypatch, version="0.0.1") == 2
    assert ran == []
    words = f"offline_rl {__version__} is installed on this machine, but version 0.0.1 started"
    assert words in capsys.readouterr().err


def test_a_worker_whose_cell_is_taken_waits_and_then_ends_with_a_code_of_its_own(
    ran: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "CHECK_S", 0.01)
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(
        claims, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep, time=lambda: 0.0)
    )
    with claim(Path("runs/queue/claims"), cell().id, check=lambda: None) as claimed:
        assert claimed
        before = now[0]
        assert work(monkeypatch, wait_s=3.0) == 75
        assert now[0] - before >= 3
    assert ran == []


def test_a_cell_waits_for_the_run_that_it_builds_on() -> None:
    keys = {**CELL, "algorithm": "td3", "num_updates": 0, "num_env_steps": 4, "seeds": 1}
    keys |= {"task": "env:Pendulum-v1", "out": "runs", "run": "runs/env_Pendulum-v1/td3_bc/first"}
    with pytest.raises(UserError, match=r"builds on runs/.*first, which is not finished"):
        worker.run(keys)


def test_a_worker_ends_after_its_parent_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent of an orphan is another process. One signal is enough."""
    parents, signals = iter((7, 7, 1, 1)), list[int]()
    monkeypatch.setattr(worker.os, "getppid", lambda: next(parents))
    monkeypatch.setattr(worker.os, "kill", lambda pid, number: signals.append(number))
    check = worker.stop_with_parent()
    check()
    assert signals == []
    check()
    check()
    assert signals == [worker.signal.SIGTERM]


def test_a_claim_calls_the_check_of_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "CHECK_S", 0.005)
    checked = claims.threading.Event()
    with claim(tmp_path, "cell", check=checked.set):
        assert checked.wait(20)


def test_a_released_cell_is_free_for_other_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine cannot see that the process has ended, so the claim says it."""
    with claim(tmp_path, "cell") as claimed:
        assert claimed
    monkeypatch.setattr(claims, "_machine", lambda folder: "another machine")
    with claim(tmp_path, "cell") as claimed:
        assert claimed


# clusters


class TaskError(Exception):
    """Base class of the errors of the cluster below."""


class Cluster:
    """A cluster in this process, with the functions of Ray that the launcher calls."""

    exceptions = SimpleNamespace(
        TaskCancelledError=type("TaskCancelledError", (TaskError,), {}),
        RayTaskError=type("RayTaskError", (TaskError,), {}),
        RayError=TaskError,
    )

    def __init__(self, *machines: dict[str, float]) -> None:
        self.machines, self.options, self.sent = machines, dict[str, Any](), list[Any]()

    def nodes(self) -> list[dict[str, Any]]:
        dead = {"Alive": False, "Resources": {"CPU": 64.0}}
        return [{"Alive": True, "Resources": machine} for machine in self.machines] + [dead]

    def remote(self, **options: Any) -> Any:
        self.options = options
        return lambda function: SimpleNamespace(remote=self.send)

    def send(self, *arguments: Any) -> Any:
        self.sent.append(arguments)
        return 0, ""

    def get(self, result: Any) -> Any:
        if isinstance(result, Exception):
            raise result
        return result


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Function that returns a launcher for a cluster of these machines, and the cluster."""

    def make(*machines: dict[str, float], **options: Any) -> tuple[RayLauncher, Cluster]:
        cluster = Cluster(*machines)
        monkeypatch.setattr(ray_cluster, "connect", lambda address: cluster)
        values = {"workers": None, "cores": None, "gpus": 0.0, "address": None} | options
        return RayLauncher(**values), cluster

    return make


def test_as_many_cells_run_as_fit_the_machines_of_a_cluster(launch: Any) -> None:
    machines = {"CPU": 9.0, "GPU": 2.0}, {"CPU": 3.0}, {"CPU": 4.0, "GPU": 1.0}
    assert launch(*machines)[0].places == 16
    assert launch(*machines, cores=4)[0].places == 2 + 0 + 1
    assert launch(*machines, cores=2, gpus=1.0)[0].places == 2 + 0 + 1
    assert launch(*machines, cores=2, gpus=0.5)[0].places == 4 + 0 + 2
    assert launch(*machines, workers=3)[0].places == 3
    with pytest.raises(UserError, match="no machine of the Ray cluster has as many"):
        launch(*machines, cores=10)


@pytest.mark.parametrize("gpus", [0.0, 1.0])
def test_the_process_of_a_ray_task_follows_the_task(
    gpus: float, launch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell has no GPU if none was requested. The queue alone repeats a lost task."""
    monkeypatch.setattr(queue, "POLL_S", 0.02)
    monkeypatch.setenv("OFFLINE_RL_DATA", "somewhere")
    launcher, cluster = launch({"CPU": 2.0, "GPU": 1.0}, gpus=gpus, cores=2)
    assert launcher.run([cell()], tmp_path, show=False) == {}
    ((request, where, variables),) = cluster.sent
    assert json.loads(request)["follows_parent"] is True
    assert where == str(Path.cwd())
    assert variables["OFFLINE_RL_DATA"] == "somewhere"
    assert variables.get("CUDA_VISIBLE_DEVICES") == (None if gpus else "")
    assert (cluster.options["max_retries"], cluster.options["num_cpus"]) == (0, 2)


@pytest.mark.parametrize(
    ("name", "code", "lost"),
    [("TaskCancelledError", 130, False), ("RayTaskError", 1, False), ("RayError", 1, True)],
)
def test_only_the_loss_of_a_ray_worker_is_no_try(name: str, code: int, lost: bool) -> None:
    cluster = Cluster()
    request = request_of(cell(), Path("runs"))
    attempt = RayAttempt(cluster, SimpleNamespace(remote=cluster.send), {}, request)
    attempt.result = getattr(cluster.exceptions, name)("a reason\nmore")
    end = attempt.wait()
    assert (end.code, end.lost) == (code, lost)


def test_a_slurm_job_waits_until_the_claim_of_its_earlier_machine_is_void(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm starts a job again after the loss of its node, whose claim stays."""
    command = tmp_path / "sbatch"
    command.write_text("#!/bin/sh\necho 7\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    SlurmLauncher(None, None, 0.0, None).submit([cell()], tmp_path, [])
    (file,) = (tmp_path / "queue/slurm").glob("*.json")
    assert json.loads(file.read_text())["wait_s"] > STALE_S
