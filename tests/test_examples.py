"""The examples run without errors."""

import json
import runpy
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import envs
from offline_rl.cli.main import main
from offline_rl.online.composed import base_of
from real_robot.robot import Command

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(name: str, *arguments: str) -> None:
    """Run `python examples/<name>` in this process."""
    sys.argv = [str(EXAMPLES / name), *arguments]
    runpy.run_path(sys.argv[0], run_name="__main__")


@pytest.fixture(autouse=True)
def run_in_a_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)


@pytest.mark.slow
def test_a_residual_policy_is_learned_for_a_pytorch_module(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("own_base.py", "300")
    assert "mean return with the residual" in capsys.readouterr().out
    (bundle,) = tmp_path.glob("runs/*/*/*/seed_0/policy.bundle")
    assert bundle.stat().st_size


def test_an_act_policy_of_lerobot_is_a_base_policy(tmp_path: Path) -> None:
    """The policy has random weights and is written by LeRobot."""
    pytest.importorskip("lerobot", reason="LeRobot is not installed: it needs an older torch")
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors

    state, env = (PolicyFeature(kind, (3,)) for kind in (FeatureType.STATE, FeatureType.ENV))
    action = PolicyFeature(FeatureType.ACTION, (1,))
    inputs = {"observation.state": state, "observation.environment_state": env}
    small = {"chunk_size": 6, "n_action_steps": 4, "dim_model": 16, "n_heads": 2}
    small |= {"pretrained_backbone_weights": None}
    cfg = ACTConfig(input_features=inputs, output_features={"action": action}, **small)
    policy = ACTPolicy(cfg).eval()
    policy.save_pretrained(tmp_path / "act")
    stats = {"observation.state": {"mean": torch.full((3,), 0.5), "std": torch.full((3,), 2.0)}}
    stats |= {"action": {"mean": torch.tensor([0.25]), "std": torch.tensor([0.5])}}
    for pipeline in make_pre_post_processors(cfg, dataset_stats=stats):
        pipeline.save_pretrained(tmp_path / "act")
    base = base_of(f"{EXAMPLES / 'own_base.py'}:LeRobotAct", envs.make_vector("env:Pendulum-v1", 2))
    episodes = base.new_episodes()
    episodes.reset(np.arange(2))
    observed = base.observe(episodes, np.zeros((2, 3), np.float32), np.arange(2))
    normalized = dict(zip(inputs, (torch.full((2, 3), -0.25), torch.zeros(2, 3)), strict=True))
    with torch.no_grad():
        expected = 0.25 + 0.5 * policy.predict_action_chunk(normalized)[:, 0]
    assert np.abs(observed["base_action"] - expected.numpy() / 2).max() < 1e-6


@pytest.mark.slow
def test_a_policy_trained_on_own_arrays_is_better_than_the_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run("train_on_own_arrays.py")
    log, policy = (float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()[-3:-1])
    assert policy > log + 50


@pytest.mark.slow
def test_a_policy_is_trained_in_an_own_environment(capsys: pytest.CaptureFixture[str]) -> None:
    run("own_environment.py")
    lines = capsys.readouterr().out.splitlines()
    assert float(lines[-2].split()[-1]) > -3  # going straight to the middle: about -2


@pytest.mark.slow
def test_an_own_algorithm_is_trained(capsys: pytest.CaptureFixture[str]) -> None:
    run("own_algorithm.py", "300")
    assert "score of the policy" in capsys.readouterr().out


def test_an_own_robot_passes_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = f"port={tmp_path / 'robot.npy'}"
    assert main(["robot", "check", f"robot={EXAMPLES / 'own_robot.yaml'}", port]) == 0
    assert "own_robot passed the check" in capsys.readouterr().out
    monkeypatch.syspath_prepend(str(EXAMPLES))
    arm = import_module("own_robot").Arm(SimpleNamespace(spec=SimpleNamespace(joints=("a", "b"))))
    arm.path = tmp_path / "other.npy"
    arm.connect()
    assert (arm.arm().q == 0).all()
    arm.command(Command(1, 0, np.array([0.1, 0.2])))
    np.testing.assert_array_equal(arm.read().q, [0.1, 0.2])
    arm.disarm()
    assert not arm.read().status.any()


@pytest.mark.slow
def test_the_notebook_runs(capsys: pytest.CaptureFixture[str]) -> None:
    cells = json.loads((EXAMPLES / "first_policy.ipynb").read_text())["cells"]
    assert not any(cell.get("outputs") for cell in cells)  # stored without outputs
    namespace: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "cell", "exec"), namespace)
    assert capsys.readouterr().out.splitlines()[-1].startswith("return ")
