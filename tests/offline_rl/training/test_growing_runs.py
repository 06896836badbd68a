"""Resumed runs: with more updates, other intervals, moved data, or after a stop signal."""

import errno
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from printed import report
from safetensors.torch import load_file
from small_data import save_small

import policies
from offline_rl import UserError, train
from offline_rl.engine.engine import Engine
from offline_rl.runs.folder import BUNDLE, SeedFolder
from offline_rl.utils.files import lock_folder, read_json

KEYS: dict[str, Any] = {"algorithm": "td3_bc", "task": "none", "num_updates": 20, "device": "cpu"}
KEYS |= {"compile": "never", "tracker": "none", "algorithm.hidden": [8], "batch_size": 8}
KEYS |= {"show": False, "precision": "fp32", "checkpoint_every": 10}
TRUE_RUN = Engine.run


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Any]:
    data = save_small(tmp_path / "small.npz")
    return KEYS | {"dataset": str(data), "out": str(tmp_path / "runs")}


def learned(run: Path, seed: int = 0) -> dict[str, Any]:
    """Return the tensors of the newest checkpoint as bytes."""
    files = SeedFolder(run, seed).checkpoints()
    return {name: x.numpy().tobytes() for name, x in load_file(files[max(files)]).items()}


def test_an_extended_run_equals_one_with_all_updates_from_the_start(keys) -> None:
    whole = train(
        **keys | {"num_updates": 60}, seeds=2, name="whole"
    )  # products are rounded as for stacked seeds
    first = train(**keys, seeds=2)
    before = read_json(first.path / "seed_0" / "config.json")
    result = train(**keys | {"num_updates": 60}, seeds=2)
    assert result.path == first.path
    assert learned(result.path) == learned(whole.path)
    assert [r["num_updates"] for r in result.results] == [60, 60]
    assert read_json(first.path / "seed_0" / "config.json") == before | {"num_updates": 60}
    with pytest.raises(UserError, match="was started with num_updates=60, now it is 20"):
        train(**keys, seeds=2)


