"""`offline-rl doctor`: installed and missing parts of this machine, and what needs them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from offline_rl.utils import hardware
from offline_rl.utils.options import build
from offline_rl.utils.text import format_count, table
from offline_rl.version import __version__

if TYPE_CHECKING:
    from envs.cards import Card

PACKAGE = "offline-rl-suite"  # the name of this package for pip
MODULES = {"hydra-core": "hydra", "pyyaml": "yaml"}  # package -> its module, if the names differ
PURPOSES = {  # extra -> feature that needs it
    "box2d": "RocketRecovery of NeoRL-2",
    "docs": "the documentation site",
    "export": "export of ONNX graphs",
    "hub": "model hubs: policies.load('hub:…')",
    "lerobot": "LeRobot's tables and videos",
    "ogbench": "OGBench",
    "pusht": "Push-T",
    "ray": "benchmark launcher=ray",
    "robotics": "Adroit, Franka kitchen and Fetch",
    "search": "Optuna's samplers for search",
    "sindy": "a test of sparse_policy",
    "video": "MP4 files",
    "zarr": "Zarr stores",
}


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """Options of `offline-rl doctor`."""

    data_dir: str | None = None  # folder of the datasets; default: OFFLINE_RL_DATA, or the cache


class Finding(NamedTuple):
    """Row of the table."""

    part: str
    found: str
    note: str = ""  # missing part, the feature that needs it, and the remedy
    broken: bool = False  # True: a mandatory part is missing


def doctor(**keys: Any) -> tuple[str, list[str]]:
    """Return the table of this machine's parts, and a list of broken mandatory parts.

    Raises UserError for wrong options.
    """
    options = build(DoctorOptions, keys)
    findings = [*packages()]
    broken = [f"{f.part}: {f.note}" for f in findings if f.broken]
    findings += [*machine(has_torch=not any(f.part == "torch" for f in findings if f.broken))]
    findings += [*extras()]
    if not broken:
        findings += [*datasets(options.data_dir)]
    body = [[f.part, f.found, f.note] for f in findings]
    return table([f"offline_rl {__version__}", "found", "note"], body, left=3), broken


def requirements(extra: str | None = None) -> dict[str, str]:
    """Return package -> version range of the mandatory packages, or of an extra."""
    found = dict[str, str]()
    for line in metadata.requires(PACKAGE) or ():
        text, _, marker = line.partition(";")
        name, version = re.match(r"([\w.-]+)\s*(.*)", text.strip()).groups()  # type: ignore[union-attr]
        wanted = re.search(r"extra == ['\"]([\w-]+)['\"]", marker)
        if (wanted[1] if wanted else None) == extra:
            found[name] = version
    return found


def problem(name: str, version: str) -> str:
    """Return why a package does not satisfy the version range; an empty string if it does."""
    try:
        installed = metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
    lowest = re.search(r">=\s*([\d.]+)", version)
    if lowest and numbers(installed) < numbers(lowest[1]):
        return f"{installed} is installed, and {version} is needed"
    return ""


def numbers(version: str) -> list[int]:
    """Return the numbers at the start of a version, without trailing zeros."""
    found = re.match(r"\d+(\.\d+)*", version)
    parts = [int(part) for part in found[0].split(".")] if found else []
    while parts and not parts[-1]:
        parts.pop()
    return parts


def packages() -> Iterator[Finding]:
    """Yield Python, torch, the other mandatory packages, and one line for each broken package."""
    required, faults = requirements(), dict[str, str]()
    for name, version in required.items():
        if not (why := problem(name, version)):
            try:
                import_module(MODULES.get(name, name))
            except Exception as error:
                why = f"it cannot be imported ({' '.join(str(error).split())})"
        if why:
            faults[name] = why
    python = ".".join(map(str, sys.version_info[:3]))
    old = sys.version_info < (3, 11)
    yield Finding("Python", python, "Python 3.11 or newer is needed" if old else "", old)
    if "torch" not in faults:
        yield Finding("torch", metadata.version("torch"))
    yield Finding("packages", f"{len(required) - len(faults)} of {len(required)}")
    for name, why in faults.items():
        remedy = f"{why}. Run: pip install '{name}{required[name]}'"
        yield Finding(name, "no", remedy, True)


def machine(*, has_torch: bool) -> Iterator[Finding]:
    """Yield processor, memory, disk, bf16, GPU and compiler. has_torch: torch can be imported."""
    yield Finding("cores", str(hardware.num_cores()))
    if has_torch:
        import torch

        cpu, device = torch.device("cpu"), hardware.select_device("auto")
        free, total = hardware.free_memory(cpu), hardware.total_memory(cpu)
        yield Finding("memory", f"{free / 1e9:.0f} of {total / 1e9:.0f} GB free")
        bf16 = hardware.has_bf16(device)
        yield Finding("bf16", *(("yes",) if bf16 else ("no", "precision=auto trains in fp32")))
        yield gpu()
    yield Finding("disk", f"{shutil.disk_usage(Path.cwd()).free / 1e9:.0f} GB free here")
    if missing := hardware.missing_compiler():
        yield Finding("compiler", "no", f"{missing}; training is slower. Install g++")
    else:
        yield Finding("compiler", "yes")
    if shutil.which("sbatch"):
        yield Finding("Slurm", "yes")


def gpu() -> Finding:
    """Return the GPUs that torch can use, or the reason why it can use none."""
    import torch

    if torch.cuda.is_available():
        names = Counter(torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count()))
        return Finding("GPU", ", ".join(f"{count} × {name}" for name, count in names.items()))
    if installed := installed_gpu():
        build = "has no CUDA" if torch.version.cuda is None else "cannot use it; check its driver"
        return Finding("GPU", installed, f"this build of torch {build}. Training uses the CPU")
    return Finding("GPU", "no", "device=auto uses the CPU")


def installed_gpu() -> str:
    """Return the name of an NVIDIA GPU as its driver reports it; empty if there is none."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout.partition("\n")[0].strip()


def extras() -> Iterator[Finding]:
    """Yield a row for each extra except dev, with its missing packages."""
    known = metadata.metadata(PACKAGE).get_all("Provides-Extra") or []
    for extra in sorted({*known} - {"dev"}):
        purpose = PURPOSES.get(extra, extra)
        required = requirements(extra)
        lacking = [name for name, version in required.items() if problem(name, version)]
        note = f"for {purpose}"
        if lacking:
            note += f": pip install {' '.join(repr(n + required[n]) for n in lacking)}"
        yield Finding(f"extra {extra}", "no" if lacking else "yes", note)


def datasets(data_dir: str | None) -> Iterator[Finding]:
    """Yield a row for each suite of data sets, with the number of sets on this machine."""
    from offline_rl.data.info import listed_cards, state_of
    from offline_rl.data.load import data_folder, recipe_of

    yield Finding("data folder", str(data_folder(data_dir)))
    suites: dict[str, list[Card]] = {}
    for card in listed_cards():
        suites.setdefault(card.suite, []).append(card)
    for suite, cards in suites.items():
        states = {card.name: state_of(card, data_dir) for card in cards}
        missing, note = [card for card in cards if states[card.name].startswith("to ")], ""
        if missing:
            recipe = recipe_of(missing[0]) if states[missing[0].name] == "to generate" else None
            remedy = f"generate {recipe}" if recipe else f"data download {missing[0].name}"
            note = f"{format_count(len(missing), 'set')} missing, such as: offline-rl {remedy}"
        yield Finding(f"data {suite}", f"{len(cards) - len(missing)} of {len(cards)}", note)
