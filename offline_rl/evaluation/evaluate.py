"""`offline-rl evaluate`: scores of policy bundles in an environment."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import envs
import policies
from envs import Task, VectorEnv
from envs.adapters import LoopVectorEnv
from envs.tasks import NATIVE
from offline_rl.data.specs import (
    action_conversion,
    note_on_normalized_actions,
    spec_of,
    stated_spec,
)
from offline_rl.engine.acting import NO_COSTS
from offline_rl.evaluation.compare import Difference, difference, note_on
from offline_rl.evaluation.held_out import HeldOutErrors, held_out_errors
from offline_rl.evaluation.options import EvaluateOptions, check_task
from offline_rl.evaluation.rollout import Episodes, evaluation_seeds, rollout
from offline_rl.evaluation.saved import save
from offline_rl.online.composed import attach_base
from offline_rl.utils.errors import UserError
from offline_rl.utils.hardware import num_cores
from offline_rl.utils.options import build, format_value, options_signature
from offline_rl.utils.seeds import EVALUATION_SEED
from offline_rl.utils.text import at_a_time, format_mean_std, table, wrap_text
from offline_rl.utils.trees import to_json_values
from policies import Player, bundle, channels
from policies.channels import Observations
from policies.composed import needs_base
from policies.policy import BundlePolicy

STARTS = {  # result of `LoopVectorEnv.classify_starts` -> how episodes start, for the user
    "seeded": "started from seeds {first} to {last}",
    "random": "started at random: the environment ignores its seed, so every evaluation differs",
    "alike": "all from the same initial state, whatever the seed",
}
HEADER = ["bundle", "score", "return", "success %", "cost"]


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation. `print` shows the same text as the command `offline-rl evaluate`."""

    task: Task
    runs: dict[str, list[Path]]  # run as given by the user -> bundles of the run
    episodes: dict[Path, Episodes]  # bundle -> episodes of its policy
    options: EvaluateOptions
    start_kind: str  # how episodes start, a key of STARTS
    notes: list[str]
    saved: list[Path]  # files with the evaluations
    not_saved: str | None = None  # why the evaluations could not be saved

    @property
    def returns(self) -> dict[Path, np.ndarray]:
        """Bundle -> the undiscounted return of every episode, [E]."""
        return {path: e.returns for path, e in self.episodes.items()}

    @property
    def scores(self) -> dict[Path, np.ndarray]:
        """Bundle -> the normalized score of every episode, [E]; empty without score references."""
        return {path: values["score"] for path, values in self._measures() if "score" in values}

    @property
    def differences(self) -> list[Difference]:
        """Differences of every other run from the first, in each measure that all runs have."""
        values, (first, *others) = dict(self._measures()), self.runs
        return [
            difference(
                run,
                first,
                measure,
                *({seed_of(p): values[p][measure] for p in self.runs[r]} for r in (run, first)),
                start_kind=self.start_kind,
            )
            for run in others
            for measure in next(iter(values.values()))
        ]

    def _measures(self) -> Iterator[tuple[Path, dict[str, np.ndarray]]]:
        """Yield each bundle with {measure: value of each episode, [E]}, such as "score"."""
        for path, e in self.episodes.items():
            scored = self.task.reference is not None
            measures = {"score": self.task.score(e.returns, e.success)} if scored else {}
            measures = measures or {"return": e.returns}
            if all(other.success is not None for other in self.episodes.values()):
                measures["success %"] = 100.0 * np.asarray(e.success)
            yield path, measures

    def __str__(self) -> str:
        every = self.options.episodes == "all"
        if self.options.json:
            return as_json(self.task, self.episodes, self.differences)
        lines = [
            as_text(
                self.task, self.episodes, every=every, start_kind=self.start_kind, runs=self.runs
            ),
            *(f"Note: {note}." for note in self.notes),
        ]
        if len(self.runs) > 1:
            differences = self.differences
            note = wrap_text(note_on(differences, self.start_kind, every=every))
            lines += ["", as_table(differences, every=every), "", note]
        if self.not_saved is not None:
            lines += [f"Not saved: {self.not_saved}"]
        names = dict.fromkeys(path.name for path in self.saved)
        return "\n".join([*lines, *(f"Saved next to each bundle as {name}" for name in names)])

    __repr__ = __str__


