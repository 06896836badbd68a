"""Mistakes, over 400: each prints one line, returns exit code 2 and writes nothing.

The table is in `mistakes.py`. `make test` runs a few of each kind, `make test-all` all of them.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mistakes import AFTER_OUTPUT, CALLS, MORE, QUICK, complete_line, make_files, make_runs

import envs
import offline_rl
import policies
import real_robot
from offline_rl import Dataset
from offline_rl.cli.main import main
from offline_rl.data.read import read
from offline_rl.training.trainer import Trainer
from offline_rl.utils.errors import UserError

slow = pytest.mark.slow


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Working folder with the files of the table. Data of this machine is not found."""
    here = tmp_path_factory.mktemp("mistakes")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        for name in ("OFFLINE_RL_DATA", "XDG_CACHE_HOME", "HF_HOME", "MINARI_DATASETS_PATH"):
            patch.setenv(name, str(here.with_name("nothing")))
        make_files(here)
        yield here


@pytest.fixture(scope="module")
def runs(files: Path) -> Path:
    """Working folder with files and runs."""
    make_runs(files)
    return files


def tree(folder: Path) -> dict[str, tuple[int, int] | None]:
    """Return every path below `folder`, with size and modification time of files."""
    paths = [p for p in folder.rglob("*") if "__pycache__" not in p.parts]
    facts = {p: p.stat() for p in paths if p.is_file()}
    known = {p: (s.st_size, s.st_mtime_ns) for p, s in facts.items()}
    return {str(p.relative_to(folder)): known.get(p) for p in paths}


def begins(*_: object, **__: object) -> None:
    """Fail: training or motion has started, so the command was not refused."""
    raise AssertionError("the command was not refused")


def parameters(lines: dict[str, str]) -> list[object]:
    """Return the lines as test parameters; those of MORE are marked slow."""
    return [pytest.param(line, marks=[] if line in QUICK else slow) for line in lines]


@pytest.mark.parametrize("line", parameters({**QUICK, **MORE}))
def test_a_mistake_prints_one_sentence(
    line: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    here = request.getfixturevalue("files" if line in QUICK else "runs")
    monkeypatch.setattr(Trainer, "run", begins)
    monkeypatch.setattr("real_robot.running.run_session", begins)
    before = tree(here)
    capsys.readouterr()
    assert main(complete_line(line)) == 2
    out, err = capsys.readouterr()
    assert tree(here) == before
    assert out == "" or line in AFTER_OUTPUT
    assert err.startswith("offline-rl: ")
    assert err.count("\n") == 1
    for words in ({**QUICK, **MORE})[line].split(" … "):
        assert words in err


@slow
@pytest.mark.parametrize("line", CALLS)
def test_python_calls_raise_one_sentence(
    line: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw, before = np.random.default_rng(0), tree(runs)
    names: dict[str, Any] = {"np": np, "envs": envs, "offline_rl": offline_rl, "policies": policies}
    names |= {"real_robot": real_robot, "Dataset": Dataset}
    names |= {"train": partial(offline_rl.train, algorithm="iql", task="none")}
    names |= {"TD3": "runs/neorl2_DMSD/td3_bc/default", "BC": "runs/none_small/bc/default"}
    names |= {"s": draw.normal(size=(4, 6)).astype(np.float32)}
    names |= {"a": draw.uniform(-1, 1, (4, 2)).astype(np.float32)}
    names |= {name: read(f"{name}.npz") for name in ("small", "other")}
    capsys.readouterr()
    with pytest.raises((UserError, ValueError)) as error:
        eval(line, names)
    assert tree(runs) == before
    assert capsys.readouterr().out == ""
    assert "\n" not in str(error.value)
    assert CALLS[line] in str(error.value)
