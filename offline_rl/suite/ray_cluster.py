"""Launcher of cells on a Ray cluster. Each cell is a Ray task that starts the cell's process.

All machines share the working folder and have this package installed. If a task or its machine is
lost, the cell starts again on another machine, from its last checkpoint.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from offline_rl.suite.plan import Cell
from offline_rl.suite.queue import Ended, Request, run_plan
from offline_rl.utils.errors import UserError
from offline_rl.utils.modules import import_extra
from offline_rl.utils.text import format_count

CONNECT_S = 5.0  # time to wait for an answer from the cluster's address
PASSED = ("PYTHONPATH", "OFFLINE_RL_DATA", "WANDB_MODE", "MUJOCO_GL")  # passed to cells


class RayLauncher:
    """Runs cells on a Ray cluster while the command shows their progress."""

    def __init__(
        self, workers: int | None, cores: int | None, gpus: float, address: str | None
    ) -> None:
        """Connect to the cluster. Raises UserError.

        workers: maximum number of cells at a time; None: as many as fit now. cores, gpus: of each
        cell. address: None: the cluster of this machine.
        """
        self.ray = connect(address)
        self.cores, self.gpus = cores or 1, gpus
        machines = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        fitting = sum(self._fit(resources) for resources in machines)
        if not fitting and workers is None:
            raise UserError(
                f"cores={self.cores} gpus={gpus:g}: no machine of the Ray cluster has as many. Use "
                "less, or give workers= to wait for such a machine."
            )
        self.places = workers or fitting
        count, total = len(machines), sum(int(m.get("CPU", 0)) for m in machines)
        cluster = f"{format_count(count, 'machine')}, {total} cores"
        self.where = f"{self.places} at a time on a Ray cluster of {cluster}"

    def _fit(self, resources: dict[str, float]) -> int:
        """Return the number of cells that fit a machine with these resources."""
        count = resources.get("CPU", 0) // self.cores
        return int(min(count, resources.get("GPU", 0) // self.gpus) if self.gpus else count)

    def run(self, plan: Sequence[Cell], out: Path, *, show: bool) -> dict[str, str]:
        """Run the unfinished cells; return label -> error of those that failed."""
        task = self.ray.remote(
            num_cpus=self.cores,
            num_gpus=self.gpus,
            max_retries=0,  # the queue restarts lost cells
            scheduling_strategy="SPREAD",
        )(task_function())
        # a cell without a GPU must not use those of other tasks
        variables = {name: os.environ[name] for name in PASSED if name in os.environ}
        variables |= {} if self.gpus else {"CUDA_VISIBLE_DEVICES": ""}
        start = partial(RayAttempt, self.ray, task, variables)
        return run_plan(plan, out, self.places, start, show=show)


class RayAttempt:
    """A Ray task that runs the process of a cell."""

    def __init__(self, ray: Any, task: Any, variables: dict[str, str], request: Request) -> None:
        self.ray = ray
        text = replace(request, follows_parent=True).to_json()
        self.result = task.remote(text, str(Path.cwd()), variables)

    def wait(self) -> Ended:
        """Wait for the end of the task."""
        failures = self.ray.exceptions
        try:
            return Ended(*self.ray.get(self.result))
        except failures.TaskCancelledError:
            return Ended(130, "interrupted")
        except failures.RayTaskError as error:
            return Ended(1, str(error))
        except failures.RayError as error:  # the worker process or its machine was lost
            return Ended(1, f"the Ray worker was lost: {str(error).strip().splitlines()[0]}", True)

    def stop(self) -> None:
        """Request that the process write a checkpoint and end; a waiting task is removed."""
        self.ray.cancel(self.result)


def task_function() -> Callable[[str, str, dict[str, str]], tuple[int, str]]:
    """Return the function that Ray runs on a machine of the cluster.

    Its definition is nested, so that Ray sends its code. It must not refer to this package.
    """

    def run_cell(request: str, folder: str, variables: dict[str, str]) -> tuple[int, str]:
        import os
        import platform
        import subprocess
        import sys

        if not os.path.isdir(folder):
            return 2, f"{folder} does not exist on {platform.node()}. All machines must share it."
        process = subprocess.Popen(
            [sys.executable, "-m", "offline_rl.suite.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, **variables},
            start_new_session=True,
        )
        assert process.stdin is not None
        process.stdin.write(request)
        process.stdin.close()
        process.stdin = None
        while True:
            try:
                _, stderr = process.communicate(timeout=0.5)
            except subprocess.TimeoutExpired:
                pass
            except KeyboardInterrupt:  # the command was interrupted
                process.terminate()
            else:
                return process.returncode, stderr[-4000:]

    return run_cell


def connect(address: str | None) -> Any:
    """Connect to a Ray cluster, and return the module ray. Raises UserError if there is none."""
    ray = import_extra("ray", "ray", "launcher=ray")
    if ray.is_initialized():
        return ray
    start = "Start one with `ray start --head`, or correct the address."
    if address and not answers(address):
        raise UserError(f"address={address}: no Ray cluster answers there. {start}")
    # otherwise, Ray warns of a future change of its GPU handling
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        ray.init(address=address or "auto", log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        if address is None:
            raise UserError(
                "launcher=ray: no Ray cluster runs on this machine. Start one with `ray start "
                "--head`, or give address=<host>:<port>."
            ) from None
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"address={address}: the connection to the Ray cluster failed ({why}). {start} If it "
            "requires a token, set RAY_AUTH_MODE=token."
        ) from error
    return ray


def answers(address: str) -> bool:
    """Return False if no gRPC server, which a Ray cluster has, answers at `host:port`.

    Ray itself would wait for minutes. True for addresses of another form.
    """
    match = re.fullmatch(r"(?:ray://)?(.+):(\d+)", address)
    if match is None or os.environ.get("RAY_USE_TLS", "0") != "0":
        return True
    try:
        with socket.create_connection((match[1], int(match[2])), CONNECT_S) as connection:
            connection.sendall(
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
            )
            return connection.recv(9)[3:4] == b"\x04"  # a SETTINGS frame: RFC 9113, section 3.4
    except (OSError, OverflowError):
        return False
