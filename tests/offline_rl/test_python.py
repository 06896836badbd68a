"""The Python interface: tab completion, trained runs, and printed results."""

import inspect
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from printed import evaluate
from safetensors.torch import load_file
from small_data import save_small

import offline_rl
import policies
from offline_rl import Dataset, Result, UserError
from offline_rl.data.writers.minari import write_minari
from offline_rl.runs.folder import SeedFolder
from offline_rl.runs.options import TrainOptions

KEYS: dict[str, Any] = {"algorithm": "td3_bc", "task": "neorl2/DMSD", "num_updates": 20}
KEYS |= {"compile": "never", "tracker": "none", "algorithm__hidden": [8, 8], "eval_episodes": 2}
KEYS |= {"show": False, "precision": "fp32", "device": "cpu", "seeds": 2}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("python")
    data = save_small(folder / "small.npz")
    return offline_rl.train(**KEYS, dataset=str(data), out=str(folder / "runs"))


def test_public_names_and_their_options_can_be_completed() -> None:
    assert {"train", "finetune", "load", "Dataset"} <= set(dir(offline_rl))
    assert {"distill", "evaluate", "export", "report"} <= set(dir(offline_rl))
    for verb in (offline_rl.evaluate, offline_rl.export):
        assert "run" in inspect.signature(verb).parameters
    assert all(hasattr(offline_rl, name) for name in dir(offline_rl))
    parameters = inspect.signature(offline_rl.train).parameters
    assert {f.name for f in fields(TrainOptions)} <= parameters.keys()
    assert parameters["num_updates"].default == 1_000_000
    assert parameters["num_updates"].annotation is int
    assert parameters["algorithm"].default is inspect.Parameter.empty
    assert {"run", "num_env_steps", "eval_every"} <= inspect.signature(
        offline_rl.finetune
    ).parameters.keys()


def test_a_run_acts_as_its_bundle_does(result: Result) -> None:
    observations = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    for seed in (0, 1):
        run = offline_rl.load(result.path, seed=seed)
        bundle = policies.load(result.path / f"seed_{seed}" / "policy.bundle")
        np.testing.assert_array_equal(run.act(observations), bundle.act(observations)[0][:, 0])
        np.testing.assert_array_equal(run.act(observations[0]), run.act(observations)[0])
        tensor = torch.tensor(observations, requires_grad=True)
        np.testing.assert_array_equal(bundle.act(tensor)[0], bundle.act(observations)[0])
        np.testing.assert_array_equal(run.act(tensor), run.act(observations))
        text = "<DeterministicActor of td3_bc on neorl2/DMSD: observation [6] -> 2 actions>"
        assert repr(bundle) == text
    assert offline_rl.load(result.path / "seed_1").path == run.path


def test_a_result_can_be_passed_as_a_run(result: Result, tmp_path: Path) -> None:
    assert offline_rl.load(result).path == result.path / "seed_0"
    assert offline_rl.load(result, seed=1).path == result.path / "seed_1"
    evaluation = offline_rl.evaluate(run=result, episodes=2)
    bundles = [result.path / f"seed_{seed}" / "policy.bundle" for seed in (0, 1)]
    assert [*evaluation.returns] == bundles
    assert evaluation.returns[bundles[1]].shape == (2,)
    report = offline_rl.report(result, out=str(tmp_path))
    assert report.files == [tmp_path / "curves.png", tmp_path / "report.md"]
    row = report.rows[0]
    assert (row["task"], row["algorithm"], row["seeds"]) == ("neorl2/DMSD", "td3_bc", 2)
    assert row["score"] == pytest.approx(np.mean(result.scores))
    assert "Evaluated after training" in str(report)


def test_a_policy_is_loaded_from_a_seeds_folder_and_not_from_a_runs(result: Result) -> None:
    policy = policies.load(result.path / "seed_1" / "policy.bundle")
    assert policies.load(result.path / "seed_1").bundle.provenance == policy.bundle.provenance
    with pytest.raises(
        policies.BundleError, match=r"is the folder of a run\. Load seed_0/policy\.bundle or "
    ):
        policies.load(result.path)
    with pytest.raises(policies.BundleError, match=r"is a folder without a policy\.bundle"):
        policies.load(result.path.parent)


def test_a_folder_of_several_runs_is_refused_and_the_runs_are_named(result: Result) -> None:
    with pytest.raises(UserError, match=r"It holds several runs\. Give one of default"):
        offline_rl.load(result.path.parent)


@pytest.mark.parametrize("function", ["train", "evaluate"])
def test_an_environment_as_task_is_refused_with_the_remedy(function: str, result: Result) -> None:
    env = gymnasium.make("Pendulum-v1")
    keys = {"algorithm": "sac"} if function == "train" else {"run": result}
    remedy = r'envs.register\("mine", PendulumEnv, .* task="env:<file>.py:PendulumEnv"'
    with pytest.raises(UserError, match=remedy):
        getattr(offline_rl, function)(task=env, **keys)


def test_a_data_set_is_loaded_with_the_options_of_training(tmp_path: Path) -> None:
    data = Dataset.load(save_small(tmp_path / "small.npz"))
    assert (data.num_rows, data.num_episodes) == (300, 3)
    doubled = Dataset.load(tmp_path / "small.npz", action_scale=2.0)
    np.testing.assert_allclose(2 * doubled.actions, data.actions)
    with pytest.raises(UserError, match="unknown option 'action_scal'; did you mean action_scale"):
        Dataset.load(tmp_path / "small.npz", action_scal=2.0)


