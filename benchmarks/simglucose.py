"""Scores of constant insulin rates on Simglucose, from all 360 initial states.

    python -m benchmarks.simglucose [coarse=24] [fine=100]

Simglucose starts with one of 15 patients at one of 24 hours, with equal probability. It has no
other randomness, so the mean return of an action over the 360 initial states is exact. Trained
policies are scored on the same states with `offline-rl evaluate run=<run> episodes=all`.

The search first plays the rate 0 and `coarse` rates that are evenly spaced on a log scale, up to
the pump's maximum of 5 U/min. It then plays `fine` evenly spaced rates between the neighbors of the
best one. It also finds the best rate of each patient: a policy can identify the patient from the
observation. Writes benchmarks/results/neorl2/simglucose.md.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import envs
from benchmarks.baselines import player
from benchmarks.figures import run_command
from envs.suites.neorl2.simglucose import HOURS, PATIENTS, Simglucose, draw_start
from offline_rl.utils.files import write_text
from offline_rl.utils.options import Checked, Count, build, parse_options
from offline_rl.utils.seeds import EVALUATION_SEED

PAGE = Path("benchmarks/results/neorl2/simglucose.md")
PUBLISHED = Path("benchmarks/published/neorl2.csv")
LOWEST = 1e-3  # lowest positive rate of the coarse search, U/min
TOGETHER = 10  # actions played in parallel, from 360 initial states each


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """Options of the command."""

    coarse: Count = 24  # number of positive rates of the first search
    fine: Count = 100  # number of rates of the second search


def play(rates: np.ndarray) -> np.ndarray:
    """Return the returns of constant rates [K] U/min, by patient and hour: [K, 15, 24]."""
    seeds = Simglucose(1).every_start(EVALUATION_SEED)
    actions = 2 * rates[:, None] / Simglucose.MAX_BASAL - 1
    returns = player(envs.task("neorl2/Simglucose"), seeds)
    parts = np.array_split(actions, -(-len(actions) // TOGETHER))
    played = np.concatenate([returns(part) for part in parts])
    result = np.full((len(rates), len(PATIENTS), HOURS), np.nan)
    for column, seed in enumerate(seeds):
        hour, patient = draw_start(seed)
        result[:, patient, hour] = played[:, column]
    return result


def search(coarse: int, fine: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all played rates [K], sorted, and their returns [K, 15, 24]."""
    first = np.concatenate([[0], np.geomspace(LOWEST, Simglucose.MAX_BASAL, coarse)])
    returns = play(first)
    best = int(returns.mean((1, 2)).argmax())
    low, high = first[max(best - 1, 0)], first[min(best + 1, coarse)]
    second = np.linspace(low, high, fine + 2)[1:-1]
    rates, returns = np.concatenate([first, second]), np.concatenate([returns, play(second)])
    order = np.argsort(rates)
    return rates[order], returns[order]


def published() -> dict[str, float]:
    """Return the published scores of Simglucose by algorithm."""
    with PUBLISHED.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["task"] == "Simglucose"]
    return {r["algorithm"]: float(r["value"]) for r in rows if r["metric"] == "normalized_score"}


def page(rates: np.ndarray, returns: np.ndarray, command: str) -> str:
    """Return the page for played rates [K] and their returns [K, 15, 24]."""
    score = envs.task("neorl2/Simglucose").score
    means = returns.mean((1, 2))
    best = int(means.argmax())
    by_patient = returns.mean(2)  # [K, 15]
    scores = published()
    data, top = scores.pop("data"), max(scores, key=lambda name: scores[name])
    lines = [
        "# Constant insulin rates on Simglucose",
        "",
        f"`{command}`",
        "",
        "All 360 initial states (15 patients, 24 hours). There is no other randomness, so the "
        "returns are exact.",
        "",
        "| policy | action | U/h | return | score |",
        "|---|---|---|---|---|",
    ]

    def row(name: str, index: int) -> str:
        action = 2 * rates[index] / Simglucose.MAX_BASAL - 1
        mean = means[index]
        return (
            f"| {name} | {action:.5f} | {60 * rates[index]:.3f} | {mean:.2f} | {score(mean):.2f} |"
        )

    lines += [row("best constant action", best), row("no insulin", 0), row("most insulin", -1)]
    mean = by_patient.max(0).mean()
    lines += [
        f"| best constant action of each patient | | | {mean:.2f} | {score(mean):.2f} |",
        f"| data (published) | | | | {data:.2f} |",
        f"| best published method ({top}) | | | | {scores[top]:.2f} |",
        "",
        f"{len(rates)} rates were played. Rates whose score is within 1 of the best: "
        f"{60 * rates[score(means) > score(means[best]) - 1].min():.3f} to "
        f"{60 * rates[score(means) > score(means[best]) - 1].max():.3f} U/h.",
        "",
        "| patient | best rate, U/h | return | return of the best constant action |",
        "|---|---|---|---|",
    ]
    for patient, name in enumerate(PATIENTS):
        k = int(by_patient[:, patient].argmax())
        lines.append(
            f"| {name} | {60 * rates[k]:.3f} | {by_patient[k, patient]:.1f} | "
            f"{by_patient[best, patient]:.1f} |"
        )
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str]) -> None:
    """Run the command. Raises UserError."""
    options = build(Options, parse_options(arguments))
    rates, returns = search(options.coarse, options.fine)
    text = page(rates, returns, " ".join(["python -m benchmarks.simglucose", *arguments]))
    write_text(PAGE, text)
    print(text)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
