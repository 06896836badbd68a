"""The bundles of the zoo are those of its index and page, and score what the index says."""

import hashlib
import json
import math
import shlex
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import envs
import offline_rl
import policies
from offline_rl.cli.compose import compose
from offline_rl.cli.main import main
from offline_rl.utils.options import parse_options
from policies import BundleError
from policies.runtimes import hub

ROOT = Path(__file__).resolve().parents[1]
ZOO: dict[str, dict[str, Any]] = yaml.safe_load((hub.ZOO / "zoo.yaml").read_text())["bundles"]
PAGE = (ROOT / "docs/guides/zoo.md").read_text()
MAX_BYTES = 10_000_000  # of all bundles together
FEW = 4  # episodes of the quick test
CAREFUL = 4.0  # standard errors by which a score may differ on another machine
TASKS = sorted({entry["task"] for entry in ZOO.values()})


def manifest(name: str) -> dict[str, Any]:
    """Return the manifest of a bundle, read without this package."""
    with zipfile.ZipFile(hub.ZOO / f"{name}.bundle") as archive:
        return json.loads(archive.read("manifest.json"))


def formatted(values: list[float] | None) -> str:
    """Return a mean and its standard error as the page shows them."""
    return "" if values is None else f"{values[0]:.1f} ± {values[1]:.1f}"


def test_the_index_has_six_bundles_with_their_hashes_and_sizes() -> None:
    files = {file.stem: file.read_bytes() for file in hub.ZOO.glob("*.bundle")}
    assert {"locomotion", "maze", "push", "fetch", "arm", "one-step"} == files.keys() == ZOO.keys()
    for name, content in files.items():
        assert ZOO[name]["sha256"] == hashlib.sha256(content).hexdigest(), name
        assert ZOO[name]["size_bytes"] == len(content), name
        card = envs.task(ZOO[name]["task"]).card
        assert ZOO[name]["license"] == ("Apache-2.0" if card is None else card.license), name
    assert sum(map(len, files.values())) <= MAX_BYTES


@pytest.mark.parametrize("name", ZOO)
def test_a_bundle_was_made_by_the_last_command_of_its_entry(name: str) -> None:
    """The bundle itself states how it was trained. A distilled policy has its teacher's task."""
    *before, last = (shlex.split(line) for line in ZOO[name]["commands"])
    assert all(words[0] == "offline-rl" for words in (*before, last))
    (job,) = compose((last if last[1] == "train" else before[-1])[2:]).jobs
    keys = job if last[1] == "train" else job | parse_options(last[2:])
    stated, entry = manifest(name)["provenance"], ZOO[name]
    for key in ("algorithm", "task"):
        assert stated[key] == keys[key] == entry[key]
    assert stated["num_updates"] == keys["num_updates"]
    assert stated["seed"] == 0
    assert len(stated["commit"]) == 40
    assert stated["dataset"] == Path(stated["dataset"]).name  # no path of a machine
    suite, _, data = entry["task"].partition("/")
    for card in (f"generated/{suite}-{data}.json", f"embedded/{data}.json"):
        if (file := ROOT / "datasets" / card).is_file():
            assert stated["dataset_sha256"] == json.loads(file.read_text())["sha256"]


def test_the_page_shows_the_index() -> None:
    for name, entry in ZOO.items():
        kilobytes = f"{entry['size_bytes'] / 1e3:,.0f} kB"
        cells = [f"`{name}`", f"`{entry['task']}`", f"`{entry['algorithm']}`"]
        cells += [formatted(entry["score"]), formatted(entry["success"])]
        cells += [str(entry["episodes"]), kilobytes]
        row = "| " + " | ".join(cells) + " |"
        assert row.replace("  ", " ") in PAGE.replace("  ", " "), row
        for command in entry["commands"]:
            assert command in PAGE.replace(" \\\n    ", " "), command


