"""Evaluations in the background give the same results as evaluations between updates."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from small_data import save_small

from offline_rl.evaluation import evaluator
from offline_rl.evaluation.rollout import rollout
from offline_rl.training.train import train
from offline_rl.utils import hardware
from offline_rl.utils.files import read_json

QUICK = {"algorithm": "td3_bc", "task": "neorl2/DMSD", "seeds": 2, "num_updates": 60}
QUICK |= {"eval_every": 20, "checkpoint_every": 20, "eval_episodes": 2, "tracker": "none"}
QUICK |= {"compile": "never", "algorithm.hidden": [8], "show": False}


def evaluations(folder: Path) -> list[str]:
    """Return the evaluation rows of both seeds without wall seconds."""
    paths = sorted(folder.rglob("evaluations.jsonl"))
    lines = [line for path in paths for line in path.read_text().splitlines()]
    return [line[: line.index('"wall_seconds"')] for line in lines]


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Any]:
    return QUICK | {"dataset": str(save_small(tmp_path / "small.npz"))}


def run(cores: int, monkeypatch: pytest.MonkeyPatch, **keys: Any) -> Path:
    monkeypatch.setattr(hardware, "num_cores", lambda: cores)
    return train(**keys).path


def test_results_are_equal_in_the_background_and_between_updates(
    data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    between = run(1, monkeypatch, **data, out=str(tmp_path / "between"))
    background = run(2, monkeypatch, **data, out=str(tmp_path / "background"))
    found = evaluations(background)
    assert found == evaluations(between)
    assert len(found) == 2 * 4
    results = [read_json(p / "seed_0" / "result.json")["returns"] for p in (between, background)]
    assert results[0] == results[1]


def test_a_killed_run_repeats_the_evaluation_that_its_checkpoint_lacks(
    data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The evaluation at a checkpoint is still running when the checkpoint is saved."""
    whole = run(2, monkeypatch, **data, out=str(tmp_path / "whole"))
    broken = tmp_path / "broken"
    shutil.copytree(tmp_path / "whole", broken)
    for seed in (path.parent for path in broken.rglob("result.json")):
        (seed / "result.json").unlink()
        newest = max((seed / "checkpoints").iterdir(), key=lambda p: p.stat().st_mtime)
        newest.unlink()
    again = run(2, monkeypatch, **data, out=str(broken))
    assert evaluations(again) == evaluations(whole)


def test_a_failing_environment_stops_the_training(
    data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: Any) -> None:
        raise RuntimeError("the simulator broke")

    assert evaluator.rollout is rollout
    monkeypatch.setattr(evaluator, "rollout", fail)
    with pytest.raises(RuntimeError, match="the simulator broke"):
        run(2, monkeypatch, **data, out=str(tmp_path / "out"))
