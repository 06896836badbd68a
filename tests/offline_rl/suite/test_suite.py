"""Suites: their checks, cost estimates, execution, and continuation after a kill."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from small_data import save_small

from offline_rl.reporting import compact
from offline_rl.suite import queue
from offline_rl.suite.benchmark import benchmark, cost_table, states, without_stored
from offline_rl.suite.claims import claim
from offline_rl.suite.plan import (
    Cell,
    cells,
    check_runs,
    estimate_costs,
    read_plan,
    read_suite,
    select,
    write_plan,
)
from offline_rl.suite.queue import Display, Progress, run_plan
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import write_json
from offline_rl.utils.trees import to_json_values

CELL = {"algorithm": "td3_bc", "task": "none", "dataset": "small.npz", "num_updates": 4}
QUICK = {"algorithm.hidden": [8], "compile": "never", "tracker": "none", "batch_size": 8}


pytestmark = pytest.mark.usefixtures("folder")


def suite(*entries: dict[str, Any], **changes: Any) -> Path:
    """Write a suite file with these cells."""
    path = Path("mine.yaml")
    path.write_text(json.dumps({"seeds": 2, "keys": QUICK, "cells": list(entries), **changes}))
    return path


def test_lists_of_algorithms_and_tasks_are_crossed_in_order() -> None:
    path = suite({**CELL, "algorithm": ["iql", "bc"], "task": ["none", "env:Pendulum-v1"]})
    plan = cells(read_suite(str(path)), "runs")
    pairs = [(c.keys["algorithm"], c.keys["task"]) for c in plan]
    tasks = ("none", "env:Pendulum-v1")
    assert pairs == [(algorithm, task) for algorithm in ("iql", "bc") for task in tasks]
    only = select(cells(read_suite(str(path)), "runs", [7]), ["bc"], ["none"])
    assert [(c.label, [f.seed for f in c.folders]) for c in only] == [("bc on none/small", [7])]


def test_each_of_several_cost_limits_is_a_cell_with_a_name() -> None:
    cell = {**CELL, "algorithm": "bc_safe", "target_cost": [10, 2.5]}
    plan = cells(read_suite(str(suite({**CELL, "algorithm": "bc"}, cell))), "runs")
    assert [c.keys.get("name") for c in plan[1:]] == [
        "default-target_cost_10",
        "default-target_cost_2.5",
    ]
    assert [c.runs[0].method.cfg.target_cost for c in plan[1:]] == [10, 2.5]
    (one,) = cells(read_suite(str(suite({**cell, "name": "low", "target_cost": 1}))), "runs")
    assert (one.keys["name"], one.runs[0].method.cfg.target_cost) == ("low", 1)


WRONG = {
    "key": ({"num_update": 4}, "num_updates"),
    "hyper-parameter": ({"algorithm.alfa": 1.0}, "algorithm.alpha"),
    "algorithm": ({"algorithm": "td3bc"}, "td3_bc"),
    "task": ({"task": "neorl2/DMS"}, "neorl2/DMSD"),
    "seeds": ({"seeds": "three"}, "seeds='three': expected an integer"),
    "value": ({"algorithm.alpha": -1.0}, "alpha"),
    "two runs in one": ({"algorithm.alpha": [1.0, 2.0]}, "a cell is one run"),
}


@pytest.mark.parametrize("case", WRONG)
def test_options_that_train_refuses_are_refused_before_anything_runs(
    case: str, folder: Path
) -> None:
    change, remedy = WRONG[case]
    path = suite(CELL, {**CELL, "name": "second", **change})
    with pytest.raises(UserError, match="cell 2") as error:
        benchmark(suite=str(path), show=False)
    assert remedy in str(error.value)
    assert not (folder / "runs").exists()


def test_options_that_do_not_fit_the_data_are_refused_before_anything_runs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Missing data is only reported, because it may exist when the cell starts."""
    centered = {**CELL, "name": "centered", "algorithm.center_rewards": True}
    path = suite(CELL, {**centered, "dataset": "later.npz"})
    assert "2 of 2 cells left" in benchmark(suite=str(path), dry_run=True)
    assert "missing data: later.npz: no such file" in capsys.readouterr().out
    with np.load("small.npz") as file:
        np.savez("ends.npz", **{**file, "done": file["truncated"], "truncated": file["done"]})
    path = suite(CELL, {**centered, "dataset": "ends.npz"})
    with pytest.raises(UserError, match=r"td3_bc on none/ends \(centered\): .*center_rewards"):
        benchmark(suite=str(path), show=False)
    assert not (folder / "runs").exists()