def test_a_run_that_cannot_be_extended_keeps_its_policy_and_result(
    keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing fails for one file after another. Then the run continues to its end."""
    keys |= {"algorithm": "bc"}
    longer = keys | {"num_updates": 40}
    folder = SeedFolder(train(**keys).path, 0)
    kept = {path: path.read_bytes() for path in (folder.bundle, folder.result)}
    replace_file = Path.replace
    for refused in (folder.config.name, "0000000030", BUNDLE, folder.result.name):

        def replaced(self: Path, target: Path, refused: str = refused) -> Path:
            if refused in target.name:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return replace_file(self, target)

        monkeypatch.setattr(Path, "replace", replaced)
        with pytest.raises(UserError, match="No space left"):
            train(**longer)
        if refused == folder.result.name:  # by then the new policy is complete
            assert kept.pop(folder.bundle) != folder.bundle.read_bytes()
        assert {path: path.read_bytes() for path in kept} == kept
        assert folder.finished == (refused == folder.config.name)  # still those of the shorter run
    monkeypatch.setattr(Path, "replace", replace_file)
    assert train(**longer).results[0]["num_updates"] == 40
    assert folder.finished
    assert policies.load(folder.bundle).bundle.provenance["num_updates"] == 40


def test_a_longer_run_that_diverges_leaves_no_policy_of_the_shorter_one(
    keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys |= {"algorithm": "bc"}
    folder = SeedFolder(train(**keys).path, 0)
    assert folder.bundle.is_file()
    monkeypatch.setattr(Engine, "finite_seeds", lambda self: np.zeros(1, bool))
    assert train(**keys | {"num_updates": 40}).results[0]["diverged_at"] is not None
    assert not folder.bundle.exists()


def test_all_seeds_of_a_run_are_extended_together(keys) -> None:
    path = train(**keys, seeds=2).path
    before = (path / "seed_0" / "result.json").read_bytes()
    with pytest.raises(UserError, match=r"together\. Add \[1\] to seeds="):
        train(**keys | {"num_updates": 40})
    assert (path / "seed_0" / "result.json").read_bytes() == before


def test_seeds_stopped_at_different_updates_resume_from_their_own(
    keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each seed resumes alone, with equal bits. None restarts."""
    keys |= {"num_updates": 40}
    whole = [learned(train(**keys | {"seeds": [s]}, name="whole").path, s) for s in (0, 1)]
    path = train(**keys | {"seeds": [0]}).path  # checkpoints 30 and 40
    train(**keys | {"seeds": [1]})
    begun = []
    for seed, last in ((0, 40), (1, 30)):
        folder = SeedFolder(path, seed)
        folder.result.unlink()
        files = folder.checkpoints()
        for done in files:
            if done.updates != last:
                files[done].unlink()
    run = Engine.run

    def watched(self: Engine, *args: Any) -> None:
        begun.append(self.updates)
        run(self, *args)

    monkeypatch.setattr(Engine, "run", watched)
    train(**keys | {"seeds": [0, 1]})
    assert min(begun) == 30
    assert [learned(path, seed) for seed in (0, 1)] == whole


@pytest.mark.parametrize(
    ("algorithm", "option", "others"),
    [("rebrac", "policy_bc_end", {}), ("spot", "support_end", {"pretrain_updates": 2})],
)
def test_extending_a_finished_decay_of_a_weight_needs_stretch(
    keys, algorithm, option, others
) -> None:
    keys |= {"algorithm": algorithm, f"algorithm.{option}": 0.0, **others}
    train(**keys)
    with pytest.raises(UserError, match=rf"algorithm\.{option} decays a weight.*stretch=true"):
        train(**keys | {"num_updates": 40})
    assert train(**keys | {"num_updates": 40}, stretch=True).results[0]["num_updates"] == 40


def test_extending_a_finished_schedule_needs_stretch(keys) -> None:
    keys |= {"algorithm": "iql"}
    train(**keys)
    with pytest.raises(UserError, match=r"learning rate of policy is 0.*stretch=true"):
        train(**keys | {"num_updates": 40})
    assert train(**keys | {"num_updates": 40}, stretch=True).results[0]["num_updates"] == 40
    flat = keys | {"algorithm.decay_actor_lr": False, "name": "flat"}
    train(**flat)
    assert train(**flat | {"num_updates": 40}).results[0]["num_updates"] == 40


def test_intervals_may_change_and_data_may_be_moved(keys, tmp_path: Path) -> None:
    """The file is recognized by its checksum. A finished run is not changed."""
    path = train(**keys).path
    for folder in ("moved", "other"):
        (tmp_path / folder).mkdir()
    shutil.copy(tmp_path / "small.npz", tmp_path / "moved")
    moved = keys | {
        "dataset": str(tmp_path / "moved" / "small.npz"),
        "eval_every": 7,
        "checkpoint_every": 5,
    }
    before = (path / "seed_0" / "result.json").stat()
    assert train(**moved).path == path
    assert (path / "seed_0" / "result.json").stat() == before
    train(**moved, seeds=2)
    assert "2 seeds" in report([path])
    save_small(tmp_path / "other" / "small.npz", num_rows=600)
    with pytest.raises(UserError, match="started with other data"):
        train(**keys | {"dataset": str(tmp_path / "other" / "small.npz")})


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_saves_a_checkpoint_and_resumes_from_it(
    number: signal.Signals, keys, monkeypatch: pytest.MonkeyPatch, ctrl_c: None
) -> None:
    keys |= {"checkpoint_every": 10_000, "num_updates": 60}
    whole = train(**keys, name="whole").path

    at = list[int]()

    def run_and_stop(self: Engine, *args: Any) -> None:
        TRUE_RUN(self, *args)
        if self.updates >= 30 and not at:
            at.append(self.updates)
            signal.raise_signal(number)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "run", run_and_stop)
        with pytest.raises(KeyboardInterrupt):
            train(**keys)
    folder = SeedFolder(whole.with_name("default"), 0)
    assert [done.updates for done in folder.checkpoints()] == at
    assert folder.state == "interrupted"
    assert learned(train(**keys).path) == learned(whole)


def test_a_second_signal_ends_it_immediately(
    keys, monkeypatch: pytest.MonkeyPatch, ctrl_c: None
) -> None:
    def asked_twice(self: Engine, *args: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Engine, "run", asked_twice)
    with pytest.raises(KeyboardInterrupt):
        train(**keys)
    assert not list(Path(keys["out"]).rglob("*.safetensors"))


def test_a_report_shows_the_state_of_a_run(keys, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Engine, *args: Any) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "run", fail)
        with pytest.raises(OSError, match="full"):
            train(**keys)
    assert "Failed: td3_bc seed 0, not evaluated yet (OSError('the disk is full'))." in report(
        [keys["out"]]
    )
    (run,) = Path(keys["out"]).glob("*/*/*")
    with lock_folder(run):
        assert "Running: td3_bc seed 0" in report([keys["out"]])
    train(**keys)
    assert not (run / "seed_0" / "failed.json").exists()


def test_incomplete_files_of_a_killed_process_are_removed_at_the_next_start(keys) -> None:
    run = Path(keys["out"], "none_small", "td3_bc", "default")
    left = run / "seed_0" / "checkpoints" / ".updates_1.safetensors.0123456789ab.tmp"
    mine = run / "seed_0" / ".mine.tmp"
    left.parent.mkdir(parents=True)
    left.touch()
    mine.touch()
    train(**keys)
    assert not left.exists()
    assert mine.exists()