def evaluate(**keys: Any) -> Evaluation | HeldOutErrors:
    """Evaluate every bundle of one or more runs, and save the episodes next to each bundle.

    With dataset=, no environment is used: the result is the error on held-out actions.
    keys: options of the command. Raises UserError.
    """
    check_task(keys)
    options = build(EvaluateOptions, keys)
    names = options.run if isinstance(options.run, list) else [options.run]
    runs = {run: bundles(Path(run)) for run in names}
    paths = [path for of_run in runs.values() for path in of_run]
    if len(runs) < len(names) or len({path.resolve() for path in paths}) < len(paths):
        raise UserError(
            f"run={format_value(names)} names the same bundle twice. Name each run once."
        )
    if not paths:
        raise UserError("run=[] names no run. Give a bundle, or the folder of a run.")
    start_kind, target = "seeded", options.target_return
    if options.dataset is not None:
        for key in ("task", "episodes", "eval_envs", "base"):
            if key in keys:
                raise UserError(f"{key}= needs an environment, but dataset= uses none. Remove one.")
        arguments = {} if target is None else {"target_return": target}
        read = {path: read_policy(path, arguments) for path in paths}
        return held_out_errors(read, options.dataset, as_json=options.json)
    try:
        task = task_of(options.task, paths)
        seeds = evaluation_seeds(task, options.episodes)
        count = min(len(seeds), options.eval_envs or len(seeds))
        single = "eval_envs=1" if options.eval_envs == 1 else None
        threads = min(num_cores(), 8)
        with closing(
            envs.make_vector(task, count, num_threads=threads, fewer=True, single=single)
        ) as env:
            if isinstance(env, LoopVectorEnv) and task.env_id not in NATIVE:
                start_kind = env.classify_starts()
            arguments = {} if target is None else {"target_return": target}
            loaded = {path: load(path, task, env, arguments, options.base) for path in paths}
            played = {path: play(policy, env, seeds) for path, policy in loaded.items()}
            shares = (
                note_on_normalized_actions(p.spec, stated_spec(env), task.name)
                for p in loaded.values()
            )
            notes = list(dict.fromkeys(note for note in shares if note is not None))
            if env.num_envs < count:
                notes.append(f"{env.limit}. Evaluation ran {at_a_time(env.num_envs)}")
    except ValueError as error:  # BundleError, or an error of the environment
        raise UserError(str(error)) from None
    files, problem = list[Path](), None
    saved_keys = {"episodes": options.episodes, "target_return": target, "base": options.base}
    try:
        files += [save(path, loaded[path].bundle, task, saved_keys, played[path]) for path in paths]
    except UserError as error:  # if the folder is not writable, only show the results
        problem = str(error)
    return Evaluation(task, runs, played, options, start_kind, notes, files, problem)


def seed_of(path: Path) -> int:
    """Return the training seed of a bundle in a run's folder, -1 for a bundle elsewhere."""
    seed = path.resolve().parent.name.removeprefix("seed_")
    return int(seed) if seed.isdecimal() else -1


def bundles(run: Path) -> list[Path]:
    """Return the bundles of `run`, sorted by seed. Raises UserError if there is none."""
    if run.is_file():
        return [run]
    of_seeds = sorted(run.glob("seed_*/policy.bundle"), key=lambda f: (len(str(f)), f))
    paths = [f for f in (run / "policy.bundle", *of_seeds) if f.is_file()]
    if not paths:
        problem = "does not exist"
        if run.is_dir():
            problem = "has no policy.bundle, and no seed folder with one"
        raise UserError(f"run={run} {problem}. Give a bundle or the folder of a finished run.")
    return paths