def test_two_cells_never_share_a_folder() -> None:
    with pytest.raises(UserError, match="has the same folder as an earlier cell"):
        cells(read_suite(str(suite(CELL, {**CELL, "num_updates": 8}))), "runs")


def test_the_remaining_time_follows_the_measured_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a cell is twice as slow as estimated, the remaining time doubles."""
    path = suite({**CELL, "num_updates": 100}, {**CELL, "num_updates": 100, "name": "b"}, seeds=1)
    plan = [Cell(c.keys, seconds=3600.0) for c in cells(read_suite(str(path)), "runs")]
    first, now = plan[0], [0.0]
    monkeypatch.setattr(queue, "time", SimpleNamespace(monotonic=lambda: now[0]))
    display = Display(plan, 1, show=False)
    left = []
    readings = (1000, 0), (1600, 10), (1700, 10), (1900, 11), (3040, 30), (3760, 40), (4000, 20)
    for seconds, done in readings:
        now[0] = float(seconds)
        first.folders[0].path.mkdir(parents=True, exist_ok=True)
        row = {"updates": done, "env_steps": 0}
        (first.folders[0].path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
        display.update(Progress([plan[1]], running={first.id: first}))
        left.append(display.eta())
    display.close()
    assert left[0] == "about 2.0 h left"  # from the estimates alone
    assert left[1] == left[2] == "about 114 min left"  # it has compiled until now
    assert left[3] == "about 113 min left"  # less than 2 % was observed
    assert left[5] == "about 3.2 h left"  # 1.6 h at the pace of 30 updates in 36 min
    assert left[6] == "about 108 min left"  # killed and resumed from its checkpoint


AFTER = {"algorithm": "td3", "from": "td3_bc/first", "task": "env:Pendulum-v1", "num_env_steps": 4}


@pytest.mark.slow
def test_a_cell_that_builds_on_another_waits_for_it(folder: Path) -> None:
    """It comes first in the plan, when the other cell is not finished."""
    save_small(folder / "swings.npz", obs=3, act=1)
    base = {**CELL, "task": "env:Pendulum-v1", "dataset": "swings.npz", "name": "first"}
    path = suite(base, {**AFTER, "eval_episodes": 1}, seeds=1)
    plan = cells(read_suite(str(path)), "runs/mine")
    assert [cell.can_start for cell in plan] == [True, False]
    assert [cell.total for cell in plan] == [4, 4]
    make = folder / "runs/mine"
    make.mkdir(parents=True)
    assert run_plan(plan[::-1], make, 2, show=False) == {}
    (result,) = make.glob("*/td3/from-td3_bc/seed_0/result.json")
    assert json.loads(result.read_text())["num_env_steps"] == 4
    assert "start" in json.loads((result.parent / "config.json").read_text())


def test_the_algorithm_of_a_cell_decides_how_it_builds_on_another(folder: Path) -> None:
    task = {"task": "env:Pendulum-v1"}
    first = {"algorithm": "diffusion_policy", "num_updates": 4, "name": "first", **task}
    same = {"from": "diffusion_policy/first", **task}
    rest = [{"algorithm": "consistency", "num_updates": 7}]
    rest += [{"algorithm": name, "num_env_steps": 9} for name in ("resfit", "dppo")]
    options = [first, *({**keys, **same} for keys in rest)]
    plan = cells(read_suite(str(suite(*options, seeds=2, keys={}))), "runs/mine")
    run = str(plan[0].folders[0].path.parent)
    assert [cell.previous_run for cell in plan] == [None, run, run, run]
    assert [cell.total for cell in plan] == [4, 7, 9, 9]
    assert [cell.can_start for cell in plan] == [True, False, False, False]
    bundle = plan[0].folders[0].path / "policy.bundle"
    assert plan[2].keys["base"] == str(bundle)  # all residual policies use the first seed's
    bundle.parent.mkdir(parents=True)
    bundle.touch()
    assert [cell.can_start for cell in plan] == [True, False, True, False]
    other = cells(read_suite(str(suite(*options, seeds=2, keys={}))), "runs/mine", [1])
    assert other[2].keys["base"] == str(bundle)  # whichever seeds a command runs
    bundle.unlink()
    with pytest.raises(UserError, match=r"resfit .*builds on .*seed_0, which is not finished"):
        select(other, [], [])
    assert select(other[:2], [], []) == other[:2]
    assert select(plan, [], []) == plan


def test_a_cell_cannot_build_on_a_later_one() -> None:
    base = {**CELL, "task": "env:Pendulum-v1", "name": "first"}
    with pytest.raises(UserError, match=r"cell 1 .*from=td3_bc/first: no earlier cell"):
        cells(read_suite(str(suite(AFTER, base))), "runs")
    with pytest.raises(
        UserError, match=r"td3 on env:Pendulum-v1 .*builds on .*, which is not finished"
    ):
        select(cells(read_suite(str(suite(base, AFTER))), "runs"), ["td3"], [])


def test_files_that_are_no_suite_or_plan_are_named(folder: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.yaml"):
        read_suite("nowhere.yaml")
    (folder / "torn.yaml").write_text("cells: [{algorithm: ")
    with pytest.raises(UserError, match=r"torn\.yaml is not readable as YAML"):
        read_suite("torn.yaml")
    with pytest.raises(UserError, match="unknown suite"):
        read_suite("nothing-of-this-name")
    (folder / "twice.yaml").write_text("cells: []\nseeds: 1\nseeds: 2\n")
    with pytest.raises(
        UserError, match=r"twice\.yaml is not readable as YAML: .*duplicate key seeds.*line 3"
    ):
        read_suite("twice.yaml")
    with pytest.raises(UserError, match=r"mine\.yaml: there are no cells"):
        read_suite(str(suite()))
    with pytest.raises(UserError, match=r"gone\.json is not readable as JSON: No such file"):
        benchmark(plan="gone.json", show=False)
    write_plan(folder / "plan.json", "mine", [])
    with pytest.raises(UserError, match=r"has a cell that cannot run \(no entries\)"):
        benchmark(plan="plan.json", show=False)
    text = (folder / "plan.json").read_text().replace('"version": 1', '"version": 0')
    (folder / "plan.json").write_text(text)
    with pytest.raises(UserError, match="not a plan of version"):
        benchmark(plan="plan.json", show=False)
    suite(CELL)
    with pytest.raises(UserError, match="not a plan of version"):
        benchmark(suite="mine.yaml", out=".", show=False)
    assert (folder / "plan.json").read_text() == text


def test_a_plan_with_wrong_options_is_refused_before_anything_runs(folder: Path) -> None:
    for wrong, fault in ({"lambda": 1}, "lambda"), ({"task": "neorl2/DMSE"}, "DMSD"):
        write_plan(folder / "plan.json", "mine", [Cell(CELL | {"seeds": 1, "out": "."} | wrong)])
        with pytest.raises(UserError, match=rf"plan\.json.*{fault}.*Remove it"):
            benchmark(plan="plan.json", show=False)


def finished(task: str, seconds: float, seed: int = 0, folder: str | None = None) -> Path:
    """Write the result of a seed of TD3+BC: 1,000 updates of 3 seeds trained together."""
    path = Path(f"runs/mine/{folder or task}/td3_bc/default/seed_{seed}/result.json")
    path.parent.mkdir(parents=True)
    facts = {"num_updates": 1000, "num_env_steps": 0, "seconds": seconds, "seeds_stacked": 3}
    facts |= {"score": None, "mean_return": None}
    path.write_text(json.dumps({"algorithm": "td3_bc", "task": task, **facts}))
    return path


def test_the_cost_of_a_cell_is_estimated_from_runs_of_its_algorithm(folder: Path) -> None:
    """60 s for 1,000 updates of 3 seeds are 20 ms per update and seed; 4 of 2 seeds are 0.16 s."""
    finished("other", 60)
    path = suite(CELL, {**CELL, "algorithm": "bc"})
    first, second = estimate_costs(cells(read_suite(str(path)), "runs/mine"), "runs/mine")
    assert first.seconds == pytest.approx(0.16)
    assert 0 < (second.seconds or 0) < 1  # no run of BC: from the cost of an update
    gone = replace(second, keys={**second.keys, "dataset": "gone.npz"})
    (no_data,) = estimate_costs([gone], "runs/nowhere")
    assert no_data.seconds is None
    assert cost_table([no_data], 1).endswith(f": 1 of unknown length\n?: {no_data.unknown}")
    assert no_data.unknown == "the data does not exist yet"
    (folder / "runs/nowhere").mkdir(parents=True)
    write_plan(folder / "runs/nowhere/plan.json", "mine", [replace(gone, seconds=7.0)])
    assert estimate_costs([gone], "runs/nowhere")[0].seconds == pytest.approx(
        7
    )  # it is not counted again
    text = benchmark(suite=str(path), out="runs/mine", dry_run=True, show=False)
    assert "2 of 2 cells left" in text
    assert "about 0 s" in text
    assert not (folder / "runs/mine/plan.json").exists()
    finished("none", 30, folder="none_small")  # the same task's
    assert estimate_costs([first], "runs/mine")[0].seconds == pytest.approx(0.08)


def test_a_cell_is_finished_when_all_its_seeds_are() -> None:
    cell = Cell({**CELL, "seeds": 2, "out": "runs/mine"})
    finished("none", 1, folder="none_small", seed=1)
    assert not cell.finished
    finished("none", 1, folder="none_small", seed=0)
    assert cell.finished
    longer = replace(cell, keys={**cell.keys, "num_updates": 1001})
    assert not longer.finished  # the results are of 1,000 updates
    iql = {"algorithm": "iql", "task": "env:Pendulum-v1", "num_env_steps": 100}
    both = replace(cell, keys={**cell.keys, **iql, "num_updates": 900})
    assert not both.finished


def test_a_cell_is_refused_if_its_folder_holds_a_run_with_other_settings(folder: Path) -> None:
    """More updates, other evaluations or another precision are allowed."""
    benchmark(suite=str(suite(CELL, seeds=1)), workers=1, show=False)
    more = {**CELL, "num_updates": 5, "eval_every": 5, "precision": "fp32", "dataset": "b.npz"}
    text = benchmark(suite=str(suite(more, seeds=1)), dry_run=True, show=False)
    assert "1 of 1 cells left" in text
    for key, value, then in (("algorithm.tau", 0.25, "0.005"), ("batch_size", 7, "8")):
        path = suite({**CELL, key: value}, seeds=1)
        with pytest.raises(
            UserError, match=rf"td3_bc on none/small.*{key}={then}, now {value}.*move"
        ):
            benchmark(suite=str(path), dry_run=True, show=False)
    write_plan(folder / "plan.json", "mine", cells(read_suite(str(path)), "runs/mine"))
    with pytest.raises(UserError, match="batch_size=8, now 7"):
        benchmark(plan="plan.json", show=False)


@pytest.mark.slow
def test_cells_that_a_study_holds_are_not_run_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They need all seeds and as many updates. Cells that others build on are run nevertheless."""
    save_small(folder / "swings.npz", obs=3, act=1)
    monkeypatch.setenv("OFFLINE_RL_DATA", str(folder))
    swings = {"dataset": str(folder / "swings.npz"), "task": "env:Pendulum-v1", "eval_episodes": 1}
    first = {**CELL, **swings, "name": "first"}
    benchmark(suite=str(suite(first)), workers=1, show=False)
    assert compact.pack(["runs/mine"], "study") == 2
    monkeypatch.setenv("OFFLINE_RL_DATA", str(folder / "moved"))
    first["dataset"] = str(folder / "moved" / "swings.npz")

    def labels(*entries: dict[str, Any], **changes: Any) -> list[str]:
        wanted = cells(read_suite(str(suite(*entries, **changes))), "elsewhere")
        return [cell.label for cell in without_stored(wanted, "study")]

    label = "td3_bc on env:Pendulum-v1 (first)"
    assert labels(first) == []
    assert labels(CELL, first) == ["td3_bc on none/small"]
    assert labels({**first, "num_updates": 5}) == [label]
    more = cells(read_suite(str(suite(first, seeds=3))), "elsewhere")
    assert [[f.seed for f in cell.folders] for cell in without_stored(more, "study")] == [[2]]
    assert labels(first, CELL, AFTER) == [
        label,
        "td3_bc on none/small",
        "td3 on env:Pendulum-v1 (from-td3_bc)",
    ]
    with monkeypatch.context() as patch:
        target = "offline_rl.suite.benchmark.stored_seeds"
        patch.setattr(target, lambda wanted, _: {cell.id: {0} for cell in wanted})
        plan = cells(read_suite(str(suite(first, AFTER))), "elsewhere")
        base, after = without_stored(plan, "study")
    assert [len(base.folders), [f.seed for f in after.folders]] == [2, [1]]
    with pytest.raises(UserError, match=r"first\) is in study with algorithm\.tau=0\.005, now 1"):
        labels({**first, "algorithm.tau": 1})
    path = str(suite(first))
    assert benchmark(suite=path, out="elsewhere", kept="study", show=False) == ""
    assert [path.name for path in Path("elsewhere").iterdir()] == ["plan.json"]
    with pytest.raises(UserError, match=r"kept=gone contains no runs\.csv"):
        benchmark(suite=path, kept="gone", show=False)
    for key, value in (("kept", "study"), ("out", "other"), ("algorithms", ["td3_bc"])):
        with pytest.raises(UserError, match=f"{key}= needs suite="):
            benchmark(plan="elsewhere/plan.json", show=False, **{key: value})