def test_q_values_match_the_critics_in_numpy(result: Result) -> None:
    """Two hidden ReLU layers take normalized observations and actions."""
    rng = np.random.default_rng(0)
    s = rng.normal(size=(4, 6)).astype(np.float32)
    a = rng.uniform(-1, 1, (4, 2)).astype(np.float32)
    run = offline_rl.load(result.path)
    files = SeedFolder(result.path, 0).checkpoints()
    stored = load_file(files[max(files)])
    assert {f"params/{n}/{k}" for n, names in run.parameters.items() for k in names} == {
        key for key in stored if key.startswith("params/")
    }
    critic = {name: x.numpy().astype(np.float64) for name, x in run.parameters["critic"].items()}
    layer = np.concatenate([run.transform.normalizer(s), a], 1)[None].astype(np.float64)
    for k in range(3):
        weights, biases = (critic[f"net.{part}.{k}"] for part in ("weights", "biases"))
        layer = layer @ weights + biases.reshape(2, 1, -1)
        layer = np.maximum(layer, 0) if k < 2 else layer
    np.testing.assert_allclose(run.q_values(s, a), layer[..., 0], rtol=1e-4, atol=1e-5)
    assert run.q_values(s, a).shape == (2, 4)
    np.testing.assert_allclose(run.q_values(s[1], a[1]), run.q_values(s, a)[:, 1], rtol=1e-5)
    with pytest.raises(ValueError, match=r"expected \[B, 6\] and \[B, 2\]"):
        run.q_values(s, a[:, :1])


def test_a_run_plays_the_same_episodes_as_the_command(result: Result) -> None:
    run = offline_rl.load(result.path)
    text = evaluate(run=str(result.path / "seed_0"), episodes=2)
    returns = run.evaluate(2).returns
    assert f"{returns.mean():.1f}" in text.replace(",", "")
    assert run.evaluate(2, task="neorl2/DMSD").seeds.tolist() == [10**9, 10**9 + 1]


def test_missing_runs_seeds_and_critics_are_reported(result: Result, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no seed 7, only"):
        offline_rl.load(result.path, seed=7)
    with pytest.raises(UserError, match="holds no seeds"):
        offline_rl.load(tmp_path)
    file = save_small(tmp_path / "small.npz")
    with pytest.raises(UserError, match=r"small\.npz is a file.*offline_rl\.Dataset\.load$"):
        offline_rl.load(file)
    with pytest.raises(UserError, match=r"bundle is a policy bundle\. Load it with policies\.load"):
        offline_rl.load(result.path / "seed_0" / "policy.bundle")
    chunks = offline_rl.load(result.path)
    chunks.algorithm.acting_head().n_action_steps = 2  # like a critic of action chunks
    with pytest.raises(UserError, match="takes observation histories and action chunks"):
        chunks.q_values(np.zeros((1, 6)), np.zeros((1, 2)))
    data = Dataset.from_arrays(
        np.random.default_rng(0).normal(size=(9, 2)), np.zeros((9, 1)), np.ones(9), np.arange(9) > 7
    )
    keys = {**KEYS, "algorithm": "bc", "task": "none", "dataset": data, "seeds": 1}
    run = offline_rl.load(offline_rl.train(**keys, out=str(tmp_path)).path)
    with pytest.raises(UserError, match="bc learns no Q function"):
        run.q_values(np.zeros((1, 2)), np.zeros((1, 1)))
    assert repr(run).startswith("<bc on none after 20 updates: ")


def test_a_result_is_a_table(result: Result) -> None:
    lines = str(result).splitlines()
    assert lines[0].split()[:3] == ["run", "seed", "score"]
    assert [line.split()[:2] for line in lines[2:4]] == [
        ["neorl2/DMSD/td3_bc/default", "0"],
        ["neorl2/DMSD/td3_bc/default", "1"],
    ]
    assert lines[-1] == str(result.path)
    assert repr(result) == str(result)


def test_a_data_set_has_a_length_and_a_short_name(tmp_path: Path) -> None:
    data = Dataset.from_arrays(
        np.arange(12.0).reshape(6, 2),
        np.zeros((6, 1)),
        np.arange(6.0),
        np.arange(6) % 3 == 2,
        final_observations=np.zeros((2, 2)),
        name="mine",
    )
    assert len(data) == 6
    assert repr(data) == "<Dataset mine: 6 rows, 2 episodes, observations (2,), actions (1,)>"


def test_minaris_data_sets_are_loaded_by_id_or_as_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Dataset.from_arrays(
        np.arange(12.0).reshape(6, 2),
        np.zeros((6, 1)),
        np.arange(6.0),
        np.arange(6) % 3 == 2,
        final_observations=np.zeros((2, 2)),
    )
    write_minari(data, tmp_path / "mine" / "line-v0")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    assert len(Dataset.from_minari("mine/line-v0")) == 6
    storage = SimpleNamespace(data_path=tmp_path / "mine" / "line-v0" / "data")
    filtered = SimpleNamespace(storage=storage, episode_indices=np.array([1]))
    assert Dataset.from_minari(filtered).rewards.tolist() == [3, 4, 5]
