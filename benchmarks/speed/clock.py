"""Protocol between the harness and a contender's process: numbers of updates in, seconds out.

A contender is a training loop that calls `clock.tick(updates, wait)`. Between two measurements,
`tick` blocks the loop, so that contenders in separate processes can take turns.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

OBS, ACT, ROWS, BATCH = 17, 6, 100_000, 256


class Clock:
    """Counter of updates that blocks the loop when the requested number is reached."""

    def __init__(self) -> None:
        self.reports = os.fdopen(os.dup(1), "w")  # separate from the contender's own output
        os.dup2(2, 1)
        self.facts: dict[str, Any] = {}  # sent with every report
        # returns why the measured time is invalid, or None
        self.fault: Callable[[], str | None] = lambda: None
        self.requested, self.done, self.started = 1, 0, time.perf_counter()

    def tick(self, updates: int, wait: Callable[[], object] = lambda: None) -> None:
        """Count updates; at the end of a block, report its time and wait for the next request.

        wait: waits until the device is done; called at the end of a block. If the contender's
        `fault` returns a text, the process exits with this text.
        """
        self.done += updates
        if self.done < self.requested:
            return
        wait()
        seconds = time.perf_counter() - self.started
        if (fault := self.fault()) is not None:
            raise SystemExit(fault)
        self.reports.write(json.dumps(self.facts | {"seconds": seconds, "n": self.done}) + "\n")
        self.reports.flush()
        command = sys.stdin.readline()
        if not command:
            raise SystemExit
        self.requested, self.done, self.started = int(command), 0, time.perf_counter()


def synchronizer(device: str) -> Callable[[], object]:
    """Return a function that waits for the device."""
    if device != "cuda":
        return lambda: None
    import torch

    return torch.cuda.synchronize


def arrays(obs: int = OBS, act: int = ACT) -> dict[str, np.ndarray]:
    """Return random transitions in episodes of 1,000 steps. Default sizes: those of locomotion.

    No episode terminates. Speed does not depend on the values. [ROWS, …] each, float32; `dones`
    and `timeouts` bool.
    """
    rng = np.random.default_rng(0)
    states = rng.normal(size=(ROWS + 1, obs)).astype(np.float32)
    return {
        "observations": states[:-1],
        "next_observations": states[1:],
        "actions": rng.uniform(-1, 1, (ROWS, act)).astype(np.float32),
        "rewards": rng.normal(size=ROWS).astype(np.float32),
        "dones": np.zeros(ROWS, bool),
        "timeouts": np.arange(ROWS) % 1000 == 999,
    }
