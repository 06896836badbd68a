"""Results of a run, and the machine, versions and data they depend on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from envs import Reference
from offline_rl.algorithms.common.registry import run_label
from offline_rl.algorithms.common.schedule import ONLINE
from offline_rl.data import Dataset
from offline_rl.data.writers.d4rl import write
from offline_rl.engine.choices import Choices
from offline_rl.evaluation.bundles import bundled, current_policy
from offline_rl.evaluation.constrained import BEST_SAFE, Limits, best_safe
from offline_rl.evaluation.rollout import Episodes
from offline_rl.online.composed import without_base
from offline_rl.runs.folder import SeedFolder
from offline_rl.runs.run import Run
from offline_rl.training.prepare import Prepared
from offline_rl.training.trainer import Trainer
from offline_rl.utils import hardware
from offline_rl.utils.files import write_atomically, write_json
from offline_rl.utils.text import format_duration, format_mean_std, table
from offline_rl.utils.trees import to_json_values
from offline_rl.version import __version__
from policies import Bundle, bundle
from policies.golden import seal

MAIN = ("update", ONLINE)  # phases that are not preliminary
EXPERIENCE = "experience.hdf5"  # a seed's online experience, with keep_data


@dataclass(frozen=True)
class Result:
    """Results of one run, or of several that were trained in parallel."""

    path: Path  # the run's folder; of several runs, the folder that contains them
    results: list[dict[str, Any]]  # each seed's result.json, grouped by run
    names: list[str]  # the name of the run, for each result

    @property
    def scores(self) -> list[float]:
        """Final normalized score of each seed; the mean return if the task has no references."""
        return [r["score"] if r["score"] is not None else r["mean_return"] for r in self.results]

    def __fspath__(self) -> str:
        """Return the run's folder, so that a Result can be used in place of a path."""
        return str(self.path)

    def __repr__(self) -> str:
        """Return a table of the seeds, and the run's folder."""
        header = ["run", "seed", "score", "return", "updates", "env steps", "wall time"]
        body = []
        for r, run in zip(self.results, self.names, strict=True):
            name = "/".join((r["task"], r["algorithm"], run))
            online = r["num_env_steps"]
            counts = (f"{r['num_updates']:,}", f"{online:,}" if online else "")
            values = format_mean_std([r["score"]], 1), format_mean_std([r["mean_return"]])
            body.append([name, str(r["seed"]), *values, *counts, format_duration(r["seconds"])])
        return f"{table(header, body)}\n{self.path}"


def final_score(folder: SeedFolder, reference: Reference, last: Episodes) -> float:
    """Return the score of a seed, the mean over its last evaluations.

    `reference.last_evaluations` is their number. The evaluation before the first update is left
    out, unless it is the only one.
    """
    score = float(reference.score(last.returns, last.success).mean())
    if reference.last_evaluations == 1:
        return score
    curve = [
        float("nan") if row["eval/score"] is None else row["eval/score"]
        for row in folder.rows("evaluations")
        if row["updates"] or row["env_steps"]
    ]
    return float(np.mean(curve[-reference.last_evaluations :])) if curve else score


def behavior_cost(data: Dataset | None) -> dict[str, float]:
    """Return the mean cost of the data's episodes as an entry of result.json; {} without costs."""
    if data is None or "costs" not in data.extras:
        return {}
    return {"behavior_cost": float(data.episode_costs().mean())}


def limits_of_run(run: Run) -> Limits:
    """Return the cost limits by which a run's policies are judged."""
    return Limits(getattr(run.method.cfg, "target_cost", None), run.task.cost_limits)