ONLINE = {"algorithm": "rlpd", "task": "env:Pendulum-v1", "num_updates": 0, "num_env_steps": 9}
ONLINE |= {"seeds": 2, "out": "runs", "dataset": "small.npz"}


@pytest.mark.parametrize(
    ("keys", "then", "now", "changes"),
    [
        (CELL, {"algorithm.tau": 0.25}, {}, {"algorithm.tau": (0.25, 0.005)}),
        (CELL, {"algorithm": "cql"}, {"algorithm": "cql", "algorithm.clip_diff_max": math.inf}, {}),
        (CELL, {"subset": "1"}, {"subset": 1}, {}),
        (CELL, {"algorithm.tau": 1}, {"algorithm__tau": 1.0}, {}),
        (ONLINE, {"utd": 2}, {}, {"online.utd": (2.0, 20.0)}),
        (ONLINE, {}, {"online.tau": 0.5}, {"online.tau": (0.005, 0.5)}),
        (ONLINE, {"online.tau": 0.5}, {}, {"online.tau": (0.5, 0.005)}),
        (
            ONLINE,
            {"online.warmup_steps": 7},
            {"online.warmup_steps": 8},
            {"online.warmup_steps": (7, 8)},
        ),
    ],
)
def test_settings_are_compared_by_their_values(
    keys: dict[str, Any], then: dict[str, Any], now: dict[str, Any], changes: dict[str, Any]
) -> None:
    """Set or left out, for both phases or one. An unfinished second seed is compared too."""
    keys = {"seeds": 2, "out": "runs", **keys}
    before, cell = Cell(keys | then), Cell(keys | now)
    assert cell.changed_settings() == {}
    write_json(before.folders[1].config, to_json_values(before.runs[1].config()))
    assert before.changed_settings() == {}
    assert cell.changed_settings() == changes
    config = json.loads(before.folders[1].config.read_text())
    config["hyper"] |= {k: 7 for k, v in config["hyper"].items() if v is None}  # set from data
    write_json(before.folders[1].config, config)
    assert cell.changed_settings() == changes


