"""`offline-rl evaluate`: what policy bundles score in an environment."""

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
from offline_rl.data.meaning import conversion, note_on_shares, spec_of, stated
from offline_rl.evaluation.compare import Difference, difference, note_on
from offline_rl.evaluation.options import EvaluateOptions, check_task
from offline_rl.evaluation.rollout import Episodes, rollout, starts
from offline_rl.evaluation.saved import save
from offline_rl.online.with_base import attached
from offline_rl.utils.errors import UserError
from offline_rl.utils.hardware import cores
from offline_rl.utils.options import build, signature, spelled
from offline_rl.utils.seeds import EVALUATION_SEED
from offline_rl.utils.text import at_a_time, mean_std, table, wrapped
from offline_rl.utils.trees import plain
from policies import Player, bundle, channels
from policies.channels import BASE_ACTION, Observations
from policies.policy import BundlePolicy

BEGUN = {  # `LoopVectorEnv.starts` -> where episodes begin
    "seeded": "begun from seeds {first} to {last}",
    "random": "begun at random: the environment ignores its seed, so that each evaluation differs",
    "alike": "all begun alike: the environment has one start, whatever its seed",
}
HEADER = ["bundle", "score", "return", "success %", "cost"]


@dataclass(frozen=True)
class Evaluation:
    """The episodes of every policy that was evaluated; printed, it is the command's output."""

    task: Task
    runs: dict[str, list[Path]]  # a run as it was given -> its bundles
    episodes: dict[Path, Episodes]  # of each bundle
    options: EvaluateOptions
    begun: str  # how the episodes begin, a key of BEGUN
    notes: list[str]
    saved: list[Path]  # the files that hold the evaluations
    not_saved: str | None = None  # why there are none

    @property
    def returns(self) -> dict[Path, np.ndarray]:
        """The undiscounted return of every episode, by bundle."""
        return {path: e.returns for path, e in self.episodes.items()}

    @property
    def scores(self) -> dict[Path, np.ndarray]:
        """The normalized score of every episode; empty if the task has no score references."""
        return {path: values["score"] for path, values in self._values() if "score" in values}

    @property
    def differences(self) -> list[Difference]:
        """Every other run minus the first one, in each measure that all of them have."""
        values, (first, *others) = dict(self._values()), self.runs
        return [
            difference(
                run,
                first,
                measure,
                *({seed_of(p): values[p][measure] for p in self.runs[r]} for r in (run, first)),
                begun=self.begun,
            )
            for run in others
            for measure in next(iter(values.values()))
        ]

    def _values(self) -> Iterator[tuple[Path, dict[str, np.ndarray]]]:
        """Each bundle's measures of every episode."""
        for path, e in self.episodes.items():
            measures = {"score": self.task.score(e.returns)} if self.task.reference else {}
            measures = measures or {"return": e.returns}
            if all(other.success is not None for other in self.episodes.values()):
                measures["success %"] = 100.0 * np.asarray(e.success)
            yield path, measures

    def __str__(self) -> str:
        every = self.options.episodes == "all"
        if self.options.json:
            return as_json(self.task, self.episodes, self.differences)
        lines = [
            as_text(self.task, self.episodes, every=every, begun=self.begun, runs=self.runs),
            *(f"Note: {note}." for note in self.notes),
        ]
        if len(self.runs) > 1:
            found = self.differences
            note = wrapped(note_on(found, self.begun, every=every))
            lines += ["", as_table(found, every=every), "", note]
        if self.not_saved is not None:
            lines += [f"Not saved: {self.not_saved}"]
        names = dict.fromkeys(path.name for path in self.saved)
        return "\n".join([*lines, *(f"Saved beside each bundle as {name}" for name in names)])

    __repr__ = __str__


