"""Properties of this machine: device, memory, processor features, compiler, versions."""

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


# Environment variables that torchrun sets for every process
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def world_size() -> int:
    """Return the number of processes that torchrun has started for this command, else 1."""
    return int(os.environ["WORLD_SIZE"]) if all(os.environ.get(x) for x in TORCHRUN) else 1


def rank() -> int:
    """Return the number of this process among those of torchrun, from 0 on; 0 without torchrun."""
    return int(os.environ["RANK"]) if world_size() > 1 else 0


def select_device(name: str) -> torch.device:
    """Return the device `name`; `auto` is the first GPU, or the CPU if there is none.

    With several processes, each process of a machine has a GPU of its own. Raises UserError if
    there is no such device.
    """
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if world_size() > 1 and name.startswith("cuda"):
        if name != "cuda":
            raise UserError(f"device={name}: torchrun gives each process its GPU. Use device=cuda.")
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    match = re.fullmatch(r"cpu|cuda(:\d+)?", name)
    if match is None:
        raise UserError(f"device={name} is unknown. Use auto, cpu, cuda or cuda:<number>.")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device={name}: PyTorch finds no CUDA device here. Use device=cpu.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise UserError(f"device={name} does not exist. The last CUDA device is cuda:{last}.")
    return device


_keeps_freed_memory = False  # set by `keep_freed_memory`


def keep_freed_memory() -> None:
    """Configure glibc's allocator to keep freed memory. Other C libraries are not configured.

    By default, glibc returns the memory of large tensors to the system and maps it again in every
    update, which took a quarter of CQL's time on a processor with bf16 units.
    """
    global _keeps_freed_memory
    if platform.libc_ver()[0] == "glibc":
        _keeps_freed_memory = True
        _configure_allocator(trim_threshold=-1, mmap_max=0)


@contextmanager
def release_freed_memory() -> Iterator[None]:
    """Suspend `keep_freed_memory` within the block, and release freed memory at the end.

    For one-time work with large tensors, such as tracing. It frees blocks of all sizes; keeping
    them would fragment memory, which grew to fifty times the peak use. Does nothing unless
    `keep_freed_memory` was called.
    """
    if not _keeps_freed_memory:
        yield
        return
    _configure_allocator(trim_threshold=1 << 17, mmap_max=1 << 16)
    try:
        yield
    finally:
        keep_freed_memory()
        ctypes.CDLL(None).malloc_trim(0)


def _configure_allocator(trim_threshold: int, mmap_max: int) -> None:
    """Set glibc's allocator options.

    trim_threshold: return free memory at the top of the heap to the system if it exceeds this
    number of bytes; -1: never. mmap_max: maximum number of blocks that are mapped separately.
    """
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(-1, trim_threshold)  # M_TRIM_THRESHOLD in malloc.h
    mallopt(-3, 1 << 17)  # M_MMAP_THRESHOLD: blocks of 128 KiB and more are mapped separately
    mallopt(-4, mmap_max)  # M_MMAP_MAX


def num_cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory(on: torch.device) -> int:
    """Return the free memory of device `on` in bytes; a huge number if unknown.

    Processes of torchrun on one machine share the memory of its CPU equally.
    """
    import torch

    if on.type == "cuda":
        return torch.cuda.mem_get_info(on)[0]
    path = Path("/proc/meminfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    kilobytes = [int(x.split()[1]) for x in lines if x.startswith("MemAvailable:")]
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if world_size() > 1 else 1
    return 1024 * kilobytes[0] // processes if kilobytes else 1 << 62


def total_memory(on: torch.device) -> int:
    """Return the installed memory of device `on` in bytes."""
    import torch

    if on.type == "cuda":
        return torch.cuda.get_device_properties(on).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def is_out_of_memory(error: Exception) -> bool:
    """Return True if the error means that memory ran out; torch has no class for it on a CPU."""
    phrases = ("can't allocate memory", "not enough memory", "size calculation overflowed")
    message = str(error)
    return "OutOfMemory" in type(error).__name__ or any(x in message for x in phrases)


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Return the processor's features by Linux's names; empty on other systems."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    return frozenset(next((line.split() for line in lines if line.startswith("flags")), []))


def has_bf16(on: torch.device) -> bool:
    """Return True if device `on` multiplies bf16 matrices natively."""
    import torch

    if on.type == "cuda":
        with torch.cuda.device(on):
            return torch.cuda.is_bf16_supported(including_emulation=False)
    return bool(cpu_flags() & {"amx_bf16", "avx512_bf16"})


def has_tf32(on: torch.device) -> bool:
    """Return True if device `on` multiplies in TF32, as NVIDIA's GPUs do from Ampere on."""
    import torch

    if on.type != "cuda" or torch.version.hip:
        return False
    return torch.cuda.get_device_capability(on) >= (8, 0)


def missing_compiler() -> str | None:
    """Return a message if torch.compile finds no C++ compiler, else None."""
    name = os.environ.get("CXX")
    if any(shutil.which(x) for x in ((name,) if name else ("g++", "clang++", "c++"))):
        return None
    return f"no C++ compiler ({name or 'g++'}) is installed"


@functools.cache
def current_commit() -> str | None:
    """Return the commit of the Git clone that contains this code; None for an installed package.

    The first result is cached, because the clone may change while the process runs.
    """
    if not (PACKAGE.parent / ".git").exists():
        return None
    try:
        result = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=PACKAGE.parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()


def describe_machine() -> dict[str, Any]:
    """Return the versions of the main packages and the hardware, as in result.json."""
    import gymnasium
    import mujoco
    import numpy
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "offline_rl": __version__,
        "commit": current_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "mujoco": mujoco.__version__,
        "gymnasium": gymnasium.__version__,
        "machine": platform.machine(),
        "cores": num_cores(),
        "bf16_units": sorted(cpu_flags() & {"amx_bf16", "avx512_bf16"}),
        "gpu": gpu,
    }
