"""How the harness and a contender's process talk: numbers of updates in, seconds out.

A contender is any training loop that calls `clock.tick(updates, wait)` as it goes. The loop stands
still between two blocks, so that contenders in processes of their own can take turns.
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
    """Counts updates, and holds the loop whenever the number asked for is reached."""

    def __init__(self) -> None:
        self.answers = os.fdopen(os.dup(1), "w")  # what a peer prints must not come between
        os.dup2(2, 1)
        self.facts: dict[str, Any] = {}  # told once, with the first block
        self.fault: Callable[[], str | None] = lambda: None  # why no time is reported, if so
        self.wanted, self.done, self.started = 1, 0, time.perf_counter()

    def tick(self, updates: int, wait: Callable[[], object] = lambda: None) -> None:
        """After every update or few. wait: until the device is done; called at a block's end.

        Ends the process with the contender's `fault`, if it has one by then.
        """
        self.done += updates
        if self.done < self.wanted:
            return
        wait()
        seconds = time.perf_counter() - self.started
        if (fault := self.fault()) is not None:
            raise SystemExit(fault)
        self.answers.write(json.dumps(self.facts | {"seconds": seconds, "n": self.done}) + "\n")
        self.answers.flush()
        command = sys.stdin.readline()
        if not command:
            raise SystemExit
        self.wanted, self.done, self.started = int(command), 0, time.perf_counter()


def waiting(device: str) -> Callable[[], object]:
    """The call that waits for the device."""
    if device != "cuda":
        return lambda: None
    import torch

    return torch.cuda.synchronize


def arrays() -> dict[str, np.ndarray]:
    """Random transitions of the usual locomotion sizes; episodes of 1,000 steps, none terminates.

    Speed does not depend on the values. [ROWS, …] each, float32; `dones` and `timeouts` bool.
    """
    draw = np.random.default_rng(0)
    states = draw.normal(size=(ROWS + 1, OBS)).astype(np.float32)
    return {
        "observations": states[:-1],
        "next_observations": states[1:],
        "actions": draw.uniform(-1, 1, (ROWS, ACT)).astype(np.float32),
        "rewards": draw.normal(size=ROWS).astype(np.float32),
        "dones": np.zeros(ROWS, bool),
        "timeouts": np.arange(ROWS) % 1000 == 999,
    }
