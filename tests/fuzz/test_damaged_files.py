"""Damaged files: each is read correctly or refused with a message, never with a traceback.

In a file with checksums, all damage is refused or has no effect. In a file without (tables,
logs, recordings) it causes at most an error message. `make test` runs a few cases, `make test-all`
hundreds. The cases are the same every time.
"""

import copy
import importlib
import json
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import yaml
from foreign_layouts import (
    column,
    d3rlpy,
    episodes,
    lerobot,
    minari,
    observations_before,
    robomimic,
    zarr,
    zipped,
)
from small_data import save_small

import policies
from envs import CardError
from offline_rl.algorithms.common import registry
from offline_rl.cli.compose import with_experiment
from offline_rl.data.read import read
from offline_rl.data.validation import validate
from offline_rl.generation import recipes
from offline_rl.reporting import runs
from offline_rl.runs.folder import Done, SeedFolder, common_checkpoint
from offline_rl.runs.run import difference
from offline_rl.suite.plan import read_suite
from offline_rl.training.train import train
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import checksum, read_json, write_json
from policies import Bundle, BundleError, Channel, Normalizer, Spec, bundle
from policies.golden import seal
from real_robot.check import limits_of
from real_robot.recording.files import RecordingWriter
from real_robot.recording.files import read as read_recording
from real_robot.robots.make import make

ROOT = Path(__file__).parents[2]
OTHERS = (None, True, -1, 0, 7, 1.5, float("nan"), "x", "", [], [1, "x"], {}, {"x": 1})
slow = pytest.mark.slow
cases = pytest.mark.parametrize("count", [8, pytest.param(300, marks=slow)])


def damaged(content: bytes, count: int) -> Iterator[bytes]:
    """Yield `content` with a flipped bit, a missing end, or a part zeroed, doubled or left out."""
    draw = np.random.default_rng(len(content))
    for k in range(count):
        at, size = int(draw.integers(len(content))), int(draw.integers(1, 9))
        turned = bytes([content[at] ^ 1 << int(draw.integers(8))])
        before, piece, after = content[:at], content[at : at + size], content[at + size :]
        yield (
            before + turned + content[at + 1 :],
            before,
            before + bytes(len(piece)) + after,
            before + piece + piece + after,
            before + after,
        )[k % 8 if k % 8 < 5 else 0]


def mutated(tree: Any, count: int) -> Iterator[Any]:
    """Yield `tree` with one value replaced, one name misspelled, or one entry removed."""
    draw = np.random.default_rng(count)
    for k in range(count):
        copied = copy.deepcopy(tree)
        holders = [
            (part, key)
            for part in parts(copied)
            for key in (part if isinstance(part, dict) else range(len(part)))
        ]
        part, key = holders[int(draw.integers(len(holders)))]
        if k % 4 == 0 and isinstance(part, dict):
            part[f"{key}x"] = part.pop(key)
        elif k % 4 == 1:
            del part[key]
        else:
            part[key] = OTHERS[int(draw.integers(len(OTHERS)))]
        yield copied


def parts(tree: Any) -> Iterator[Any]:
    """Yield all non-empty dicts and lists in `tree`."""
    if isinstance(tree, dict | list) and tree:
        yield tree
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from parts(value)


def outcome(action: Callable[[], Any]) -> tuple[Any, bool]:
    """Return the result of `action` and False, or its one-line error and True."""
    try:
        return action(), False
    except (UserError, BundleError, CardError) as error:
        sentence = str(error)
    assert sentence
    assert "\n" not in sentence
    return None, True


@cases
def test_a_checkpoint_is_intact_or_refused(tmp_path: Path, count: int) -> None:
    folder, done = SeedFolder(tmp_path, 0), Done(updates=5)
    tensors = {"params/w": torch.arange(24.0).reshape(4, 6), "counters/update": torch.tensor(5)}
    progress = {"seconds": 1.5, "choices": {"precision": "fp32"}, "diverged": None}
    folder.save(done, tensors, progress)
    path, refusals = folder.checkpoints()[done], 0
    for content in damaged(path.read_bytes(), count):
        path.write_bytes(content)
        found, refused = outcome(lambda: folder.load(done))
        refusals += refused
        if not refused:
            assert found[1] == progress
            assert all(torch.equal(found[0][name], value) for name, value in tensors.items())
    assert refusals > 0.9 * count


