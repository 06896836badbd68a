"""`offline-rl evaluate`: scores of policy bundles in an environment."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import product
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
from offline_rl.evaluation import specifications
from offline_rl.evaluation.compare import Difference, difference, note_on
from offline_rl.evaluation.constrained import BEST_SAFE, Limits, Result, terminal_lines
from offline_rl.evaluation.decisions import frequency
from offline_rl.evaluation.decisions.frequency import Frequency, Played
from offline_rl.evaluation.decisions.player import Pace, PacedPlayer
from offline_rl.evaluation.held_out import HeldOutErrors, held_out_errors
from offline_rl.evaluation.options import EvaluateOptions, check_task, head_arguments
from offline_rl.evaluation.rollout import Episodes, evaluation_seeds, rollout
from offline_rl.evaluation.saved import save
from offline_rl.online.composed import attach_base
from offline_rl.utils.errors import UserError
from offline_rl.utils.hardware import num_cores
from offline_rl.utils.options import build, format_value, options_signature
from offline_rl.utils.seeds import EVALUATION_SEED
from offline_rl.utils.text import at_a_time, format_count, format_mean_std, table, wrap_text
from offline_rl.utils.trees import to_json_values
from policies import Bundle, Player, bundle, channels
from policies.bundle import BUNDLE
from policies.channels import Observations
from policies.composed import needs_base
from policies.policy import BundlePolicy
from policies.runtimes.hub import local_path
from policies.stl.signals import SignalReader

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
    # target cost -> bundle -> episodes of its policy; the key None stands for the bundles' own
    by_target: dict[float | None, dict[Path, Episodes]]
    limits: dict[tuple[Path, float | None], Limits]  # cost limits of each bundle and target cost
    options: EvaluateOptions
    start_kind: str  # how episodes start, a key of STARTS
    notes: list[str]
    saved: list[Path]  # files with the evaluations
    not_saved: str | None = None  # why the evaluations could not be saved
    # target cost -> bundle -> episodes at each pace of decision_every=
    paced: dict[float | None, dict[Path, Played]] = field(default_factory=dict)

    @property
    def frequencies(self) -> dict[float | None, dict[Path, Frequency]]:
        """Target cost -> bundle -> results at the intervals of decision_every=; {} without."""
        reference = self.task.reference
        return {
            target: {path: Frequency.of(played, reference) for path, played in by_path.items()}
            for target, by_path in self.paced.items()
        }

    @property
    def episodes(self) -> dict[Path, Episodes]:
        """Bundle -> episodes of its policy, with the first target cost."""
        return next(iter(self.by_target.values()))

    @property
    def constrained(self) -> list[Result]:
        """Results of each run at each cost limit; [] without costs or limits."""
        return constrained_results(self.task, self.by_target, self.limits, self.runs)

    @property
    def returns(self) -> dict[Path, np.ndarray]:
        """Bundle -> the undiscounted return of every episode, [E]."""
        return {path: e.returns for path, e in self.episodes.items()}

    @property
    def scores(self) -> dict[Path, np.ndarray]:
        """Bundle -> the normalized score of every episode, [E]; empty without score references."""
        measures = self._measures(self.episodes)
        return {path: values["score"] for path, values in measures if "score" in values}

    @property
    def differences(self) -> list[Difference]:
        """Differences of every other run from the first, in each measure that all runs have."""
        first, *others = self.runs
        differences = list[Difference]()
        for target, played in self.by_target.items():
            values = dict(self._measures(played))
            at = "" if len(self.by_target) == 1 else f", target_cost={target:g}"
            differences += [
                difference(
                    run,
                    first,
                    measure + at,
                    *({seed_of(p): values[p][measure] for p in self.runs[r]} for r in (run, first)),
                    start_kind=self.start_kind,
                )
                for run in others
                for measure in next(iter(values.values()))
            ]
        return differences

    def _measures(
        self, played: Mapping[Path, Episodes]
    ) -> Iterator[tuple[Path, dict[str, np.ndarray]]]:
        """Yield each bundle with {measure: value of each episode, [E]}, such as "score"."""
        for path, e in played.items():
            scored = self.task.reference is not None
            measures = {"score": self.task.score(e.returns, e.success)} if scored else {}
            measures = measures or {"return": e.returns}
            if all(other.success is not None for other in played.values()):
                measures["success %"] = 100.0 * np.asarray(e.success)
            if all(other.costs is not None for other in played.values()):
                measures["cost"] = np.asarray(e.costs)
            yield path, measures

    def __str__(self) -> str:
        every = self.options.episodes == "all"
        if self.options.json:
            return as_json(
                self.task, self.by_target, self.differences, self.constrained, self.frequencies
            )
        lines = [
            as_text(
                self.task, self.by_target, every=every, start_kind=self.start_kind, runs=self.runs
            ),
            *(f"Note: {note}." for note in self.notes),
        ]
        if results := self.constrained:
            lines += ["", *terminal_lines(results)]
        unit = "return" if self.task.reference is None else "score"
        lines += frequency.lines_of(self.frequencies, self.runs, unit)
        lines += specifications.lines_of(self.by_target, self.options.stl)
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
    file = BUNDLE if options.best is None else BEST_SAFE
    runs = {run: bundles(Path(run), file) for run in names}
    paths = [path for of_run in runs.values() for path in of_run]
    if len(runs) < len(names) or len({path.resolve() for path in paths}) < len(paths):
        raise UserError(
            f"run={format_value(names)} names the same bundle twice. Name each run once."
        )
    if not paths:
        raise UserError("run=[] names no run. Give a bundle, or the folder of a run.")
    specifications.check_backup_options(options)
    paces = frequency.paces_of(options)
    start_kind, target = "seeded", options.target_return
    costs = options.target_cost if isinstance(options.target_cost, list) else [options.target_cost]
    if not costs or len(set(costs)) < len(costs):
        raise UserError(
            f"target_cost={format_value(costs)} must name at least one limit, and each limit once."
        )
    if options.dataset is not None:
        for key in ("task", "episodes", "eval_envs", "base", "stl", "backup", *frequency.OPTIONS):
            if key in keys:
                raise UserError(f"{key}= needs an environment, but dataset= uses none. Remove one.")
        if len(costs) > 1:
            raise UserError(
                f"target_cost={format_value(costs)}: with dataset=, give a single limit."
            )
        arguments = head_arguments(target, costs[0])
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
            loaded = {
                cost: {
                    path: specifications.with_backup(
                        load(path, task, env, head_arguments(target, cost), options.base),
                        options,
                        env,
                    )
                    for path in paths
                }
                for cost in costs
            }
            frequency.check_lengths(paces, task.name, env)
            reader = specifications.signal_reader(options.stl, env)
            played = {
                cost: {path: play(policy, env, seeds, reader) for path, policy in by_path.items()}
                for cost, by_path in loaded.items()
            }
            paced: dict[float | None, dict[Path, Played]] = {
                cost: {
                    path: {pace: play(policy, env, seeds, pace=pace) for pace in paces}
                    for path, policy in by_path.items()
                }
                for cost, by_path in (loaded.items() if paces else ())
            }
            shares = (
                note_on_normalized_actions(p.spec, stated_spec(env), task.name)
                for p in loaded[costs[0]].values()
            )
            notes = list(dict.fromkeys(note for note in shares if note is not None))
            if env.num_envs < count:
                notes.append(f"{env.limit}. Evaluation ran {at_a_time(env.num_envs)}")
    except ValueError as error:  # BundleError, or an error of the environment
        raise UserError(str(error)) from None
    episodes = [e for by_path in played.values() for e in by_path.values()]
    if options.target_cost is not None and any(e.costs is None for e in episodes):
        raise UserError(
            f"target_cost={format_value(options.target_cost)}: {task.name} reports no costs. Use a "
            "constrained task, or remove target_cost=."
        )
    limits = {
        (path, cost): limits_of(policy.bundle, task)
        for cost, by_path in loaded.items()
        for path, policy in by_path.items()
    }
    files, problem = list[Path](), None
    saved_keys = {"episodes": options.episodes, "target_return": target, "base": options.base}
    saved_keys |= specifications.saved_keys(options) | frequency.saved_keys(options)
    try:
        for cost, path in product(costs, paths):
            keys, judged = saved_keys | {"target_cost": cost}, limits[path, cost]
            at_paces = paced[cost][path] if paces else None
            files.append(
                save(path, bundle.read(path), task, keys, played[cost][path], judged, at_paces)
            )
    except UserError as error:  # if the folder is not writable, only show the results
        problem = str(error)
    return Evaluation(task, runs, played, limits, options, start_kind, notes, files, problem, paced)


def limits_of(policy: Bundle, task: Task) -> Limits:
    """Return the cost limits by which a policy is judged in `task`."""
    target = policy.arguments.get("target_cost", policy.provenance.get("target_cost"))
    return Limits.of({"target_cost": target, "cost_limits": task.cost_limits})


def constrained_results(
    task: Task,
    by_target: Mapping[float | None, Mapping[Path, Episodes]],
    limits: Mapping[tuple[Path, float | None], Limits],
    runs: Mapping[str, Sequence[Path]],
) -> list[Result]:
    """Return the results of each run at each cost limit; see `Evaluation` for the arguments.

    The bundles of a run are its training seeds. Policies of one run that were trained for different
    limits are separate results.
    """
    groups = dict[tuple[str, float | None, float | None, float], list[Episodes]]()
    names = dict(zip(runs, relative_names(list(runs)), strict=True))
    if len(runs) == 1:
        names = {run: "/".join(Path(run).absolute().parts[-2:]) for run in runs}
    entries = product(by_target, ((name, path) for name, run in runs.items() for path in run))
    for cost, (run, path) in entries:
        played, judged = by_target[cost][path], limits[path, cost]
        for limit in judged.all if played.costs is not None else ():
            groups.setdefault((names[run], cost, judged.target_cost, limit), []).append(played)
    results = list[Result]()
    for (name, _, target, limit), episodes in groups.items():
        scores: list[float | None] = [None] * len(episodes)
        if task.reference is not None:
            scores = [float(task.score(e.returns, e.success).mean()) for e in episodes]
        results.append(Result(name, limit, target, episodes, scores))
    return results


def seed_of(path: Path) -> int:
    """Return the training seed of a bundle in a run's folder, -1 for a bundle elsewhere."""
    seed = path.resolve().parent.name.removeprefix("seed_")
    return int(seed) if seed.isdecimal() else -1


