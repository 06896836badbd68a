"""Neural predictive controllers trained by the smooth robustness of a formula.

    python -m benchmarks.stl.controller [seeds=[0,1,2]] [updates=400]

A network maps a state to a plan of T actions in one pass. The plan is simulated by known,
differentiable dynamics, and the network minimizes mean(relu(margin - smooth robustness)) (Meng and
Fan, RA-L 2023, arXiv:2309.05131, equation 6). There are no data. The tasks are a point mass, and
NeoRL-2's DMSD, whose plans are executed in the environment neorl2/DMSD. The share of satisfied
episodes is shown next to an untrained network and to random actions. Writes stl-controller.json and
.md to benchmarks/results/safe.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import envs
from envs.suites.neorl2.dmsd import DMSD
from offline_rl.reporting.statistics import wilson
from offline_rl.utils.files import make_folder, write_text
from offline_rl.utils.hardware import describe_machine
from offline_rl.utils.options import Amount, Checked, Count, build, parse_options
from offline_rl.utils.text import table
from policies.stl.formula import Formula, Signal, parse
from policies.stl.robustness import is_satisfied, robustness
from policies.stl.smooth import smooth_robustness

RESULTS = Path("benchmarks/results/safe")
EPISODES, BATCH, LEARNING_RATE, WIDTHS = 1_000, 512, 1e-3, (64, 64, 64)
TEST_SEED = 1_000_000


@dataclass(frozen=True)
class Options(Checked):
    """Options of the experiment."""

    seeds: list[Amount] = field(default_factory=lambda: [0, 1, 2])
    updates: Count = 400  # gradient updates of each controller


@dataclass(frozen=True)
class Problem:
    """A task with known dynamics."""

    name: str
    stl: str
    signals: tuple[str, ...]  # one per number of the state
    action_dim: int
    horizon: int  # T, number of actions of a plan
    margin: float  # robustness up to which the network is trained
    sharpness: float
    sample: Callable[[np.random.Generator, int], np.ndarray]  # initial states [B, O]
    step: Callable[[Tensor, Tensor], Tensor]  # states [B, O], actions [B, A] -> states [B, O]

    @property
    def formula(self) -> Formula:
        return parse(self.stl)

    def simulate(self, states: Tensor, plans: Tensor) -> Tensor:
        """Return the states [B, T + 1, O] that plans [B, T, A] lead to."""
        visited = [states]
        for t in range(self.horizon):
            visited.append(self.step(visited[-1], plans[:, t]))
        return torch.stack(visited, 1)

    def values(self, visited: Any) -> dict[Signal, Any]:
        """Return the signals [B, T + 1] of visited states [B, T + 1, O]."""
        return {Signal(name): visited[..., k] for k, name in enumerate(self.signals)}


def sample_point_mass(rng: np.random.Generator, count: int) -> np.ndarray:
    """Return positions left of the wall, at rest."""
    positions = rng.uniform([0.0, 0.0], [0.3, 1.0], (count, 2))
    return np.concatenate([positions, np.zeros((count, 2))], 1)


def step_point_mass(state: Tensor, action: Tensor) -> Tensor:
    """Return the next state of a point with the acceleration 3 * action, after 0.1 s."""
    position, velocity = state[:, :2], state[:, 2:]
    acceleration = 3.0 * action
    return torch.cat(
        [
            position + 0.1 * velocity + 0.005 * acceleration,
            velocity + 0.1 * acceleration,
        ],
        1,
    )


def sample_dmsd(rng: np.random.Generator, count: int) -> np.ndarray:
    """Return initial states and targets with the ranges of `neorl2/DMSD`."""
    positions, velocities = rng.uniform(-0.25, 0.25, (count, 2)), rng.uniform(-0.1, 0.1, (count, 2))
    return np.concatenate([positions, velocities, rng.uniform(-1.5, 1.5, (count, 2))], 1)


def step_dmsd(state: Tensor, action: Tensor) -> Tensor:
    """Return the next state of DMSD: two masses, three springs with dampers."""
    x, v, targets = state[:, :2], state[:, 2:4], state[:, 4:]
    pull = DMSD.STIFFNESS * x + DMSD.DAMPING * v
    force = pull.flip(1) - 2 * pull + DMSD.MAX_FORCE * action
    return torch.cat([x + DMSD.DT * v, v + DMSD.DT / DMSD.MASS * force, targets], 1)


PROBLEMS = (
    Problem(
        name="point mass",
        stl="always(x < 0.4 or x > 0.6 or y > 0.7) and always(-1 < vx < 1 and -1 < vy < 1) and "
        "eventually(0.4 < x < 0.6 and 0.7 < y < 0.9 and eventually(0.8 < x < 1 and 0.1 < y < 0.3))",
        signals=("x", "y", "vx", "vy"),
        action_dim=2,
        horizon=30,
        margin=0.05,
        sharpness=60.0,
        sample=sample_point_mass,
        step=step_point_mass,
    ),
    Problem(
        name="DMSD",
        stl="eventually[0,25](always[0,5](-0.1 < x1 - g1 < 0.1 and -0.1 < x2 - g2 < 0.1)) and "
        "always(-1.6 < x1 < 1.6 and -1.6 < x2 < 1.6 and -1 < v1 < 1 and -1 < v2 < 1)",
        signals=("x1", "x2", "v1", "v2", "g1", "g2"),
        action_dim=2,
        horizon=30,
        margin=0.05,
        sharpness=60.0,
        sample=sample_dmsd,
        step=step_dmsd,
    ),
)


class Controller(nn.Module):
    """Network from a state to a plan of actions in [-1, 1]."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        sizes = (len(problem.signals), *WIDTHS)
        layers = [
            m for a, b in zip(sizes, sizes[1:], strict=False) for m in (nn.Linear(a, b), nn.ReLU())
        ]
        self.shape = (problem.horizon, problem.action_dim)
        self.network = nn.Sequential(
            *layers, nn.Linear(sizes[-1], problem.horizon * problem.action_dim)
        )

    def forward(self, states: Tensor) -> Tensor:
        """Return plans [B, T, A] for states [B, O]."""
        return torch.tanh(self.network(states)).reshape(len(states), *self.shape)


