"""What JAX-CORL's own networks and updates reach on a data set of ours, beside our evidence.

    pip install jax flax optax distrax pydantic
    python -m benchmarks.jax_corl_scores checkout=<JAX-CORL> [algorithms=[iql,td3_bc]] [task=…]

Its files run unmodified, five seeds under `jax.vmap`, with its own settings, on the transitions
that D4RL's rule takes from the task's data; its policies act in our environments. What was learnt
is kept with every evaluation: the same command goes on where it was killed, and makes the page.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import envs
from benchmarks.figures import Names, chosen, status
from benchmarks.parity import compare
from benchmarks.speed.peers import JaxCorl, jax_corl_learner
from offline_rl.data import Dataset, load
from offline_rl.evaluation.rollout import rollout
from offline_rl.report.runs import collect
from offline_rl.report.standing import standing
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import write_atomically, write_json, write_text
from offline_rl.utils.options import Checked, Count, build, parse
from offline_rl.utils.seeds import EVALUATION_SEED
from offline_rl.utils.text import mean_std, table
from policies.channels import identity

FILE, OURS = Path("benchmarks/results/jax_corl.json"), Path("benchmarks/results/evidence")
ALGORITHMS = ("iql", "td3_bc")
SEEDS = 5


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """What the command takes."""

    checkout: str
    algorithms: Names = ALGORITHMS
    task: str = "gym/hopper-medium-replay"
    updates: Count = 1_000_000
    every: Count = 50_000  # updates between two evaluations
    episodes: Count = 100
    out: str = "runs/jax_corl"


def columns(data: Dataset) -> dict[str, np.ndarray]:
    """As d4rl.qlearning_dataset: without the rows where the recording stopped."""
    own = data.usable & ~data.truncated
    found = {
        "observations": data.observations[: data.num_rows],
        "actions": data.actions,
        "rewards": data.rewards,
        "terminals": data.terminated,
        "next_observations": data.observations[data.next_index],
    }
    return {name: np.asarray(column, np.float32)[own] for name, column in found.items()}


def evaluated(peer: JaxCorl, state: Any, task: envs.Task, episodes: int) -> list[float]:
    """Each seed's mean score; all act from the same starts."""
    import jax

    mean, deviation = peer.scaling
    if "seed" in peer.learner.get_action.__code__.co_varnames:  # it samples: at its mean then
        act = partial(peer.learner.get_action, seed=jax.random.PRNGKey(0), temperature=0.0)
    else:
        act = peer.learner.get_action
    answer = jax.jit(jax.vmap(lambda s, x: act(s, (x - mean) / (deviation + 1e-5))))
    env = envs.make_vector(task, SEEDS * episodes)
    starts = np.tile(EVALUATION_SEED + np.arange(episodes), SEEDS)

    def play(observations: Any) -> np.ndarray:
        each = observations.reshape(SEEDS, episodes, -1)
        return np.asarray(answer(state, each)).reshape(SEEDS * episodes, -1)

    returns = rollout(env, play, identity(env.observation_shape), starts).returns
    env.close()
    scores = task.score(returns.reshape(SEEDS, episodes).mean(1))
    return [round(float(x), 2) for x in np.asarray(scores)]


