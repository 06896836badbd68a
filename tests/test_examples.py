"""The examples run without errors."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import envs
from offline_rl.online.composed import base_of

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(name: str, *arguments: str) -> None:
    """Run `python examples/<name>` in this process."""
    sys.argv = [str(EXAMPLES / name), *arguments]
    runpy.run_path(sys.argv[0], run_name="__main__")


@pytest.fixture(autouse=True)
def run_in_a_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)


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
