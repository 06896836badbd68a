"""Tracing runs what it traces; a machine's memory is no larger for it."""

import subprocess
import sys
from pathlib import Path

import pytest

MEASURED = """
import resource, torch
from offline_rl.engine.trace import traced
from offline_rl.utils import hardware

def chain(x):
    total = x.sum()
    for k in range(60):  # sizes differ, so that blocks that were freed fit nothing that comes
        y = torch.cat([x, x[: 50_000 * k]])
        kept = y[:100_000] * 2.0
        total = total + (y * k).tanh().sum() + kept.sum()
        x = torch.cat([x, kept[:40_000]])
    return total

hardware.keep_memory()
x = torch.zeros(4_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
traced(chain, x)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="ru_maxrss is in KiB on Linux")
def test_tracing_takes_no_more_memory_than_is_in_use_at_a_time() -> None:
    """In use are some tensors of 16 to 38 MB; kept in pieces they would be several times that."""
    told = subprocess.run(
        [sys.executable, "-c", MEASURED], check=True, capture_output=True, text=True
    )
    assert float(told.stdout) < 300  # MiB
