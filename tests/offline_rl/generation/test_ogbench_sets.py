"""Sets in OGBench's layout: sizes, seeds, interruptions and refusals. A stub collects the rows."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_rl.data import load
from offline_rl.data.writers.ogbench import write_ogbench
from offline_rl.generation import ogbench
from offline_rl.generation.recipes import generate
from offline_rl.utils.errors import UserError

NAME = "pointmaze-medium-stitch-v0"
KEYS = {"recipe": "ogbench", "task": "pointmaze-medium", "type": "stitch", "show": False}
LAYOUT = {  # of pointmaze-medium-stitch-v0.npz: width and dtype
    "observations": (2, "float32"),
    "actions": (2, "float32"),
    "terminals": (None, "bool"),
    "qpos": (2, "float32"),
    "qvel": (2, "float32"),
}


class Stub:
    """Collector of random rows, which counts the seeds and can be interrupted."""

    seeds: list[int] = []
    stop_after: int | None = None

    def __init__(self, environment: str, kind: str, *, steps: int, **_: Any) -> None:
        self.steps = steps

    def collect(self, seed: int) -> dict[str, np.ndarray]:
        if self.stop_after == len(self.seeds):
            raise KeyboardInterrupt
        self.seeds.append(seed)
        rng, rows = np.random.default_rng(seed), self.steps + 1
        columns = {k: rng.random((rows, 2), np.float32) for k in LAYOUT if k != "terminals"}
        columns["terminals"] = np.arange(rows) == self.steps
        return {key: columns[key] for key in LAYOUT}

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def stub(monkeypatch: pytest.MonkeyPatch) -> type[Stub]:
    monkeypatch.setattr(Stub, "seeds", [])
    monkeypatch.setattr(Stub, "stop_after", None)
    monkeypatch.setattr(ogbench, "collector_class", lambda *_: Stub)
    monkeypatch.setattr(ogbench, "version", lambda _: "1.2")  # ogbench may not be installed
    return Stub


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_set_has_the_keys_dtypes_and_shapes_of_the_published_files(tmp_path: Path) -> None:
    generate(**KEYS, episodes=30, out=str(tmp_path))
    assert {*files(tmp_path)} == {f"{NAME}.npz", f"{NAME}-val.npz", f"{NAME}.json"}
    for end, episodes in (("", 30), ("-val", 3)):
        with np.load(tmp_path / f"{NAME}{end}.npz") as file:
            assert file.files == list(LAYOUT)
            for key, (width, dtype) in LAYOUT.items():
                shape = (201 * episodes,) if width is None else (201 * episodes, width)
                assert (file[key].shape, str(file[key].dtype)) == (shape, dtype)
            last = np.flatnonzero(file["terminals"])
        assert last.tolist() == [201 * k + 200 for k in range(episodes)]
    card = json.loads((tmp_path / f"{NAME}.json").read_text())
    assert (card["rows"], card["validation"]["rows"]) == (6000, 600)
    data = load(tmp_path / f"{NAME}.npz")
    assert (data.num_rows, data.num_episodes) == (6000, 30)
    assert not data.terminated.any()


def test_no_two_trajectories_of_any_set_and_split_share_a_seed(
    tmp_path: Path, stub: type[Stub]
) -> None:
    for kind in ("stitch", "navigate"):
        generate(**KEYS | {"type": kind}, episodes=30, out=str(tmp_path))
    assert len(set(stub.seeds)) == len(stub.seeds) == 2 * 33


def test_an_interrupted_set_continues_and_has_the_bytes_of_an_undisturbed_one(
    tmp_path: Path, stub: type[Stub], capsys: pytest.CaptureFixture[str]
) -> None:
    generate(**KEYS, rows=25 * 200, out=str(tmp_path / "whole"))
    whole, stub.seeds = list(stub.seeds), []
    stub.stop_after = 14
    torn = {**KEYS, "rows": 25 * 200, "out": str(tmp_path / "torn")}
    with pytest.raises(KeyboardInterrupt):
        generate(**torn)
    assert [path.name for path in (tmp_path / "torn").iterdir()] == [f".{NAME}.parts"]
    with pytest.raises(UserError, match="contains an interrupted set with other settings"):
        generate(**torn | {"rows": 200})
    stub.seeds, stub.stop_after = [], None
    generate(**torn)
    assert stub.seeds == whole[10:]  # the first ten trajectories were stored
    assert files(tmp_path / "torn") == files(tmp_path / "whole")
    stub.seeds = []
    generate(**torn | {"show": True})
    assert not stub.seeds
    assert f"{NAME}.npz already exists" in capsys.readouterr().out


def test_a_smaller_set_is_the_beginning_of_a_larger_one(tmp_path: Path) -> None:
    for episodes in (3, 12):
        generate(**KEYS, episodes=episodes, val_episodes=1, out=str(tmp_path / f"{episodes}"))
    small, large = (np.load(tmp_path / n / f"{NAME}.npz") for n in ("3", "12"))
    for key in LAYOUT:
        np.testing.assert_array_equal(small[key], large[key][: 3 * 201])


def test_existing_files_of_another_size_or_damaged_ones_are_never_replaced(tmp_path: Path) -> None:
    keys = {**KEYS, "out": str(tmp_path)}
    generate(**keys, episodes=2)
    before = files(tmp_path)
    with pytest.raises(UserError, match=r"damaged or was generated differently. Choose another"):
        generate(**keys, episodes=3)
    assert files(tmp_path) == before
    for name in (f"{NAME}-val.npz", f"{NAME}.json"):
        (tmp_path / name).unlink()
        with pytest.raises(UserError, match="damaged or was generated differently"):
            generate(**keys, episodes=2)
        (tmp_path / name).write_bytes(before[name])


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"task": None}, "recipe=ogbench needs a task. Add task=, one of cube-single, cube-double"),
        ({"task": "cube-singel"}, "unknown task 'cube-singel'; did you mean cube-single"),
        ({"type": "noisy"}, "no set of type noisy for task=pointmaze-medium. Use type=navigate or"),
        ({"rows": 500}, "rows=500 is not a multiple of 200, the transitions of a trajectory of"),
        ({"rows": 200, "episodes": 1}, "rows= and episodes= both set the size. Remove one"),
        ({"qualities": [NAME]}, "task= and qualities= both select sets. Remove one"),
        ({"qualities": [NAME], "task": None}, "type=stitch needs a task. Add task="),
        ({"qualities": ["cube"]}, "unknown quality 'cube'"),
        ({"format": "lerobot"}, "recipe=ogbench writes OGBench's layout. Remove format="),
        ({"recipe": "push"}, "type= is only for recipe=ogbench. Remove it"),
    ],
)
def test_a_refusal_is_one_sentence_with_the_remedy_and_writes_nothing(
    tmp_path: Path, keys: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        generate(**KEYS | keys, out=str(tmp_path / "sets"))
    assert not (tmp_path / "sets").exists()


def test_the_missing_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "ogbench.locomaze", None)
    with pytest.raises(UserError, match=r"Install this package's extra \[ogbench\]"):
        generate(**KEYS, out=str(tmp_path / "sets"))
    assert not (tmp_path / "sets").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rewards": np.zeros(4, np.float32)}, "OGBench's layout has no column rewards"),
        ({"qpos": np.zeros((4, 2))}, "qpos has 4 rows of float64"),
        ({"qvel": np.zeros((3, 2), np.float32)}, "qvel has 3 rows of float32"),
        ({"actions": np.full((4, 2), np.nan, np.float32)}, "actions is not finite"),
        ({"terminals": np.zeros(4, bool)}, "the last trajectory has no terminal row"),
        ({"observations": None}, "needs a column observations"),
    ],
)
def test_columns_that_break_the_layout_are_not_written(
    tmp_path: Path, change: dict[str, np.ndarray | None], sentence: str
) -> None:
    columns: dict[str, Any] = {
        key: np.zeros((4, width), dtype) for key, (width, dtype) in LAYOUT.items() if width
    }
    columns |= {"terminals": np.arange(4) == 3} | change
    with pytest.raises(UserError, match=sentence):
        write_ogbench({k: v for k, v in columns.items() if v is not None}, tmp_path / "a.npz")
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_several_processes_give_the_bytes_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ogbench", reason="OGBench needs the extra ogbench")
    monkeypatch.undo()
    for processes in (1, 2):
        out = str(tmp_path / f"{processes}")
        generate(**KEYS, episodes=25, val_episodes=2, processes=processes, out=out)
    first, second = (files(tmp_path / name) for name in ("1", "2"))
    assert first == second