def finish(prepared: Prepared, trainer: Trainer, s: int, run: Run, choices: Choices) -> None:
    """Write the policy bundle, then result.json, which marks the seed as finished.

    Both replace earlier files. A diverged seed gets no bundle, and its earlier bundle is removed. A
    run that only fits a dynamics model has no policy, and no bundle.
    """
    data, reference, folder = prepared.dataset, run.task.reference, run.folder
    composed = prepared.composed
    last = trainer.last[s] if trainer.last else None
    score = None if last is None or reference is None else final_score(folder, reference, last)
    behavior = data.episode_returns().mean() if data is not None and data.has_rewards else None
    progress = trainer.progress
    updates = {phase: counts.updates for phase, counts in progress.counters.items()}
    rate = progress.timed_updates / progress.seconds if progress.seconds else None
    newest = list(folder.checkpoints().values())
    result = {
        "algorithm": run_label(run.method.name),
        "task": run.task.name,
        "dataset": None if data is None else data.path or data.name,
        "dataset_sha256": None if data is None else data.sha256,
        "seed": folder.seed,
        "seeds_stacked": len(trainer.folders),
        "num_updates": run.budget.num_updates,
        "pretrain_updates": sum(n for phase, n in updates.items() if phase not in MAIN),
        "online_updates": updates.get(ONLINE, 0),
        "num_env_steps": trainer.env_steps,
        "seconds": round(progress.wall_seconds, 3),
        "compile_seconds": round(trainer.engine.compile_seconds, 3),
        "updates_per_second": rate,
        "device": str(trainer.engine.device),
        "precision": choices.precision,
        "compiled": choices.compile and "uncompiled" not in trainer.engine.fallbacks.values(),
        "returns": None if last is None else last.returns,
        "success": None if last is None else last.success,
        "costs": None if last is None else last.costs,
        "mean_return": None if last is None else last.returns.mean(),
        "score": score,
        "behavior_return": behavior,
        **behavior_cost(data),
        "behavior_score": (
            None
            if behavior is None or reference is None or reference.success
            else run.task.score(behavior).item()
        ),
        "success_timing": run.task.success_timing,
        **limits_of_run(run).to_json(),
        "score_reference": None if reference is None else asdict(reference),
        "diverged_at": progress.diverged[s],
        "last_checkpoint": str(newest[-1].relative_to(folder.path)) if newest else None,
        "version": __version__,
        "commit": hardware.current_commit(),
    }
    params = {
        name: {key: value[s].cpu() for key, value in network.items()}
        for name, network in trainer.engine.state["params"].items()
    }
    seconds = {phase: counts.seconds for phase, counts in progress.counters.items()}
    result |= prepared.learner.summary(params, seconds)
    if composed is not None and (digests := composed.base.digests()):
        result["base_weights"] = digests
    if prepared.base is not None:
        result["base_weights"] = prepared.base.digests(params["sampler"])
    collector = trainer.collector
    if run.output.keep_data and collector is not None and collector.buffer.added[s]:
        raw = trainer.transform.invert(collector.buffer.all_rows(s))
        write(raw if composed is None else without_base(raw), folder.path / EXPERIENCE)
    result = to_json_values(result)
    if progress.diverged[s] is None and not run.fits_model_only:
        provenance = {k: v for k, v in result.items() if k not in ("returns", "success", "costs")}
        policy = current_policy(trainer.engine, s, trainer.transform, provenance)
        store(prepared, run, policy, folder.bundle)
    write_json(folder.result, result)
    if progress.diverged[s] is not None:
        folder.bundle.unlink(missing_ok=True)


def store(prepared: Prepared, run: Run, policy: Bundle, path: Path) -> None:
    """Write the bundle of a seed's policy, with options of the environment and its base policy."""
    provenance, composed = dict(policy.provenance), prepared.composed
    for name in ("max_episode_steps", "observation_keys", "success_timing"):
        if (value := getattr(run.data, name)) is not None:
            provenance[name] = value
    if composed is not None and composed.base.bundle is None:  # not contained in the bundle
        provenance |= {"base": composed.base.name, "base_sha256": composed.base.sha256}
    policy = replace(policy, provenance=provenance)
    complete = seal(policy if composed is None else composed.attach(policy))
    write_atomically(path, lambda temporary: bundle.write(temporary, complete))


def store_best_safe(prepared: Prepared, trainer: Trainer, runs: Sequence[Run]) -> None:
    """Write the policy of each seed whose last evaluation is its best safe one; see `best_safe`.

    Does nothing on tasks without a cost limit or without costs. runs: of the seeds.
    """
    assert trainer.evaluator is not None
    for s, run in enumerate(runs):
        if (limit := limits_of_run(run).single) is None:
            return
        rows = run.folder.rows("evaluations")
        if not rows or rows[-1]["costs"] is None:
            return
        values = [row.get("eval/score", row["eval/return"]) for row in rows]
        pairs = [np.nan if v is None else v for v in values], [row["eval/cost"] for row in rows]
        if best_safe(*pairs, limit) != len(rows) - 1:
            continue
        names = ("updates", "env_steps", "eval/return", "eval/score", "eval/cost")
        provenance = {
            "algorithm": run_label(run.method.name),
            "task": run.task.name,
            "seed": run.seed,
            "selected": "best safe evaluation",
            **{name: rows[-1][name] for name in names if name in rows[-1]},
            **limits_of_run(run).to_json(),
        }
        algorithm, weights = trainer.engine.algorithm, trainer.evaluator.weights(s)
        policy = bundled(algorithm, weights, trainer.transform, provenance)
        store(prepared, run, policy, run.folder.path / BEST_SAFE)
