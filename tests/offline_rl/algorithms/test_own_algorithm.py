"""A user's algorithm in its own file: trained, evaluated, bundled and reported."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from prepared import prepare
from small_data import save_small

import offline_rl
import policies
from offline_rl.algorithms.common.registry import (
    algorithm_config,
    algorithm_yaml,
    interaction,
    run_label,
)
from offline_rl.cli.main import main
from offline_rl.reporting import compact
from offline_rl.runs.start import start_of
from offline_rl.suite.plan import Cell, stored_seeds
from offline_rl.training.headline import headline

OWN = '''
"""Imitation by the absolute error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from offline_rl.algorithms.common.base import Algorithm, minimize
from offline_rl.algorithms.common.config import BaseConfig, Rate, Sizes
from offline_rl.algorithms.common.optim import Adam
from policies.heads.deterministic import DeterministicActor


@dataclass(frozen=True)
class Config(BaseConfig):
    lr: Rate = 1e-3  # how fast it learns
    hidden: Sizes = (8, 8)  # units of each hidden layer
    discount: ClassVar[float] = 1.0


class Mine(Algorithm):
    Config = Config

    @classmethod
    def uses_rewards(cls, cfg):
        return False

    def networks(self):
        obs, act = self.spec.observation_dim, self.spec.action_dim
        return {"policy": DeterministicActor(obs, act, self.cfg.hidden)}

    def optimizers(self):
        return {"policy": Adam(self.cfg.lr)}

    def update(self, state, batch, i):
        def loss(policy):
            return (policy(batch.observations) - batch.actions).abs().mean()

        state, value = minimize(state, "policy", loss)
        return state, {"policy_loss": value}
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_small(tmp_path / "pendulum.npz", obs=3, act=1)
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "mine.py").write_text(OWN)
    return tmp_path


def train(algorithm: str, *more: str) -> int:
    keys = ["task=env:Pendulum-v1", "dataset=pendulum.npz", "num_updates=20", "eval_episodes=1"]
    keys += ["compile=never", "tracker=none", *more]
    return main(["train", f"algorithm={algorithm}", *keys])


