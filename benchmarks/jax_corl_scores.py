"""Compare final scores with JAX-CORL's networks and updates on one of our data sets.

    pip install jax flax optax distrax pydantic
    python -m benchmarks.jax_corl_scores checkout=<JAX-CORL> [algorithms=[iql,td3_bc]] [task=…]

JAX-CORL's files run unmodified, with JAX-CORL's settings and five seeds under `jax.vmap`. Training
uses the transitions that D4RL's rule takes from the task's data. The policies are evaluated in our
environments. State and scores are saved at every evaluation, so the same command resumes after a
kill.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import envs
from benchmarks.figures import Names, check_names, commit_of, run_command
from benchmarks.parity import compare
from benchmarks.speed.peers import JaxCorl
from offline_rl.data import Dataset, load
from offline_rl.evaluation.rollout import rollout
from offline_rl.reporting.runs import collect
from offline_rl.reporting.summary import summarize
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import write_atomically, write_json, write_text
from offline_rl.utils.options import Checked, Count, build, parse_options
from offline_rl.utils.seeds import EVALUATION_SEED
from offline_rl.utils.text import format_mean_std, table, wrap_text
from policies.channels import identity

FOLDER, OURS = Path("benchmarks/results/jax-corl"), Path("benchmarks/results/evidence")
ALGORITHMS = ("iql", "td3_bc")
SEEDS = 5
HEADER = ["task", "algorithm", "updates", "JAX-CORL", "last five", "ours", "last five", "95 %"]
NOTE = (
    "Normalized scores of {seeds} seeds, mean ± standard deviation (ddof 0), in our environments "
    "from our initial states. `last five`: mean over each seed's last five evaluations. `95 %`: "
    "Welch's interval of the difference ours - JAX-CORL's for the last five. Each side uses its "
    "own settings. JAX-CORL's IQL has layer normalization in the value network and does not bound "
    "the policy's mean. JAX-CORL's TD3+BC has layer normalization in the critics and a learning "
    "rate of 1e-3. It treats every row without a following row as terminal, also truncated rows. "
    "Our runs use the authors' settings and are from [evidence](../evidence/README.md), which "
    "states their precision; JAX-CORL's are in float32."
)


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """Options of the command."""

    checkout: str
    algorithms: Names = ALGORITHMS
    task: str = "gym/hopper-medium-replay"
    updates: Count = 1_000_000  # IQL's learning rate decays to 0 over them
    every: Count = 50_000  # updates between evaluations
    episodes: Count = 100
    out: str = "runs/jax-corl"


def columns(data: Dataset) -> dict[str, np.ndarray]:
    """Return the columns of d4rl.qlearning_dataset, without the rows at which recording stopped."""
    rows = data.usable & ~data.truncated
    table = {
        "observations": data.observations[: data.num_rows],
        "actions": data.actions,
        "rewards": data.rewards,
        "terminals": data.terminated,
        "next_observations": data.observations[data.next_index],
    }
    return {name: np.asarray(column, np.float32)[rows] for name, column in table.items()}


def evaluate(peer: JaxCorl, task: envs.Task, episodes: int) -> list[float]:
    """Return each seed's mean score, from the same initial states."""
    env = envs.make_vector(task, SEEDS * episodes)
    starts = np.tile(EVALUATION_SEED + np.arange(episodes), SEEDS)

    def act(observations: Any) -> np.ndarray:
        by_seed = observations.reshape(SEEDS, episodes, -1)
        return peer.actions(by_seed).reshape(SEEDS * episodes, -1)

    returns = rollout(env, act, identity(env.observation_shape), starts).returns
    env.close()
    return [float(x) for x in task.score(returns.reshape(SEEDS, episodes).mean(1))]