def bundles(run: Path, file: str = BUNDLE) -> list[Path]:
    """Return the bundles of `run`, sorted by seed. Raises UserError if there is none.

    file: name of the bundles in the folder of a run.
    """
    try:
        run = Path(local_path(run))
    except policies.BundleError as error:  # of zoo:<name> or hub:<owner>/<name>
        raise UserError(str(error).rstrip(".") + ".") from None
    if run.is_file():
        return [run]
    of_seeds = sorted(run.glob(f"seed_*/{file}"), key=lambda f: (len(str(f)), f))
    paths = [f for f in (run / file, *of_seeds) if f.is_file()]
    if not paths:
        problem = "does not exist"
        if run.is_dir():
            problem = f"has no {file}, and no seed folder with one"
        if run.is_dir() and file == BEST_SAFE:
            raise UserError(
                f"run={run} {problem}. Training stores it on tasks with a cost limit. Remove best=."
            )
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


def play(
    policy: BundlePolicy,
    env: VectorEnv,
    seeds: np.ndarray | None = None,
    reader: SignalReader | None = None,
    pace: Pace | None = None,
) -> Episodes:
    """Play one episode from every seed. Of each chunk, `n_action_steps` actions are executed.

    seeds: by default the fixed evaluation seeds, one per environment. If there are more seeds than
    environments, the episodes are played in groups. reader: see `rollout`. pace: times of the
    decisions, by default the policy's own.
    """
    seeds = EVALUATION_SEED + np.arange(env.num_envs) if seeds is None else seeds
    if len(seeds) > env.num_envs:
        starts = range(0, len(seeds), env.num_envs)
        groups = [seeds[k : k + env.num_envs] for k in starts]
        return Episodes.joined([play(policy, env, group, reader, pace) for group in groups])
    player = Player(policy) if pace is None else PacedPlayer(policy, pace)
    feedback: tuple[np.ndarray | None, np.ndarray | None] = (None, None)
    convert = action_conversion(policy.spec, env, "the policy")
    player.reset(seeds)

    log = specifications.BackupLog(player.episodes)

    def act(observations: Observations) -> np.ndarray:
        actions = player.step(observations, *feedback)
        log.add()
        return actions if convert is None else convert(actions)

    def observe(rewards: np.ndarray, costs: np.ndarray | None) -> None:
        nonlocal feedback
        if policy.needs_costs and costs is None:
            raise UserError(NO_COSTS.format(kind=policy.bundle.kind))
        feedback = rewards, costs

    raw = channels.identity(env.observation_shape)  # a bundle's policy normalizes its inputs
    return log.completed(rollout(env, act, raw, seeds, observe, reader))


