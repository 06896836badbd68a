"""Scores that are success rates over the last evaluations, as on OGBench."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_runs import seed_folder

import envs
from envs import Reference
from offline_rl.evaluation.rollout import Episodes
from offline_rl.reporting import compact
from offline_rl.reporting.published import published_scores, rows_of
from offline_rl.reporting.report import report
from offline_rl.reporting.runs import read
from offline_rl.reporting.summary import summarize
from offline_rl.suite.plan import read_suite
from offline_rl.training.result import final_score
from offline_rl.utils.files import read_json
from offline_rl.utils.paths import share

TASK = "ogbench/scene-play-singletask-v0"
RATE = {"min": 0.0, "max": 1.0, "source": "a paper", "environment": "a stand-in"}
RATE |= {"success": True, "last_evaluations": 3}
CURVE = {0: 100.0, 1000: 10.0, 2000: 20.0, 3000: 60.0, 4000: 40.0}


def folder_of(out: Path, curve: dict[int, float] = CURVE, **keys: object) -> object:
    """Return a seed whose last evaluation has one success in two episodes."""
    more = {"task": TASK, "success": [True, False], "score_reference": RATE, "score": 40.0}
    return seed_folder(out, 0, curve, **more | keys)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        (CURVE, 40.0),  # the mean of 20, 60 and 40
        ({0: 100.0, 1000: 30.0, 2000: 50.0}, 40.0),  # fewer evaluations; none before an update
        ({0: 100.0}, 50.0),  # the last evaluation itself
    ],
)
def test_a_seeds_score_is_the_mean_of_its_last_three_evaluations(
    tmp_path: Path, curve: dict[int, float], expected: float
):
    last = Episodes(np.array([-1.0, -9.0]), np.ones(2), np.array([True, False]), None, np.ones(2))
    folder = folder_of(tmp_path, curve)
    assert final_score(folder, Reference(**RATE), last) == expected  # type: ignore[arg-type]


def test_other_scores_are_those_of_the_last_evaluation(tmp_path: Path):
    reference = Reference(100, 300, "a paper", "a stand-in")
    last = Episodes(np.array([200.0, 300.0]), np.ones(2), None, None, np.ones(2))
    folder = folder_of(tmp_path)
    assert final_score(folder, reference, last) == 75.0  # type: ignore[arg-type]


def test_the_error_is_that_of_the_success_rate(tmp_path: Path):
    folder_of(tmp_path)
    seed = read(folder_of(tmp_path))  # type: ignore[arg-type]
    # the mean of 100 and 0 with a standard deviation (ddof 1) of 70.7 over two episodes
    assert summarize([seed], "score").error == pytest.approx(50.0)
    assert summarize([seed], "score").values == [40.0]


def test_a_report_states_the_success_rate_the_number_of_evaluations_and_the_published_score(
    tmp_path: Path,
):
    folder_of(tmp_path, algorithm="iql")
    made = report(tmp_path)
    text = " ".join(str(made).split())
    assert f"{TASK}: success rate in per cent" in text
    assert "A run has the mean of its last 3 evaluations (a paper)" in text
    assert made.rows[0]["score"] == 40.0
    (row,) = (
        row
        for row in rows_of("ogbench.csv")
        if row["task"] == "scene-play-singletask-task2-v0" and row["algorithm"] == "iql"
    )
    assert made.rows[0]["published"] == float(row["score"])
    assert f"{float(row['score']):.1f} ± {float(row['std']):.1f}" in text


def test_compact_files_keep_the_definition_of_the_score(tmp_path: Path):
    folder = folder_of(tmp_path / "runs")
    assert compact.pack([tmp_path / "runs"], tmp_path / "kept") == 1
    (record,) = compact.read(tmp_path / "kept")
    assert record.result is not None
    assert record.result["score_reference"] == RATE
    stored = read_json(folder.result)  # type: ignore[attr-defined]
    assert record.result["score"] == stored["score"]
    assert [row["eval/score"] for row in record.evaluations] == [50.0] * len(CURVE)


def test_published_scores_name_tasks_of_this_package(tmp_path: Path):
    known = {name.removeprefix("ogbench/") for name in envs.cards() if name.startswith("ogbench/")}
    rows = rows_of("ogbench.csv")
    assert {row["task"] for row in rows} <= known
    assert len({(row["task"], row["algorithm"]) for row in rows}) == len(rows)
    assert all(0 <= float(row["score"]) <= 100 for row in rows)
    seed = read(folder_of(tmp_path, task="ogbench/scene-play-sparse-singletask-task2-v0"))  # type: ignore[arg-type]
    score = published_scores([seed])["qc"]
    assert (score.score, score.std) == (99.5, None)
    assert score.about.startswith("OGBench's own file")


def test_published_scores_next_to_a_generated_file_say_so(tmp_path: Path):
    card = json.loads(
        (share("datasets/generated") / "ogbench-cube-single-play-v0.json").read_text()
    )
    seed = read(folder_of(tmp_path, task="ogbench/cube-single-play-singletask-v0"))  # type: ignore[arg-type]
    assert seed.outcome is not None
    generated = replace(seed, outcome=replace(seed.outcome, dataset_sha256=card["sha256"]))
    assert published_scores([generated])["fql"].about.startswith("another file")


def test_the_suite_has_the_published_protocol_and_every_task_of_it() -> None:
    suite = read_suite("ogbench")
    protocol = {"num_updates": 1_000_000, "eval_every": 100_000, "eval_episodes": 50}
    assert suite.seeds == [*range(8)]
    assert protocol.items() <= suite.keys.items()
    tasks = {task for cell in suite.cells for task in cell["task"]}
    assert tasks <= envs.cards().keys()
    published = {row["task"] for row in rows_of("ogbench.csv") if row["algorithm"] in ("fql", "qc")}
    assert {task.removeprefix("ogbench/") for task in tasks} == published
