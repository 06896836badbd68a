"""Scores of constant insulin rates and of policies on Simglucose, from all 360 initial states.

    python -m benchmarks.simglucose [coarse=24] [fine=100]
    python -m benchmarks.simglucose runs=[<run>,<run>] [target_cost=19.2] [guardian=neighbor]

Simglucose starts with one of 15 patients at one of 24 hours, with equal probability. It has no
other randomness, so the mean return of an action over the 360 initial states is exact. Trained
policies are scored on the same states with `offline-rl evaluate run=<run> episodes=all`.

The search first plays the rate 0 and `coarse` rates that are evenly spaced on a log scale, up to
the pump's maximum of 5 U/min. It then plays `fine` evenly spaced rates between the neighbors of the
best one. It also finds the best rate of each patient: a policy can identify the patient from the
observation. Writes benchmarks/results/neorl2/simglucose.md.

With `runs`, the best constant action of that page and the policies of these runs (all seeds) are
played, and what a physician looks at is measured: the shares of time in the target range and with
hypoglycemia. A guardian of the training data says how often a policy leaves it. Rows have the names
of the runs' folders. Writes benchmarks/results/neorl2/simglucose-policies.md.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

import envs
import policies
from benchmarks.baselines import player
from benchmarks.figures import run_command
from envs.suites.neorl2.simglucose import (
    HIGH,
    HOURS,
    LOW,
    PATIENTS,
    Simglucose,
    draw_start,
    is_in_target,
    is_low,
)
from offline_rl.algorithms.common.safety.guardian import fit_guardian
from offline_rl.data import Dataset, load
from offline_rl.evaluation.evaluate import bundles
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import write_text
from offline_rl.utils.options import Checked, Count, NonNegative, build, parse_options
from offline_rl.utils.seeds import EVALUATION_SEED
from offline_rl.utils.text import format_mean_std
from policies import bundle
from policies.runtimes.guardian import Guardian

PAGE = Path("benchmarks/results/neorl2/simglucose.md")
POLICIES = Path("benchmarks/results/neorl2/simglucose-policies.md")
PUBLISHED = Path("benchmarks/published/neorl2.csv")
TASK = "neorl2/Simglucose"
QUANTILE = 0.05  # share of the data that the guardian finds out of distribution
# (observations [B, O], rewards [B], costs [B]) of the last step -> actions [B, 1]
Act = Callable[[np.ndarray, Any, Any], np.ndarray]
LOWEST = 1e-3  # lowest positive rate of the coarse search, U/min
TOGETHER = 10  # actions played in parallel, from 360 initial states each


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """Options of the command."""

    coarse: Count = 24  # number of positive rates of the first search
    fine: Count = 100  # number of rates of the second search
    runs: tuple[str, ...] = ()  # folders of runs whose policies are played, instead of the search
    target_cost: NonNegative | None = None  # steps of hypoglycemia for policies with a cost limit
    guardian: Literal["kde", "neighbor"] = "neighbor"  # score that finds steps unlike the data
    guardian_rows: Count = 2_000  # rows of the data that the guardian compares with


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


class Day(NamedTuple):
    """Steps of one episode from each initial state, N steps in total."""

    returns: np.ndarray  # [B]
    glucose: np.ndarray  # [N] observed after each step, mg/dL
    is_outside: np.ndarray  # [N] True where observation and action are out of distribution

    def numbers(self) -> np.ndarray:
        """Return score, time in range, hypoglycemia share, share outside, and steps, in this order.

        Shares are in percent of the played steps. Steps: the mean length of an episode.
        """
        score = float(np.mean(envs.task(TASK).score(self.returns)))
        shares = [is_in_target(self.glucose), is_low(self.glucose), self.is_outside]
        percent = [100 * float(np.mean(share)) for share in shares]
        return np.array([score, *percent, len(self.glucose) / len(self.returns)])


def play_day(act: Act, guardian: Guardian) -> Day:
    """Play an episode from every initial state."""
    seeds = Simglucose(1).every_start(EVALUATION_SEED)
    env, running = Simglucose(len(seeds)), np.arange(len(seeds))
    observations, returns = env.reset(seeds), np.zeros(len(seeds))
    feedback = np.zeros((2, len(seeds)))  # rewards and costs of the last step
    glucose, outside = list[np.ndarray](), list[np.ndarray]()
    while len(running):
        actions = act(observations, *feedback)
        inside, _ = guardian.in_distribution(observations[running], actions[running])
        step = env.step(actions[running], running)
        returns[running] += step.rewards
        feedback[:] = 0
        feedback[:, running] = step.rewards, step.infos["cost"]
        observations[running] = step.observations
        glucose.append(step.observations[:, 0])
        outside.append(~inside)
        running = running[~(step.terminated | step.truncated)]
    return Day(returns, np.concatenate(glucose), np.concatenate(outside))


def policy_of(path: Path, target_cost: float | None) -> Act:
    """Return the actions of a bundle, with this cost limit if it takes one. Raises UserError."""
    takes = target_cost is not None and "target_cost" in bundle.read(path).arguments
    policy = policies.load(path, **({"target_cost": target_cost} if takes else {}))
    player = policies.Player(policy)
    player.reset(np.arange(HOURS * len(PATIENTS)))
    return player.step


def best_constant() -> float:
    """Return the best constant action, from the page of the search. Raises UserError."""
    found = re.search(r"\| best constant action \| (\S+) \|", PAGE.read_text())
    if found is None:
        raise UserError(f"{PAGE} has no best constant action. Run python -m benchmarks.simglucose.")
    return float(found[1])


def data_day(data: Dataset, guardian: Guardian) -> Day:
    """Return the days in the data."""
    rows = np.arange(data.num_rows)
    after = np.where(data.usable, data.next_index, rows)
    inside, _ = guardian.in_distribution(data.observations[rows], data.actions)
    return Day(data.episode_returns(), data.observations[after, 0], ~inside)


def policies_page(options: Options, command: str) -> str:
    """Return the page of the policies. Raises UserError."""
    data = load(TASK)
    guardian = fit_guardian(data, options.guardian, options.guardian_rows, QUANTILE)
    constant = np.full((HOURS * len(PATIENTS), 1), best_constant())
    rows = {"data": [data_day(data, guardian)]}
    rows["best constant action"] = [play_day(lambda *_: constant, guardian)]
    for run in options.runs:
        paths = bundles(Path(run))
        days = [play_day(policy_of(path, options.target_cost), guardian) for path in paths]
        rows[Path(run).name] = days
    lines = [
        "# Policies on Simglucose",
        "",
        f"`{command}`",
        "",
        "One day from each of the 360 initial states (15 patients, 24 hours), so scores are exact. "
        f"Time in range: {LOW} to {HIGH} mg/dL; hypoglycemia: below {LOW} mg/dL; both in percent "
        "of the steps played. Out of distribution: percent of the steps whose observation and "
        f"action the guardian ({options.guardian}, {options.guardian_rows:,} rows) finds less like "
        f"the data than {1 - QUANTILE:.0%} of the data. Steps: mean length of a day, at most "
        f"{Simglucose.max_episode_steps}; shorter days end with glucose outside 40 to 600 mg/dL. "
        "Several seeds: mean ± standard deviation over seeds.",
        "",
        "| policy | seeds | score | time in range, % | hypoglycemia, % | out of distribution, % "
        "| steps |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, days in rows.items():
        numbers = np.stack([day.numbers() for day in days])  # [seeds, 5]
        digits = (2, 1, 2, 1, 1)
        cells = [
            format_mean_std(column, digit) for column, digit in zip(numbers.T, digits, strict=True)
        ]
        lines.append(f"| {name} | {len(days)} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str]) -> None:
    """Run the command. Raises UserError."""
    options = build(Options, parse_options(arguments))
    if options.runs:
        names = f"runs=[{','.join(Path(run).name for run in options.runs)}]"
        rest = [names if part.startswith("runs=") else part for part in arguments]
        text = policies_page(options, " ".join(["python -m benchmarks.simglucose", *rest]))
        write_text(POLICIES, text)
        print(text)
        return
    rates, returns = search(options.coarse, options.fine)
    text = page(rates, returns, " ".join(["python -m benchmarks.simglucose", *arguments]))
    write_text(PAGE, text)
    print(text)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