def check_scores(task: str, episodes: int | None, folder: Path) -> None:
    """Evaluate the bundles of a task and compare their scores with the index.

    episodes: None for as many as in the index. folder: receives copies of the bundles, because an
    evaluation is saved next to its bundle.
    """
    if task.startswith("fetch/"):
        pytest.importorskip("gymnasium_robotics", reason="needs the extra robotics")
    names = [name for name, entry in ZOO.items() if entry["task"] == task]
    copies = {name: shutil.copy(path_of(name), folder) for name in names}
    count = episodes or max(ZOO[name]["episodes"] for name in names)
    result = offline_rl.evaluate(run=list(copies.values()), task=task, episodes=count)
    for name, copy in copies.items():
        entry, path = ZOO[name], Path(copy)
        if entry["score"] is not None:
            mean, error = entry["score"]
            spread = error * math.sqrt(1 + entry["episodes"] / count)
            assert abs(result.scores[path].mean() - mean) <= CAREFUL * spread, name
        if entry["success"] is not None:
            check_rate(entry["success"][0] / 100, entry["episodes"], result.episodes[path].success)


def check_rate(rate: float, episodes: int, success: np.ndarray | None) -> None:
    """Check that a success rate and new episodes are of one policy, by a test of two proportions.

    One success and one failure are added to both, so that rates of 0 and 1 have an error too.
    """
    assert success is not None
    total = episodes + len(success) + 4
    pooled = (rate * episodes + success.sum() + 2) / total
    error = math.sqrt(pooled * (1 - pooled) * (1 / episodes + 1 / len(success)))
    assert abs(success.mean() - rate) <= 3 * error


def path_of(name: str) -> Path:
    """Return the file of zoo:<name>."""
    return Path(hub.local_path(f"zoo:{name}"))


@pytest.mark.parametrize("task", TASKS)
def test_a_few_episodes_agree_with_the_index(task: str, tmp_path: Path) -> None:
    check_scores(task, FEW, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_scores_are_those_of_the_index(task: str, tmp_path: Path) -> None:
    check_scores(task, None, tmp_path)


def test_other_success_rates_are_noticed() -> None:
    check_rate(1.0, 100, np.ones(FEW, bool))
    check_rate(0.9, 100, np.array([True, True, True, False]))
    for success in (np.zeros(FEW, bool), np.arange(100) < 80):
        with pytest.raises(AssertionError):
            check_rate(1.0, 100, success)


@pytest.mark.parametrize("name", ZOO)
def test_a_bundle_plays_without_torch(name: str) -> None:
    """The numpy runtime reproduces the recorded output of the torch policy while it loads."""
    policy = policies.load(f"zoo:{name}", runtime="numpy")
    player = policies.Player(policy)
    player.reset(seed=0)
    action = player.step(np.zeros(policy.spec.single_vector.shape, np.float32))
    assert action.shape == (policy.spec.action_dim,)
    assert (abs(action) <= 1).all()


def test_the_arms_bundle_moves_the_joints_of_the_robot() -> None:
    """`robot check` compares these facts of the bundle with the robot's file."""
    robot = yaml.safe_load((ROOT / "configs/robot/desk.yaml").read_text())
    spec = policies.load("zoo:arm", runtime="numpy").spec
    assert spec.action_names == tuple(robot["joints"])
    assert set(spec.action_units) == {"rad"}
    assert spec.rate_hz is not None
    assert robot["rate_hz"] % spec.rate_hz == 0


def test_a_name_that_the_zoo_lacks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("cat", "../zoo/arm"):
        with pytest.raises(BundleError, match=r"does not exist\. The zoo has arm, fetch"):
            policies.load(f"zoo:{name}")
    assert main(["evaluate", "run=zoo:cat"]) == 2
    assert capsys.readouterr().err.count("zoo:cat does not exist. The zoo has") == 1
    monkeypatch.setattr(hub, "ZOO", tmp_path / "zoo")
    with pytest.raises(BundleError, match=r"an installed package does not have it\. Clone"):
        policies.load("zoo:arm")
