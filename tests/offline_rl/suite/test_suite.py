"""Suites: refused before anything runs, priced, worked off once, and gone on with after a kill."""

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
from offline_rl.suite.benchmark import benchmark, beside, costs
from offline_rl.suite.plan import (
    Cell,
    cells,
    check_runs,
    priced,
    read_plan,
    read_suite,
    select,
    write_plan,
)
from offline_rl.suite.queue import Display, Progress, taken, work_off
from offline_rl.training.plan import resolved_config
from offline_rl.training.resolve import resolve
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import write_json
from offline_rl.utils.trees import plain

CELL = {"algorithm": "td3_bc", "task": "none", "dataset": "small.npz", "num_updates": 4}
QUICK = {"algorithm.hidden": [8], "compile": "never", "tracker": "none", "batch_size": 8}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a small data set in it."""
    monkeypatch.chdir(tmp_path)
    save_small(tmp_path / "small.npz")
    monkeypatch.setattr(queue, "NICENESS", 0)  # tests are not to wait for others
    return tmp_path


def suite(*own: dict[str, Any], **changes: Any) -> Path:
    """A suite file of `own` cells."""
    path = Path("mine.yaml")
    path.write_text(json.dumps({"seeds": 2, "keys": QUICK, "cells": list(own), **changes}))
    return path


def test_lists_of_algorithms_and_tasks_are_crossed_in_order() -> None:
    path = suite({**CELL, "algorithm": ["iql", "bc"], "task": ["none", "env:Pendulum-v1"]})
    found = cells(read_suite(str(path)), "runs")
    pairs = [(c.keys["algorithm"], c.keys["task"]) for c in found]
    tasks = ("none", "env:Pendulum-v1")
    assert pairs == [(algorithm, task) for algorithm in ("iql", "bc") for task in tasks]
    only = select(cells(read_suite(str(path)), "runs", [7]), ["bc"], ["none"])
    assert [(c.label, [f.seed for f in c.folders]) for c in only] == [("bc on none/small", [7])]


WRONG = {
    "key": ({"num_update": 4}, "num_updates"),
    "hyper-parameter": ({"algorithm.alfa": 1.0}, "algorithm.alpha"),
    "algorithm": ({"algorithm": "td3bc"}, "td3_bc"),
    "task": ({"task": "neorl2/DMS"}, "neorl2/DMSD"),
    "seeds": ({"seeds": "three"}, "seeds='three': expected an integer"),
    "value": ({"algorithm.alpha": -1.0}, "alpha"),
    "two runs in one": ({"algorithm.alpha": [1.0, 2.0]}, "one cell is one run"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_train_would_refuse_is_refused_before_anything_runs(case: str, folder: Path) -> None:
    change, remedy = WRONG[case]
    path = suite(CELL, {**CELL, "name": "second", **change})
    with pytest.raises(UserError, match="cell 2") as error:
        benchmark(suite=str(path), show=False)
    assert remedy in str(error.value)
    assert not (folder / "runs").exists()


def test_what_its_data_do_not_allow_is_refused_before_anything_runs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And data that are not there are told; they may be when the cell's turn comes."""
    centered = {**CELL, "name": "centered", "algorithm.center_rewards": True}
    path = suite(CELL, {**centered, "dataset": "later.npz"})
    assert "2 of 2 cells left" in benchmark(suite=str(path), dry_run=True)
    assert "not there yet: later.npz: no such file" in capsys.readouterr().out
    with np.load("small.npz") as file:
        np.savez("ends.npz", **{**file, "done": file["truncated"], "truncated": file["done"]})
    path = suite(CELL, {**centered, "dataset": "ends.npz"})
    with pytest.raises(UserError, match=r"td3_bc on none/ends \(centered\): .*center_rewards"):
        benchmark(suite=str(path), show=False)
    assert not (folder / "runs").exists()


def test_two_cells_never_share_a_folder() -> None:
    with pytest.raises(UserError, match="give a name="):
        cells(read_suite(str(suite(CELL, {**CELL, "num_updates": 8}))), "runs")


