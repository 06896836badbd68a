"""Run folders written by hand, in the layout of `train`."""

from pathlib import Path
from typing import Any

from offline_rl.runs.folder import SeedFolder, run_folder
from offline_rl.utils.files import write_json

REFERENCE = {"min": 100.0, "max": 300.0, "source": "a paper", "environment": "a stand-in"}


def seed_folder(
    out: Path,
    seed: int,
    scores: dict[int, float],
    *,
    task: str = "toy/line",
    algorithm: str = "bc",
    name: str = "default",
    finished: bool = True,
    scored: bool = True,
    config: dict[str, Any] | None = None,
    **result: Any,
) -> SeedFolder:
    """Write a seed, two episodes per evaluation. scores: updates -> s, a return of 100 + 2 s."""
    folder = SeedFolder(run_folder(str(out), task, algorithm, name), seed)
    settings = {"algorithm": algorithm, "task": task, "name": name, "dataset": None, "data": "ab12"}
    settings |= {"num_updates": 4000, "hyper": {"beta": 3.0}}
    write_json(folder.config, {**settings, **(config or {})})
    write_json(folder.path / "environment.json", {"cores": 2, "gpu": None})
    for updates, score in scores.items():
        mean = 100 + 2 * score
        row = {"updates": updates, "env_steps": 0, "eval/return": mean, "eval/length": 5.0}
        row |= {"eval/score": score} if scored else {}
        row |= {"returns": [mean - 1, mean + 1], "lengths": [4, 6], "seeds": [7, 8]}
        outcome = {key: result.get(key) for key in ("success", "costs")}
        folder.append("evaluations", {**row, **outcome})
    if finished:
        last = list(scores.values())[-1] if scores else None
        mean = None if last is None else 100 + 2 * last
        default: dict[str, Any] = {
            "algorithm": algorithm,
            "task": task,
            "dataset": "/far/away/line.npz",
            "seed": seed,
            "seeds_stacked": 2,
            "num_updates": 4000,
            "pretrain_updates": 0,
            "online_updates": 0,
            "num_env_steps": 0,
            "seconds": 60.0,
            "updates_per_second": 150.0,
            "device": "cpu",
            "precision": "fp32",
            "compiled": True,
            "dataset_sha256": None,
            "returns": None if mean is None else [mean - 1, mean + 1],
            "success": None,
            "costs": None,
            "mean_return": mean,
            "score": last if scored else None,
            "behavior_return": 130.0,
            "behavior_score": 15.0 if scored else None,
            "score_reference": REFERENCE if scored else None,
            "diverged_at": None,
        }
        write_json(folder.result, default | result)
    return folder