def evaluate(**keys: Any) -> Evaluation:
    """Play every bundle of one or more runs, and save the episodes beside each bundle.

    keys: those of the command. Raises UserError.
    """
    check_task(keys)
    options = build(EvaluateOptions, keys)
    given = options.run if isinstance(options.run, list) else [options.run]
    runs = {run: bundles(Path(run)) for run in given}
    paths = [path for own in runs.values() for path in own]
    if len(runs) < len(given) or len({path.resolve() for path in paths}) < len(paths):
        raise UserError(f"run={spelled(given)} names the same bundle twice. Name each run once.")
    if not paths:
        raise UserError("run=[] names no run. Give a bundle, or the folder of a run.")
    begun, target = "seeded", options.target_return
    try:
        task = task_of(options.task, paths)
        seeds = starts(task, options.episodes)
        count = min(len(seeds), options.eval_envs or len(seeds))
        alone = "eval_envs=1" if options.eval_envs == 1 else None
        threads = min(cores(), 8)
        with closing(
            envs.make_vector(task, count, num_threads=threads, fewer=True, single=alone)
        ) as env:
            if isinstance(env, LoopVectorEnv) and task.env_id not in NATIVE:
                begun = env.starts()
            changed = {} if target is None else {"target_return": target}
            loaded = {path: load(path, task, env, changed, options.base) for path in paths}
            played = {path: play(policy, env, seeds) for path, policy in loaded.items()}
            shares = (note_on_shares(p.spec, stated(env), task.name) for p in loaded.values())
            notes = list(dict.fromkeys(note for note in shares if note is not None))
            if env.num_envs < count:
                notes.append(f"{env.limit}. Evaluation ran {at_a_time(env.num_envs)}")
    except ValueError as error:  # a BundleError or the environments'
        raise UserError(str(error)) from None
    files, problem = list[Path](), None
    kept = {"episodes": options.episodes, "target_return": target, "base": options.base}
    try:
        files += [save(path, loaded[path].bundle, task, kept, played[path]) for path in paths]
    except UserError as error:  # a folder that cannot be written to; the numbers are worth showing
        problem = str(error)
    return Evaluation(task, runs, played, options, begun, notes, files, problem)


def seed_of(path: Path) -> int:
    """Return the training seed of a bundle in a run's folder, -1 for one that lies elsewhere."""
    seed = path.resolve().parent.name.removeprefix("seed_")
    return int(seed) if seed.isdecimal() else -1


def bundles(run: Path) -> list[Path]:
    """The bundles that `run` names, by seed. Raises UserError where there is none."""
    if run.is_file():
        return [run]
    of_seeds = sorted(run.glob("seed_*/policy.bundle"), key=lambda f: (len(str(f)), f))
    found = [f for f in (run / "policy.bundle", *of_seeds) if f.is_file()]
    if not found:
        what = "has no policy.bundle, nor has a seed in it" if run.is_dir() else "does not exist"
        raise UserError(f"run={run} {what}: expected a bundle or the folder of a finished run")
    return found


def task_of(name: str | None, paths: Sequence[Path]) -> Task:
    """The task to play, as the bundles' runs had it. name: default, what they learned from."""
    name = name or trained_on(paths)
    first, *others = (adapted(name, bundle.read(path).provenance) for path in paths)
    for path, other in zip(paths[1:], others, strict=True):
        if other != first:
            raise UserError(
                f"{paths[0]} and {path} were trained with other max_episode_steps or "
                f"observation_keys of {name}. Evaluate them one at a time."
            )
    return first


def adapted(name: str, known: Mapping[str, Any]) -> Task:
    """The task of that name, as the run that `known` tells of had it where it is its own."""
    task = envs.task(name)
    if task.name != known.get("task"):
        return task
    return task.adapted(known.get("max_episode_steps"), known.get("observation_keys"))


def trained_on(paths: Sequence[Path]) -> str:
    """The one task that the bundles were trained on. Raises BundleError or UserError."""
    tasks = sorted({str(bundle.read(path).provenance.get("task", "none")) for path in paths})
    if len(tasks) > 1 or tasks == ["none"]:
        raise UserError(f"{paths[0]} was trained on {' or '.join(tasks)}: say which task=… to play")
    return tasks[0]


def load(
    path: Path, task: Task, env: VectorEnv, given: Mapping[str, Any], base: str | None = None
) -> BundlePolicy:
    """The policy, built with arguments `given` in place of its own; it fits the task. UserError.

    base: what its actions are added to, where its bundle does not hold that.
    """
    try:
        policy = policies.load(path, **given)
    except policies.BundleError as error:
        raise UserError(f"{'' if str(path) in str(error) else f'{path}: '}{error}") from None
    alone = any(channel.name == BASE_ACTION for channel in policy.spec.channels)
    if alone and base is None:
        learned = policy.bundle.provenance.get("base", "module:function")
        raise UserError(f"{path} corrects a base that it does not hold: add base={learned}")
    if base is not None and not alone:
        raise UserError(f"base={base}: {path} is whole without one; leave it out")
    policy = policy if base is None else attached(policy, base, env)
    problem = policy.spec.mismatch(spec_of(env))
    if problem is not None:
        raise UserError(
            f"{path} does not fit task {task.name}: {problem}; name the task that it learned in"
        )
    conversion(policy.spec, env, str(path))  # refuses a range that cannot be converted
    return policy