def run(algorithm: str, options: Options) -> None:
    """Train and evaluate, resuming from the saved state. Raises UserError."""
    task, every = envs.task(options.task), options.every
    name = f"{task.name.replace('/', '_')}-{algorithm}"
    result, state = FOLDER / f"{name}.json", Path(options.out) / f"{name}.npz"
    about = {
        "task": task.name,
        "algorithm": algorithm,
        "commit": commit_of(options.checkout) or "unknown",
    }
    about |= {"updates": options.updates, "every": every, "episodes": options.episodes}
    if result.is_file():
        stored = json.loads(result.read_text())
        if about.items() <= stored.items() and len(stored["scores"]) * every == options.updates:
            return
    settings = {"max_steps": options.updates, "env_name": task.name}
    peer = JaxCorl(algorithm, options.checkout, SEEDS, columns(load(task)), **settings)
    if every % peer.updates or options.updates % every:
        raise UserError(
            f"updates={options.updates} every={every}: JAX-CORL makes {peer.updates} updates per "
            f"call. Use every= a multiple of {peer.updates}, and updates= a multiple of every="
        )
    scores: list[list[float]] = []
    if state.is_file():
        with np.load(state, allow_pickle=False) as saved:
            if json.loads(str(saved["about"])) != about:
                raise UserError(
                    f"{state} was saved with other options or another checkout. Move or delete it"
                )
            scores = saved["scores"].tolist()
            peer.load([saved[f"{k}"] for k in range(len(peer.arrays()))])
    while len(scores) * every < options.updates:
        peer.learn(every, block=len(scores))
        scores.append(evaluate(peer, task, options.episodes))
        write_atomically(state, partial(save, about=about, scores=scores, arrays=peer.arrays()))
        print(name, len(scores) * every, format_mean_std(scores[-1], 1), flush=True)
    rounded = [[round(x, 2) for x in each] for each in scores]
    write_json(result, {**about, "scores": rounded, "machine": hardware.describe_machine()})


def save(
    path: Path, about: Mapping[str, Any], scores: Sequence[Any], arrays: Sequence[np.ndarray]
) -> None:
    """Save the state in one NPZ file."""
    with path.open("wb") as file:
        numbered = {f"{k}": array for k, array in enumerate(arrays)}
        np.savez(file, about=json.dumps(about), scores=np.array(scores), **numbered)


def page() -> str:
    """Return the page: JAX-CORL's finished runs, and ours after equal updates."""
    body, ours = [], collect([OURS])
    stored = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
    for result in stored:
        task, name, updates = result["task"], result["algorithm"], result["updates"]
        lasts = [statistics.mean(seed) for seed in zip(*result["scores"][-5:], strict=True)]
        cells = [
            task,
            name,
            f"{updates:,}",
            format_mean_std(result["scores"][-1], 1),
            format_mean_std(lasts, 1),
        ]
        seeds = [s for s in ours.get(task, []) if s.label == name and s.outcome is not None]
        if seeds and all(s.outcome.num_updates == updates for s in seeds):
            summary = summarize(seeds, "score")
            cells += [format_mean_std(summary.values, 1), format_mean_std(summary.last_five, 1)]
            cells += ["[{:.1f}, {:.1f}]".format(*compare(lasts, summary.last_five)["interval"])]
        body.append([*cells, *[""] * (len(HEADER) - len(cells))])
    commits = ", ".join(dict.fromkeys(result["commit"] for result in stored))
    parts = ["# Final scores of JAX-CORL and of this project"]
    parts += [f"`python -m benchmarks.jax_corl_scores checkout=<JAX-CORL>`, at {commits}"]
    note = wrap_text(NOTE.format(seeds=SEEDS))
    return "\n\n".join([*parts, table(HEADER, body, markdown=True), note]) + "\n"


def main(arguments: Sequence[str]) -> None:
    """Run the command. Raises UserError."""
    options = build(Options, parse_options(arguments))
    algorithms = check_names(options.algorithms, "algorithm", ALGORITHMS)
    if not (Path(options.checkout) / "algos").is_dir():
        raise UserError(
            f"checkout={options.checkout} is not a checkout of JAX-CORL: it has no folder algos"
        )
    for algorithm in algorithms:
        run(algorithm, options)
        write_text(FOLDER / "README.md", page())
    print(page())


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