def train(problem: Problem, seed: int, updates: int) -> Controller:
    """Return a controller that is trained for a number of updates."""
    torch.manual_seed(seed)
    rng, controller, formula = np.random.default_rng(seed), Controller(problem), problem.formula
    optimizer = torch.optim.Adam(controller.parameters(), LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    for _ in range(updates):
        states = torch.as_tensor(problem.sample(rng, BATCH), dtype=torch.float32)
        values = problem.values(problem.simulate(states, controller(states)))
        rho = smooth_robustness(formula, values, sharpness=problem.sharpness)[:, 0]
        loss = torch.relu(problem.margin - rho).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return controller


def judge(problem: Problem, plan: Callable[[np.ndarray], np.ndarray]) -> dict[str, Any]:
    """Return the exact results of 1,000 plans. plan: function from states [B, O] to plans."""
    if problem.name == "DMSD":
        visited = visit_dmsd(plan, problem.horizon)
    else:
        states = problem.sample(np.random.default_rng(TEST_SEED), EPISODES)
        plans = torch.as_tensor(plan(states), dtype=torch.float64)
        visited = problem.simulate(torch.as_tensor(states), plans).numpy()
    values, formula = problem.values(visited), problem.formula
    held = is_satisfied(formula, values)[:, 0]
    rho = robustness(formula, values)[:, 0]
    return {"satisfied": int(held.sum()), "episodes": len(held), "robustness": float(rho.mean())}


def visit_dmsd(plan: Callable[[np.ndarray], np.ndarray], horizon: int) -> np.ndarray:
    """Return the states [B, T + 1, 6] of plans that are executed in `neorl2/DMSD`."""
    indices = np.arange(EPISODES)
    with closing(envs.make_vector("neorl2/DMSD", EPISODES)) as env:
        visited = [env.reset([TEST_SEED + k for k in range(EPISODES)], indices).copy()]
        plans = plan(visited[0])
        for t in range(horizon):
            visited.append(env.step(plans[:, t], indices).observations.copy())
    return np.stack(visited, 1).astype(np.float64)


def planner(controller: Controller) -> Callable[[np.ndarray], np.ndarray]:
    def plan(states: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            plans: np.ndarray = controller(torch.as_tensor(states, dtype=torch.float32)).numpy()
        return plans

    return plan


def random_planner(problem: Problem) -> Callable[[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    return lambda states: rng.uniform(-1, 1, (len(states), problem.horizon, problem.action_dim))


def main(arguments: Sequence[str]) -> None:
    options = build(Options, parse_options(arguments))
    rows = list[dict[str, Any]]()

    def add(problem: Problem, name: str, seed: int | None, result: dict[str, Any]) -> None:
        rows.append({"task": problem.name, "controller": name, "seed": seed, **result})
        print(rows[-1], flush=True)

    for problem in PROBLEMS:
        add(problem, "random actions", None, judge(problem, random_planner(problem)))
        for seed in options.seeds:
            torch.manual_seed(seed)
            add(problem, "untrained", seed, judge(problem, planner(Controller(problem))))
            start_s = time.monotonic()
            controller = train(problem, seed, options.updates)
            seconds = round(time.monotonic() - start_s, 1)
            result = judge(problem, planner(controller)) | {"seconds": seconds}
            add(problem, "trained", seed, result)
    content = {"updates": options.updates, "formulas": {p.name: p.stl for p in PROBLEMS}}
    content |= {"machine": describe_machine(), "rows": rows}
    make_folder(RESULTS)
    write_text(RESULTS / "stl-controller.json", json.dumps(content, indent=2) + "\n")
    write_text(RESULTS / "stl-controller.md", page(content))


def page(content: dict[str, Any]) -> str:
    """Return the page with the table of results."""
    body = []
    for name in content["formulas"]:
        for kind in ("random actions", "untrained", "trained"):
            chosen = [r for r in content["rows"] if (r["task"], r["controller"]) == (name, kind)]
            held, total = (sum(r[key] for r in chosen) for key in ("satisfied", "episodes"))
            low, high = wilson(held, total)
            shares = [f"{100 * r['satisfied'] / r['episodes']:.1f}" for r in chosen]
            rho = float(np.mean([r["robustness"] for r in chosen]))
            interval = f"{100 * low:.1f} to {100 * high:.1f}"
            cells = [name, kind, f"{100 * held / total:.1f}", interval, ", ".join(shares)]
            body.append([*cells, f"{rho:.3f}"])
    header = ["task", "controller", "satisfied %", "95 % interval", "seeds", "mean robustness"]
    formulas = "\n".join(f"- {name}: `{stl}`" for name, stl in content["formulas"].items())
    return f"""# Neural predictive controllers

Command: `python -m benchmarks.stl.controller`. A network predicts a plan of
{PROBLEMS[0].horizon} actions. It is trained for {content["updates"]:,} updates of {BATCH} states
by the smooth robustness of a formula, through known dynamics. The plan is executed without
replanning. The table shows the exact results of {EPISODES:,} new initial states per seed. Plans for
DMSD are executed in `neorl2/DMSD`.

{table(header, body, markdown=True, left=2)}

{formulas}

Versions and machine: `stl-controller.json`.
"""


if __name__ == "__main__":
    main(sys.argv[1:])
