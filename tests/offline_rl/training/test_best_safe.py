"""Training on a constrained task: metrics, result and the policy of the best safe evaluation."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

import envs
from envs import tasks
from offline_rl import Dataset, UserError, evaluate, train
from policies import bundle

LIMIT = 2.0
TINY: dict[str, Any] = {"algorithm": "bc", "batch_size": 16, "compile": "never", "show": False}
TINY |= {"precision": "fp32", "seeds": 2, "algorithm.hidden": [8], "eval_episodes": 3}
TINY |= {"tracker": "none", "num_updates": 12, "eval_every": 2, "algorithm.lr": 0.1}


class Fast(gymnasium.Env):
    """Four steps. The reward and the cost of a step are the size of its action, and its square."""

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action: np.ndarray) -> Any:
        size = abs(float(action[0]))
        place = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return place, size, False, False, {"cost": size * size}


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """Register the task `fast` and return data with actions near 0.9."""
    monkeypatch.setattr(tasks, "_registered", dict(tasks._registered))
    envs.register("fast", Fast, max_episode_steps=4, cost_limits=[1, LIMIT, 3])
    rng = np.random.default_rng(0)
    states, ends = rng.uniform(-1, 1, (41, 2)).astype(np.float32), np.arange(40) % 4 == 3
    actions = 0.9 + 0.05 * rng.uniform(-1, 1, (40, 1))
    arrays = states[:-1], actions, np.abs(actions[:, 0]), ends & False, ends, states[1:]
    return Dataset.from_arrays(*arrays, extras={"costs": actions[:, 0] ** 2})


def test_the_policy_of_the_best_safe_evaluation_is_kept_and_can_be_evaluated(
    data: Dataset, tmp_path: Path
) -> None:
    """The actions grow toward 0.9 within 12 updates, so later policies exceed the limit."""
    result = train(**TINY, task="fast", dataset=data, out=str(tmp_path))
    first, _ = result.results
    assert (first["target_cost"], first["cost_limits"]) == (None, [1, LIMIT, 3])
    assert first["behavior_cost"] == pytest.approx(data.episode_costs().mean())
    chosen = list[int]()
    for seed in (0, 1):
        folder = result.path / f"seed_{seed}"
        rows = [json.loads(x) for x in (folder / "evaluations.jsonl").read_text().splitlines()]
        for row in rows:
            costs = np.array(row["costs"])
            assert row["eval/normalized_cost"] == pytest.approx(costs.mean() / LIMIT)
            assert row["eval/unsafe_share"] == (costs > LIMIT).mean()
        safe = [row for row in rows if row["eval/cost"] <= LIMIT]
        assert 0 < len(safe) < len(rows)
        best = max(safe, key=lambda row: row["eval/return"])
        about = bundle.read(folder / "best_safe.bundle").provenance
        assert (about["updates"], about["eval/cost"]) == (best["updates"], best["eval/cost"])
        chosen.append(best["eval/return"])
    last = evaluate(run=str(result.path), episodes=3)
    played = evaluate(run=str(result.path), episodes=3, best="safe")
    returns = [e.returns.mean() for e in played.episodes.values()]
    np.testing.assert_allclose(returns, chosen, rtol=1e-5)
    assert [r.is_safe for r in played.constrained if r.limit == LIMIT] == [True]
    assert [r.is_safe for r in last.constrained if r.limit == LIMIT] == [False]


def test_a_run_without_cost_limits_keeps_the_last_policy_only(
    data: Dataset, tmp_path: Path
) -> None:
    envs.register("free", Fast, max_episode_steps=4)
    keys = TINY | {"num_updates": 2, "seeds": 1}
    result = train(**keys, task="free", dataset=data, out=str(tmp_path))
    assert "cost_limits" not in result.results[0]
    row = json.loads((result.path / "seed_0" / "evaluations.jsonl").read_text().splitlines()[-1])
    assert "eval/cost" in row
    assert "eval/normalized_cost" not in row
    with pytest.raises(UserError, match=r"has no best_safe\.bundle.* Remove best="):
        evaluate(run=str(result.path), best="safe")
