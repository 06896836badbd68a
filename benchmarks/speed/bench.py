"""Compare updates per second of this project and other projects, in turns on one machine.

    offline-rl bench [algorithms=[td3_bc,iql]] [corl=<checkout>] …   (or python -m benchmarks.speed)

Observations have 17 numbers, actions 6, batches 256 rows and hidden layers 256 units. CQL has three
hidden layers and 10 action samples; diffusion_policy has the sizes in diffusion.py. Every contender
is a separate process that waits while others have their turn. The medians of its timed blocks are
compared. Plain matrix multiplications are a contender too, to measure the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.figures import import_path
from benchmarks.speed.eager import BASELINES
from benchmarks.speed.options import BenchOptions
from offline_rl.algorithms.common.registry import algorithm_names
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import make_folder, write_atomically, write_text
from offline_rl.utils.options import build
from offline_rl.utils.text import table

ROOT = Path(__file__).resolve().parents[2]
HEADER = ["algorithm", "contender", "precision", "seeds", "updates/s", "× eager", "× d3rlpy"]
HEADER += ["× JAX-CORL", "GFLOP/s", "of matmul", "first call, s"]
NAMES = {"d3rlpy": "d3rlpy", "corl": "CORL", "jax_corl": "JAX-CORL", "unifloral": "Unifloral"}
NAMES |= {"diffusion_policy": "the authors' file"}
DEFAULTS = {"seeds": 1, "precision": "fp32"}  # for contenders whose job does not set them
NOTE = """
- updates/s: updates per second, summed over seeds; the median of the timed blocks. All contenders
  for an algorithm take turns. Compare algorithms by their ratios only.
- × eager: ratio to single-seed eager PyTorch in CORL's style. Without such a baseline it is the
  ratio to `uncompiled`, our update as a plain sequence of operations.
- × JAX-CORL: ratio to JAX-CORL with the same number of seeds; several seeds use `jax.vmap`.
- GFLOP/s: rate of the matrix multiplications counted in the update's graph.
- of matmul: this rate as a fraction of the rate of plain matrix multiplications of 2048 x 256 by
  256 x 256 in the same precision and run. That rate is {rates}.
- first call: seconds of compilation, or of loading compiled code from the cache of an earlier run.

Cores {cores}, {facts}.