def test_the_time_left_follows_the_pace_of_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as slow as its cost said, once it is under way: what is left takes twice as long."""
    path = suite({**CELL, "num_updates": 100}, {**CELL, "num_updates": 100, "name": "b"}, seeds=1)
    plan = [Cell(c.keys, seconds=3600.0) for c in cells(read_suite(str(path)), "runs")]
    first, now = plan[0], [0.0]
    monkeypatch.setattr(queue, "time", SimpleNamespace(monotonic=lambda: now[0]))
    display = Display(plan, 1, show=False)
    left = []
    seen = (1000, 0), (1600, 10), (1700, 10), (1900, 11), (3040, 30), (3760, 40), (4000, 20)
    for seconds, done in seen:
        now[0] = float(seconds)
        first.folders[0].path.mkdir(parents=True, exist_ok=True)
        row = {"updates": done, "env_steps": 0}
        (first.folders[0].path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
        display.update(Progress([plan[1]], running={first.id: first}))
        left.append(display.eta())
    display.close()
    assert left[0] == "about 2.0 h left"  # nothing is known but the cost
    assert left[1] == left[2] == "about 114 min left"  # it compiled until now
    assert left[3] == "about 113 min left"  # too little was seen
    assert left[5] == "about 3.2 h left"  # 1.6 h at the pace of 30 updates in 36 min
    assert left[6] == "about 108 min left"  # killed, it goes on from its checkpoint


AFTER = {"algorithm": "td3", "from": "td3_bc/first", "task": "env:Pendulum-v1", "num_env_steps": 4}


def test_a_cell_that_goes_on_from_another_waits_for_it(folder: Path) -> None:
    """It is given first; what it goes on from is not there when it is looked at."""
    save_small(folder / "swings.npz", obs=3, act=1)
    base = {**CELL, "task": "env:Pendulum-v1", "dataset": "swings.npz", "name": "first"}
    path = suite(base, {**AFTER, "eval_episodes": 1}, seeds=1)
    plan = cells(read_suite(str(path)), "runs/mine")
    assert [cell.ready for cell in plan] == [True, False]
    assert [cell.total for cell in plan] == [4, 4]
    make = folder / "runs/mine"
    make.mkdir(parents=True)
    assert work_off(plan[::-1], make, 2, show=False) == {}
    (result,) = make.glob("*/td3/from-td3_bc/seed_0/result.json")
    assert json.loads(result.read_text())["num_env_steps"] == 4
    assert "start" in json.loads((result.parent / "config.json").read_text())


def test_how_a_cell_goes_on_from_another_is_its_algorithms_business(folder: Path) -> None:
    task = {"task": "env:Pendulum-v1"}
    first = {"algorithm": "diffusion_policy", "num_updates": 4, "name": "first", **task}
    same = {"from": "diffusion_policy/first", **task}
    rest = [{"algorithm": "consistency", "num_updates": 7}]
    rest += [{"algorithm": name, "num_env_steps": 9} for name in ("resfit", "dppo")]
    own = [first, *({**keys, **same} for keys in rest)]
    plan = cells(read_suite(str(suite(*own, seeds=2, keys={}))), "runs/mine")
    run = str(plan[0].folders[0].path.parent)
    assert [cell.before for cell in plan] == [None, run, run, run]
    assert [cell.total for cell in plan] == [4, 7, 9, 9]
    assert [cell.ready for cell in plan] == [True, False, False, False]
    bundle = plan[0].folders[0].path / "policy.bundle"
    assert plan[2].keys["base"] == str(bundle)  # the first seed's, of all that correct it
    bundle.parent.mkdir(parents=True)
    bundle.touch()
    assert [cell.ready for cell in plan] == [True, False, True, False]
    other = cells(read_suite(str(suite(*own, seeds=2, keys={}))), "runs/mine", [1])
    assert other[2].keys["base"] == str(bundle)  # of whichever seeds a command runs
    bundle.unlink()
    with pytest.raises(UserError, match=r"resfit .*goes on from .*seed_0: finish that one before"):
        select(other, [], [])
    assert select(other[:2], [], []) == other[:2]
    assert select(plan, [], []) == plan


def test_a_cell_cannot_go_on_from_what_is_not_before_it() -> None:
    base = {**CELL, "task": "env:Pendulum-v1", "name": "first"}
    with pytest.raises(UserError, match=r"cell 1 .*from=td3_bc/first: no cell before"):
        cells(read_suite(str(suite(AFTER, base))), "runs")
    with pytest.raises(UserError, match=r"td3 on env:Pendulum-v1 .*goes on from .*: finish"):
        select(cells(read_suite(str(suite(base, AFTER))), "runs"), ["td3"], [])


def test_a_suite_that_is_none_is_named(folder: Path) -> None:
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
    with pytest.raises(UserError, match=r"mine\.yaml: no cells"):
        read_suite(str(suite()))
    with pytest.raises(UserError, match=r"gone\.json is not readable as JSON: No such file"):
        benchmark(plan="gone.json", show=False)
    write_plan(folder / "plan.json", "mine", [])
    with pytest.raises(UserError, match=r"a cell that cannot run \(no entries\)"):
        benchmark(plan="plan.json", show=False)
    text = (folder / "plan.json").read_text().replace('"version": 1', '"version": 0')
    (folder / "plan.json").write_text(text)
    with pytest.raises(UserError, match="no plan of version"):
        benchmark(plan="plan.json", show=False)
    suite(CELL)
    with pytest.raises(UserError, match="no plan of version"):
        benchmark(suite="mine.yaml", out=".", show=False)
    assert (folder / "plan.json").read_text() == text


def test_a_plan_that_train_would_refuse_is_refused_before_anything_runs(folder: Path) -> None:
    for wrong, fault in ({"lambda": 1}, "lambda"), ({"task": "neorl2/DMSE"}, "DMSD"):
        write_plan(folder / "plan.json", "mine", [Cell(CELL | {"seeds": 1, "out": "."} | wrong)])
        with pytest.raises(UserError, match=rf"plan\.json.*{fault}.*remove it"):
            benchmark(plan="plan.json", show=False)


def finished(task: str, seconds: float, seed: int = 0, folder: str | None = None) -> Path:
    """The result of a seed of TD3+BC: 1,000 updates of 3 seeds side by side."""
    path = Path(f"runs/mine/{folder or task}/td3_bc/default/seed_{seed}/result.json")
    path.parent.mkdir(parents=True)
    facts = {"num_updates": 1000, "num_env_steps": 0, "seconds": seconds, "seeds_stacked": 3}
    facts |= {"score": None, "mean_return": None}
    path.write_text(json.dumps({"algorithm": "td3_bc", "task": task, **facts}))
    return path


def test_a_cell_costs_what_its_like_cost_before(folder: Path) -> None:
    """60 s for 1,000 updates of 3 seeds: 20 ms of one seed's update, so 4 updates of 2: 0.16 s."""
    finished("other", 60)
    path = suite(CELL, {**CELL, "algorithm": "bc"})
    first, second = priced(cells(read_suite(str(path)), "runs/mine"), "runs/mine")
    assert first.seconds == pytest.approx(0.16)
    assert 0 < (second.seconds or 0) < 1  # none like it: by counted work
    gone = replace(second, keys={**second.keys, "dataset": "gone.npz"})
    (dear,) = priced([gone], "runs/nowhere")
    assert dear.seconds is None
    assert costs([dear], 1).endswith(f": 1 of unknown length\n?: {dear.unknown}")
    assert dear.unknown == "its data is not there yet"
    (folder / "runs/nowhere").mkdir(parents=True)
    write_plan(folder / "runs/nowhere/plan.json", "mine", [replace(gone, seconds=7.0)])
    assert priced([gone], "runs/nowhere")[0].seconds == pytest.approx(7)  # it is not counted again
    text = benchmark(suite=str(path), out="runs/mine", dry_run=True, show=False)
    assert "2 of 2 cells left" in text
    assert "about 0 s" in text
    assert not (folder / "runs/mine/plan.json").exists()
    finished("none", 30, folder="none_small")  # the same task's
    assert priced([first], "runs/mine")[0].seconds == pytest.approx(0.08)


