"""The table of a constrained task, from run folders written by hand."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
from made_runs import seed_folder

import envs
import offline_rl
from envs import Reference
from offline_rl.evaluation.constrained import Limits
from offline_rl.evaluation.rollout import Episodes
from offline_rl.evaluation.saved import save
from offline_rl.reporting import compact
from offline_rl.reporting.runs import collect
from offline_rl.reporting.tables import constrained
from policies import Bundle, Normalizer, Spec, bundle
from policies.golden import seal

LIMITS = {"target_cost": None, "cost_limits": [10, 20]}


def table_of(out: Path) -> list[list[str]]:
    (seeds,) = collect([out]).values()
    return constrained.rows_of(seeds)


def columns(rows: list[list[str]], *names: str) -> list[tuple[str, ...]]:
    return [tuple(row[constrained.HEADER.index(name)] for name in names) for row in rows]


def test_each_method_has_a_row_at_each_of_its_limits_and_the_data_at_all_of_them(
    tmp_path: Path,
) -> None:
    """`bc` uses no limit. Its seeds have the mean costs 6 and 18, so it is unsafe for 10."""
    for seed, costs in enumerate(([2.0, 10.0], [12.0, 24.0])):
        seed_folder(tmp_path, seed, {4000: 60.0}, costs=costs, behavior_cost=40.0, **LIMITS)
    own = LIMITS | {"target_cost": 10.0}
    seed_folder(tmp_path, 0, {4000: 50.0}, algorithm="cpq", costs=[0.0, 12.0], **own)
    rows = table_of(tmp_path)
    assert columns(rows, "algorithm", "limit", "safe", "score", "normalized cost") == [
        ("behavior policy", "10", "no", "15.0", "4.00"),
        ("cpq", "10", "best", "50.0", "0.60"),
        ("unsafe for the limit 10:", "", "", "", ""),
        ("bc", "10", "no", "60.0 ± 0.0", "1.20 ± 0.60"),
        ("", "", "", "", ""),
        ("behavior policy", "20", "no", "15.0", "2.00"),
        ("bc", "20", "best", "60.0 ± 0.0", "0.60 ± 0.30"),
        ("", "", "", "", ""),
        ("bc", "mean", "1 of 2", "60.0", "0.90"),
    ]
    assert columns(rows[3:4], "cost", "unsafe %", "worst cost", "length", "target cost") == [
        ("12.0 ± 6.0", "50", "24.0", "5 ± 0", "none")
    ]
    assert columns(rows[1:2], "target cost", "episodes") == [("10", "2 × 1 seed")]


def test_a_report_has_the_table_and_its_numbers(tmp_path: Path) -> None:
    seed_folder(tmp_path, 0, {4000: 60.0}, costs=[2.0, 10.0], **LIMITS)
    report = offline_rl.report(tmp_path, format="csv")
    assert [(row["cost_limit"], row["safe"]) for row in report.constrained] == [
        (10, True),
        (20, True),
    ]
    first, second = csv.DictReader((tmp_path / "constrained.csv").read_text().splitlines())
    assert (first["normalized_cost"], second["normalized_cost"]) == ("0.6", "0.3")
    assert (first["unsafe_share"], first["worst_cost"], first["length"]) == ("0.0", "10.0", "5.0")
    page = (tmp_path / "report.md").read_text()
    assert "### At each cost limit" in page
    assert "- **normalized cost**: mean cost divided by the limit" in page


def test_tasks_without_limits_have_no_such_table(tmp_path: Path) -> None:
    seed_folder(tmp_path, 0, {4000: 60.0}, costs=[2.0, 10.0])
    report = offline_rl.report(tmp_path, format="csv")
    assert report.constrained == []
    assert "At each cost limit" not in (tmp_path / "report.md").read_text()
    assert not (tmp_path / "constrained.csv").exists()


def test_the_best_safe_evaluation_is_shown_next_to_the_last_one(tmp_path: Path) -> None:
    """The scores are 20, 80 and 70 at the mean costs 5, 30 and 15, so for 20 it is the third."""
    folder = seed_folder(tmp_path, 0, {1: 20.0}, finished=False, costs=[5.0, 5.0])
    for update, (score, cost) in enumerate(((80.0, 30.0), (70.0, 15.0), (90.0, 25.0)), 2):
        rest: dict[str, Any] = {"finished": update == 4, "costs": [cost, cost]}
        seed_folder(tmp_path, 0, {update: score}, **rest, **LIMITS)
    assert len(folder.rows("evaluations")) == 4
    found = columns(table_of(tmp_path), "limit", "safe", "score", "best safe")
    assert [row for row in found if row[0] in ("10", "20")] == [
        ("10", "no", "90.0", "20.0 at 0.50"),
        ("20", "no", "90.0", "70.0 at 0.75"),
    ]


def test_saved_evaluations_add_target_costs_and_replace_fewer_episodes(tmp_path: Path) -> None:
    """The training evaluations have two episodes. That of `cpq` is not replaced by one episode."""
    rest: dict[str, Any] = LIMITS | {"target_cost": 10.0, "costs": [0.0, 12.0]}
    caps, cpq = (
        seed_folder(tmp_path, 0, {4000: 50.0}, algorithm=name, **rest) for name in ("caps", "cpq")
    )
    arguments = {"observations": 1, "actions": 1, "hidden": []}
    weights = {
        "trunk.weights.0": np.zeros((1, 1), np.float32),
        "trunk.biases.0": np.zeros(1, np.float32),
    }
    normalizer = Normalizer.identity((1,))
    policy = seal(Bundle(Spec((1,), 1), "DeterministicActor", arguments, weights, normalizer))
    reference = Reference(100.0, 300.0, "a paper", "a stand-in")
    task = envs.Task("toy/line", reference=reference, cost_limits=(10.0, 20.0))
    for folder, target, count in (
        (caps, 10.0, 4),
        (caps, 20.0, 2),
        (caps, 30.0, 1),
        (cpq, 10.0, 1),
    ):
        bundle.write(folder.path / "policy.bundle", policy)
        returns, costs = np.full(count, 100.0 + target), np.full(count, target / 2)
        played = Episodes(returns, np.full(count, 9), None, costs, np.arange(count))
        keys = {"episodes": count, "target_cost": target}
        limits = Limits(target, task.cost_limits)
        save(folder.path / "policy.bundle", policy, task, keys, played, limits)
    found = columns(table_of(tmp_path), "limit", "score", "normalized cost", "episodes")
    assert [row for row in found if row[0]] == [
        ("10", "50.0", "0.60", "2 × 1 seed"),
        ("10", "5.0", "0.50", "4 × 1 seed"),
        ("20", "10.0", "0.50", "2 × 1 seed"),
        ("30", "15.0", "0.50", "1 × 1 seed"),
        ("mean", "10.0", "0.50", ""),
    ]


def test_compact_files_keep_the_limits(tmp_path: Path) -> None:
    for name, limits in (("a", LIMITS), ("b", LIMITS | {"target_cost": 5.0}), ("c", {})):
        seed_folder(
            tmp_path / "runs", 0, {4000: 1.0}, name=name, costs=[2.0, 10.0], **limits, success=None
        )
    before = table_of(tmp_path / "runs")
    compact.pack([tmp_path / "runs"], tmp_path / "packed")
    assert table_of(tmp_path / "packed") == before
    assert len({row[0] for row in before if row[1]}) == 2