def policy(path: Path) -> policies.Policy:
    """Write a small policy to `path` and read it."""
    draw = np.random.default_rng(0)
    weights = {
        "trunk.weights.0": draw.normal(size=(3, 2)).astype(np.float32),
        "trunk.biases.0": np.zeros(2, np.float32),
    }
    arguments = {"observations": 3, "actions": 2, "hidden": []}
    made = {"task": "none", "score": 1.5}
    ranges = Normalizer.fit_range(np.array([[-1, -1], [0.5, 1]], np.float32))
    joints = Channel("joints", (3,), units=("rad",), names=("a", "b", "c"))
    spec = Spec((joints,), 2, action_names=("left", "right"), rate_hz=50.0)
    is_consistent = Normalizer.identity((3,))
    whole = Bundle(spec, "DeterministicActor", arguments, weights, is_consistent, made, ranges)
    bundle.write(path, seal(replace(whole, graphs={"other": b"onnx"})))
    return policies.load(path)


def describe_policy(found: Any) -> Any:
    """Return spec, provenance and an action of a policy, for comparison."""
    action, _ = found.act(np.array([0.1, -0.2, 0.3]))
    return found.spec, found.bundle.provenance, action.tolist()


@cases
def test_a_bundle_is_intact_or_refused(tmp_path: Path, count: int) -> None:
    path = tmp_path / "policy.bundle"
    whole = describe_policy(policy(path))
    for content in damaged(path.read_bytes(), count):
        path.write_bytes(content)
        found, refused = outcome(lambda: describe_policy(policies.load(path)))
        assert refused or found == whole


@cases
def test_a_manifest_is_intact_or_refused(tmp_path: Path, count: int) -> None:
    path = tmp_path / "policy.bundle"
    whole = describe_policy(policy(path))
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(contents["manifest.json"])
    for other in [manifest, *mutated(manifest, count)]:
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in (contents | {"manifest.json": json.dumps(other)}).items():
                archive.writestr(name, content)
        found, refused = outcome(lambda: describe_policy(policies.load(path)))
        assert refused or found == whole
        assert not refused or other is not manifest


def run_folder(path: Path) -> SeedFolder:
    """Write the files of a finished seed."""
    folder = SeedFolder(path, 0)
    config = {"algorithm": "bc", "task": "none", "name": "default", "num_updates": 40}
    write_json(folder.config, {**config, "hyper": {"beta": 3.0, "hidden": [8, 8]}})
    write_json(folder.path / "environment.json", {"cores": 2, "gpu": None, "choices": {}})
    for updates in (0, 20, 40):
        row = {"updates": updates, "env_steps": 0, "eval/return": 1.0 + updates}
        row |= {"returns": [1.5, 2.5], "lengths": [3, 4], "success": None, "costs": None}
        folder.append("evaluations", {**row, "seeds": [7, 8]})
    known: dict[str, Any] = dict.fromkeys(f.name for f in runs.fields(runs.Outcome))
    known |= {"num_updates": 40, "online_updates": 0, "num_env_steps": 0, "seconds": 1.5}
    known |= {"seeds_stacked": 1, "pretrain_updates": 0, "device": "cpu", "precision": "fp32"}
    write_json(folder.result, known | {"score": 50.0, "mean_return": 41.0})
    return folder


@cases
@pytest.mark.parametrize("name", ["config", "environment", "result", "evaluations"])
def test_a_run_folder_is_read_or_refused(tmp_path: Path, name: str, count: int, capsys) -> None:
    folder = run_folder(tmp_path)
    config = read_json(folder.config)
    suffix = "jsonl" if name == "evaluations" else "json"
    path = folder.path / f"{name}.{suffix}"
    whole = path.read_bytes()
    contents = [*damaged(whole, count)]
    if suffix == "json":
        contents += [json.dumps(t).encode() for t in mutated(json.loads(whole), count)]
    for content in contents:
        path.write_bytes(content)
        outcome(lambda: runs.read(folder))
        outcome(lambda: difference(folder.stored_config() or {}, config))
        outcome(folder.outcome)
        folder.evaluation(Done(updates=40))
        folder.rewind(Done(updates=40))
        for row in folder.rows("evaluations"):
            assert row["updates"] <= 40


