"""Chunk policies that observe images: training, evaluation, video, distillation, loading."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict
from printed import evaluate

import envs
import policies
from offline_rl import Dataset, train
from offline_rl.evaluation import play as playing
from offline_rl.training.train import distill
from offline_rl.utils.errors import UserError
from policies import bundle, channels

SIDE, STEPS = 24, 5


class Spot(gymnasium.Env):
    """Environment with a spot in an image that the action moves. Its row is also a number."""

    observation_space = Dict(
        picture=Box(0, 255, (SIDE, SIDE, 3), np.uint8), row=Box(-np.inf, np.inf, (1,), np.float32)
    )
    action_space = Box(-1, 1, (2,), np.float32)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self.place = render_mode, np.zeros(2)

    def observe(self) -> dict[str, np.ndarray]:
        picture = np.zeros((SIDE, SIDE, 3), np.uint8)
        row, column = self.place.round().astype(int)
        picture[row : row + 3, column : column + 3] = 255
        return {"picture": picture, "row": self.place[:1].astype(np.float32)}

    def reset(self, *, seed=None, options=None):
        self.place = np.random.default_rng(seed).uniform(4, SIDE - 8, 2)
        return self.observe(), {}

    def step(self, action):
        self.place = (self.place + action).clip(0, SIDE - 4)
        return self.observe(), float(self.place.sum()), False, False, {}

    def render(self):
        return self.observe()["picture"]


@pytest.fixture(scope="module")
def spot() -> str:
    if "spot" not in envs.names():
        envs.register("spot", Spot, max_episode_steps=STEPS)
    return "spot"


@pytest.fixture(scope="module")
def data() -> Dataset:
    draw, env, rows = np.random.default_rng(0), Spot(), list[Any]()
    actions = draw.uniform(-1, 1, (8 * STEPS, 2))
    for k, action in enumerate(actions):
        if k % STEPS == 0:
            env.reset(seed=k)
        rows.append(env.observe())
        env.step(action)
    over, observe = np.arange(len(rows)) % STEPS == STEPS - 1, channels.stack(rows)
    return Dataset.from_arrays(observe, actions, np.zeros(len(rows)), over & False, over)


SEES = {"num_keypoints": 4, "n_obs_steps": 2, "horizon": 4, "num_warmup_updates": 1}
DENOISES = {
    "network": "mlp",
    "widths": [16],
    "time_size": 8,
    "process": "edm",
    "num_inference_steps": 3,
}
ACT = {
    "dim_model": 8,
    "num_heads": 2,
    "dim_feedforward": 8,
    "num_layers": 1,
    "num_vae_encoder_layers": 1,
    "latent_dim": 3,
}


def learn(out: Path, task: str, data: Dataset, algorithm: str, own: dict[str, Any]) -> Any:
    hyper = {f"algorithm.{name}": value for name, value in own.items()}
    keys = {"task": task, "num_updates": 2, "batch_size": 8, "eval_episodes": 3, "seeds": 1}
    keys |= {"compile": "never", "device": "cpu", "tracker": "none", "out": str(out)}
    return train(algorithm=algorithm, dataset=data, show=False, **keys, **hyper)


def returns(file: Path) -> np.ndarray:
    """Return the returns of three evaluation episodes."""
    told = json.loads(evaluate(run=str(file), episodes=3, json=True))
    return np.array(told["bundles"][0]["returns"])


def test_a_diffusion_policy_on_images_is_trained_evaluated_played_and_distilled(
    tmp_path: Path, spot: str, data: Dataset
) -> None:
    pytest.importorskip("PIL")
    own = SEES | DENOISES | {"n_action_steps": 2, "normalize_observations": "min_max"}
    result = learn(tmp_path, spot, data, "diffusion_policy", own)
    file = result.path / "seed_0" / "policy.bundle"
    played = returns(file)
    np.testing.assert_allclose(played, result.results[0]["returns"])
    policy = policies.load(file)
    assert policy.spec.observation_shapes == {"picture": (SIDE, SIDE, 3), "row": (1,)}
    assert policy.bundle.normalizers.keys() == {"row"}
    assert policy.bundle.normalizers["row"].kind == "min-max"
    lines = playing.play(run=str(file), out=str(tmp_path / "x.gif"))
    assert lines[0].endswith(f"return {played[0]:.1f}, {STEPS} steps")

    keys = {"out": str(tmp_path), "tracker": "none", "show": False, "dataset": data}
    keys |= {"compile": "never", "eval_episodes": 2}
    eyes = {k: v for k, v in policy.bundle.weights.items() if k.startswith("observation_encoder.")}
    assert eyes
    for kind in ("consistency", "one_step"):
        student = distill(run=result.path, algorithm=kind, num_updates=2, **keys)
        taught = policies.load(student.path / "seed_0" / "policy.bundle")
        for name, weight in eyes.items():
            np.testing.assert_array_equal(taught.bundle.weights[name], weight)
        assert taught.bundle.normalizers["row"].kind == "min-max"
        assert taught.noise_shape == (1, *policy.noise_shape[1:])
    part = channels.take(data.observations, slice(data.num_rows))
    for other in ({"picture": part["picture"][:, ::2]}, {"front": part["picture"]}):
        rest = (data.actions, data.rewards, data.terminated, data.truncated)
        keys["dataset"] = Dataset.from_arrays(other | {"row": part["row"]}, *rest)
        with pytest.raises(UserError, match=r"the policy has .*'picture': \(24, 24, 3\)"):
            distill(run=result.path, num_updates=2, task="none", **keys)


def test_a_bundle_with_temporal_ensembling_scores_as_in_training(
    tmp_path: Path, spot: str, data: Dataset
) -> None:
    """Three episodes run in parallel, first in the queue of training, then in that of a player."""
    own = SEES | ACT | {"n_action_steps": 1, "temporal_ensemble_coeff": 0.1, "n_obs_steps": 1}
    result = learn(tmp_path, spot, data, "act", own)
    file = result.path / "seed_0" / "policy.bundle"
    assert policies.load(file).spec.temporal_ensemble_coeff == 0.1
    blended = returns(file)
    np.testing.assert_allclose(blended, result.results[0]["returns"])
    whole = bundle.read(file)
    newest = replace(whole, spec=replace(whole.spec, temporal_ensemble_coeff=None))
    bundle.write(tmp_path / "newest.bundle", newest)
    assert (returns(tmp_path / "newest.bundle") != blended).all()
