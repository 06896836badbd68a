"""The built package, installed elsewhere and run outside the clone."""

import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from small_data import save_small

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.xdist_group("wheel")  # built and installed once
QUICK = [
    "num_updates=20",
    "eval_episodes=1",
    "compile=never",
    "tracker=none",
    "algorithm.hidden=[8]",
]
# `pip install --target` writes no scripts
START = "from offline_rl.cli.main import main; raise SystemExit(main())"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the installed wheel, built from the source distribution."""
    pytest.importorskip("build", reason="building needs the dev extra")
    pytest.importorskip("hatchling", reason="building needs the dev extra")
    made, target = tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("installed")
    run_python(["-m", "build", "--no-isolation", "--outdir", str(made), str(ROOT)], made)
    (wheel,) = made.glob("*.whl")
    run_python(
        ["-m", "pip", "install", "-qq", "--no-deps", "--target", str(target), str(wheel)], made
    )
    return target


@pytest.fixture
def elsewhere(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working folder outside the clone, in which Python finds the installed packages first."""
    monkeypatch.setenv("PYTHONPATH", str(installed))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("OFFLINE_RL_DATA", raising=False)
    return tmp_path


def run_python(arguments: list[str], folder: Path) -> str:
    """Run Python with `arguments` in `folder` and return its output."""
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def offline_rl(arguments: list[str], folder: Path) -> str:
    """Run the console script's entry point and return its output."""
    return run_python(["-c", START, *arguments], folder)


def test_everything_comes_from_the_wheel(installed: Path, elsewhere: Path) -> None:
    code = (
        "import offline_rl, policies, envs, real_robot, envs.paths, offline_rl.utils.paths\n"
        "for m in (offline_rl, policies, envs, real_robot): print(m.__file__)\n"
        "print(envs.paths.share('datasets'), offline_rl.utils.paths.share('configs'), sep='\\n')"
    )
    places = [Path(line) for line in run_python(["-c", code], elsewhere).splitlines()]
    for place in places:
        assert place.is_relative_to(installed)
    datasets, configs = places[-2:]
    for source, shipped in (("datasets", datasets), ("configs", configs)):
        files = [p.relative_to(ROOT / source) for p in (ROOT / source).rglob("*") if p.is_file()]
        for file in files:
            assert (shipped / file).is_file(), f"{source}/{file} is not in the wheel"
    for package in ("offline_rl", "policies", "envs", "real_robot"):
        assert (installed / package / "py.typed").is_file()
    assert not (installed / "tests").exists()
    published = "offline_rl/_share/benchmarks/published/neorl2.csv"
    assert (installed / published).is_file()  # shown in reports next to runs
    assert not (installed / "benchmarks").exists()


def test_the_command_line_starts(elsewhere: Path) -> None:
    page = offline_rl(["--help"], elsewhere)
    for verb in ("train", "evaluate", "report", "data", "generate"):
        assert verb in page
    assert "neorl2/DMSD" in offline_rl(["data", "list"], elsewhere)


def test_a_task_of_the_cards_is_trained(elsewhere: Path) -> None:
    file = save_small(elsewhere / "small.npz")
    task = ["algorithm=td3_bc", "task=neorl2/DMSD", f"dataset={file}"]
    folder = Path(offline_rl(["train", *task, *QUICK], elsewhere).splitlines()[-1])
    result = json.loads((elsewhere / folder / "seed_0" / "result.json").read_text())
    assert result["score"] is not None
    assert result["commit"] is None  # the working folder is outside a clone


def test_a_file_without_a_task_is_trained(elsewhere: Path) -> None:
    arrays = np.load(save_small(elsewhere / "small.npz"))
    words = {"observations": "obs", "actions": "action", "rewards": "reward", "terminals": "done"}
    with h5py.File(elsewhere / "own.hdf5", "w") as file:
        for key, name in {**words, "timeouts": "truncated"}.items():
            file[key] = arrays[name]
    data = ["algorithm=td3_bc", "task=none", "dataset=own.hdf5"]
    folder = Path(offline_rl(["train", *data, *QUICK], elsewhere).splitlines()[-1])
    assert (elsewhere / folder / "seed_0" / "policy.bundle").is_file()
