"""Policies that observe images: data, training, bundle and evaluation."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from printed import evaluate

import envs
import policies
from envs.experts.push import PushExpert
from envs.suites.push import Push
from offline_rl import Dataset, train
from offline_rl.data.writers.d4rl import write
from offline_rl.generation.store import record_episodes
from offline_rl.utils.errors import UserError
from policies import channels

TASK = "push/standard-pixels"
SMALL: dict[str, Any] = {"algorithm.hidden": [16], "algorithm.num_keypoints": 4, "batch_size": 8}


@pytest.fixture(scope="module")
def data() -> Dataset:
    env = envs.make_vector(TASK, 2)
    episodes = record_episodes(env, PushExpert(env, seed=0), 0)
    columns = {k: channels.concatenate([e[k] for e in episodes]) for k in episodes[0]}
    return Dataset.from_arrays(**columns)


@pytest.fixture(autouse=True)
def short_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Push, "max_episode_steps", 10)


def learn(out: Path, data: Any, **keys: Any) -> Any:
    options = {"algorithm": "bc", "task": TASK, "dataset": data, "num_updates": 4, "seeds": 1}
    options |= SMALL | {"eval_episodes": 2, "compile": "never", "device": "cpu", "out": str(out)}
    return train(**(options | keys), show=False)


def test_a_policy_is_cloned_from_images_evaluated_and_saved_as_a_bundle(
    tmp_path: Path, data: Dataset
) -> None:
    path = write(data, tmp_path / "data.hdf5", next_observations="final")
    result = learn(tmp_path / "runs", str(path))
    played = result.results[0]["returns"]
    assert len(played) == 2
    file = result.path / "seed_0" / "policy.bundle"
    policy = policies.load(file)
    assert policy.spec.observation_shapes == {"picture": (96, 96, 3), "state": (8,)}
    assert policy.bundle.normalizers.keys() == {"state"}
    seen = channels.take(data.observations, slice(3))
    chunk, _ = policy.act(seen)
    assert chunk.shape == (3, 1, 2)
    dark = {**seen, "picture": seen["picture"] // 2}
    assert (policy.act(dark)[0] != chunk).any()
    scores = json.loads(evaluate(run=str(file), episodes=2, json=True))
    assert scores["bundles"][0]["returns"] == played


def test_stacked_seeds_on_images_equal_single_seeds(tmp_path: Path, data: Dataset) -> None:
    keys = {"task": "none"}
    both = learn(tmp_path / "both", data, seeds=[0, 1], **keys)
    for seed in (0, 1):
        alone = learn(tmp_path / f"alone{seed}", data, seeds=[seed], **keys)
        first, second = (
            policies.load(each.path / f"seed_{seed}" / "policy.bundle").bundle.weights
            for each in (both, alone)
        )
        for name, weight in first.items():
            np.testing.assert_allclose(second[name], weight, atol=1e-5, err_msg=name)


def test_an_algorithm_for_one_vector_refuses_images_by_name(tmp_path: Path, data: Dataset) -> None:
    with pytest.raises(
        UserError, match=r"td3_bc needs one observation vector.*picture \[96, 96, 3\]"
    ) as e:
        train(algorithm="td3_bc", task=TASK, dataset=data, num_updates=2, out=str(tmp_path))
    assert "bc" in str(e.value)
    assert "observation_keys" not in str(
        e.value
    )  # not set by the user: the task itself observes an image
    assert not list(tmp_path.iterdir())


def test_data_of_another_camera_or_image_size_is_refused(tmp_path: Path, data: Dataset) -> None:
    part = channels.take(data.observations, slice(data.num_rows))
    rest = (data.actions, data.rewards, data.terminated, data.truncated)
    renamed, squeezed = "the data has front, state, but not picture", "to 96 x 96 x 3"
    for seen, message in (
        ({"front": part["picture"], "state": part["state"]}, renamed),
        ({**part, "picture": part["picture"][:, ::2]}, squeezed),
    ):
        other = Dataset.from_arrays(seen, *rest)
        with pytest.raises(UserError, match=message):
            learn(tmp_path, other)


def test_an_unused_camera_is_named(tmp_path: Path, data: Dataset) -> None:
    rest = (data.actions, data.rewards, data.terminated, data.truncated)
    blind = Dataset.from_arrays(data.observations["state"][: data.num_rows], *rest)
    blind = replace(blind, notes=("not observed: observation.images.picture",))
    message = "not observed: observation.images.picture, which observation_keys= would add"
    with pytest.raises(UserError, match=message):
        learn(tmp_path, blind)


def test_chunks_are_cloned_from_several_observed_images(tmp_path: Path, data: Dataset) -> None:
    chunks = {"algorithm.n_obs_steps": 2, "algorithm.horizon": 4, "algorithm.n_action_steps": 3}
    result = learn(tmp_path, data, **chunks)
    file = result.path / "seed_0" / "policy.bundle"
    policy = policies.load(file)
    assert (policy.spec.n_obs_steps, policy.spec.chunk_size, policy.spec.n_action_steps) == (
        2,
        4,
        3,
    )
    scores = json.loads(evaluate(run=str(file), episodes=2, json=True))
    assert scores["bundles"][0]["returns"] == result.results[0]["returns"]
