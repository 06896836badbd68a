"""Measure the speed of a search with stacked settings, compared with single runs.

    python -m benchmarks.search_speed [settings=16] [num_updates=5000] [algorithm=td3_bc]

Both searches train the same settings on embedded data, one with parallel=<settings>, one with
parallel=1. Nothing else should run on the machine.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.figures import run_measurement
from offline_rl.search.search import SearchResult, search
from offline_rl.search.space import Setting
from offline_rl.utils.files import read_json_object
from offline_rl.utils.options import Checked, Count, build, parse_options
from offline_rl.utils.text import table, wrap_text

FILE = Path("benchmarks/results/search/speed.json")
SPACES = {
    "td3_bc": {
        "algorithm.alpha": "tag(log,interval(0.1,10))",
        "algorithm.actor_lr": "tag(log,interval(3e-5,3e-3))",
        "algorithm.critic_lr": "tag(log,interval(3e-5,3e-3))",
        "algorithm.tau": "tag(log,interval(1e-3,1e-1))",
    },
    "iql": {
        "algorithm.beta": "tag(log,interval(0.1,30))",
        "algorithm.expectile": "interval(0.5,0.95)",
        "algorithm.actor_lr": "tag(log,interval(3e-5,3e-3))",
        "algorithm.tau": "tag(log,interval(1e-3,1e-1))",
    },
}
HEADER = ["settings", "wall time, s", "compilation, s", "updates, s", "updates/s of all settings"]
NOTE = (
    "`wall time`: the whole search, with tracing, compilation and evaluations. `updates`: the rest "
    "without compilation. {settings} settings of {algorithm} with hidden={hidden}, {num_updates:,} "
    "updates each, on {task}, in {precision}. Load {load}."
)


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """Options of the command."""

    settings: Count = 16
    num_updates: Count = 5000  # of each setting
    eval_episodes: Count = 10
    algorithm: Literal["td3_bc", "iql"] = "td3_bc"
    hidden: list[int] = field(default_factory=lambda: [256, 256])  # units of the networks
    task: str = "gym/hopper-medium-replay"
    device: str = "auto"
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    compile: Literal["auto", "always", "never"] = "auto"


def run_search(options: Options, parallel: int, out: str) -> tuple[SearchResult, dict[str, Any]]:
    """Return the result of a search, and its times."""
    keys = {
        "algorithm": options.algorithm,
        "task": options.task,
        "num_updates": options.num_updates,
        "checkpoint_every": options.num_updates,
        "eval_episodes": options.eval_episodes,
        "device": options.device,
        "precision": options.precision,
        "compile": options.compile,
        "tracker": "none",
        "algorithm.hidden": options.hidden,
        "trials": options.settings,
        "parallel": parallel,
        "out": out,
    }
    started = time.perf_counter()
    result = search(keys, SPACES[options.algorithm])
    wall_s = time.perf_counter() - started
    outcomes = [read_json_object(Path(t.run, "seed_900", "result.json")) for t in result.trials]
    stacked = {outcome["seeds_stacked"] for outcome in outcomes}
    assert stacked == {parallel}, stacked
    compile_s = sum(outcome["compile_seconds"] / parallel for outcome in outcomes)
    updates = options.num_updates * options.settings
    times = {"wall_s": wall_s, "compile_s": compile_s, "updates_per_s": updates / wall_s}
    return result, times


def values_of(result: SearchResult, order: list[Setting]) -> np.ndarray:
    """Return the values of a search in the order of `order`; diverged settings rank last."""
    values = {str(trial.setting): trial.value for trial in result.trials}
    found = [values[str(setting)] for setting in order]
    return np.array([-np.inf if value is None else value for value in found])


def measure(options: Options) -> dict[str, Any]:
    """Return times and rankings of both searches."""
    with tempfile.TemporaryDirectory() as out:
        # single runs would otherwise load compiled code of earlier measurements
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{out}/compiled"
        stacked, stacked_times = run_search(options, options.settings, f"{out}/stacked")
        single, single_times = run_search(options, 1, f"{out}/single")
    order = [trial.setting for trial in single.trials]
    pairs = values_of(stacked, order), values_of(single, order)
    ranks = [np.argsort(np.argsort(-values, kind="stable")) for values in pairs]
    return {
        **vars(options),
        "stacked": stacked_times,
        "single": single_times,
        "speedup": single_times["wall_s"] / stacked_times["wall_s"],
        "same_ranking": order == [trial.setting for trial in stacked.trials],
        "rank_correlation": float(np.corrcoef(*ranks)[0, 1]),
        "largest_difference": float(np.nanmax(np.abs(pairs[0] - pairs[1]))),
        "scores": [values.tolist() for values in pairs],
        "load": round(os.getloadavg()[0], 1),
    }


def page(results: dict[str, Any]) -> str:
    """Return the page with the table of both searches."""
    rows = []
    for name, label in (("stacked", "side by side"), ("single", "one after another")):
        t = results[name]
        numbers = (t["wall_s"], t["compile_s"], t["wall_s"] - t["compile_s"], t["updates_per_s"])
        rows.append([label, *(f"{number:,.0f}" for number in numbers)])
    head = "# Speed of a search\n\n*Made by `python -m benchmarks.search_speed`, not by hand.*"
    same = "The rankings are equal" if results["same_ranking"] else "The rankings differ"
    finding = (
        f"Side by side is {results['speedup']:.1f} times as fast. {same}; rank correlation "
        f"{results['rank_correlation']:.3f}, largest difference of two scores "
        f"{results['largest_difference']:.2g}."
    )
    note = NOTE.format(**results)
    parts = [head, table(HEADER, rows, markdown=True), wrap_text(finding), wrap_text(note)]
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str]) -> int:
    """Run the command and return its exit status: 0, or 2 for a user error."""

    def run() -> tuple[Path, dict[str, Any]]:
        return FILE, measure(build(Options, parse_options(arguments)))

    return run_measurement(run, page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