def as_text(
    task: Task,
    by_target: Mapping[float | None, Mapping[Path, Episodes]],
    *,
    every: bool = False,
    start_kind: str = "seeded",
    runs: Mapping[str, Sequence[Path]] | None = None,
) -> str:
    """Return the table of results for the terminal.

    by_target: see `Evaluation`. every: True if the episodes start once from each initial state of
    the task. start_kind: a key of STARTS. runs: run -> bundles of the run; by default all bundles
    are one run.
    """
    body = [cells for item in by_target.items() for cells in rows_of_target(task, *item, runs)]
    seeds = next(iter(next(iter(by_target.values())).values())).seeds
    count = f"Mean ± standard deviation over {format_count(len(seeds), 'episode')} (ddof 0)"
    how = STARTS[start_kind].format(first=seeds[0], last=seeds[-1])
    notes = [f"{count}, {'one from each initial state' if every else how}."]
    raw = "The task has no score references: these are raw returns."
    notes.append(wrap_text(task.reference.in_words()) if task.reference else raw)
    return "\n".join([task.name, "", table(HEADER, body), "", *notes])


def rows_of_target(
    task: Task,
    target: float | None,
    played: Mapping[Path, Episodes],
    runs: Mapping[str, Sequence[Path]] | None,
) -> list[list[str]]:
    """Return the rows of all bundles with one target cost, and the means of runs with several."""
    body, scores = [], dict[Path, np.ndarray]()
    suffix = "" if target is None else f", target_cost={target:g}"
    for path, e in played.items():
        score = ""
        if task.reference is not None:
            scores[path] = task.score(e.returns, e.success)
            score = format_mean_std(scores[path], 1)
        success = "" if e.success is None else f"{100 * e.success.mean():.0f}"
        cost = "" if e.costs is None else format_mean_std(e.costs, 1)
        body.append([f"{path}{suffix}", score, format_mean_std(e.returns), success, cost])
    runs = runs or {"": list(played)}
    for run, paths in runs.items():
        means = [played[path].returns.mean() for path in paths]
        score = format_mean_std([scores[path].mean() for path in paths], 1) if scores else ""
        where = f" in {run}" if len(runs) > 1 else ""
        name = f"mean of {len(means)} bundles{where} ± std over bundles{suffix}"
        body += [[name, score, format_mean_std(means), "", ""]] if len(means) > 1 else []
    return body


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
    task: Task,
    by_target: Mapping[float | None, Mapping[Path, Episodes]],
    differences: Sequence[Difference] = (),
    constrained: Sequence[Result] = (),
    frequencies: Mapping[float | None, Mapping[Path, Frequency]] | None = None,
) -> str:
    """Return the evaluation as JSON."""
    rows = []
    entries = ((t, path, e) for t, played in by_target.items() for path, e in played.items())
    for target, path, e in entries:
        scores = task.score(e.returns, e.success) if task.reference else None
        row = {"bundle": str(path), "mean_return": e.returns.mean(), "std_return": e.returns.std()}
        row["score"] = None if scores is None else scores.mean()
        row["std_score"] = None if scores is None else scores.std()
        row["success"] = None if e.success is None else e.success.mean()
        row["cost"] = None if e.costs is None else e.costs.mean()
        if e.costs is not None:
            row |= {"target_cost": target, "costs": e.costs, "lengths": e.lengths}
        row |= specifications.numbers(e)
        row |= frequencies[target][path].to_json() if frequencies else {}
        rows.append({**row, "returns": e.returns, "seeds": e.seeds})
    reference = asdict(task.reference) if task.reference else None
    content = {"task": task.name, "score_reference": reference, "bundles": rows}
    if constrained:
        content["constrained"] = [
            {"run": result.label, "target_cost": result.target_cost, **result.numbers()}
            for result in constrained
        ]
    if differences:
        content["differences"] = list(map(asdict, differences))
    return json.dumps(to_json_values(content), indent=2, allow_nan=False)


evaluate.__signature__ = options_signature(evaluate, EvaluateOptions)  # type: ignore[attr-defined]