def test_an_algorithm_in_a_file_trains(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("methods/mine.py", "algorithm.lr=[0.001,0.002]") == 0
    run = folder / "runs" / "env_Pendulum-v1" / "mine" / "default-lr_0.001" / "seed_0"
    result = json.loads((run / "result.json").read_text())
    assert result["algorithm"] == "mine"
    assert len(result["returns"]) == 1
    actions, _ = policies.load(run / "policy.bundle").act(np.zeros((1, 3), np.float32))
    assert np.abs(actions).max() <= 1
    assert json.loads((run / "config.json").read_text())["algorithm"] == "methods/mine.py"
    kept = json.loads((run / "environment.json").read_text())["algorithm"]
    file = folder / "methods" / "mine.py"
    assert kept == {"file": str(file), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    capsys.readouterr()
    assert main(["report", "runs"]) == 0
    assert "mine (default-lr_0.002)" in capsys.readouterr().out


def test_an_importable_algorithm_trains(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder / "methods")
    assert train("mine:Mine") == 0
    assert (folder / "runs" / "env_Pendulum-v1" / "Mine" / "default" / "seed_0").is_dir()


@pytest.mark.parametrize("named", ["mine:Mine", "{folder}/methods/mine.py"])
def test_its_runs_are_stored_like_others(
    named: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run folder has the name of the file, wherever the file is."""
    monkeypatch.syspath_prepend(folder / "methods")
    named = named.format(folder=folder)
    assert train(named) == 0
    assert compact.pack(["runs"], "study") == 1
    for name in (compact.RUNS, compact.CONFIGS):
        assert str(folder) not in (folder / "study" / name).read_text()
    assert main(["report", "study"]) == 0
    assert run_label(named) in capsys.readouterr().out
    keys = {"dataset": "pendulum.npz", "num_updates": 20, "eval_episodes": 1, "seeds": 1}
    own = Cell({"algorithm": named, "task": "env:Pendulum-v1", "out": "runs", **keys})
    assert stored_seeds([own], "study") == {own.id: {0}}


def test_help_reads_its_comments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "algorithm=methods/mine.py", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "algorithm.lr=0.001 how fast it learns (a number, at least 0)" in told


def test_a_file_that_changed_is_read_again(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rate in ("0.1", "0.2"):
        (folder / "methods" / "mine.py").write_text(OWN.replace("1e-3", rate))
        main(["train", "algorithm=methods/mine.py", "--help"])
        assert f"algorithm.lr={rate} " in capsys.readouterr().out


CHILD = """
from dataclasses import dataclass

from offline_rl.algorithms import iql


@dataclass(frozen=True)
class Config(iql.Config):
    expectile: float = 0.8


class Mine(iql.IQL):
    Config = Config
"""


IMPORTS = """from offline_rl.algorithms import iql
from offline_rl.algorithms.common.config import BaseConfig"""


def test_a_subclass_uses_its_parents_table_except_for_redefined_fields(folder: Path) -> None:
    """IQL's row for AntMaze: expectile 0.9, beta 10, rewards minus 1."""
    (folder / "child.py").write_text(CHILD)
    cfg, pattern = algorithm_config("child.py", "antmaze-umaze-v2", {})
    assert pattern == "antmaze-*"
    assert (cfg.expectile, cfg.beta, cfg.reward_shift) == (0.8, 10.0, -1.0)
    assert algorithm_config("child.py", "antmaze-umaze-v2", {"beta": 2.0})[0].beta == 2.0
    online = interaction("child.py", "pen-human-v1", cfg, {})
    assert (online.cfg.expectile, online.cfg.beta) == (0.8, 3.0)
    assert "bf16" in algorithm_yaml("child.py")["parity"]


def test_table_values_without_a_field_are_skipped(folder: Path) -> None:
    """The Config does not derive from IQL's, whose row has expectile, beta and reward_shift."""
    own = CHILD.replace("class Config(iql.Config)", "class Config(BaseConfig)")
    own += "\nConfig.discount = 0.99\n"
    own = own.replace("from offline_rl.algorithms import iql", IMPORTS)
    (folder / "child.py").write_text(own)
    cfg, pattern = algorithm_config("child.py", "antmaze-umaze-v2", {})
    assert pattern == "antmaze-*"
    assert cfg.expectile == 0.8
    assert not hasattr(cfg, "beta")


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        ("iql", "; settings of row neorl2/* of configs/algorithm/iql.yaml"),
        ("child.py", "; settings of row neorl2/* of configs/algorithm/iql.yaml"),
        ("awac", "; default settings (configs/algorithm/awac.yaml has no row for this task)"),
        ("methods/mine.py", "; default settings"),
    ],
)
def test_the_headline_says_which_row_of_which_table_is_used(
    algorithm: str, said: str, folder: Path
) -> None:
    (folder / "child.py").write_text(CHILD)
    data = str(save_small(folder / "small.npz"))
    keys = {"algorithm": algorithm, "task": "neorl2/DMSD", "dataset": data, "num_updates": 20}
    assert said in headline(prepare(keys))


TWO = OWN + "\n\nclass Other(Mine):\n    pass\n"
HEAD = OWN.replace("@dataclass", "class Head(DeterministicActor):\n    pass\n\n\n@dataclass")
HEAD = HEAD.replace("DeterministicActor(obs", "Head(obs")


@pytest.mark.parametrize(
    ("algorithm", "text", "words"),
    [
        ("nowhere.py", "", ["nowhere.py", "No such file"]),
        ("own.py", "x = 1\n", ["own.py defines no algorithm"]),
        ("own.py", TWO, ["own.py defines Mine and Other", "own.py:Other"]),
        ("own.py:Othre", TWO, ["'Othre'", "Other"]),
        ("own.py", "def f(:\n", ["own.py", "SyntaxError", "line 1"]),
        ("own.py", "x = 1\n1 / 0\n", ["own.py, line 2: ZeroDivisionError"]),
        ("own.py", OWN.replace("    Config = Config\n", ""), ["Mine has no Config"]),
        ("own.py", OWN.replace("    discount: ClassVar[float] = 1.0\n", ""), ["no discount"]),
        ("own.py", HEAD, ["is a Head, which cannot be saved", "DeterministicActor"]),
        ("no_such_module:Mine", "", ["no_such_module"]),
    ],
)
def test_an_error_in_the_file_is_reported_in_one_line(
    algorithm: str, text: str, words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text:
        (folder / "own.py").write_text(text)
    assert train(algorithm) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert all(word in err for word in words), err
    assert not (folder / "runs").exists()


def test_a_file_with_two_algorithms_trains_either(folder: Path) -> None:
    (folder / "own.py").write_text(TWO)
    assert train("own.py:Other") == 0
    assert (folder / "runs" / "env_Pendulum-v1" / "Other").is_dir()


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize("decision", ["if pi.mean() > 0:", "if float(pi.mean()) > 0:"])
def test_a_branch_on_a_tensor_is_reported_with_the_remedy(
    seeds: int, decision: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    branch = (
        f"pi = policy(batch.observations)\n            {decision} pi = -pi\n            return (pi"
    )
    text = OWN.replace("return (policy(batch.observations)", branch)
    (folder / "methods" / "branching.py").write_text(text)
    number = 1 + next(k for k, line in enumerate(text.splitlines()) if decision in line)
    assert train("methods/branching.py", f"seeds={seeds}") == 2
    said = capsys.readouterr().err
    assert f"branching.py, line {number}: a tensor's value" in said
    assert "torch.where(condition, a, b)" in said
    assert said.count("\n") == 1


def test_a_run_belongs_to_one_version_of_its_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A changed file is another run; another path to the same file is not."""
    assert train("methods/mine.py") == 0
    run = folder / "runs" / "env_Pendulum-v1" / "mine" / "default"
    capsys.readouterr()
    assert train(str(folder / "methods" / "mine.py")) == 0
    assert "already finished" in capsys.readouterr().out
    assert train(str(folder / "methods" / "mine.py"), "seeds=2") == 0
    assert main(["report", "runs"]) == 0
    assert compact.pack(["runs"], "study") == 2
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert offline_rl.load(run).act(np.zeros(3, np.float32)).shape == (1,)
    start, config = start_of(run)
    assert start.algorithm == config["algorithm"] == str(folder / "methods" / "mine.py")
    monkeypatch.chdir(folder)
    (folder / "methods" / "mine.py").write_text(OWN + "\n# and more\n")
    assert train("methods/mine.py") == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "was started with other code in its algorithm's file. Give the new run another" in told
    assert train("methods/mine.py", "name=more") == 0


def test_a_missing_package_is_reported_with_the_remedy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert train("nowhere:Mine") == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "No module named 'nowhere'. Install the package, or use a file: algorithm=" in told
