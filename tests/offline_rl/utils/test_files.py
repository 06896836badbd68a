"""Tests of files: after any failure they are complete or absent."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from offline_rl.runs.folder import Done, SeedFolder, run_folder
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import lock_folder, read_json, read_yaml, write_atomically, write_json
from offline_rl.utils.trees import to_json_values


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch):
    path = tmp_path / "result.json"
    write_json(path, {"score": 1})

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"result\.json could not be written: No space left"):
        write_json(path, {"score": 2})
    assert read_json(path) == {"score": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


def test_a_full_disk_while_saving_a_checkpoint_keeps_the_older_one(tmp_path: Path, monkeypatch):
    folder = SeedFolder(tmp_path, 0)
    folder.save(Done(updates=10), {"w": torch.ones(2)}, {"seconds": 1.0})

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        folder.save(Done(updates=20), {"w": torch.zeros(2)}, {})
    assert list(folder.checkpoints()) == [Done(updates=10)]
    assert len(list((folder.path / "checkpoints").iterdir())) == 1
    tensors, progress = folder.load(Done(updates=10))
    assert torch.equal(tensors["w"], torch.ones(2))
    assert progress == {"seconds": 1.0}


def test_temporary_files_of_killed_writers_are_removed_after_a_day(tmp_path: Path):
    left = [tmp_path / f".{name}.0123456789ab.tmp" for name in ("file", "young", "other")]
    for path in left:
        path.write_text("half")
    for path in (left[0], left[2]):
        os.utime(path, (0, 0))
    for name in ("file", "young"):
        write_json(tmp_path / name, {})
    assert {p for p in tmp_path.iterdir() if p in left} == {left[1], left[2]}


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path):
    def broken(temporary: Path) -> None:
        temporary.write_text("half")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        write_atomically(tmp_path / "file", broken)
    assert not list(tmp_path.iterdir())


def test_numbers_outside_json_are_refused_or_become_null(tmp_path: Path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "x.json", {"score": float("nan")})
    assert not list(tmp_path.iterdir())
    values = {"a": np.float32(1.5), "b": float("inf"), "c": (1, np.array([np.nan, 2]))}
    assert to_json_values(values) == {"a": 1.5, "b": None, "c": [1, [None, 2]]}


def test_a_damaged_json_file_is_named(tmp_path: Path):
    path = tmp_path / "result.json"
    path.write_text('{"score": ')
    with pytest.raises(UserError, match=r"result\.json is not readable as JSON"):
        read_json(path)


def test_a_checkpoint_of_another_version_is_refused(tmp_path: Path):
    folder = SeedFolder(tmp_path, 0)
    path = tmp_path / "seed_0" / "checkpoints" / Done(updates=10).file
    path.parent.mkdir(parents=True)
    for metadata in ({"progress": "{}"}, {"progress": "{}", "format": "0"}):
        save_file({"w": torch.ones(2)}, path, metadata)
        with pytest.raises(UserError, match="another version of offline_rl"):
            folder.load(Done(updates=10))


def test_a_folder_cannot_be_locked_twice(tmp_path: Path):
    with lock_folder(tmp_path), pytest.raises(UserError, match="in use by another process"):
        lock_folder(tmp_path).__enter__()
    with lock_folder(tmp_path):
        pass


def test_a_locked_folder_that_stays_empty_is_removed(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    with pytest.raises(UserError, match="no"), lock_folder(there / "a" / "b"):
        raise UserError("no")
    assert not list(there.iterdir())
    with lock_folder(there / "a" / "b"):
        (there / "a" / "b" / "result.json").touch()
    assert (there / "a" / "b" / "result.json").is_file()


def test_only_the_two_newest_checkpoints_are_kept(tmp_path: Path):
    folder = SeedFolder(tmp_path, 0)
    for updates in (5, 10, 15):
        folder.save(Done(updates=updates), {"w": torch.ones(1)}, {})
    assert [done.updates for done in folder.checkpoints()] == [10, 15]


def test_log_lines_after_the_checkpoint_are_dropped_and_incomplete_ones_ignored(tmp_path: Path):
    folder = SeedFolder(tmp_path, 0)
    folder.path.mkdir()
    for updates in (1, 2, 3):
        folder.append("metrics", {"updates": updates, "env_steps": 0})
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"updates": 4, "tr')
    assert [row["updates"] for row in folder.rows("metrics")] == [1, 2, 3]
    folder.rewind(Done(updates=2))
    assert [row["updates"] for row in folder.rows("metrics")] == [1, 2]
    folder.append("metrics", {"updates": 2, "env_steps": 5})  # online, before the first update
    folder.rewind(Done(env_steps=4, updates=2))
    assert [row["updates"] for row in folder.rows("metrics")] == [1, 2]
    folder.append("metrics", {"updates": 2, "env_steps": 0, "rows": 60})
    folder.rewind(Done(updates=2, rows=59))
    assert [row["updates"] for row in folder.rows("metrics")] == [1, 2]
    folder.rewind(None)
    assert folder.rows("metrics") == []


def test_task_names_become_folder_names():
    assert run_folder("out", "env:Hopper-v5", "sac", "a b") == Path("out/env_Hopper-v5/sac/a_b")


def test_an_interruption_while_the_temporary_file_is_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch = Path.touch

    def interrupted(self: Path, *args: object, **kwargs: object) -> None:
        touch(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "touch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "a.txt", lambda temporary: temporary.write_text("a"))
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_one_sentence_and_older_checkpoints_remain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """safetensors raises its own type of error, not OSError."""
    folder = SeedFolder(tmp_path, 0)
    folder.save(Done(updates=5), {"w": torch.ones(1)}, {})

    def full(*_: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device")

    monkeypatch.setattr("offline_rl.runs.folder.save_file", full)
    with pytest.raises(UserError, match=r"could not be written: .*No space left.*are kept"):
        folder.save(Done(updates=10), {"w": torch.ones(1)}, {})
    assert [done.updates for done in folder.checkpoints()] == [5]
    assert not list(tmp_path.rglob("*.tmp"))


def test_numbers_in_yaml_are_read_as_in_json(tmp_path: Path) -> None:
    """PyYAML reads YAML 1.1, where an exponent without a sign or a point is text."""
    path = tmp_path / "numbers.yaml"
    path.write_text(
        "jerk: 1e3\nrate: 2.5E2\nsmall: -1.5e-3\nhalf: .5\nnone: .inf\nwhole: 4_096\n"
        "day: 2024-01-02\nname: e3\nversion: 1.2.3\n"
    )
    values = read_yaml(path)
    assert values == {
        "jerk": 1000.0,
        "rate": 250.0,
        "small": -0.0015,
        "half": 0.5,
        "none": float("inf"),
        "whole": 4096,
        "day": "2024-01-02",
        "name": "e3",
        "version": "1.2.3",
    }


def test_a_key_given_twice_in_yaml_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text("a: {x: 1, <<: &y {x: 2}}\nb:\n  velocity: 1\n  velocity: 2\n")
    with pytest.raises(UserError, match=r"duplicate key velocity.*line 4"):
        read_yaml(path)
