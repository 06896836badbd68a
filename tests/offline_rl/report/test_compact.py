"""Compact files: three small files with the content of run folders."""

import csv
import gzip
import json
from pathlib import Path

import pytest
from made_runs import seed_folder
from printed import report

from offline_rl.reporting import compact
from offline_rl.reporting.records import of_folder, seed_folders
from offline_rl.utils.errors import UserError


def runs(out: Path) -> Path:
    """Write runs of two tasks: one with success, a name like a number, a diverged seed."""
    seed_folder(out, 0, {0: 0.1 + 0.2, 4000: 100 / 3}, name="1e5", config={"dataset": "/a/b.npz"})
    seed_folder(out, 1, {0: 2.0, 4000: 40.0}, name="1e5", config={"dataset": "/a/b.npz"})
    seed_folder(out, 0, {0: 2.0, 2000: 3.0}, algorithm="iql", diverged_at=3000, version="0.1")
    outcome = {"success": [True, False], "costs": [0.5, 1.0]}
    for seed in (0, 10):
        seed_folder(out, seed, {4000: 50.0}, task="reach", scored=False, **outcome)
    metrics = {"updates": 4000, "train/target": 1 / 3, "time/updates_per_second": 9.0}
    seed_folders(out)[0].append("metrics", {"updates": 10, "train/target": 9.0})
    seed_folders(out)[0].append("metrics", metrics)
    return out


def tables(folder: Path, out: Path) -> str:
    """Return the report without the folder it was written to."""
    text = report([folder], out=str(out))
    return text.replace(str(out), "")


def test_a_packed_study_has_the_same_report(tmp_path: Path) -> None:
    raw, packed = runs(tmp_path / "raw"), tmp_path / "packed"
    assert compact.pack([raw], packed) == 5
    assert tables(raw, tmp_path / "a") == tables(packed, tmp_path / "b")
    curves = [(tmp_path / name / "curves.png").read_bytes() for name in "ab"]
    assert curves[0] == curves[1]


def test_the_results_of_a_seed_are_read_back_exactly(tmp_path: Path) -> None:
    compact.pack([runs(tmp_path / "raw")], tmp_path / "packed")
    back = {record.key: record for record in compact.read(tmp_path / "packed")}
    for folder in seed_folders(tmp_path / "raw"):
        record = compact.portable(of_folder(folder))
        read = back.pop(record.key)
        assert read.config == record.config
        assert read.result is not None
        assert record.result is not None
        assert {k: read.result[k] for k in record.result} == record.result
        for row, again in zip(record.evaluations, read.evaluations, strict=True):
            exact = {k: v for k, v in row.items() if k not in ("eval/length", "eval/score")}
            assert {k: again[k] for k in exact} == exact
            assert again.get("eval/score") == pytest.approx(row.get("eval/score"))
        assert read.metrics == {k: v for k, v in record.metrics.items() if "train/" in k}
    assert not back


def test_the_same_runs_give_the_same_bytes_and_packing_again_changes_nothing(
    tmp_path: Path,
) -> None:
    raw = runs(tmp_path / "raw")
    for name in "ab":
        compact.pack([raw], tmp_path / name)
    compact.pack([], tmp_path / "b")
    compact.pack([raw], tmp_path / "b")
    for name in ("runs.csv", "configs.json", "evaluations.csv.gz"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_new_seeds_are_added_to_the_packed_ones(tmp_path: Path) -> None:
    seed_folder(tmp_path / "first", 0, {4000: 40.0})
    seed_folder(tmp_path / "later", 1, {4000: 60.0})
    assert compact.pack([tmp_path / "first"], tmp_path / "packed") == 1
    assert compact.pack([tmp_path / "later"], tmp_path / "packed") == 2
    assert "50.0 ± 10.0" in report([tmp_path / "packed"], out=str(tmp_path))


def test_two_evaluations_after_equal_numbers_of_updates_stay_separate(tmp_path: Path) -> None:
    """They occur before and after the switch from data to the environment."""
    folder = seed_folder(tmp_path / "raw", 0, {0: 2.0, 4000: 40.0})
    folder.append("evaluations", folder.rows("evaluations")[-1])
    compact.pack([tmp_path / "raw"], tmp_path / "packed")
    (record,) = compact.read(tmp_path / "packed")
    assert [row["updates"] for row in record.evaluations] == [0, 4000, 4000]
    assert [len(row["returns"]) for row in record.evaluations] == [2, 2, 2]


def test_a_folder_without_runs_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere: no run"):
        compact.pack([tmp_path / "nowhere"], tmp_path / "packed")


def test_running_seeds_are_left_out(tmp_path: Path) -> None:
    seed_folder(tmp_path / "raw", 0, {4000: 40.0})
    seed_folder(tmp_path / "raw", 1, {2000: 60.0}, finished=False)
    assert compact.pack([tmp_path / "raw"], tmp_path / "packed") == 1


def test_the_files_are_plain_tables_with_a_row_per_seed_and_per_episode(
    tmp_path: Path,
) -> None:
    seed_folder(tmp_path / "raw", 3, {0: 0.0, 4000: 40.0}, dataset="/home/me/line.npz")
    compact.pack([tmp_path / "raw"], tmp_path)
    with (tmp_path / "runs.csv").open() as file:
        (row,) = csv.DictReader(file)
    facts = [row[key] for key in ("task", "seed", "score", "compiled", "diverged_at", "dataset")]
    assert facts == ["toy/line", "3", "40.0", "true", "", "line.npz"]
    with gzip.open(tmp_path / "evaluations.csv.gz", "rt") as file:
        rows = list(csv.reader(file))
    run = "toy/line/bc/default"
    assert rows[0] == list(compact.EPISODE)
    assert rows[1:3] == [
        [run, "3", "0", "0", "7", "99.0", "4", "", ""],
        [run, "3", "0", "0", "8", "101.0", "6", "", ""],
    ]
    assert len(rows) == 5
    assert list(json.loads((tmp_path / "configs.json").read_text())) == [run]


def test_seeds_with_different_settings_and_duplicate_seeds_are_refused(
    tmp_path: Path,
) -> None:
    seed_folder(tmp_path / "a", 0, {4000: 40.0})
    seed_folder(tmp_path / "b", 1, {4000: 40.0}, config={"hyper": {"beta": 9.0}})
    with pytest.raises(UserError, match=r"toy/line/bc/default differ in algorithm\.beta, "):
        compact.pack([tmp_path / "a", tmp_path / "b"], tmp_path / "packed")
    seed_folder(tmp_path / "c", 0, {4000: 50.0})
    with pytest.raises(UserError, match="a second time"):
        compact.pack([tmp_path / "a", tmp_path / "c"], tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


@pytest.mark.parametrize("name", ["runs.csv", "configs.json", "evaluations.csv.gz"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    compact.pack([runs(tmp_path / "raw")], tmp_path / "packed")
    file = tmp_path / "packed" / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(UserError, match=name):
        report([tmp_path / "packed"])
