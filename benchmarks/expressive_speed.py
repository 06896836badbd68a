"""Compare updates per second of FQL and Diffusion-QL with the authors' code, in turns.

    python -m benchmarks.expressive_speed fql=<checkout> diffusion_ql=<checkout> \
        python=<interpreter with jax> [algorithms=] [blocks=7] [seconds=5]

For each algorithm, our engine trains one seed and eight stacked seeds, in float32. It takes turns
with a plain PyTorch version and with the authors' files, all on the same random transitions.
Contenders are separate processes. Nothing else should run on the machine.
"""

from __future__ import annotations

import shutil
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.conformance.cases import REPOSITORIES
from benchmarks.figures import check_commit, check_names, run_measurement
from benchmarks.speed.bench import Contender, ratio, take_turns
from benchmarks.speed.expressive import ACT, OBS
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Checked, Count, Positive, build, parse_options
from offline_rl.utils.text import table, wrap_text

ALGORITHMS = ("fql", "diffusion_ql")
SEEDS = (1, 8)
HEADER = ["algorithm", "contender", "seeds", "updates/s", "slowest", "fastest", "× authors"]
HEADER += ["× plain", "GFLOP/s", "first call, s"]
NOTE = """
Updates per second, summed over seeds: the median, slowest and fastest of {blocks} turns of about
{seconds:g} s. Ratios are medians over the turns of the ratio within a turn: × authors to the
authors' code with the same number of seeds, × plain to plain PyTorch with one seed. The authors'
code has no stacked seeds: FQL's agent runs under jax.vmap, and Diffusion-QL is compared with one
seed. Observations have {obs} numbers, actions {act}, batches 256 rows. FQL has 4 hidden layers of
512 units, Diffusion-QL 3 of 256. All compute in float32. First call: compilation, or loading of
compiled code from an earlier run. {cores} cores. Authors' code: {authors}.
"""


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """Options of the command."""

    algorithms: list[str] = field(default_factory=lambda: [*ALGORITHMS])
    fql: str | None = None  # checkout of seohongpark/fql
    diffusion_ql: str | None = None  # checkout of Zhendong-Wang/Diffusion-Policies-for-Offline-RL
    python: str = sys.executable  # interpreter with jax, flax, optax, distrax and ml_collections
    seconds: Positive = 5.0  # length of a turn
    blocks: Count = 7  # turns per contender


def check(options: Options) -> None:
    """Raise UserError for options that would fail after minutes of timing."""
    check_names(tuple(options.algorithms), "algorithm", ALGORITHMS)
    if shutil.which(options.python) is None:
        raise UserError(
            f"python={options.python} is not a program. Pass the path of a Python interpreter."
        )
    for name in options.algorithms:
        check_commit(name, getattr(options, name), *REPOSITORIES[name])


def jobs(algorithm: str, options: Options) -> list[dict[str, Any]]:
    """Return the jobs of all contenders."""
    common = {"device": "cpu", "algorithm": algorithm}
    result: list[dict[str, Any]] = [{"kind": "expressive_eager", "seeds": 1, **common}]
    sizes = {"precision": "fp32", "obs": OBS, "act": ACT}
    result += [{"kind": "ours", "seeds": seeds, **sizes, **common} for seeds in SEEDS]
    if checkout := getattr(options, algorithm):
        counts: Sequence[int] = SEEDS if algorithm == "fql" else SEEDS[:1]
        kind = {"kind": f"expressive_{algorithm}", "checkout": checkout, "device": "cpu"}
        result += [{**kind, "seeds": seeds} for seeds in counts]
    return result


def compare(algorithm: str, options: Options) -> list[dict[str, Any]]:
    """Return a row per contender, with its turns."""
    contenders, rows = list[Contender](), list[dict[str, Any]]()
    try:
        for job in jobs(algorithm, options):
            python = options.python if job["kind"] == "expressive_fql" else sys.executable
            takes_seeds = job["kind"] in ("ours", "expressive_fql")
            arguments = {k: v for k, v in job.items() if takes_seeds or k != "seeds"}
            if job["kind"] == f"expressive_{algorithm}":
                arguments.pop("algorithm", None)
            contender = Contender(arguments, python)
            contenders.append(contender)
            row = {"algorithm": algorithm, "kind": job["kind"], "seeds": job["seeds"]}
            row |= {"first_call": contender.facts["seconds"], "flops": contender.facts.get("flops")}
            rows.append(row)
            print(f"{algorithm} {job['kind']} {job['seeds']}: ready", flush=True)
        turns = take_turns(contenders, options.blocks, options.seconds)
        for row, rates in zip(rows, turns, strict=True):
            row["turns"] = [row["seeds"] * rate for rate in rates]
    finally:
        for contender in contenders:
            contender.stop()
    return rows


def page(results: dict[str, Any]) -> str:
    """Return the page with the table."""
    options, body = Options(**results["options"]), list[list[str]]()
    names = {"ours": "ours", "expressive_eager": "plain PyTorch"}
    for row in results["rows"]:
        group = [r for r in results["rows"] if r["algorithm"] == row["algorithm"]]
        plain = next(r for r in group if r["kind"] == "expressive_eager")
        authors = {r["seeds"]: r for r in group if r["kind"] not in names}
        rate = statistics.median(row["turns"])
        cells = [row["algorithm"], names.get(row["kind"], "authors"), str(row["seeds"])]
        cells += [f"{x:.1f}" for x in (rate, min(row["turns"]), max(row["turns"]))]
        cells += [ratio(row, authors.get(row["seeds"], authors.get(1))), ratio(row, plain)]
        cells += [f"{rate * row['flops'] / 1e9:.0f}" if row["flops"] else ""]
        body.append([*cells, f"{row['first_call']:.0f}"])
    authors_code = (f"{REPOSITORIES[n][0]} at {REPOSITORIES[n][1][:7]}" for n in options.algorithms)
    note = NOTE.format(
        blocks=options.blocks,
        seconds=options.seconds,
        obs=OBS,
        act=ACT,
        cores=results["cores"],
        authors=", ".join(authors_code),
    )
    command = "*Made by `python -m benchmarks.expressive_speed`, not by hand.*"
    rates = table(HEADER, body, markdown=True)
    title = "# Speed of FQL and Diffusion-QL"
    return "\n\n".join([title, command, rates, wrap_text(note.strip())]) + "\n"


def main(arguments: list[str]) -> int:
    """Write speed-cpu.json and .md; return the exit status: 0, or 2 for a user error."""

    def run() -> tuple[Path, dict[str, Any]]:
        options = build(Options, parse_options(arguments))
        check(options)
        rows = [row for name in options.algorithms for row in compare(name, options)]
        public = {
            k: v for k, v in vars(options).items() if k in ("algorithms", "seconds", "blocks")
        }
        results = {"options": public, "rows": rows, "cores": hardware.num_cores()}
        return Path("benchmarks/results/expressive/speed-cpu.json"), results

    return run_measurement(run, page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