def test_a_cell_that_continues_a_run_is_compared_in_its_own_options_and_that_run() -> None:
    options = {"algorithm": "td3", "task": "env:Pendulum-v1", "num_updates": 0, "num_env_steps": 9}
    options |= {"seeds": 1, "out": "runs", "run": "runs/env_Pendulum-v1/td3_bc/first"}
    cell, folder = Cell(options), Cell(options).folders[0]
    start = {"run": "moved/env_Pendulum-v1/td3_bc/first"}
    config = Cell(options | {"algorithm.tau": 0.5}).runs[0].config() | {"start": start}
    write_json(folder.config, to_json_values(config))
    assert cell.changed_settings() == {}  # the rate may come from the first run
    other = replace(cell, keys=options | {"run": "runs/env_Pendulum-v1/td3_bc/second"})
    assert other.changed_settings().keys() == {"start.run"}
    faster = replace(cell, keys=options | {"algorithm.tau": 0.25})
    assert faster.changed_settings() == {"algorithm.tau": (0.5, 0.25)}
    with pytest.raises(UserError, match=r"start\.run=env_Pendulum-v1/td3_bc/first, now .*second"):
        check_runs([other])


def test_a_part_of_a_suite_leaves_the_others_in_the_plan(folder: Path) -> None:
    path = suite({**CELL, "num_updates": 5, "algorithm": "bc"}, CELL, seeds=1)
    benchmark(suite=str(path), algorithms=["td3_bc"], workers=1, show=False)
    plan = read_plan(folder / "runs/mine/plan.json")
    assert [(cell.label, cell.finished) for cell in plan] == [
        ("bc on none/small", False),
        ("td3_bc on none/small", True),
    ]
    assert plan[0].seconds is None
    assert plan[1].seconds is not None


