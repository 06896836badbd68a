"""Tracing needs no more memory than the function, and refuses torch's random numbers."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from offline_rl.engine.trace import trace
from offline_rl.utils.errors import UserError

MEASURED = """
import resource, torch
from offline_rl.engine.trace import trace
from offline_rl.utils import hardware

layer = torch.nn.Linear(100, 100, bias=False)

def chain(x):
    total = x.sum()
    for k in range(60):  # sizes differ, so freed blocks fit no later tensor
        y = torch.cat([x, x[: 50_000 * k]])
        part = y[:100_000] * 2.0
        total = total + (y * k).tanh().sum() + part.sum()
        x = torch.cat([x, part[:40_000]])
    small, weights = x[:300_000].view(3000, 100), {"weight": x[:10_000].view(100, 100)}
    for _ in range(500):  # 1.2 MB each; the fake tensors between them stay allocated
        small = torch.func.functional_call(layer, weights, (small,)).tanh()
    return total + small.sum()

torch.zeros(7_000_000)  # freed: from now on glibc keeps freed blocks of up to this size
hardware.keep_freed_memory()
x = torch.zeros(4_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with torch.no_grad():
    trace(chain, x)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="ru_maxrss is in KiB on Linux")
def test_tracing_needs_no_more_memory_than_is_in_use_at_a_time() -> None:
    """Tensors of 1 to 38 MB are in use. If freed blocks were kept, they would take 2 GB."""
    process = subprocess.run(
        [sys.executable, "-c", MEASURED], check=True, capture_output=True, text=True
    )
    assert float(process.stdout) < 300  # MiB


def test_random_numbers_of_torch_are_refused_by_their_name() -> None:
    with pytest.raises(UserError, match=r"aten.randn_like.default: .*Use state.random"):
        trace(torch.randn_like, torch.zeros(3))
