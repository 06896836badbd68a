"""Page of a GPU's results."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu import equality
from benchmarks.gpu.limits import floor_s
from benchmarks.speed.bench import DEFAULTS, NAMES, label, per_second
from offline_rl.utils.text import table

HEADER = ["algorithm", "contender", "precision", "seeds", "updates/s", "× eager", "× JAX-CORL"]
HEADER += ["of the limit", "kernels", "GFLOP/s", "error"]
NOTE = f"""
- updates/s: updates per second, summed over seeds; the median of the turns.
- × eager: ratio to single-seed eager PyTorch in CORL's style. × JAX-CORL: ratio to JAX-CORL with
  the same number of seeds.
- of the limit: the shortest time that the GPU's limits allow for an update of all seeds, divided
  by the measured time. The shortest time is the largest of three: as many empty kernels as the
  update has; copying the training state as far as it exceeds the level-2 cache; the matrix
  multiplications at the highest measured rate.
- error: largest difference of the compiled program's parameters from those of uncompiled updates
  on the CPU, after two periods. Rounding can flip a step of Adam, whose size is the learning rate.
  So up to {equality.TOLERANCE:g} is expected.
"""


def page(result: Mapping[str, Any]) -> str:
    """Return the results as Markdown."""
    parts = [f"# Results on {result['machine']['gpu']}", "`python -m benchmarks.gpu`"]
    parts += ["## Equality", *equality_text(result["equality"], result["all_compared"])]
    limits = [[name, f"{value:.3g}"] for name, value in result["limits"].items()]
    parts += ["## Speed"] + [table(["limit", "value"], limits, markdown=True)] * bool(limits)
    parts += [*speed_text(result["rows"], result["limits"])]
    if result.get("evidence"):
        parts += ["## Runs", *result["evidence"]]
    return "\n\n".join(parts) + "\n"


def equality_text(rows: Sequence[Mapping[str, Any]], complete: bool) -> list[str]:
    """Return paragraphs on the comparison of every phase with a CPU."""
    if not rows:
        return ["No phase was compared in time. Use more minutes."]
    equal = sum(map(equality.is_equal, rows))
    names = len({row["algorithm"] for row in rows})
    text = (
        f"{equal} of {len(rows)} phases of {names} algorithms give the same bits again, the same "
        "bits as without a captured graph, and the parameters of a CPU within "
        f"{equality.TOLERANCE:g} (ill-conditioned phases: any). The networks are small and not "
        "compiled."
    )
    text += "" if complete else " The other algorithms were not compared in time."
    others = [row for row in rows if not equality.is_equal(row)]
    kinds = ("cpu", "uncaptured", "repeated")
    body = [
        [
            row["algorithm"],
            row["phase"],
            *(f"{row[k]:.1e}" if k in row else "" for k in kinds),
            row.get("error", ""),
        ]
        for row in others
    ]
    header = ["algorithm", "phase", *kinds, "failure"]
    return [text] + [table(header, body, markdown=True)] * bool(body)


def speed_text(rows: Sequence[Mapping[str, Any]], limits: Mapping[str, float]) -> list[str]:
    """Return the table of speeds, and a sentence per contender that was not measured."""
    measured = [{**DEFAULTS, **row} for row in rows if "blocks" in row]
    rates = {
        (row["kind"], row["algorithm"], row["seeds"]): statistics.median(row["blocks"])
        for row in measured
    }
    body = []
    for row in measured:
        rate, seeds = statistics.median(row["blocks"]), row["seeds"]
        eager = rates.get(("eager", row["algorithm"], 1))
        jax = rates.get(("jax_corl", row["algorithm"], seeds))
        limit = floor_s(row, limits)
        name = NAMES.get(row["kind"], row["kind"])
        name += ", separate kernels" if row.get("fallbacks") and name == "ours" else ""
        body.append([row["algorithm"], name, row["precision"]])
        body[-1] += [
            str(seeds),
            per_second(rate),
            *(f"{rate / x:.2f}" if x else "" for x in (eager, jax)),
        ]
        body[-1] += [f"{100 * limit * rate / seeds:.0f} %" if limit else ""]
        body[-1] += [f"{row['kernels']:.0f}" if row.get("kernels") else ""]
        body[-1] += [f"{rate * row['flops'] / 1e9:,.0f}" if row.get("flops") else ""]
        body[-1] += [f"{row['cpu_difference']:.0e}" if "cpu_difference" in row else ""]
    late = [
        f"Not measured: {label({**DEFAULTS, **row})}: {row['error']}."
        for row in rows
        if "error" in row
    ]
    return [table(HEADER, sorted(body), markdown=True), NOTE.strip()] * bool(body) + late