def task_of(name: str | None, paths: Sequence[Path]) -> Task:
    """Return the task to evaluate in, with the settings of the runs that trained the bundles.

    name: name of the task, by default the one that the policies were trained on.
    """
    name = name or trained_on(paths)
    first, *others = (adapted(name, bundle.read(path).provenance) for path in paths)
    for path, other in zip(paths[1:], others, strict=True):
        if other != first:
            raise UserError(
                f"{paths[0]} and {path} were trained on {name} with different max_episode_steps, "
                f"observation_keys or success_timing. Evaluate them one at a time."
            )
    return first


def adapted(name: str, config: Mapping[str, Any]) -> Task:
    """Return the task `name`. If the run of `config` was trained on it, apply the run's settings.

    The settings are max_episode_steps, observation_keys and success_timing.
    """
    task = envs.task(name)
    if task.name != config.get("task"):
        return task
    names = ("max_episode_steps", "observation_keys", "success_timing")
    return task.with_options(*(config.get(name) for name in names))


def trained_on(paths: Sequence[Path]) -> str:
    """Return the one task that the bundles were trained on. Raises BundleError or UserError."""
    tasks = sorted({str(bundle.read(path).provenance.get("task", "none")) for path in paths})
    if len(tasks) > 1:
        raise UserError(f"The bundles were trained on {' and '.join(tasks)}. Choose one: task=…")
    if tasks == ["none"]:
        raise UserError(
            f"{paths[0]} was trained without a task. Choose one: task=…, or give dataset=<card or "
            "file> for the error on held-out actions."
        )
    return tasks[0]


def load(
    path: Path, task: Task, env: VectorEnv, arguments: Mapping[str, Any], base: str | None = None
) -> BundlePolicy:
    """Load the policy in a bundle and check that it fits the task. Raises UserError.

    arguments: replace arguments stored in the bundle, such as target_return. base: module:function
    of the base policy, if the bundle does not contain it.
    """
    policy = read_policy(path, arguments)
    lacks_base = needs_base(policy.bundle)
    if lacks_base and base is None:
        source = policy.bundle.provenance.get("base", "module:function")
        raise UserError(
            f"{path} acts on a base policy, which it does not contain. Add base={source}."
        )
    if base is not None and not lacks_base:
        raise UserError(f"base={base}: {path} needs no base policy. Leave out base=.")
    policy = policy if base is None else attach_base(policy, base, env)
    problem = policy.spec.mismatch(spec_of(env))
    if problem is not None:
        raise UserError(
            f"{path} does not fit task {task.name}: {problem}. Use the task that it was trained on."
        )
    action_conversion(policy.spec, env, str(path))  # raises if the ranges cannot be converted
    return policy


def read_policy(path: Path, arguments: Mapping[str, Any]) -> BundlePolicy:
    """Load the policy in a bundle. Raises UserError. arguments: see `load`."""
    try:
        return policies.load(path, **arguments)
    except policies.BundleError as error:
        raise UserError(f"{'' if str(path) in str(error) else f'{path}: '}{error}") from None


def play(policy: BundlePolicy, env: VectorEnv, seeds: np.ndarray | None = None) -> Episodes:
    """Play one episode from every seed. Of each chunk, `n_action_steps` actions are executed.

    seeds: by default the fixed evaluation seeds, one per environment. If there are more seeds than
    environments, the episodes are played in groups.
    """
    seeds = EVALUATION_SEED + np.arange(env.num_envs) if seeds is None else seeds
    if len(seeds) > env.num_envs:
        starts = range(0, len(seeds), env.num_envs)
        return Episodes.joined([play(policy, env, seeds[k : k + env.num_envs]) for k in starts])
    player = Player(policy)
    feedback: tuple[np.ndarray | None, np.ndarray | None] = (None, None)
    convert = action_conversion(policy.spec, env, "the policy")
    player.reset(seeds)

    def act(observations: Observations) -> np.ndarray:
        actions = player.step(observations, *feedback)
        return actions if convert is None else convert(actions)

    def observe(rewards: np.ndarray, costs: np.ndarray | None) -> None:
        nonlocal feedback
        if policy.needs_costs and costs is None:
            raise UserError(NO_COSTS.format(kind=policy.bundle.kind))
        feedback = rewards, costs

    raw = channels.identity(env.observation_shape)  # a bundle's policy normalizes its inputs
    return rollout(env, act, raw, seeds, observe)


