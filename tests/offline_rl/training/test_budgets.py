"""Runs of methods whose policies have a cost budget: training, evaluation, export, fine-tuning."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

import envs
import offline_rl
import policies
from envs import tasks
from offline_rl import Dataset
from offline_rl.data.writers.d4rl import write
from offline_rl.utils.seeds import EVALUATION_SEED

KEYS: dict[str, Any] = {"batch_size": 8, "compile": "never", "precision": "fp32", "seeds": 1}
KEYS |= {"eval_episodes": 2, "tracker": "none", "show": False, "eval_every": 1000}
SMALL: dict[str, dict[str, Any]] = {
    "caps": {"algorithm.hidden": [8]},
    "cdt": {"algorithm.dim_model": 8, "algorithm.num_layers": 1, "algorithm.num_heads": 2},
}


class Slope(gymnasium.Env):
    """Point on a line. The cost of a step is 1 at a positive place, which the reward is."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x = float(self.np_random.uniform(-1, 1))
        return np.array([self.x, 0], np.float32), {}

    def step(self, action: np.ndarray) -> Any:
        self.x += float(action[0])
        info = {"cost": float(self.x > 0)}
        return np.array([self.x, 0], np.float32), self.x, False, False, info


def recorded(folder: Path) -> str:
    """Return the path of twelve episodes of five random actions."""
    env, draw = Slope(), np.random.default_rng(0)
    rows: dict[str, list[Any]] = {k: [] for k in ("s", "a", "r", "c", "s2")}
    for seed in range(12):
        s, _ = env.reset(seed=seed)
        for _ in range(5):
            a = draw.uniform(-1, 1, 1).astype(np.float32)
            s2, r, _, _, info = env.step(a)
            for name, x in zip(rows, (s, a, r, info["cost"], s2), strict=True):
                rows[name].append(x)
            s = s2
    s, a, r, c, s2 = (np.array(x, np.float32) for x in rows.values())
    ends = np.arange(60) % 5 == 4
    data = Dataset.from_arrays(s, a, r, ends & False, ends, s2, extras={"costs": c})
    return str(write(data, folder / "slope.hdf5"))


def play(policy: Any) -> tuple[list[float], list[float]]:
    """Return the returns and costs of the first two evaluation episodes."""
    totals = [], []  # type: tuple[list[float], list[float]]
    for episode in range(2):
        env, player = envs.make("slope"), policies.Player(policy)
        observation, _ = env.reset(seed=EVALUATION_SEED + episode)
        player.reset(EVALUATION_SEED + episode)
        reward = cost = 0.0
        sums, over = np.zeros(2), False
        while not over:
            action = player.step(observation, reward, cost)
            observation, reward, terminated, truncated, info = env.step(action)
            cost, over = info["cost"], terminated or truncated
            sums += reward, cost
        for total, x in zip(totals, sums, strict=True):
            total.append(float(x))
    return totals


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_bundle_with_a_budget_scores_as_in_training_and_at_other_limits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It also acts alike after an export, and CAPS is fine-tuned with a curve of costs."""
    monkeypatch.setattr(tasks, "_registered", dict(tasks._registered))
    envs.register("slope", Slope, max_episode_steps=5, cost_limits=[1, 2, 4])
    keys = KEYS | SMALL[name] | {"algorithm": name, "task": "slope", "out": str(tmp_path)}
    run = offline_rl.train(**keys, dataset=recorded(tmp_path), num_updates=20, name="first")
    bundle, result = run.path / "seed_0" / "policy.bundle", run.results[0]
    assert policies.load(bundle).bundle.arguments["target_cost"] == 2
    assert policies.load(bundle).bundle.arguments["episode_steps"] == 5
    returns, costs = play(policies.load(bundle))
    np.testing.assert_allclose(returns, result["returns"], rtol=1e-4)
    np.testing.assert_allclose(costs, result["costs"], rtol=1e-4)
    text = str(offline_rl.evaluate(run=str(run.path), episodes=2, target_cost=[0, 4]))
    assert text
    for limit in (0.0, 4.0):
        expected = play(policies.load(bundle, target_cost=limit))
        found = offline_rl.evaluate(run=str(run.path), episodes=2, target_cost=limit).returns
        np.testing.assert_allclose(next(iter(found.values())), expected[0], rtol=1e-4)
    offline_rl.export(run=str(bundle), target_cost=4)
    exported = play(policies.load(bundle, runtime="onnx"))
    np.testing.assert_allclose(exported, play(policies.load(bundle, runtime="torch")), rtol=1e-4)
    if name == "caps":
        more = {"num_env_steps": 40, "online.warmup_steps": 10, "name": "second"}
        second = offline_rl.finetune(run=str(run.path), **KEYS, **SMALL[name], **more).path
        lines = (second / "seed_0" / "metrics.jsonl").read_text().splitlines()
        assert any("data/cost" in json.loads(line) for line in lines)
