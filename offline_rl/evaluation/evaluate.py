"""`offline-rl evaluate`: what policy bundles score in an environment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import envs
import policies
from envs import Task, VectorEnv
from envs.adapters import LoopVectorEnv
from offline_rl.data.meaning import conversion, note_on_shares, spec_of
from offline_rl.evaluation.options import EvaluateOptions
from offline_rl.evaluation.rollout import Episodes, rollout, starts
from offline_rl.online.with_base import attached
from offline_rl.utils.errors import UserError
from offline_rl.utils.hardware import cores
from offline_rl.utils.options import build
from offline_rl.utils.seeds import EVALUATION_SEED
from offline_rl.utils.text import mean_std, table, wrapped
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


def evaluate(**keys: Any) -> str:
    """Plays every bundle of a run: a table, or with `json=True` a JSON object. Raises UserError."""
    options = build(EvaluateOptions, keys)
    paths = bundles(Path(options.run))
    with ExitStack() as stack:
        try:
            task = task_of(options.task, paths)
            seeds = starts(task, options.episodes)
            count = min(len(seeds), options.eval_envs or len(seeds))
            env = envs.make_vector(task, count, num_threads=min(cores(), 8), fewer=True)
            stack.callback(env.close)
            begun = env.starts() if isinstance(env, LoopVectorEnv) else "seeded"
            target = options.target_return
            given = {} if target is None else {"target_return": target}
            loaded = {path: load(path, task, env, given, options.base) for path in paths}
            played = {path: play(policy, env, seeds) for path, policy in loaded.items()}
        except ValueError as error:  # a BundleError or the environments'
            raise UserError(str(error)) from None
    if options.json:
        return as_json(task, played)
    notes = {note_on_shares(policy.spec, env, task.name) for policy in loaded.values()} - {None}
    notes |= {env.limit and f"{env.limit}; episodes ran one after another"} - {None}
    text = as_text(task, played, every=options.episodes == "all", begun=begun)
    return "\n".join([text, *(f"Note: {note}." for note in notes)])


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
    """The task to play, as the bundles' runs had it. name: default, what they learnt from."""
    return adapted(name or trained_on(paths), bundle.read(paths[0]).provenance)


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
        learnt = policy.bundle.provenance.get("base", "module:function")
        raise UserError(f"{path} corrects a base that it does not hold: add base={learnt}")
    if base is not None and not alone:
        raise UserError(f"base={base}: {path} is whole without one; leave it out")
    policy = policy if base is None else attached(policy, base, env)
    problem = policy.spec.mismatch(spec_of(env))
    if problem is not None:
        raise UserError(
            f"{path} does not fit task {task.name}: {problem}; name the task that it learnt in"
        )
    conversion(policy.spec, env, str(path))  # refuses a range that cannot be converted
    return policy


def play(policy: BundlePolicy, env: VectorEnv, seeds: np.ndarray | None = None) -> Episodes:
    """An episode from every seed; of a chunk of actions the first `executed` are taken.

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

    raw = channels.identity(env.observation_shape)  # a policy normalises by itself
    return rollout(env, act, raw, seeds, observe)


def as_text(
    task: Task, played: Mapping[Path, Episodes], *, every: bool = False, begun: str = "seeded"
) -> str:
    """For a terminal.  every: the episodes are all the starts there are.  begun: a key of BEGUN."""
    body = []
    for path, e in played.items():
        score = mean_std(task.score(e.returns), 1) if task.reference else ""
        success = "" if e.success is None else f"{100 * e.success.mean():.0f}"
        cost = "" if e.costs is None else mean_std(e.costs, 1)
        body.append([str(path), score, mean_std(e.returns), success, cost])
    if len(body) > 1:
        means = [e.returns.mean() for e in played.values()]
        score = mean_std(task.score(means), 1) if task.reference else ""
        body.append([f"mean of {len(means)} ± deviation over them", score, mean_std(means), "", ""])
    seeds = next(iter(played.values())).seeds
    count = f"Mean ± standard deviation over {len(seeds)} episodes (ddof 0)"
    how = BEGUN[begun].format(first=seeds[0], last=seeds[-1])
    notes = [f"{count}, {'each start once' if every else how}."]
    raw = "The task has no score references: these are raw returns."
    notes.append(wrapped(task.reference.in_words()) if task.reference else raw)
    return "\n".join([task.name, "", table(HEADER, body), "", *notes])


def as_json(task: Task, played: Mapping[Path, Episodes]) -> str:
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
    return json.dumps(plain(whole), indent=2, allow_nan=False)