def as_text(
    task: Task,
    played: Mapping[Path, Episodes],
    *,
    every: bool = False,
    start_kind: str = "seeded",
    runs: Mapping[str, Sequence[Path]] | None = None,
) -> str:
    """Return the table of results for the terminal.

    every: True if the episodes start once from each initial state of the task. start_kind: a key
    of STARTS. runs: run -> bundles of the run; by default all bundles are one run.
    """
    body, scores = [], dict[Path, np.ndarray]()
    for path, e in played.items():
        score = ""
        if task.reference is not None:
            scores[path] = task.score(e.returns, e.success)
            score = format_mean_std(scores[path], 1)
        success = "" if e.success is None else f"{100 * e.success.mean():.0f}"
        cost = "" if e.costs is None else format_mean_std(e.costs, 1)
        body.append([str(path), score, format_mean_std(e.returns), success, cost])
    runs = runs or {"": list(played)}
    for run, paths in runs.items():
        means = [played[path].returns.mean() for path in paths]
        score = format_mean_std([scores[path].mean() for path in paths], 1) if scores else ""
        where = f" in {run}" if len(runs) > 1 else ""
        name = f"mean of {len(means)} bundles{where} ± std over bundles"
        body += [[name, score, format_mean_std(means), "", ""]] if len(means) > 1 else []
    seeds = next(iter(played.values())).seeds
    count = f"Mean ± standard deviation over {len(seeds)} episodes (ddof 0)"
    how = STARTS[start_kind].format(first=seeds[0], last=seeds[-1])
    notes = [f"{count}, {'one from each initial state' if every else how}."]
    raw = "The task has no score references: these are raw returns."
    notes.append(wrap_text(task.reference.in_words()) if task.reference else raw)
    return "\n".join([task.name, "", table(HEADER, body), "", *notes])


def as_table(differences: Sequence[Difference], *, every: bool = False) -> str:
    """Return the table of differences from the first run.

    every: True if the episodes start once from each initial state of the task.
    """
    header = ["difference", "measure", "mean", "over episodes", "over training seeds"]
    body, runs = [], [differences[0].reference, *(d.run for d in differences)]
    short = dict(zip(runs, relative_names(runs), strict=True))
    for d in differences:
        episodes = "exact" if every else interval_text(d.over_episodes)
        name, mean = f"{short[d.run]} − {short[d.reference]}", f"{d.value:+,.2f}"
        body.append([name, d.measure, mean, episodes, interval_text(d.over_seeds)])
    return table(header, body, left=2)


def relative_names(runs: Sequence[str]) -> list[str]:
    """Return paths of runs relative to the deepest folder that contains all of them."""
    shared = os.path.commonpath([Path(run).absolute().parent for run in runs])
    return [os.path.relpath(run, shared) for run in runs]


def interval_text(interval: tuple[float, float] | None) -> str:
    """Return an interval as a table shows it; "" for None."""
    return "" if interval is None else f"[{interval[0]:+,.2f}, {interval[1]:+,.2f}]"


def as_json(
    task: Task, played: Mapping[Path, Episodes], differences: Sequence[Difference] = ()
) -> str:
    """Return the evaluation as JSON."""
    rows = []
    for path, e in played.items():
        scores = task.score(e.returns, e.success) if task.reference else None
        row = {"bundle": str(path), "mean_return": e.returns.mean(), "std_return": e.returns.std()}
        row["score"] = None if scores is None else scores.mean()
        row["std_score"] = None if scores is None else scores.std()
        row["success"] = None if e.success is None else e.success.mean()
        row["cost"] = None if e.costs is None else e.costs.mean()
        rows.append({**row, "returns": e.returns, "seeds": e.seeds})
    reference = asdict(task.reference) if task.reference else None
    content = {"task": task.name, "score_reference": reference, "bundles": rows}
    if differences:
        content["differences"] = list(map(asdict, differences))
    return json.dumps(to_json_values(content), indent=2, allow_nan=False)


evaluate.__signature__ = options_signature(evaluate, EvaluateOptions)  # type: ignore[attr-defined]