@pytest.mark.parametrize(
    ("updates", "row", "done"),
    [(0, (14000, 4000), 4000), (100, (60, 0), 60), (100, (500, 20), 120), (100, (900, 60), 150)],
)
def test_online_progress_is_counted_in_environment_steps(
    updates: int, row: tuple[int, int], done: int
) -> None:
    online = {"algorithm": "iql", "task": "env:Pendulum-v1", "num_env_steps": 50}
    cell = Cell({**CELL, **online, "num_updates": updates, "seeds": 1, "out": "runs/a"})
    (cell.folders[0].path).mkdir(parents=True)
    line = json.dumps(dict(zip(("updates", "env_steps"), row, strict=True)))
    (cell.folders[0].path / "metrics.jsonl").write_text(line + "\n")
    assert cell.count_done() == min(done, updates + 50)


def test_the_progress_of_seeds_that_train_in_turn_is_averaged() -> None:
    cell = Cell({**CELL, "num_updates": 100, "seeds": 4, "out": "runs/a"})
    for folder, updates in zip(cell.folders, (100, 60), strict=False):
        folder.path.mkdir(parents=True)
        row = {"updates": updates, "env_steps": 0}
        (folder.path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert cell.count_done() == 40


def test_the_updates_of_the_run_that_is_continued_are_not_counted() -> None:
    cell = Cell({**CELL, "num_updates": 100, "seeds": 1, "out": "runs/a"})
    folder = cell.folders[0]
    folder.path.mkdir(parents=True)
    (folder.path / "metrics.jsonl").write_text('{"updates": 1030, "env_steps": 0}\n')
    folder.config.write_text('{"start": {"run": "runs/teacher", "updates": 1000}}')
    assert cell.count_done() == 30


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"num_updates": "x", "num_env_steps": 0}'])
def test_a_damaged_result_among_earlier_runs_is_named(content: str) -> None:
    path = finished("other", 60)
    path.write_text(content)
    with pytest.raises(UserError, match=r"other/td3_bc/default/seed_0/result\.json") as error:
        benchmark(suite=str(suite(CELL)), out="runs/mine", dry_run=True, show=False)
    assert "\n" not in str(error.value)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[str]]:
    """The workers' processes, in order."""
    processes: list[subprocess.Popen[str]] = []
    begin = subprocess.Popen

    def popen(*arguments: Any, **how: Any) -> subprocess.Popen[str]:
        processes.append(begin(*arguments, **how))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    return processes