def test_a_cell_is_finished_when_all_its_seeds_are() -> None:
    cell = Cell({**CELL, "seeds": 2, "out": "runs/mine"})
    finished("none", 1, folder="none_small", seed=1)
    assert not cell.finished
    finished("none", 1, folder="none_small", seed=0)
    assert cell.finished
    longer = replace(cell, keys={**cell.keys, "num_updates": 1001})
    assert not longer.finished  # the results are of 1,000 updates
    both = replace(cell, keys={**cell.keys, "num_updates": 900, "num_env_steps": 100})
    assert not both.finished


def test_what_was_run_with_other_settings_is_not_taken_for_the_cell_of_now(folder: Path) -> None:
    """More updates, evaluations or another precision are no other run."""
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


def test_what_a_study_holds_is_not_run_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all its seeds and as many updates, wherever the data lie; but for what others need."""
    save_small(folder / "swings.npz", obs=3, act=1)
    monkeypatch.setenv("OFFLINE_RL_DATA", str(folder))
    swings = {"dataset": str(folder / "swings.npz"), "task": "env:Pendulum-v1", "eval_episodes": 1}
    first = {**CELL, **swings, "name": "first"}
    benchmark(suite=str(suite(first)), workers=1, show=False)
    assert compact.pack(["runs/mine"], "study") == 2
    monkeypatch.setenv("OFFLINE_RL_DATA", str(folder / "moved"))
    first["dataset"] = str(folder / "moved" / "swings.npz")

    def left(*own: dict[str, Any], **changes: Any) -> list[str]:
        wanted = cells(read_suite(str(suite(*own, **changes))), "elsewhere")
        return [cell.label for cell in beside(wanted, "study")]

    label = "td3_bc on env:Pendulum-v1 (first)"
    assert left(first) == []
    assert left(CELL, first) == ["td3_bc on none/small"]
    assert left({**first, "num_updates": 5}) == [label]
    more = cells(read_suite(str(suite(first, seeds=3))), "elsewhere")
    assert [[f.seed for f in cell.folders] for cell in beside(more, "study")] == [[2]]
    assert left(first, CELL, AFTER) == [
        label,
        "td3_bc on none/small",
        "td3 on env:Pendulum-v1 (from-td3_bc)",
    ]
    with monkeypatch.context() as patch:
        patch.setattr("offline_rl.suite.benchmark.kept", lambda w, _: {c.id: {0} for c in w})
        base, after = beside(cells(read_suite(str(suite(first, AFTER))), "elsewhere"), "study")
    assert [len(base.folders), [f.seed for f in after.folders]] == [2, [1]]
    with pytest.raises(UserError, match=r"first\) is in study with algorithm\.tau=0\.005, now 1"):
        left({**first, "algorithm.tau": 1})
    whole = str(suite(first))
    assert benchmark(suite=whole, out="elsewhere", kept="study", show=False) == ""
    assert [path.name for path in Path("elsewhere").iterdir()] == ["plan.json"]
    with pytest.raises(UserError, match=r"kept=gone holds no runs\.csv"):
        benchmark(suite=whole, kept="gone", show=False)
    for key, value in (("kept", "study"), ("out", "other"), ("algorithms", ["td3_bc"])):
        with pytest.raises(UserError, match=f"{key}= belongs to suite="):
            benchmark(plan="elsewhere/plan.json", show=False, **{key: value})


ONLINE = {"algorithm": "rlpd", "task": "env:Pendulum-v1", "num_updates": 0, "num_env_steps": 9}
ONLINE |= {"seeds": 2, "out": "runs", "dataset": "small.npz"}


@pytest.mark.parametrize(
    ("keys", "then", "now", "found"),
    [
        (CELL, {"algorithm.tau": 0.25}, {}, {"algorithm.tau": (0.25, 0.005)}),
        (CELL, {"algorithm": "cql"}, {"algorithm": "cql", "algorithm.clip_diff_max": math.inf}, {}),
        (CELL, {"subset": "1"}, {"subset": 1}, {}),
        (CELL, {"algorithm.tau": 1}, {"algorithm__tau": 1.0}, {}),
        (ONLINE, {"utd": 2}, {}, {"utd": (2.0, None), "online.utd": (2.0, 20.0)}),
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
def test_settings_are_compared_as_they_are_meant(
    keys: dict[str, Any], then: dict[str, Any], now: dict[str, Any], found: dict[str, Any]
) -> None:
    """Given, left out, for both phases or one; of the second seed too, finished or not."""
    keys = {"seeds": 2, "out": "runs", **keys}
    before, cell = Cell(keys | then), Cell(keys | now)
    assert cell.begun_otherwise() == {}
    resolved = resolve(before.keys)
    write_json(before.folders[1].config, plain(resolved_config(resolved, "default")))
    assert before.begun_otherwise() == {}
    assert cell.begun_otherwise() == found
    config = json.loads(before.folders[1].config.read_text())
    config["hyper"] |= {k: 7 for k, v in config["hyper"].items() if v is None}  # as data say it
    write_json(before.folders[1].config, config)
    assert cell.begun_otherwise() == found


def test_a_run_that_goes_on_is_compared_in_what_is_said_and_where_it_began() -> None:
    own = {"algorithm": "td3", "task": "env:Pendulum-v1", "num_updates": 0, "num_env_steps": 9}
    own |= {"seeds": 1, "out": "runs", "run": "runs/env_Pendulum-v1/td3_bc/first"}
    cell, folder = Cell(own), Cell(own).folders[0]
    resolved = resolve({k: v for k, v in own.items() if k != "run"} | {"algorithm.tau": 0.5})
    begun = resolved_config(resolved, "default") | {"start": {"run": "moved/env_Pendulum-v1/td3_bc/first"}}
    write_json(folder.config, plain(begun))
    assert cell.begun_otherwise() == {}  # the rate may be the first run's
    other = replace(cell, keys=own | {"run": "runs/env_Pendulum-v1/td3_bc/second"})
    assert other.begun_otherwise().keys() == {"start.run"}
    told = replace(cell, keys=own | {"algorithm.tau": 0.25})
    assert told.begun_otherwise() == {"algorithm.tau": (0.5, 0.25)}
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
def test_updates_online_are_counted_by_their_environment_steps(
    updates: int, row: tuple[int, int], done: int
) -> None:
    cell = Cell({**CELL, "num_updates": updates, "num_env_steps": 50, "seeds": 1, "out": "runs/a"})
    (cell.folders[0].path).mkdir(parents=True)
    line = json.dumps(dict(zip(("updates", "env_steps"), row, strict=True)))
    (cell.folders[0].path / "metrics.jsonl").write_text(line + "\n")
    assert cell.done() == min(done, updates + 50)


def test_seeds_that_learn_one_after_another_count_on_average() -> None:
    cell = Cell({**CELL, "num_updates": 100, "seeds": 4, "out": "runs/a"})
    for folder, updates in zip(cell.folders, (100, 60), strict=False):
        folder.path.mkdir(parents=True)
        row = {"updates": updates, "env_steps": 0}
        (folder.path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert cell.done() == 40


def test_the_updates_of_the_run_before_are_not_counted() -> None:
    cell = Cell({**CELL, "num_updates": 100, "seeds": 1, "out": "runs/a"})
    folder = cell.folders[0]
    folder.path.mkdir(parents=True)
    (folder.path / "metrics.jsonl").write_text('{"updates": 1030, "env_steps": 0}\n')
    folder.config.write_text('{"start": {"run": "runs/teacher", "updates": 1000}}')
    assert cell.done() == 30


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


def test_a_plan_is_worked_off_and_what_is_finished_is_skipped(
    folder: Path, started: list[subprocess.Popen[str]]
) -> None:
    """One process for both seeds of a cell; a user's mistake is told, once, and stops no other."""
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
    assert work_off(entries[1:], folder / "runs/mine", 1, show=False) == {}
    assert [r.stat().st_mtime_ns for r in results] == stamps


