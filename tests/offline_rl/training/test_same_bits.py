"""Equal bits of repeated commands, independent of timing and of the compile cache."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from small_data import save_small

import policies
from offline_rl.engine.choices import choose_precision
from offline_rl.runs.folder import Done, SeedFolder
from offline_rl.trained import load
from offline_rl.training.assemble import load_choices
from offline_rl.training.train import train
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_json

LAUNCH = "from offline_rl.cli.main import main; raise SystemExit(main())"


def parameters(folder: Path) -> dict[str, Any]:
    """Return the tensors of the newest checkpoint."""
    (path,) = folder.glob("runs/*/*/*/seed_0/checkpoints/*")
    return load_file(path)


def assert_same_bits(one: Path, other: Path) -> None:
    one_of, other_of = parameters(one), parameters(other)
    assert one_of.keys() == other_of.keys()
    for name, value in one_of.items():
        assert value.equal(other_of[name]), name


@pytest.fixture
def threads() -> Iterator[None]:
    """Restore the number of threads of torch."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_two_runs_of_one_call_are_bitwise_equal(
    threads: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier work of the process has no influence. The machine reports two cores."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(hardware, "num_cores", lambda: 2)
    data = save_small(tmp_path / "small.npz")
    for place, left in (("one", 1), ("other", 3)):
        torch.set_num_threads(left)
        options = {"algorithm": "td3_bc", "task": "none", "dataset": str(data), "num_updates": 20}
        out = {"out": str(tmp_path / place / "runs"), "tracker": "none", "show": False}
        (seed,) = train(**options, **out).path.glob("seed_*")
        choices = read_json(seed / "environment.json")["choices"]
        assert (choices["compile"], choices["threads"]) == (False, 2)
        assert "20 updates do not repay" in choices["why"]
    assert_same_bits(tmp_path / "one", tmp_path / "other")


