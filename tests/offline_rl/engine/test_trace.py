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
    layer = torch.nn.Linear(100, 100)
    small, weights = x[:300_000].view(3000, 100), dict(layer.named_parameters())
    for _ in range(500):  # 1.2 MB each; between them stand descriptions, which stay
        small = torch.func.functional_call(layer, weights, (small,)).tanh()
    return total + small.sum()

torch.zeros(7_000_000)  # freed: glibc now keeps blocks of up to as much in pieces
hardware.keep_memory()
x = torch.zeros(4_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with torch.no_grad():
    traced(chain, x)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="ru_maxrss is in KiB on Linux")
def test_tracing_takes_no_more_memory_than_is_in_use_at_a_time() -> None:
    """In use are some tensors of 1 to 38 MB; in pieces they would take 2 GB."""
    told = subprocess.run(
        [sys.executable, "-c", MEASURED], check=True, capture_output=True, text=True
    )
    assert float(told.stdout) < 300  # MiB
