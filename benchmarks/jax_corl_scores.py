"""What JAX-CORL's own networks and updates reach on a data set of ours, beside our evidence.

    pip install jax flax optax distrax pydantic
    python -m benchmarks.jax_corl_scores checkout=<JAX-CORL> [algorithms=[iql,td3_bc]] [task=…]

Its files run unmodified, five seeds under `jax.vmap`, with its own settings, on the transitions
that D4RL's rule takes from the task's data; its policies act in our environments. What was learned
and scored is kept with every evaluation, so that the same command goes on where it was killed.
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
    "from our starts. `last five`: of each seed's last five evaluations; `95 %`: Welch's interval "
    "of ours - JAX-CORL's in them. Each has its own settings. Its IQL normalizes the layers of the "
    "value and does not bound the policy's mean; its TD3+BC normalizes the critics' layers, learns "
    "at 1e-3 and takes for ends the rows whose successor does not follow, cut ones too. Ours are "
    "the authors' settings, from [evidence](../evidence/README.md), which says in what precision; "
    "JAX-CORL's are in float32."
)


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """What the command takes."""

    checkout: str
    algorithms: Names = ALGORITHMS
    task: str = "gym/hopper-medium-replay"
    updates: Count = 1_000_000  # over which IQL's rate falls to nothing
    every: Count = 50_000  # updates between two evaluations
    episodes: Count = 100
    out: str = "runs/jax-corl"


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


def evaluated(peer: JaxCorl, task: envs.Task, episodes: int) -> list[float]:
    """Each seed's mean score; all act from the same starts."""
    env = envs.make_vector(task, SEEDS * episodes)
    starts = np.tile(EVALUATION_SEED + np.arange(episodes), SEEDS)

    def act(observations: Any) -> np.ndarray:
        each = observations.reshape(SEEDS, episodes, -1)
        return peer.actions(each).reshape(SEEDS * episodes, -1)

    returns = rollout(env, act, identity(env.observation_shape), starts).returns
    env.close()
    return [float(x) for x in task.score(returns.reshape(SEEDS, episodes).mean(1))]


def run(algorithm: str, options: Options) -> None:
    """Learns and evaluates from where it was; what is there is kept each time. Raises UserError."""
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
        known = json.loads(result.read_text())
        if about.items() <= known.items() and len(known["scores"]) * every == options.updates:
            return
    own = {"max_steps": options.updates, "env_name": task.name}
    peer = JaxCorl(algorithm, options.checkout, SEEDS, columns(load(task)), **own)
    if every % peer.updates or options.updates % every:
        raise UserError(
            f"updates={options.updates} every={every}: JAX-CORL makes {peer.updates} updates at a "
            "time; give multiples"
        )
    scores: list[list[float]] = []
    if state.is_file():
        with np.load(state, allow_pickle=False) as kept:
            if json.loads(str(kept["about"])) != about:
                raise UserError(f"{state} is of other options or another checkout: move it away")
            scores = kept["scores"].tolist()
            peer.load([kept[f"{k}"] for k in range(len(peer.arrays()))])
    while len(scores) * every < options.updates:
        peer.learn(every, stretch=len(scores))
        scores.append(evaluated(peer, task, options.episodes))
        write_atomically(state, partial(save, about=about, scores=scores, arrays=peer.arrays()))
        print(name, len(scores) * every, format_mean_std(scores[-1], 1), flush=True)
    rounded = [[round(x, 2) for x in each] for each in scores]
    write_json(result, {**about, "scores": rounded, "machine": hardware.describe_machine()})


def save(
    path: Path, about: Mapping[str, Any], scores: Sequence[Any], arrays: Sequence[np.ndarray]
) -> None:
    """In one NPZ."""
    with path.open("wb") as file:
        own = {f"{k}": array for k, array in enumerate(arrays)}
        np.savez(file, about=json.dumps(about), scores=np.array(scores), **own)


def page() -> str:
    """Finished runs beside ours after as many updates, with Welch's interval."""
    body, ours = [], collect([OURS])
    kept = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
    for found in kept:
        task, name, updates = found["task"], found["algorithm"], found["updates"]
        lasts = [statistics.mean(own) for own in zip(*found["scores"][-5:], strict=True)]
        cells = [
            task,
            name,
            f"{updates:,}",
            format_mean_std(found["scores"][-1], 1),
            format_mean_std(lasts, 1),
        ]
        own = [s for s in ours.get(task, []) if s.label == name and s.outcome is not None]
        if own and all(s.outcome.num_updates == updates for s in own):
            stands = summarize(own, "score")
            cells += [format_mean_std(stands.values, 1), format_mean_std(stands.last_five, 1)]
            cells += ["[{:.1f}, {:.1f}]".format(*compare(lasts, stands.last_five)["interval"])]
        body.append([*cells, *[""] * (len(HEADER) - len(cells))])
    of = ", ".join(dict.fromkeys(found["commit"] for found in kept))
    parts = ["# JAX-CORL's own runs beside ours"]
    parts += [f"`python -m benchmarks.jax_corl_scores checkout=<JAX-CORL>`, at {of}"]
    note = wrap_text(NOTE.format(seeds=SEEDS))
    return "\n\n".join([*parts, table(HEADER, body, markdown=True), note]) + "\n"


def main(arguments: Sequence[str]) -> None:
    """Raises UserError."""
    options = build(Options, parse_options(arguments))
    algorithms = check_names(options.algorithms, "algorithm", ALGORITHMS)
    if not (Path(options.checkout) / "algos").is_dir():
        raise UserError(f"checkout={options.checkout}: no checkout of JAX-CORL, there is no algos/")
    for algorithm in algorithms:
        run(algorithm, options)
        write_text(FOLDER / "README.md", page())
    print(page())


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
