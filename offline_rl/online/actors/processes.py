"""Processes of actors, started and killed by their learner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any


class Process:
    """An actor process in a process group of its own, with all processes that it starts."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Start the process. It ends when its standard input, a pipe, closes."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "offline_rl.online.actors", "--child"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, env=environment, start_new_session=True
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(dict(options)).encode() + b"\n")
        self._process.stdin.flush()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """Kill the process and its child processes."""
        with suppress(ProcessLookupError, PermissionError):  # it has ended
            os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Wait for the end of the process."""
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


def start_process(options: dict[str, Any]) -> Process:
    """Start an actor process."""
    return Process(options)