def run(algorithm: str, options: Options, done: dict[str, Any]) -> None:
    """Learns and evaluates until `updates`; what it has so far is written every time."""
    import jax

    task = envs.task(options.task)
    peer = jax_corl_learner(algorithm, options.checkout, SEEDS, columns(load(task)))
    if options.every % peer.updates:
        raise UserError(f"every={options.every}: JAX-CORL makes {peer.updates} updates at a time")
    state, form = jax.tree_util.tree_flatten(peer.state)
    file = Path(options.out) / task.name / f"{algorithm}.npz"
    cell = done["tasks"].setdefault(task.name, {}).setdefault(algorithm, {})
    begun = 0
    if file.is_file() and cell:
        kept = np.load(file, allow_pickle=False)
        begun = int(kept["updates"])
        state = [kept[str(k)].astype(x.dtype) for k, x in enumerate(state)]
    now = jax.tree_util.tree_unflatten(form, state)
    for updates in range(begun + options.every, options.updates + 1, options.every):
        key = jax.random.PRNGKey(updates)  # of this stretch
        for _ in range(options.every // peer.updates):
            key, own = jax.random.split(key)
            now = peer.step(now, peer.dataset, jax.random.split(own, SEEDS))
        cell[str(updates)] = evaluated(peer, now, task, options.episodes)
        arrays = {str(k): np.asarray(x) for k, x in enumerate(jax.tree_util.tree_leaves(now))}
        write_atomically(file, partial(save, updates=updates, arrays=arrays))
        write(done, options)
        print(algorithm, task.name, updates, cell[str(updates)], flush=True)


def save(path: Path, updates: int, arrays: Mapping[str, np.ndarray]) -> None:
    """In one NPZ."""
    with path.open("wb") as file:
        np.savez(file, updates=updates, **arrays)


def write(done: dict[str, Any], options: Options) -> None:
    """The numbers, and whose code they are of."""
    command = ["git", "-C", options.checkout, "rev-parse", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    done |= {"command": "python -m benchmarks.jax_corl_scores checkout=<JAX-CORL>"}
    done |= {"commit": found.stdout.strip() or "unknown", "episodes": options.episodes}
    write_json(FILE, done | {"machine": hardware.description()})
    write_text(FILE.with_suffix(".md"), page(done))


def page(done: Mapping[str, Any]) -> str:
    """Its last evaluations and ours after as many updates, with Welch's interval."""
    header = ["task", "algorithm", "updates", "JAX-CORL", "last five", "ours", "last five"]
    body = []
    groups = collect([OURS])
    for task, algorithms in done["tasks"].items():
        for name, cell in algorithms.items():
            updates = max(map(int, cell))
            theirs = [cell[key] for key in sorted(cell, key=int)[-5:]]  # [evaluations, seeds]
            lasts = [statistics.mean(own) for own in zip(*theirs, strict=True)]
            cells = [task, name, f"{updates:,}", mean_std(theirs[-1], 1), mean_std(lasts, 1)]
            own = [s for s in groups.get(task, []) if s.label == name]
            if own and own[0].outcome is not None and own[0].outcome.num_updates == updates:
                ours = standing(own)
                cells += [mean_std(ours.values, 1), mean_std(ours.lasts, 1)]
                cells += ["[{:.1f}, {:.1f}]".format(*compare(lasts, ours.lasts)["interval"])]
            body.append([*cells, *[""] * (len(header) + 1 - len(cells))])
    text = table([*header, "95 %"], body, markdown=True)
    page = (
        f"# JAX-CORL's own runs beside ours\n\n`{done['command']}`, at {done['commit']}\n\n{text}"
    )
    page += f"\n\nNormalised scores of {SEEDS} seeds, mean ± standard deviation (ddof 0), "
    page += f"{done['episodes']} episodes each, in our environments from our starts. `last five`: "
    page += (
        "of each seed's last five evaluations; `95 %`: Welch's interval of ours - JAX-CORL's in "
    )
    page += "them. Each with its own settings: its IQL normalises the value's layers and bounds no "
    return (
        page
        + "policy's mean; ours are the authors'. Ours are from [evidence](evidence/README.md).\n"
    )


def main(arguments: Sequence[str]) -> None:
    """Raises UserError."""
    options = build(Options, parse(arguments))
    algorithms = chosen(options.algorithms, "algorithm", ALGORITHMS)
    if not (Path(options.checkout) / "algos").is_dir():
        raise UserError(f"checkout={options.checkout}: no checkout of JAX-CORL, there is no algos/")
    done = json.loads(FILE.read_text()) if FILE.is_file() else {"tasks": {}}
    for algorithm in algorithms:
        run(algorithm, options, done)
    print(page(done))


if __name__ == "__main__":
    sys.exit(status(main, sys.argv[1:]))