@cases
@pytest.mark.parametrize("name", ["algorithm/iql", "recipe/hopper", "recipe/antmaze", "cards/push"])
def test_a_table_is_read_or_refused(
    tmp_path: Path, name: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ROOT / ("datasets/push.yaml" if name == "cards/push" else f"configs/{name}.yaml")
    path = tmp_path / f"{name}.yaml"
    path.parent.mkdir()
    for module in (registry, recipes):
        monkeypatch.setattr(module, "share", lambda _: tmp_path)
    whole, stem, cards = source.read_bytes(), path.stem, importlib.import_module("envs.cards")

    def use() -> None:
        if "algorithm" in name:
            for task in ("hopper-medium-v2", "antmaze-umaze-v2", "none"):
                registry.algorithm_config(stem, task, {})
        elif "recipe" in name:
            recipes.load_recipe(stem)
        else:
            with monkeypatch.context() as patch:
                patch.setattr(cards, "share", lambda _: path.parent)
                cards.cards.__wrapped__()  # not from its cache

    path.write_bytes(whole)
    use()
    trees = mutated(yaml.safe_load(whole), count)
    for content in (*damaged(whole, count), *(yaml.safe_dump(t).encode() for t in trees)):
        path.write_bytes(content)
        outcome(use)


def flat(path: Path) -> Path:
    """Write a table with NeoRL-2's names, or D4RL's in HDF5."""
    if path.suffix == ".npz":
        return save_small(path, num_rows=30)
    columns = dict(np.load(save_small(path.with_suffix(".npz"), num_rows=30)))
    path.with_suffix(".npz").unlink()
    names = {"obs": "observations", "action": "actions", "reward": "rewards"}
    names |= {"done": "terminals", "truncated": "timeouts"}
    with h5py.File(path, "w") as file:
        for own, name in names.items():
            file[name] = columns[own]
    return path


def demonstrations(path: Path) -> Path:
    """Write demonstrations in robomimic's layout."""
    demos = {
        f"demo_{n}": {
            "actions": e["actions"],
            "rewards": e["rewards"],
            "dones": e["terminations"].astype(int),
            "obs": {"object": e["observations"][:-1]},
            "next_obs": {"object": e["observations"][1:]},
        }
        for n, e in enumerate(episodes([7, 8]))
    }
    return robomimic(path, demos, train=["demo_0"])


def frames(folder: Path) -> Path:
    """Write a dataset in LeRobot's layout."""
    made = episodes([7, 8])
    columns = {"observation.state": observations_before(made), "action": column(made, "actions")}
    columns["next.reward"] = column(made, "rewards").astype(np.float32)
    return lerobot(folder, columns, [7, 8])


def store(folder: Path) -> Path:
    """Write a store in diffusion_policy's layout."""
    made = episodes([7, 8])
    ends = np.array([7, 15])
    arrays = {"data/state": observations_before(made), "data/action": column(made, "actions")}
    return zarr(folder, arrays | {"meta/episode_ends": ends})


def spoilt(file: Path, count: int) -> Iterator[bytes]:
    """Yield damaged versions of a file's content, and of JSON also mutated ones."""
    whole = file.read_bytes()
    others = iter(())
    if file.suffix == ".json":
        others = mutated(json.loads(whole), count)
    for content in damaged(whole, count):
        yield content
        yield from (json.dumps(tree).encode() for tree in islice(others, 1))


LAYOUTS: dict[str, Callable[[Path], Path]] = {
    "a.npz": flat,
    "a.hdf5": flat,
    "a.h5": d3rlpy,
    "robomimic.hdf5": demonstrations,
    "lerobot": frames,
    "minari": lambda path: minari(path, episodes([7, 8])),
    "a.zarr": store,
    "a.zip": lambda path: zipped(store(path.with_name("b.zarr")), path),
}


@cases
@pytest.mark.parametrize(
    "name", ["a.npz", "a.hdf5", *(pytest.param(n, marks=slow) for n in [*LAYOUTS][2:])]
)
def test_a_recording_is_read_or_refused(tmp_path: Path, name: str, count: int) -> None:
    """It is also checked and described. In a folder, any of its files may be damaged."""
    if name in ("lerobot", "a.zarr", "a.zip"):
        pytest.importorskip("pyarrow" if name == "lerobot" else "zarr")
    path = LAYOUTS[name](tmp_path / name)
    assert len(read(path))
    files = sorted(f for f in path.rglob("*") if f.is_file()) if path.is_dir() else [path]
    contents = {file: spoilt(file, count) for file in files}
    for file in np.random.default_rng(0).choice(np.array(files, object), count):
        whole = file.read_bytes()
        file.write_bytes(next(contents[file]))
        found, refused = outcome(lambda: read(path))
        problems = validate(path)
        assert any(p.severity == "error" for p in problems) or not refused
        assert refused or found.summary().rows == len(found)
        file.write_bytes(whole)


@cases
def test_a_generated_dataset_matches_its_card_or_is_refused(tmp_path: Path, count: int) -> None:
    """The card may be damaged instead of the file. The message names it."""
    path = flat(tmp_path / "made.hdf5")
    whole, card = path.read_bytes(), path.with_suffix(".json")
    facts = {"file": path.name, "sha256": checksum(path), "rows": 30}
    write_json(card, facts)
    for content in damaged(whole, count):
        path.write_bytes(content)
        assert outcome(lambda: read(path))[1] or content == whole
    path.write_bytes(whole)
    for content in damaged(card.read_bytes(), count):
        card.write_bytes(content)
        try:
            describe_policy = " ".join(read(path).notes)
        except UserError as error:
            describe_policy = str(error)
        assert str(card) in describe_policy or is_consistent(content, facts)


def is_consistent(content: bytes, facts: dict[str, Any]) -> bool:
    """Return True if a damaged card states the same checksum or none, or is of another file."""
    found = json.loads(content)
    return found.get("sha256") in (facts["sha256"], None) or found.get("file") != facts["file"]


@cases
def test_a_robots_recording_is_read_up_to_its_last_complete_block(
    tmp_path: Path, count: int
) -> None:
    """Every block has a checksum. Only written rows are read, and the end is reported."""
    path, dtype = tmp_path / "a.rec", np.dtype([("tick", "<u8"), ("q", "<f8", (2,))])
    rows = np.zeros(20, dtype)
    rows["tick"], ends = np.arange(20), list[int]()
    with RecordingWriter(path, dtype, {"robot": "two links"}) as file:
        for k in range(4):
            file.append(rows[5 * k : 5 * k + 5].tobytes(), 5, 5 * k, 0)
            ends.append(path.stat().st_size)
    for content in damaged(path.read_bytes(), count):
        path.write_bytes(content)
        found, refused = outcome(lambda: read_recording(path))
        if not refused:
            assert found.about == {"robot": "two links"}
            assert found.rows.tobytes() == rows[: len(found.rows)].tobytes()
            assert found.cut_at is not None or len(content) in ends


@slow
@pytest.mark.parametrize("name", ["robot/desk", "suite/evidence", "experiment/demo"])
def test_files_written_by_users_are_read_or_refused(tmp_path: Path, name: str) -> None:
    source = ROOT / "configs" / f"{name}.yaml"
    path, whole, count = tmp_path / source.name, source.read_bytes(), 300
    if "robot" in name:
        shutil.copy(source.with_suffix(".xml"), tmp_path)

    def use() -> None:
        if "robot" in name:
            machine = make(str(path), adapter="simulated")
            limits_of(machine.spec, {})
        elif "suite" in name:
            read_suite(str(path))
        else:
            with_experiment({"experiment": str(path)})

    path.write_bytes(whole)
    use()
    trees = mutated(yaml.safe_load(whole), count)
    for content in (*damaged(whole, count), *(yaml.safe_dump(t).encode() for t in trees)):
        path.write_bytes(content)
        outcome(use)


@slow
def test_a_run_resumes_to_the_same_result_or_is_refused(tmp_path: Path, capsys) -> None:
    keys: dict[str, Any] = {"algorithm": "bc", "task": "neorl2/DMSD", "num_updates": 40}
    keys |= {"eval_every": 20, "checkpoint_every": 20, "eval_episodes": 1, "tracker": "none"}
    keys |= {"compile": "never", "algorithm.hidden": [8], "batch_size": 8, "device": "cpu"}
    keys |= {"show": False, "dataset": str(save_small(tmp_path / "small.npz"))}
    whole = train(**keys, out=str(tmp_path / "whole")).path
    end = SeedFolder(whole, 0).load(Done(updates=40))[0]
    files = [
        p.relative_to(whole) for p in sorted(whole.rglob("*.*")) if p.is_file() and p.stat().st_size
    ]
    draw, ends, out = np.random.default_rng(0), 0, tmp_path / "again"
    for k in range(80):
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(tmp_path / "whole", out)
        run = out / whole.relative_to(tmp_path / "whole")
        if k % 2:
            (run / "seed_0" / "result.json").unlink()
        name = files[int(draw.integers(len(files)))]
        if not (run / name).exists():
            continue
        content = (run / name).read_bytes()
        (run / name).write_bytes([*damaged(content, k + 1)][k])
        _, refused = outcome(lambda: train(**keys, out=str(out)))
        if not refused and common_checkpoint([SeedFolder(run, 0)]) == Done(updates=40):
            found = SeedFolder(run, 0).load(Done(updates=40))[0]
            assert all(torch.equal(found[each], end[each]) for each in end)
            ends += 1
    assert ends > 20
