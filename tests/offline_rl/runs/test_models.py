"""Dynamics models that do not fit the run that loads them. Checkpoints are written by hand."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offline_rl.data.transform import Transform
from offline_rl.runs.folder import Done, SeedFolder
from offline_rl.runs.models import load_models, source_folder
from offline_rl.runs.run import Run, runs_of
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import write_json
from offline_rl.utils.trees import to_json_values
from policies import Spec
from policies.normalizer import Normalizer

KEYS: dict[str, Any] = {"algorithm": "mopo", "task": "neorl2/DMSD", "tracker": "none"}
KEYS |= {"algorithm.members": 3, "algorithm.elites": 2, "algorithm.dynamics_hidden": [4]}
KEYS |= {"algorithm.dynamics_decay": [0, 0], "algorithm.hidden": [4]}
SPEC = Spec((6,), 2)
TRANSFORM = Transform(Normalizer(np.zeros(6, np.float32), np.ones(6, np.float32)))
Plant = Callable[..., Path]


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """Return a function that writes the checkpoint of a run, and returns the run's folder."""

    def write(
        seed: int = 0,
        *,
        finished: bool = True,
        noise: float = 0.0,
        without: str = "nothing",
        data: str = "d1",
        **keys: Any,
    ) -> Path:
        (run,) = runs_of(KEYS | {"seeds": [seed], "out": str(tmp_path)} | keys)
        folder = SeedFolder(tmp_path / "model", seed)
        write_json(folder.config, to_json_values(run.config() | {"data": data}))
        torch.manual_seed(seed)
        saved = {
            f"params/{network}/{name}": value.detach().clone()
            for network, module in run.learner(SPEC).modules.items()
            for name, value in module.named_parameters()
            if network != without
        }
        if noise:
            saved["params/dynamics/net.weights.0"] += noise
        counters = {"select_dynamics": {"updates": int(finished)}}
        content = {"counters": counters, "transform": TRANSFORM.to_json()}
        folder.save(Done(0, 9), saved, content)
        return folder.path.parent

    return write


def current(dynamics: Path | str, seed: int = 0, data: str = "d1", **keys: Any) -> Run:
    """Return a run that loads the model, as if its data had been read."""
    (run,) = runs_of(KEYS | {"dynamics": str(dynamics), "seeds": [seed]} | keys)
    return replace(run, checksums={"data": data})


def test_each_seed_loads_its_model_or_the_only_one(plant: Plant) -> None:
    run = plant(0)
    _, sums = load_models([current(run, 0), current(run, 7)])
    assert sums[0] == sums[7]
    plant(1)
    _, both = load_models([current(run, 0), current(run, 1)])
    assert both[0] == sums[0] != both[1]
    _, named = load_models([current(run / "seed_1", 0)])
    assert named[0] == both[1]
    with pytest.raises(UserError, match=r"has no model for seed 7, only for \[0, 1\]\. Use one"):
        load_models([current(run, 7)])


def test_the_checksum_is_that_of_the_model_alone(plant: Plant) -> None:
    """More updates, other hyper-parameters of the policy and other networks do not matter."""
    _, before = load_models([current(plant())])
    _, after = load_models([current(plant(**{"algorithm.hidden": [5], "num_updates": 77}))])
    assert before == after


@pytest.mark.parametrize(
    ("planted", "passed", "sentence"),
    [
        ({"task": "neorl2/Fusion"}, {}, r"with task=neorl2/Fusion, but here it is neorl2/DMSD\. U"),
        ({"data": "d2"}, {}, "was fitted to other data"),
        ({"episodes": 5}, {}, "was fitted with episodes=5, but here it is null"),
        ({"algorithm.members": 4}, {}, "with algorithm.members=4, but here it is 3"),
        ({}, {"algorithm.elites": 3}, "with algorithm.elites=2, but here it is 3"),
        ({}, {"algorithm.dynamics_hidden": [5]}, r"dynamics_hidden=\[4\], but here it is \[5\]"),
        ({"algorithm.scale_inputs": True}, {}, "scale_inputs=true, but here it is false"),
        ({}, {"algorithm.reward_scale": 2}, r"reward_scale=1\.0, but here it is 2\.0"),
        ({}, {"algorithm.normalize_observations": True}, "normalize_observations=false, but here"),
        ({}, {"algorithm.model": "sparse"}, "algorithm.model=ensemble, but here it is sparse"),
        ({"finished": False}, {}, "is not finished, or the model was changed after it"),
        ({"noise": 0.1}, {}, "is not finished, or the model was changed after it"),
        ({"without": "record"}, {}, r"is a run of mopo, which has no dynamics model of this kind"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(
    plant: Plant, planted: dict[str, Any], passed: dict[str, Any], sentence: str
) -> None:
    load_models([current(plant())])
    with pytest.raises(UserError, match=sentence):
        load_models([current(plant(**planted), **passed)])


def test_a_model_of_another_transform_is_refused(plant: Plant) -> None:
    models, _ = load_models([current(plant())])
    models[0].check_transform(TRANSFORM)
    shifted = Normalizer(np.ones(6, np.float32), np.ones(6, np.float32))
    for other, name in (
        (replace(TRANSFORM, normalizer=shifted), "mean"),
        (replace(TRANSFORM, reward_scale=2.0), "reward_scale"),
    ):
        with pytest.raises(UserError, match=rf"another transform of .* \({name}\)\. Fit a model"):
            models[0].check_transform(other)


def test_a_model_with_other_inputs_is_refused(plant: Plant) -> None:
    models, _ = load_models([current(plant())])
    state = {name: torch.zeros(x.shape) for name, x in models[0].tensors.items()}
    assert models[0].into(state | {"params/policy/w": torch.ones(1)})["params/policy/w"] == 1
    name = "params/dynamics/net.weights.0"
    with pytest.raises(UserError, match=r"has the shape \(3, 8, 4\), but here it is \(3, 9, 4\)"):
        models[0].into(state | {name: torch.zeros(3, 9, 4)})


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere does not exist\. Use the folder that contains"):
        source_folder(str(tmp_path / "nowhere"), 0)
    with pytest.raises(UserError, match=r"contains no seeds\. Use the folder that contains"):
        source_folder(str(tmp_path), 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file is a file"):
        source_folder(str(tmp_path / "file"), 0)
    write_json(tmp_path / "seed_0" / "config.json", {})
    with pytest.raises(UserError, match="has no checkpoint, so its dynamics model is not fitted"):
        load_models([current(tmp_path)])


def test_other_algorithms_refuse_a_dynamics_model() -> None:
    keys: dict[str, Any] = {"task": "neorl2/DMSD", "dynamics": "a", "tracker": "none"}
    for name in ("iql", "mbpo"):
        with pytest.raises(
            UserError, match=rf"is used by .*mopo.* and .*, which fit .*; {name} does not"
        ):
            runs_of({"algorithm": name, "num_updates": 1, **keys})
    with pytest.raises(UserError, match="nothing to do: with dynamics=, no model is fitted"):
        runs_of({"algorithm": "mopo", "num_updates": 0, **keys})
    with pytest.raises(UserError, match="nothing to do: num_updates and num_env_steps are both 0"):
        runs_of({"algorithm": "iql", "task": "neorl2/DMSD", "num_updates": 0})
    (run,) = runs_of({"algorithm": "mopo", "task": "neorl2/DMSD", "num_updates": 0})
    assert run.fits_model_only
    assert run.reads_data
