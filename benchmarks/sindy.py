"""Recover the equations of two NeoRL-2 simulators from their logged data by sparse regression.

    python -m benchmarks.sindy [data_dir=…]

Fits `common.models.sparse` to the published training files of DMSD and Pipeline, and compares the
median of the members with the simulators' constants. Writes benchmarks/results/neorl2/sindy.md.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.figures import run_command
from envs.suites.neorl2.dmsd import DMSD as Simulator
from offline_rl.algorithms.common.models.sparse import SparseDynamics, SparseOptions, solve
from offline_rl.data.load import data_folder
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import write_text
from offline_rl.utils.options import Checked, build, parse_options
from offline_rl.utils.random import Random
from offline_rl.utils.text import table, wrap_text
from policies.networks.polynomial import format_sum

FILE = Path("benchmarks/results/neorl2/sindy.md")
TOLERANCE = 0.01  # largest relative error of an equation that counts as recovered
Sum = Mapping[str, float]  # coefficient of each input


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """Options of the command."""

    data_dir: str | None = None  # folder of data; default: OFFLINE_RL_DATA, or the cache folder


class System(NamedTuple):
    """A simulator: its inputs, its linear equations, and the options of the fit."""

    task: str
    states: tuple[str, ...]
    actions: tuple[str, ...]
    # change of a state -> its equation, or several equations that are equal on all rows
    changes: Mapping[str, Sequence[Sum]]
    options: SparseOptions
    note: str


class Row(NamedTuple):
    """An equation: as in the simulator, as found, and the error of its coefficients."""

    name: str
    true: str
    found: str
    error: float  # largest error of a coefficient, relative to the smallest true coefficient

    @property
    def exact(self) -> bool:
        return self.error < TOLERANCE


def two_masses() -> dict[str, list[Sum]]:
    """Return the equations of DMSD: explicit Euler of two masses between walls."""
    dt, m = Simulator.DT, Simulator.MASS
    k, d, force = Simulator.STIFFNESS, Simulator.DAMPING, Simulator.MAX_FORCE
    changes: dict[str, list[Sum]] = {}
    for i, j in ((1, 2), (2, 1)):
        changes[f"position_{i}"] = [{f"velocity_{i}": dt}]
        acceleration = {f"position_{i}": -2 * k, f"position_{j}": k}
        acceleration |= {f"velocity_{i}": -2 * d, f"velocity_{j}": d, f"force_{i}": force}
        changes[f"velocity_{i}"] = [{x: dt / m * c for x, c in acceleration.items()}]
    return changes


def registers() -> dict[str, list[Sum]]:
    """Return the equations of Pipeline: the outflow, and the registers of flows and actions.

    While no gate is clipped, a flow differs from the previous one by the action of 20 steps before.
    The newest flows in the register therefore have two equations.
    """
    changes: dict[str, list[Sum]] = {"flow": [{"action_19": 1.0}]}
    for kind, first in (("flow", "flow"), ("action", "action")):
        for k in range(1, 26):
            before = first if k == 1 else f"{kind}_{k - 1}"
            changes[f"{kind}_{k}"] = [{before: 1.0, f"{kind}_{k}": -1.0}]
    for k in range(1, 7):
        changes[f"flow_{k}"].append({f"action_{k + 19}": 1.0})
    return changes


DMSD = System(
    task="DMSD",
    states=tuple(f"{x}_{i}" for x in ("position", "velocity", "target") for i in (1, 2)),
    actions=("force_1", "force_2"),
    changes=two_masses(),
    options=SparseOptions(),
    note="Not linear: targets switch at step 50, and the reward is a logarithm.",
)
PIPELINE = System(
    task="Pipeline",
    states=("flow", "target", *(f"{x}_{k}" for x in ("flow", "action") for k in range(1, 26))),
    actions=("action",),
    changes=registers(),
    options=SparseOptions(
        degree=1, products=False, normalize_terms=False, ridge=1e-4, threshold=0.5
    ),
    note="Not linear: the target switches at random, and the reward is a square of a distance. "
    "Flow changes are about 1e-4 of the flow, and some sums of terms are always 0. The penalty and "
    "the threshold therefore apply to the coefficients themselves (normalize_terms=false), with "
    "values chosen by hand: 51 equations are found with ridge 1e-4, 49 with 1e-5.",
)


def read(folder: Path, task: str, part: str, rows: int | None = None) -> tuple[Tensor, Tensor]:
    """Return [s, a] and (change of the state, reward) of a NeoRL-2 file, or of its first rows.

    part: "train" or "val". Raises UserError if there is no file.
    """
    files = sorted((folder / "neorl2" / task).glob(f"{task}-high-*-{part}.npz"))
    if not files:
        raise UserError(
            f"{folder}/neorl2/{task} has no file {task}-high-*-{part}.npz. Pass data_dir=<folder>, "
            f"or run `offline-rl data download neorl2/{task}`."
        )
    with np.load(files[0], allow_pickle=False) as file:
        names = ("obs", "action", "next_obs", "reward")
        s, a, after, r = (torch.from_numpy(file[name][:rows]).float() for name in names)
    return torch.cat([s, a], -1), torch.cat([after - s, r.reshape(-1, 1)], -1)


def compare(x: Tensor, y: Tensor, system: System) -> list[Row]:
    """Fit the rows x, y and return one row per state."""
    sizes = len(system.states), len(system.actions)
    model = SparseDynamics(*sizes, system.options)
    random = Random(torch.tensor(0), torch.tensor(0))
    model.load_state_dict(solve(x, y, random, system.options))
    names = model.library.names(system.states, system.actions)
    rows = []
    for k, state in enumerate(system.states):
        column = model.median()[:, k].double().tolist()
        found = dict(zip(names, column, strict=True))
        errors = [
            max(abs(found[x] - true.get(x, 0)) for x in names) / min(map(abs, true.values()))
            for true in system.changes.get(state, [])
        ]
        best = int(np.argmin(errors)) if errors else -1
        error = errors[best] if errors else np.inf
        true = system.changes[state][best] if errors else None
        shown = "not linear" if true is None else format_sum([*true.values()], [*true])
        text = format_sum(column, names) if sum(c != 0 for c in column) < 8 else "many terms"
        rows.append(Row(state, shown, text, error))
    return rows


def page(folder: Path) -> str:
    """Return the page of results."""
    parts = [
        "# Equations recovered from logged data (SINDy)",
        wrap_text(
            "Sparse regression of the changes of the state (`common/models/sparse.py`), compared "
            "with the simulators' equations. The coefficients are the median of 20 members. An "
            "equation is recovered if every coefficient is right within 1 % of the smallest true "
            "one. The error is relative to that coefficient. Command: `python -m benchmarks.sindy`."
        ),
    ]
    for system in (DMSD, PIPELINE):
        started = time.perf_counter()
        x, y = read(folder, system.task, "train")
        result = compare(x, y, system)
        seconds = time.perf_counter() - started
        changes = [row for row in result if row.true != "not linear"]
        exact = sum(row.exact for row in changes)
        parts += [
            f"## {system.task}",
            wrap_text(
                f"{exact} of {len(changes)} linear equations recovered, from {len(x):,} rows and "
                f"{len(system.options.library(len(system.states), len(system.actions)).terms)} "
                f"terms, in {seconds:.0f} s. {system.note}"
            ),
            table(
                ["change of", "simulator", "found", "largest error"],
                [
                    [*row[:3], f"{row.error:.1e}" if np.isfinite(row.error) else "–"]
                    for row in result
                ],
                markdown=True,
                left=3,
            ),
        ]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str]) -> None:
    options = build(Options, parse_options(arguments))
    text = page(data_folder(options.data_dir))
    write_text(FILE, text)
    print(text)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
