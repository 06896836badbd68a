"""What this machine is and can do."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_rl.utils.errors import UserError
from offline_rl.utils.paths import PACKAGE
from offline_rl.version import __version__

if TYPE_CHECKING:
    import torch


def device(name: str) -> torch.device:
    """`auto` is the first GPU where there is one. Raises UserError where there is none."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    match = re.fullmatch(r"cpu|cuda(:\d+)?", name)
    if match is None:
        raise UserError(f"device={name}: expected auto, cpu, cuda or cuda:<number>")
    found = torch.device(name)
    if found.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device={name}: PyTorch sees no CUDA device here; use device=cpu")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device={name}: there are {torch.cuda.device_count()}, counted from 0")
    return found


_keeps = False  # what is freed, since `keep_memory`


def keep_memory() -> None:
    """Tells glibc's allocator to keep what is freed; does nothing elsewhere.

    A large tensor's memory would otherwise be handed back and faulted in again in every update:
    a quarter of CQL's time on a processor with bf16 units.
    """
    global _keeps
    if platform.libc_ver()[0] == "glibc":
        _keeps = True
        _tell_allocator(trim_threshold=-1, mmap_max=0)


@contextmanager
def giving_back() -> Iterator[None]:
    """Within, what is freed goes back to the system at once, and at the end what was kept before.

    For work that is done once with large tensors: kept, its blocks of all sizes lie in pieces,
    fifty times what was ever in use together. Does nothing where nothing is kept.
    """
    if not _keeps:
        yield
        return
    _tell_allocator(trim_threshold=1 << 17, mmap_max=1 << 16)
    try:
        yield
    finally:
        keep_memory()
        ctypes.CDLL(None).malloc_trim(0)


def _tell_allocator(trim_threshold: int, mmap_max: int) -> None:
    """Glibc's: in bytes, -1: never; and the most blocks of their own."""
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(-1, trim_threshold)  # M_TRIM_THRESHOLD in malloc.h
    mallopt(-3, 1 << 17)  # M_MMAP_THRESHOLD: from 128 KiB on a block of its own
    mallopt(-4, mmap_max)  # M_MMAP_MAX


def cores() -> int:
    """Processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory(on: torch.device) -> int:
    """Bytes that may still be taken on `on`; without limit where nothing tells."""
    import torch

    if on.type == "cuda":
        return torch.cuda.mem_get_info(on)[0]
    path = Path("/proc/meminfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    kilobytes = [int(x.split()[1]) for x in lines if x.startswith("MemAvailable:")]
    return 1024 * kilobytes[0] if kilobytes else 1 << 62


def memory(on: torch.device) -> int:
    """Bytes that are installed."""
    import torch

    if on.type == "cuda":
        return torch.cuda.get_device_properties(on).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def out_of_memory(error: Exception) -> bool:
    """Whether it says that so much memory cannot be had; on a CPU torch has no class for it."""
    words = ("can't allocate memory", "not enough memory", "size calculation overflowed")
    said = str(error)
    return "OutOfMemory" in type(error).__name__ or any(word in said for word in words)


@functools.cache
def cpu_flags() -> frozenset[str]:
    """The processor's features as Linux names them; empty elsewhere."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    return frozenset(next((line.split() for line in lines if line.startswith("flags")), []))


def has_bf16(on: torch.device) -> bool:
    """Whether `on` multiplies bf16 matrices natively."""
    import torch

    if on.type == "cuda":
        with torch.cuda.device(on):
            return torch.cuda.is_bf16_supported(including_emulation=False)
    return bool(cpu_flags() & {"amx_bf16", "avx512_bf16"})


def compiler_missing() -> str | None:
    """What torch.compile lacks on this machine, in words; None where it lacks nothing."""
    wanted = os.environ.get("CXX")
    if any(shutil.which(name) for name in ((wanted,) if wanted else ("g++", "clang++", "c++"))):
        return None
    return f"no C++ compiler ({wanted or 'g++'}) is installed"


@functools.cache
def commit() -> str | None:
    """The commit of the clone this runs from, as first asked; None in an installed package.

    The clone may move on while a process trains: what it has loaded does not.
    """
    if not (PACKAGE.parent / ".git").exists():
        return None
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=PACKAGE.parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def description() -> dict[str, Any]:
    """Versions and hardware."""
    import gymnasium
    import mujoco
    import numpy
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "offline_rl": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "mujoco": mujoco.__version__,
        "gymnasium": gymnasium.__version__,
        "machine": platform.machine(),
        "cores": cores(),
        "bf16_units": sorted(cpu_flags() & {"amx_bf16", "avx512_bf16"}),
        "gpu": gpu,
    }