def test_an_entry_that_another_command_works_on_is_left_to_it(folder: Path) -> None:
    (folder / "queue").mkdir()
    cell = Cell({**CELL, **QUICK, "seeds": 1, "out": "runs"})
    with taken(folder / "queue" / f"{cell.id}.lock") as lock:
        assert lock is not None
        assert work_off([cell], folder, 1, show=False) == {}
    assert not (folder / "runs").exists()


def test_a_full_disk_stops_the_queue_with_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "LEAST_FREE", 1 << 62)
    with pytest.raises(UserError, match="the disk is full"):
        work_off([Cell({**CELL, **QUICK, "seeds": 1, "out": "runs"})], folder, 1, show=False)


def test_a_worker_that_is_killed_gets_one_more_try(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process dies of a signal, the second finishes."""
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
    assert work_off([cell], folder, 1, show=False) == {}
    assert len(started) == 2
    assert cell.finished


def test_a_machine_that_can_begin_no_process_is_a_failure_and_not_another_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def popen(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(subprocess, "Popen", popen)
    cells = [Cell({**CELL, **QUICK, "name": name, "out": "runs", "seeds": 1}) for name in "ab"]
    failed = work_off(cells, folder, 1, show=False)
    assert list(failed) == [cell.label for cell in cells]
    assert all("Cannot allocate memory" in why for why in failed.values())


@pytest.mark.skipif(not Path("/proc/self/autogroup").is_file(), reason="sessions are not weighed")
def test_a_worker_lets_other_sessions_go_first_too() -> None:
    code = (
        "import os; from offline_rl.suite.worker import yielding; yielding(7); "
        "print(open('/proc/self/autogroup').read().split()[-1], os.nice(0))"
    )
    options: dict[str, Any] = {"start_new_session": True, "capture_output": True, "text": True}
    made = subprocess.run([sys.executable, "-c", code], check=True, **options)
    assert made.stdout.split() == ["7", str(min(os.nice(0) + 7, 19))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "begun"),
    [
        (signal.SIGINT, ""),
        (signal.SIGTERM, ""),
        # as a shell begins what runs in the background
        (signal.SIGTERM, "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "),
    ],
)
def test_who_is_asked_to_stop_waits_for_the_workers(
    folder: Path, number: signal.Signals, begun: str
) -> None:
    path = suite({**CELL, "num_updates": 200_000, "checkpoint_every": 1000})
    code = (
        f"{begun}from offline_rl.suite import queue; "
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
    with taken(next((folder / "runs/mine/queue").glob("*.lock"))) as lock:
        assert lock is not None  # the worker is gone too