def play(policy: BundlePolicy, env: VectorEnv, seeds: np.ndarray | None = None) -> Episodes:
    """An episode from every seed; of a chunk of actions the first `n_action_steps` are taken.

    seeds: default: as many as there are environments, those of every evaluation. Where there are
    more than environments, one group of episodes follows another.
    """
    seeds = EVALUATION_SEED + np.arange(env.num_envs) if seeds is None else seeds
    if len(seeds) > env.num_envs:
        starts = range(0, len(seeds), env.num_envs)
        return Episodes.joined([play(policy, env, seeds[k : k + env.num_envs]) for k in starts])
    player, rewards = Player(policy), None
    convert = conversion(policy.spec, env, "the policy")
    player.reset(seeds)

    def act(observations: Observations) -> np.ndarray:
        actions = player.step(observations, rewards)
        return actions if convert is None else convert(actions)

    def observe(told: np.ndarray) -> None:
        nonlocal rewards
        rewards = told

    raw = channels.identity(env.observation_shape)  # a policy normalizes by itself
    return rollout(env, act, raw, seeds, observe)


def as_text(
    task: Task,
    played: Mapping[Path, Episodes],
    *,
    every: bool = False,
    begun: str = "seeded",
    runs: Mapping[str, Sequence[Path]] | None = None,
) -> str:
    """Return the table of a terminal.

    every: the episodes are all the starts there are. begun: a key of BEGUN. runs: default, one.
    """
    body = []
    for path, e in played.items():
        score = mean_std(task.score(e.returns), 1) if task.reference else ""
        success = "" if e.success is None else f"{100 * e.success.mean():.0f}"
        cost = "" if e.costs is None else mean_std(e.costs, 1)
        body.append([str(path), score, mean_std(e.returns), success, cost])
    runs = runs or {"": list(played)}
    for run, paths in runs.items():
        means = [played[path].returns.mean() for path in paths]
        score = mean_std(task.score(means), 1) if task.reference else ""
        where = f" in {run}" if len(runs) > 1 else ""
        name = f"mean of {len(means)}{where} ± deviation over them"
        body += [[name, score, mean_std(means), "", ""]] if len(means) > 1 else []
    seeds = next(iter(played.values())).seeds
    count = f"Mean ± standard deviation over {len(seeds)} episodes (ddof 0)"
    how = BEGUN[begun].format(first=seeds[0], last=seeds[-1])
    notes = [f"{count}, {'each start once' if every else how}."]
    raw = "The task has no score references: these are raw returns."
    notes.append(wrapped(task.reference.in_words()) if task.reference else raw)
    return "\n".join([task.name, "", table(HEADER, body), "", *notes])


def as_table(differences: Sequence[Difference], *, every: bool = False) -> str:
    """The differences from the first run. every: the episodes are all the starts there are."""
    header = ["difference", "measure", "mean", "over episodes", "over training seeds"]
    body, runs = [], [differences[0].reference, *(d.run for d in differences)]
    short = dict(zip(runs, apart(runs), strict=True))
    for d in differences:
        episodes = "exact" if every else spelled_interval(d.over_episodes)
        name, mean = f"{short[d.run]} − {short[d.reference]}", f"{d.value:+,.2f}"
        body.append([name, d.measure, mean, episodes, spelled_interval(d.over_seeds)])
    return table(header, body, left=2)


def apart(runs: Sequence[str]) -> list[str]:
    """Return the parts of paths that tell them apart, without the folders that all share."""
    shared = os.path.commonpath([Path(run).absolute().parent for run in runs])
    return [os.path.relpath(run, shared) for run in runs]


def spelled_interval(interval: tuple[float, float] | None) -> str:
    """For tables."""
    return "" if interval is None else f"[{interval[0]:+,.2f}, {interval[1]:+,.2f}]"


def as_json(
    task: Task, played: Mapping[Path, Episodes], differences: Sequence[Difference] = ()
) -> str:
    """For machines."""
    rows = []
    for path, e in played.items():
        scores = task.score(e.returns) if task.reference else None
        row = {"bundle": str(path), "mean_return": e.returns.mean(), "std_return": e.returns.std()}
        row["score"] = None if scores is None else scores.mean()
        row["std_score"] = None if scores is None else scores.std()
        row["success"] = None if e.success is None else e.success.mean()
        row["cost"] = None if e.costs is None else e.costs.mean()
        rows.append({**row, "returns": e.returns, "seeds": e.seeds})
    reference = asdict(task.reference) if task.reference else None
    whole = {"task": task.name, "score_reference": reference, "bundles": rows}
    if differences:
        whole["differences"] = list(map(asdict, differences))
    return json.dumps(plain(whole), indent=2, allow_nan=False)


evaluate.__signature__ = signature(evaluate, EvaluateOptions)  # type: ignore[attr-defined]