Timed blocks and commits: {measured}.
"""


class Contender:
    """Worker process; `run(n)` does about n updates and returns (updates, seconds)."""

    def __init__(
        self, job: dict[str, Any], python: str = sys.executable, device: str = "cpu"
    ) -> None:
        """Start the process and wait for its first update.

        Raises UserError with the last lines of its error output if it fails.
        """
        self.job, self.errors = job, tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [python, "-m", "benchmarks.speed.worker", json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=os.environ | environment_variables(job, device),
            text=True,
        )
        self.facts = self.last_report = self.read_report()  # the first and the latest report

    def read_report(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()  # it may write its error after it has closed its output
            self.errors.seek(0)
            last = "\n".join(self.errors.read().strip().splitlines()[-4:])
            why = last or f"exit status {code}" + (": out of memory?" if code == -9 else "")
            raise UserError(f"bench: {self.job} stopped: {why}")
        return json.loads(line)

    def run(self, updates: int) -> tuple[int, float]:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # if it has died, `read_report` raises
            self.process.stdin.write(f"{updates}\n")
            self.process.stdin.flush()
        self.last_report = self.read_report()
        return self.last_report["n"], self.last_report["seconds"]

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.errors.close()


def take_turns(contenders: Sequence[Contender], blocks: int, seconds: float) -> list[list[float]]:
    """Return updates per second of each contender in each of `blocks` turns.

    seconds: approximate length of a turn.
    """
    numbers, rates = [], [list[float]() for _ in contenders]
    for contender in contenders:
        contender.run(2)
        done, took = contender.run(5)
        numbers.append(max(1, round(seconds * done / took)))
    for _ in range(blocks):
        for contender, turns, number in zip(contenders, rates, numbers, strict=True):
            time.sleep(0.3)  # threads of the previous contender spin for a moment
            done, took = contender.run(number)
            turns.append(done / took)
    return rates


def ratio(row: dict[str, Any], base: dict[str, Any] | None) -> str:
    """Return the median over turns of the ratio of two rows, as text; empty without `base`."""
    if base is None:
        return ""
    pairs = zip(row["turns"], base["turns"], strict=True)
    return f"{statistics.median(x / y for x, y in pairs):.2f}"


def environment_variables(job: dict[str, Any], device: str) -> dict[str, str]:
    """Return the environment variables of a contender's process."""
    variables = {"PYTHONPATH": import_path(ROOT), "OMP_NUM_THREADS": str(hardware.num_cores())}
    if device == "cpu":
        variables |= {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    else:  # otherwise each JAX process reserves three quarters of the GPU
        variables["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    if job.get("profile"):
        variables["TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE"] = "1"
    return variables


def start(jobs: Sequence[dict[str, Any]], python: str, device: str) -> list[Contender]:
    """Start all contenders. If one fails, stop the others and raise its error.

    On a CPU, contenders start one after another. With a GPU they start in parallel, because each
    compiles on the CPU for minutes. python: the interpreter of the other projects.
    """
    pool = ThreadPoolExecutor(hardware.num_cores() if device == "cuda" else 1)
    starting = [
        pool.submit(Contender, job, python if job["kind"] in NAMES else sys.executable, device)
        for job in jobs
    ]
    contenders = []
    try:
        for job, future in zip(jobs, starting, strict=True):
            contenders.append(future.result())
            seconds = contenders[-1].facts["seconds"]
            print(f"{label(DEFAULTS | job)}: ready after {seconds:.1f} s", flush=True)
    except BaseException:
        pool.shutdown(cancel_futures=True)
        for future in starting:
            if not future.cancelled() and future.exception() is None:
                future.result().stop()
        raise
    pool.shutdown()
    return contenders


def jobs(algorithm: str, options: BenchOptions, device: str) -> list[dict[str, Any]]:
    """Return the worker arguments of all contenders for one algorithm."""
    common: dict[str, Any] = {"algorithm": algorithm, "device": device}
    slow = {"kind": "uncompiled", "seeds": 1, "precision": "fp32"}
    plain = {"kind": "eager"} if algorithm in (*BASELINES, "diffusion_policy") else slow
    result: list[dict[str, Any]] = [plain | common]
    for precision in options.precisions:
        for seeds in options.seeds:
            result.append({"kind": "ours", "seeds": seeds, "precision": precision} | common)
    if algorithm == "diffusion_policy" and options.diffusion_policy:
        checkout = {"checkout": options.diffusion_policy, "device": device}
        result.append({"kind": "diffusion_policy"} | checkout)
    if algorithm not in ("td3_bc", "iql", "cql"):
        return result
    if options.d3rlpy:
        result.append({"kind": "d3rlpy"} | common)
    if options.corl:
        result.append({"kind": "corl", "checkout": options.corl} | common)
    if options.jax_corl:
        for seeds in options.seeds:
            job = {"kind": "jax_corl", "checkout": options.jax_corl, "seeds": seeds}
            result.append(job | {"algorithm": algorithm})
    if options.unifloral and algorithm != "cql":
        result.append({"kind": "unifloral", "checkout": options.unifloral, "algorithm": algorithm})
    return result


def compare(algorithm: str, options: BenchOptions, device: str) -> list[dict[str, Any]]:
    """Return a row per contender, with its blocks."""
    products = [{"kind": "products", "precision": p, "device": device} for p in options.precisions]
    all_jobs = [*jobs(algorithm, options, device), *products]
    contenders, rows = start(all_jobs, options.python, device), []
    try:
        for job, contender in zip(all_jobs, contenders, strict=True):
            facts = contender.facts
            when = {
                "blocks": [],
                "block_seconds": options.seconds,
                "commit": hardware.current_commit(),
            }
            rows.append(DEFAULTS | job | facts | when)
            rows[-1].setdefault("compile_seconds", facts["seconds"])
        numbers = []
        for contender in contenders:
            contender.run(4)
            done, seconds = contender.run(20)
            numbers.append(max(2, round(options.seconds * done / seconds / 2) * 2))
        for _ in range(options.blocks):
            for contender, row, number in zip(contenders, rows, numbers, strict=True):
                time.sleep(0.3)  # threads of the previous contender spin for a moment
                done, seconds = contender.run(number)
                row["blocks"].append(row["seeds"] * done / seconds)
    finally:
        for contender in contenders:
            contender.stop()
    for row in rows:
        row["algorithm"], row["checkout"] = algorithm, None
        row["updates_per_second"] = statistics.median(row["blocks"])
    return rows


def label(row: dict[str, Any]) -> str:
    kind = NAMES.get(row["kind"], row["kind"])
    return f"{row.get('algorithm', '')} {kind} {row['precision']} {row['seeds']}"


def per_second(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 20 else f"{rate:.1f}"


def gflop_rate(row: dict[str, Any]) -> float:
    """Return the GFLOP/s of a row with counted matrix multiplications."""
    return row["updates_per_second"] * row["flops"] / 1e9


def table_row(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a row of the table. rows: all rows of the same algorithm."""

    def rate(kind: str, **keys: Any) -> float | None:
        for r in rows:
            if r["kind"] == kind and all(r[k] == v for k, v in keys.items()):
                return r["updates_per_second"]
        return None

    def ratio(base: float | None) -> str:
        return f"{row['updates_per_second'] / base:.2f}" if base else ""

    products = [r for r in rows if (r["kind"], r["precision"]) == ("products", row["precision"])]
    gflops = gflop_rate(row) if row.get("flops") else None
    product_rate = gflop_rate(products[0]) if products else None
    return [
        row["algorithm"],
        NAMES.get(row["kind"], row["kind"]),
        row["precision"],
        str(row["seeds"]),
        per_second(row["updates_per_second"]),
        ratio(rate("eager") or rate("uncompiled")),
        ratio(rate("d3rlpy")),
        ratio(rate("jax_corl", seeds=row["seeds"])),
        f"{gflops:,.0f}" if gflops else "",
        f"{100 * gflops / product_rate:.0f} %" if gflops and product_rate else "",
        f"{row['compile_seconds']:.0f}",
    ]


def read_earlier(path: Path, machine: dict[str, Any]) -> dict[str, Any]:
    """Return the measurements stored in the file, if it exists.

    Raises UserError if they are from a different machine.
    """
    if not path.is_file():
        return {}
    stored = json.loads(path.read_text())
    for key in ("torch", "cores", "bf16_units", "gpu"):
        if (other := stored["machine"][key]) != machine[key]:
            reason = f"{path} is from a different machine ({key} {other}, here {machine[key]})"
            raise UserError(f"bench: {reason}. Use another out=")
    return stored


def bench(**keys: Any) -> str:
    """Measure, write <out>-<device>.json, .md and .png, and return the table. Raises UserError.

    The files are written after each algorithm.
    """
    options = build(BenchOptions, keys)
    if unknown := set(options.algorithms) - set(algorithm_names()):
        raise UserError(f"bench: unknown algorithm {sorted(unknown)[0]!r}")
    for folder in (options.corl, options.jax_corl, options.unifloral, options.diffusion_policy):
        if folder is not None and not Path(folder).is_dir():
            raise UserError(f"bench: {folder} is not a folder. Pass the folder of a checkout")
    device, text = hardware.select_device(options.device).type, ""
    out, machine = Path(f"{options.out}-{device}"), hardware.describe_machine()
    make_folder(out.parent)
    for name in options.algorithms:
        stored = read_earlier(out.with_suffix(".json"), machine)
        rows, profiles = (
            [row for row in stored.get(key, []) if row["algorithm"] != name]
            for key in ("rows", "profiles")
        )
        rows += compare(name, options, device)
        profiles += profile(name, options, device) if options.profile else []
        text = publish(out, machine, rows, profiles)
    return text


def publish(
    out: Path,
    machine: dict[str, Any],
    rows: Sequence[dict[str, Any]],
    profiles: Sequence[dict[str, Any]],
) -> str:
    """Write <out>.json, .md and .png; return the table and their paths."""
    body, rates = [], {}
    for name in dict.fromkeys(row["algorithm"] for row in rows):
        group = [row for row in rows if row["algorithm"] == name]
        body += [table_row(row, group) for row in group if row["kind"] != "products"]
    products = [row for row in rows if row["kind"] == "products"]
    for precision in dict.fromkeys(row["precision"] for row in products):
        blocks = [b for row in products if row["precision"] == precision for b in row["blocks"]]
        rates[precision] = round(statistics.median(blocks) * products[0]["flops"] / 1e9)
    units = " ".join(machine["bf16_units"]) or "none"
    facts = f"torch {machine['torch']}, bf16 units: {units}, GPU: {machine['gpu'] or 'none'}"
    note = NOTE.format(
        rates=", ".join(f"{rate:,} GFLOP/s in {precision}" for precision, rate in rates.items()),
        cores=machine["cores"],
        facts=facts,
        measured="; ".join(describe_blocks(rows)),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    result = {"machine": machine, "product_gflop_per_second": rates, "rows": rows}
    result |= {"profiles": profiles}
    files = [out.with_suffix(suffix) for suffix in (".json", ".md", ".png")]
    write_text(files[0], json.dumps(result, indent=1) + "\n")
    title = f"# Speed on {out.name.rpartition('-')[2]}"
    page = [title, "`offline-rl bench`", table(HEADER, body, markdown=True), note]
    page += [f"![Updates per second]({out.name}.png)"]
    if profiles:
        page += ["## Time of an update", table(*profile_table(profiles), markdown=True)]
    write_text(files[1], "\n\n".join(page) + "\n")
    write_atomically(files[2], lambda temporary: draw(rows, temporary))
    return "\n".join([table(HEADER, body), note, *map(str, files)])


def describe_blocks(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return one text per group of algorithms with the same blocks and commit."""
    groups: dict[str, dict[str, None]] = {}
    for row in rows:
        commit = row["commit"][:7] if row["commit"] else "an unknown commit"
        blocks = f"{len(row['blocks'])} of {row['block_seconds']:g} s at {commit}"
        groups.setdefault(blocks, {})[row["algorithm"]] = None
    return [f"{blocks}: {', '.join(names)}" for blocks, names in groups.items()]


def profile(algorithm: str, options: BenchOptions, device: str) -> list[dict[str, Any]]:
    """Profile our updates, which are compiled again with profiling enabled."""
    profiles = []
    for job in jobs(algorithm, options, device):
        if job["kind"] == "ours":
            contender = Contender(job | {"profile": True}, sys.executable, device)
            contender.stop()
            profiles.append(job | contender.facts)
    return profiles


def profile_table(profiles: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    names = list(profiles[0]["profile"])
    titles = ["matrix multiplications" if name == "products" else name for name in names]
    body = [
        [p["algorithm"], p["precision"], str(p["seeds"])]
        + [f"{100 * p['profile'][name]:.0f} %" for name in names]
        for p in profiles
    ]
    return ["algorithm", "precision", "seeds", *titles], body


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw bars of updates per second, one panel per algorithm."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(row["algorithm"] for row in rows))
    columns = min(4, len(names))
    shape = -(-len(names) // columns), columns
    size = 5 * columns, 4 * shape[0]
    figure, axes = pyplot.subplots(*shape, figsize=size, squeeze=False, constrained_layout=True)
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for name, axis in zip(names, axes.flat, strict=False):
        group = [r for r in rows if r["algorithm"] == name and r["kind"] != "products"]
        group.sort(key=lambda r: r["updates_per_second"])
        labels = [label(r).removeprefix(name).strip() for r in group]
        colors = ["tab:blue" if r["kind"] == "ours" else "tab:gray" for r in group]
        bars = axis.barh(labels, [r["updates_per_second"] for r in group], color=colors)
        axis.bar_label(bars, fmt="%.0f", padding=2, fontsize=8)
        axis.set(title=name, xlabel="seed-updates / s")
        axis.margins(x=0.15)
    figure.savefig(path, dpi=120, format="png")
    pyplot.close(figure)