def test_a_plan_is_executed_and_finished_cells_are_skipped(
    folder: Path, started: list[subprocess.Popen[str]]
) -> None:
    """Both seeds of a cell share a process. A user error is reported and stops no other cell."""
    path = suite({**CELL, "dataset": "gone.npz", "name": "lost"}, CELL)
    with pytest.raises(UserError, match=r"lost.* failed: .*gone\.npz"):
        benchmark(suite=str(path), workers=1, show=False)
    results = sorted((folder / "runs/mine").glob("none_small/td3_bc/*/seed_*/result.json"))
    assert [r.parent.name for r in results] == ["seed_0", "seed_1"]
    stamps = [r.stat().st_mtime_ns for r in results]
    entries = read_plan(folder / "runs/mine/plan.json")
    assert [cell.finished for cell in entries] == [False, True]
    assert len(started) == 2
    (failure,) = (folder / "runs/mine/queue").glob("*.json")
    assert failure.stem == entries[0].id
    assert "gone.npz" in json.loads(failure.read_text())["error"]
    assert run_plan(entries[1:], folder / "runs/mine", 1, show=False) == {}
    assert [r.stat().st_mtime_ns for r in results] == stamps


def test_a_cell_that_another_command_runs_is_skipped(folder: Path) -> None:
    cell = Cell({**CELL, **QUICK, "seeds": 1, "out": "runs"})
    with claim(folder / "queue/claims", cell.id) as claimed:
        assert claimed
        assert run_plan([cell], folder, 1, show=False) == {}
        text = cost_table([cell], 1, "", states([cell], folder))
    assert not (folder / "runs").exists()
    assert f"to do, running on {os.uname().nodename}" in text


