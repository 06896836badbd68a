"""Runs that only fit a dynamics model, and runs that load one."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from printed import report
from safetensors.torch import load_file
from small_data import save_small

from offline_rl import UserError, distill, finetune, train
from offline_rl.runs.folder import SeedFolder
from offline_rl.training.result import Result
from offline_rl.utils.files import read_json

KEYS: dict[str, Any] = {"algorithm": "mopo", "task": "none", "device": "cpu", "compile": "never"}
KEYS |= {"tracker": "none", "show": False, "precision": "fp32", "batch_size": 8}
KEYS |= {"algorithm.ends": "never", "algorithm.hidden": [8], "algorithm.actor_anneals": False}
KEYS |= {"algorithm.dynamics_hidden": [6], "algorithm.dynamics_decay": [0, 0], "num_updates": 0}
KEYS |= {"algorithm.members": 3, "algorithm.elites": 2, "algorithm.epoch_updates": 5}
KEYS |= {"algorithm.dynamics_epochs": 4, "algorithm.starts": 8, "algorithm.horizon": 2}
KEYS |= {"algorithm.outside_max": 1}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("dynamics")
    return KEYS | {"dataset": str(save_small(folder / "small.npz")), "out": str(folder / "runs")}


@pytest.fixture(scope="module")
def fitted(keys: dict[str, Any]) -> Result:
    return train(**keys, seeds=2, name="model")


def tensors(run: Path, seed: int, network: str = "") -> dict[str, np.ndarray]:
    """Return the parameters in the newest checkpoint of a seed."""
    files, start = SeedFolder(run, seed).checkpoints(), f"params/{network}"
    saved = load_file(files[max(files)])
    return {k: v.numpy() for k, v in saved.items() if k.startswith(start)}


def test_a_run_without_updates_fits_the_model_and_writes_no_policy(fitted: Result) -> None:
    for seed, result in enumerate(fitted.results):
        folder = SeedFolder(fitted.path, seed)
        assert folder.finished
        assert not folder.bundle.exists()
        assert folder.rows("evaluations") == []
        assert result["num_updates"] == 0
        assert result["pretrain_updates"] == 4 * (5 + 1) + 2
        saved = load_file(max(folder.checkpoints().values()))
        assert not [name for name in saved if name.startswith("rings/")]


def test_the_reported_errors_are_those_of_a_float64_forward_pass_on_the_holdout_rows(
    keys: dict[str, Any], fitted: Result
) -> None:
    """The holdout is the first fifth of a permutation that depends on the number of rows alone."""
    data = np.load(keys["dataset"])
    held = np.random.default_rng(300).permutation(300)[:60]
    s, a, s2 = (data[k][held].astype(np.float64) for k in ("obs", "action", "next_obs"))
    y = np.concatenate([s2 - s, data["reward"][held, None]], 1)
    for seed, result in enumerate(fitted.results):
        fit, p = result["dynamics"], tensors(fitted.path, seed, "best_dynamics/")
        net = {k.rpartition("best_dynamics/")[2]: v.astype(np.float64) for k, v in p.items()}
        x = (np.concatenate([s, a], 1) - net["input_mean"]) / net["input_std"]
        hidden = x @ net["net.weights.0"] + net["net.biases.0"].reshape(3, 1, -1)
        hidden = hidden / (1 + np.exp(-hidden))
        mean = hidden @ net["net.weights.1"] + net["net.biases.1"].reshape(3, 1, -1)
        errors = ((mean[..., :7] - y) ** 2).mean(1)  # [E, 7]
        elites = errors.mean(1).argsort()[:2]
        assert sorted(fit["elites"]) == sorted(elites)
        names = [f"observation[{k}]" for k in range(6)] + ["reward"]
        expected = dict(zip(names, errors[elites].mean(0), strict=True))
        assert fit["holdout_error"] == pytest.approx(expected, rel=1e-4)
        assert fit["variance"] == pytest.approx(dict(zip(names, y.var(0), strict=True)), rel=1e-4)
        assert (fit["training_rows"], fit["holdout_rows"]) == (240, 60)
        assert 1 <= fit["epochs"] <= 4
        assert fit["seconds"] > 0


def test_a_loaded_model_is_not_fitted_again(keys: dict[str, Any], fitted: Result) -> None:
    result = train(**keys | {"num_updates": 3}, seeds=2, name="first", dynamics=fitted.path)
    for seed in (0, 1):
        folder = SeedFolder(result.path, seed)
        assert folder.bundle.is_file()
        phases = [row["phase"] for row in folder.rows("metrics")]
        assert dict.fromkeys(phases) == {"select_dynamics": None, "update": None}
        for network in ("dynamics", "best_dynamics", "record"):
            old, new = (tensors(run.path, seed, f"{network}/") for run in (fitted, result))
            assert old.keys() == new.keys()
            assert all((old[k] == new[k]).all() for k in old)
        assert read_json(folder.config)["dynamics_sha256"].keys() == {str(seed)}
        loaded, own = result.results[seed]["dynamics"], fitted.results[seed]["dynamics"]
        assert loaded == own | {"seconds": None}
    assert "Dynamics models" in report([result.path])


@pytest.mark.slow
def test_the_number_of_updates_of_the_run_with_the_model_does_not_matter(
    keys: dict[str, Any], fitted: Result
) -> None:
    """A run that has loaded the model has the same model, and more updates."""
    keys = keys | {"num_updates": 3, "seeds": 2}
    first = train(**keys, name="one", dynamics=fitted.path)
    second = train(**keys, name="two", dynamics=first.path)
    for seed in (0, 1):
        old, new = (tensors(run.path, seed) for run in (first, second))
        assert all((old[k] == new[k]).all() for k in old)
        configs = [read_json(run.path / f"seed_{seed}" / "config.json") for run in (first, second)]
        assert configs[0]["dynamics_sha256"] == configs[1]["dynamics_sha256"]


@pytest.mark.slow
def test_a_resumed_run_has_the_model_in_its_own_checkpoints(
    keys: dict[str, Any], fitted: Result, tmp_path: Path
) -> None:
    """The folder of dynamics= is gone. A new run is then refused."""
    copy = tmp_path / "model"
    shutil.copytree(fitted.path, copy)
    keys = keys | {"out": str(tmp_path), "dynamics": str(copy)}
    train(**keys | {"num_updates": 2}, seeds=[1])
    shutil.rmtree(copy)
    resumed = train(**keys | {"num_updates": 4}, seeds=[1])
    assert resumed.results[0]["num_updates"] == 4
    with pytest.raises(UserError, match=r"dynamics=.*model does not exist\. Use the folder that"):
        train(**keys | {"num_updates": 4}, seeds=[0])
    with pytest.raises(UserError, match="was started with another dynamics model"):
        train(**keys | {"num_updates": 4, "dynamics": str(fitted.path / "seed_0")}, seeds=[1])


def test_a_run_without_a_policy_cannot_be_fine_tuned(fitted: Result) -> None:
    with pytest.raises(UserError, match=r"only fitted a dynamics .* pass the run as dynamics="):
        finetune(run=fitted.path, algorithm="sac", num_env_steps=10, task="env:Pendulum-v1")
    with pytest.raises(UserError, match=r"only fitted a dynamics .* pass the run as dynamics="):
        distill(run=fitted.path, algorithm="sparse_policy", num_updates=1)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"algorithm.holdout_share": 0.003}, "holdout_share=0.003 of 300 rows is less than one"),
        (
            {"algorithm.holdout_share": 0.3, "algorithm.holdout": "episodes"},
            "holdout_share=0.3 of 3 episodes is less than one",
        ),
        ({"algorithm.ends": "sometimes"}, "one of task, published, never"),
        ({"algorithm.ends": "task"}, "it is not known when episodes of task=none end"),
        (
            {"algorithm.rewards": "task"},
            "the reward of task=none does not follow from observations",
        ),
        (
            {"algorithm.penalty": [1.0, 2.0], "num_updates": 0},
            "penalty is a list, but num_updates=0",
        ),
        ({"stream": "always"}, "mopo fits a dynamics model, which does not work with streaming"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    keys: dict[str, Any], tmp_path: Path, wrong: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence) as caught:
        train(**keys | {"num_updates": 1, "out": str(tmp_path)} | wrong)
    assert str(caught.value).count("\n") == 0
    assert not list(tmp_path.rglob("config.json"))


@pytest.mark.slow
def test_another_algorithm_loads_the_model_and_one_that_it_has_changed_is_refused(
    keys: dict[str, Any], fitted: Result
) -> None:
    rambo = {"algorithm": "rambo", "num_updates": 6, "algorithm.cloning_updates": 2}
    rambo |= {"algorithm.rollout_every": 3, "algorithm.adversary_every": 3}
    rambo |= {"algorithm.adversary_updates": 2, "algorithm.normalize_observations": False}
    keys = keys | rambo
    result = train(**keys, dynamics=fitted.path, seeds=2)
    phases = [row["phase"] for row in SeedFolder(result.path, 0).rows("metrics")]
    assert [*dict.fromkeys(phases)] == ["clone", "select_dynamics", "update", "update_adversary"]
    old, new = (tensors(run.path, 0, "best_dynamics/") for run in (fitted, result))
    assert all((old[k] == new[k]).all() for k in old)
    with pytest.raises(UserError, match="is not finished, or the model was changed after it"):
        train(**keys, dynamics=result.path, name="again")


@pytest.mark.slow
def test_the_equations_of_a_sparse_model_are_reported_and_it_can_be_loaded(
    keys: dict[str, Any],
) -> None:
    unread = ("dynamics_hidden", "dynamics_decay", "epoch_updates", "dynamics_epochs")
    keys = {k: v for k, v in keys.items() if k.removeprefix("algorithm.") not in unread}
    keys |= {"algorithm.model": "sparse"}
    model = train(**keys, name="sparse")
    equations = model.results[0]["dynamics"]["equations"]
    assert len(equations) == 7
    assert "action[0]" in "".join(equations)
    assert all(f"seed 0: {equation}" in report([model.path]) for equation in equations)
    loaded = train(**keys | {"num_updates": 2}, name="loaded", dynamics=model.path)
    assert loaded.results[0]["dynamics"]["equations"] == equations
    assert loaded.results[0]["dynamics"]["seconds"] is None