def test_a_resumed_run_keeps_its_precision_compilation_and_threads(
    threads: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is started with one core and resumed with two."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    keys = {"algorithm": "td3_bc", "task": "none", "num_updates": 20, "checkpoint_every": 10}
    keys |= {"dataset": str(save_small(tmp_path / "small.npz")), "tracker": "none", "show": False}
    for cores in (1, 2):
        monkeypatch.setattr(hardware, "num_cores", lambda cores=cores: cores)
        (seed,) = train(**keys, out=str(tmp_path / "runs")).path.glob("seed_*")
        middle, end = sorted((seed / "checkpoints").iterdir())
        with safe_open(end, "pt") as file:
            choices = json.loads(file.metadata()["progress"])["choices"]
        assert choices["threads"] == torch.get_num_threads() == 1
        end.unlink()
        (seed / "result.json").unlink()
    assert middle.is_file()


def test_a_compiled_run_needs_a_compiler_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, done = SeedFolder(tmp_path, 0), Done(updates=2)
    progress = {"choices": {"precision": "fp32", "compile": True, "threads": 1}}
    folder.save(done, {"update": torch.tensor(2)}, progress)
    monkeypatch.setattr(hardware, "missing_compiler", lambda: None)
    assert load_choices(folder, done).compile
    monkeypatch.setattr(hardware, "missing_compiler", lambda: "no C++ compiler is installed")
    with pytest.raises(
        UserError, match=r"seed_0 was started with compilation, but no C\+\+ compiler"
    ):
        load_choices(folder, done)


@pytest.mark.parametrize(("flags", "expected"), [({"amx_bf16"}, "bf16"), ({"avx2"}, "fp32")])
def test_matrix_products_are_bf16_if_the_cpu_supports_it(
    flags: set[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bf16 also needs a committed result without loss of score: IQL has one, AWAC has none."""
    monkeypatch.setattr(hardware, "cpu_flags", lambda: frozenset(flags))
    cpu = torch.device("cpu")
    assert choose_precision("auto", "iql", cpu) == expected
    assert choose_precision("auto", "awac", cpu) == "fp32"
    assert choose_precision("fp32", "iql", cpu) == "fp32"


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((9, 0), ("bf16", "tf32", "fp32", "fp32")), ((7, 5), ("fp32", "fp32", "fp32", "fp32"))],
)
def test_matrix_products_on_a_gpu_are_bf16_or_tf32_if_it_supports_them(
    capability: tuple[int, int], expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ampere GPUs (8.0) are the first with either. Solvers and likelihoods need float32."""
    monkeypatch.setattr(hardware, "has_bf16", lambda _: capability >= (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    names, gpu = ("iql", "awac", "dppo", "mopo"), torch.device("cuda")
    assert tuple(choose_precision("auto", name, gpu) for name in names) == expected
    assert choose_precision("auto", "awac", torch.device("cpu")) == "fp32"


def float64_on_another_device() -> AbstractContextManager[object]:
    torch.set_default_dtype(torch.float64)
    return torch.device("meta")


def half_precision() -> AbstractContextManager[object]:
    torch.set_default_dtype(torch.bfloat16)
    torch.set_float32_matmul_precision("medium")
    return torch.autocast("cpu", torch.bfloat16)


@pytest.fixture
def torch_settings() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")


def test_torch_settings_of_the_caller_do_not_change_results_and_are_restored(
    threads: None, torch_settings: None, tmp_path: Path
) -> None:
    """Parameters, actions of the policy and values of its critics are equal."""
    seen, acted = np.ones((1, 6), np.float32), np.ones((1, 2), np.float32)
    keys: dict[str, Any] = {"algorithm": "td3_bc", "task": "none", "num_updates": 4, "show": False}
    keys |= {"algorithm.hidden": [16], "batch_size": 8, "precision": "fp32", "tracker": "none"}
    keys |= {"dataset": str(save_small(tmp_path / "small.npz")), "device": "cpu"}

    def answers(place: str) -> list[np.ndarray]:
        run = train(**keys, out=str(tmp_path / place / "runs")).path
        policy = policies.load(run / "seed_0" / "policy.bundle", runtime="torch")
        return [policy.act(seen)[0], load(run).act(seen), load(run).q_values(seen, acted)]

    def settings() -> list[object]:
        now: list[object] = [torch.get_default_dtype(), torch.get_default_device()]
        return [*now, torch.get_float32_matmul_precision(), torch.is_autocast_enabled("cpu")]

    expected = answers("plain")
    for change in (float64_on_another_device, half_precision):
        with change():
            before = settings()
            found = answers(change.__name__)
            assert settings() == before
        assert_same_bits(tmp_path / "plain", tmp_path / change.__name__)
        for own, right in zip(found, expected, strict=True):
            assert own.dtype == np.float32
            assert np.array_equal(own, right)


def test_training_restores_the_callers_denormal_setting(threads: None, tmp_path: Path) -> None:
    torch.set_flush_denormal(False)
    tiny = torch.tensor([1e-39])
    keys: dict[str, Any] = {"algorithm": "bc", "task": "none", "num_updates": 1, "show": False}
    keys |= {"dataset": str(save_small(tmp_path / "small.npz")), "tracker": "none"}
    train(**keys, out=str(tmp_path / "runs"))
    assert (tiny * 1).item() > 0


@pytest.mark.slow
def test_cold_and_warm_compile_caches_give_equal_bits(tmp_path: Path) -> None:
    data = save_small(tmp_path / "small.npz")
    command = [sys.executable, "-c", LAUNCH, "train", "algorithm=td3_bc", "task=none"]
    command += [f"dataset={data}", "num_updates=200", "compile=always", "tracker=none"]
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    env.pop("OMP_NUM_THREADS", None)
    for place in ("cold", "warm"):
        (tmp_path / place).mkdir()
        subprocess.run(command, cwd=tmp_path / place, env=env, check=True)
    assert_same_bits(tmp_path / "cold", tmp_path / "warm")