def test_a_full_disk_stops_the_queue_with_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "MIN_FREE_BYTES", 1 << 62)
    with pytest.raises(UserError, match=r"The disk of .* is full"):
        run_plan([Cell({**CELL, **QUICK, "seeds": 1, "out": "runs"})], folder, 1, show=False)


def test_a_worker_that_is_killed_gets_one_more_try(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process is killed by a signal, the second finishes."""
    started: list[subprocess.Popen[str]] = []
    begin = subprocess.Popen

    def popen(*arguments: Any, **how: Any) -> subprocess.Popen[str]:
        process = begin(*arguments, **how)
        started.append(process)
        if len(started) == 1:
            os.kill(process.pid, signal.SIGKILL)
        return process

    monkeypatch.setattr(subprocess, "Popen", popen)
    cell = Cell({**CELL, **QUICK, "seeds": 1, "out": "runs"})
    assert run_plan([cell], folder, 1, show=False) == {}
    assert len(started) == 2
    assert cell.finished


def test_a_process_that_cannot_be_started_is_reported_as_a_failure(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def popen(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(subprocess, "Popen", popen)
    cells = [Cell({**CELL, **QUICK, "name": name, "out": "runs", "seeds": 1}) for name in "ab"]
    failed = run_plan(cells, folder, 1, show=False)
    assert list(failed) == [cell.label for cell in cells]
    assert all("Cannot allocate memory" in why for why in failed.values())


@pytest.mark.skipif(not Path("/proc/self/autogroup").is_file(), reason="no scheduling groups")
def test_a_worker_lowers_the_priority_of_its_scheduling_group() -> None:
    code = (
        "import os; from offline_rl.suite.worker import lower_priority; lower_priority(7); "
        "print(open('/proc/self/autogroup').read().split()[-1], os.nice(0))"
    )
    options: dict[str, Any] = {"start_new_session": True, "capture_output": True, "text": True}
    process = subprocess.run([sys.executable, "-c", code], check=True, **options)
    assert process.stdout.split() == ["7", str(min(os.nice(0) + 7, 19))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "setup"),
    [
        (signal.SIGINT, ""),
        (signal.SIGTERM, ""),
        # a shell starts background processes so
        (signal.SIGTERM, "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "),
    ],
)
def test_a_signal_stops_the_workers_before_the_command_ends(
    folder: Path, number: signal.Signals, setup: str
) -> None:
    path = suite({**CELL, "num_updates": 200_000, "checkpoint_every": 1000})
    code = (
        f"{setup}from offline_rl.suite import queue; "
        "from offline_rl.suite.benchmark import benchmark; "
        "queue.NICENESS = 0; "
        f"benchmark(suite={str(path)!r}, workers=1, show=False)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    seeds = folder / "runs/mine/none_small/td3_bc/default"
    deadline = time.monotonic() + 120
    while not list(seeds.glob("seed_1/checkpoints/*")) and time.monotonic() < deadline:
        threading.Event().wait(0.2)
    process.send_signal(number)
    assert process.wait(60) != 0
    (lock,) = (folder / "runs/mine/queue/claims").glob("*.lock")
    with claim(lock.parent, lock.stem) as claimed:
        assert claimed  # the worker has ended too
