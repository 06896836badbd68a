"""Results of constrained tasks, computed by hand: evaluation, play, export and bundles."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from printed import evaluate
from torch import Tensor, nn

import envs
import policies
from envs import tasks
from offline_rl.evaluation.constrained import (
    HEADER,
    Limits,
    Result,
    best_safe,
    cost_metrics,
    normalized_cost,
    rows_of,
)
from offline_rl.evaluation.play import play_episode
from offline_rl.evaluation.rollout import Episodes
from offline_rl.evaluation.saved import saved_evaluations
from offline_rl.runs.export import export
from offline_rl.utils.errors import UserError
from policies import Bundle, Normalizer, Player, Spec, bundle
from policies.golden import seal
from policies.heads.deterministic import DeterministicActor
from policies.heads.head import Head


def played(returns: list[float], costs: list[float]) -> Episodes:
    count = len(returns)
    lengths, seeds = np.full(count, 4), np.arange(count)
    return Episodes(np.array(returns), lengths, None, np.array(costs, float), seeds)


def test_the_normalized_cost_is_the_ratio_to_the_limit_and_shifted_for_the_limit_zero() -> None:
    assert normalized_cost(np.array([0.0, 5.0, 30.0]), 20.0).tolist() == [0.0, 0.25, 1.5]
    assert normalized_cost(np.array([0.0, 3.0]), 0.0).tolist() == [1.0, 4.0]


def test_the_metrics_of_an_evaluation_compare_each_episode_with_the_limit() -> None:
    """Two of the costs 0, 20, 21 and 59 exceed the limit 20. Their mean is 25."""
    metrics = cost_metrics(np.array([0.0, 20.0, 21.0, 59.0]), 20.0)
    assert metrics == {"eval/cost": 25, "eval/normalized_cost": 1.25, "eval/unsafe_share": 0.5}
    assert cost_metrics(np.array([1.0, 2.0]), None) == {"eval/cost": 1.5}


def test_the_best_safe_candidate_has_the_highest_value_within_the_limit_else_the_lowest_cost():
    values, costs = [1.0, 5.0, 3.0, np.nan], [0.0, 9.0, 4.0, 0.0]
    assert [best_safe(values, costs, limit) for limit in (10.0, 4.0, 3.9)] == [1, 2, 0]
    assert best_safe(values[1:], costs[1:], 2.0) == 1
    assert best_safe([np.nan], [0.0], 2.0) is None


def test_limits_are_the_target_cost_or_all_limits_of_the_task() -> None:
    assert (Limits(7.0, (1.0, 2.0)).all, Limits(7.0, (1.0, 2.0)).single) == ((7.0,), 7.0)
    assert (Limits(None, (1.0, 2.0, 3.0)).all, Limits(None, (1.0, 2.0)).single) == ((1, 2, 3), 1)
    assert (Limits(None, ()).single, Limits(None, ()).to_json()) == (None, {})
    limits = Limits(0.0, (1.0, 2.0))
    assert Limits.of(json.loads(json.dumps(limits.to_json()))) == limits


def test_unsafe_rows_are_below_the_safe_ones_of_their_limit_and_the_best_safe_one_is_marked():
    """The mean over seeds counts: the seeds of `wild` have the normalized costs 0.2 and 2."""
    results = [
        Result("slow", 10.0, None, [played([1, 3], [0, 2])], [None]),
        Result("fast", 10.0, 10.0, [played([5, 5], [10, 10])], [None]),
        Result("wild", 10.0, None, [played([9, 9], [2, 2]), played([9, 9], [0, 40])], [None] * 2),
        Result("slow", 0.0, None, [played([1, 3], [0, 2])], [None]),
    ]
    rows = [dict(zip(HEADER, row, strict=True)) for row in rows_of(results)]
    names = [(row["algorithm"], row["limit"], row["safe"]) for row in rows]
    assert names == [
        ("unsafe for the limit 0:", "", ""),
        ("slow", "0", "no"),
        ("", "", ""),
        ("fast", "10", "best"),
        ("slow", "10", "yes"),
        ("unsafe for the limit 10:", "", ""),
        ("wild", "10", "no"),
        ("", "", ""),
        ("slow", "mean", "1 of 2"),
    ]
    wild, slow = rows[6], rows[4]
    assert (wild["normalized cost"], wild["cost"]) == ("1.10 ± 0.90", "11.0 ± 9.0")
    assert (wild["unsafe %"], wild["worst cost"], wild["target cost"]) == ("25", "40.0", "none")
    assert (slow["return"], slow["length"], rows[3]["target cost"]) == ("2.0", "4", "10")


def test_means_over_limits_are_those_of_methods_with_a_result_at_each_limit() -> None:
    """`cpq` is trained for each limit: its normalized costs are 5 / 10 and 30 / 20."""
    results = [
        Result("bc", 10.0, None, [played([4], [20])], [8.0]),
        Result("bc", 20.0, None, [played([4], [20])], [8.0]),
        Result("cpq (a)", 10.0, 10.0, [played([1, 1], [0, 10])], [2.0]),
        Result("cpq (b)", 20.0, 20.0, [played([3, 3], [20, 40])], [6.0]),
        Result("caps", 10.0, 10.0, [played([9], [0])], [9.0]),
    ]
    rows = [dict(zip(HEADER, row, strict=True)) for row in rows_of(results)]
    names = "algorithm", "limit", "safe", "score", "normalized cost", "return", "unsafe %"
    assert [tuple(row[name] for name in names) for row in rows[-2:]] == [
        ("bc", "mean", "1 of 2", "8.0", "1.50", "4.0", "50"),
        ("cpq", "mean", "1 of 2", "4.0", "1.00", "2.0", "25"),
    ]
    assert all(row["limit"] != "mean" for row in rows[:-2])


def test_a_diverged_method_is_not_the_best_safe_one() -> None:
    diverged = Result("a", 1.0, None, [played([np.nan], [0])], [np.nan])
    fine = Result("b", 1.0, None, [played([-5.0], [0])], [-5.0])
    assert [row[2] for row in rows_of([diverged, fine])] == ["best", "yes"]


class Careful(Head):
    """A head that acts with 1 until the costs of the episode exceed `target_cost`, then with -1."""

    def __init__(self, target_cost: float) -> None:
        super().__init__()
        self.arguments = {"target_cost": target_cost}
        self.target_cost, self.speed = target_cost, nn.Parameter(torch.tensor(1.0))

    def initial_memory(self, batch: int) -> dict[str, Tensor]:
        return {name: torch.zeros(batch) for name in ("spent", "costs")}

    def decide(self, observations: Tensor, memory: Any, noise: Tensor) -> Any:
        spent = memory["spent"] + memory["costs"]
        action = self.speed * (1 - 2 * (spent > self.target_cost).float())
        return action[:, None, None] + 0 * observations[:, -1:, :1], memory | {"spent": spent}


class Fast(gymnasium.Env):
    """Eight steps. A positive action has reward 1 and cost 2, any other action neither."""

    observation_space = Box(-1, 1, (1,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple:
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple:
        quick = float(action[0] > 0)
        return np.zeros(1, np.float32), quick, False, False, {"cost": 2 * quick}

    def render(self) -> np.ndarray:
        return np.zeros((2, 2, 3), np.uint8)


class Free(Fast):
    """Environment like `Fast`, without costs."""

    def step(self, action: np.ndarray) -> tuple:
        return *super().step(action)[:4], {}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a bundle of `Careful` with the target cost 4, trained on `fast`."""
    monkeypatch.setattr(tasks, "_registered", {})
    monkeypatch.setattr("policies.heads.head.load_kinds", lambda: {"Careful": Careful})
    envs.register("fast", Fast, max_episode_steps=8, cost_limits=(4, 7, 10))
    envs.register("free", Free, max_episode_steps=8)
    provenance, spec = {"task": "fast"}, Spec((1,), 1)
    weights = {"speed": np.ones((), np.float32)}
    normalizer = Normalizer.identity((1,))
    policy = Bundle(spec, "Careful", {"target_cost": 4.0}, weights, normalizer, provenance)
    bundle.write(tmp_path / "policy.bundle", seal(policy))
    return tmp_path / "policy.bundle"


def test_several_target_costs_give_a_row_each(path: Path) -> None:
    """The policy stops after the first cost above the limit: 6 for 4 and 5.5, 12 for 10."""
    content = json.loads(evaluate(run=str(path), target_cost=[10, 4], episodes=2, json=True))
    assert [row["costs"] for row in content["bundles"]] == [[12, 12], [6, 6]]
    assert [row["mean_return"] for row in content["bundles"]] == [6, 3]
    found = [(r["cost_limit"], r["normalized_cost"], r["safe"]) for r in content["constrained"]]
    assert found == [(10, 1.2, False), (4, 1.5, False)]
    text = evaluate(run=str(path), target_cost=[4, 5.5], episodes=2)
    assert f"{path}, target_cost=5.5 " in text
    assert text.index("unsafe for the limit 4:") < text.index("unsafe for the limit 5.5:")
    own = json.loads(evaluate(run=str(path), episodes=2, json=True))
    assert [row["costs"] for row in own["bundles"]] == [[6, 6]]
    assert [r["cost_limit"] for r in own["constrained"]] == [4]


def test_saved_evaluations_of_each_target_cost_belong_to_the_bundle(path: Path) -> None:
    evaluate(run=str(path), target_cost=[4, 10], episodes=2)
    by_target = {saved.keys["target_cost"]: saved for saved in saved_evaluations(path)}
    assert {target: saved.limits for target, saved in by_target.items()} == {
        4: Limits(4.0, (4.0, 7.0, 10.0)),
        10: Limits(10.0, (4.0, 7.0, 10.0)),
    }
    assert all(saved.is_current for saved in by_target.values())
    costs = by_target[10].episodes.costs
    assert costs is not None
    assert costs.tolist() == [12, 12]


def test_a_policy_without_a_limit_is_compared_with_all_limits_of_the_task(path: Path) -> None:
    """It always acts with 1: the cost is 16 in every episode."""
    arguments = {"observations": 1, "actions": 1, "hidden": []}
    weights = {
        "trunk.weights.0": np.zeros((1, 1), np.float32),
        "trunk.biases.0": np.full(1, 2, np.float32),
    }
    plain = Bundle(
        Spec((1,), 1), "DeterministicActor", arguments, weights, Normalizer.identity((1,))
    )
    other = path.with_name("plain.bundle")

    kinds = {"Careful": Careful, "DeterministicActor": DeterministicActor}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("policies.heads.head.load_kinds", lambda: kinds)
        bundle.write(other, seal(plain))
        content = json.loads(evaluate(run=str(other), task="fast", episodes=1, json=True))
        found = [(r["cost_limit"], r["target_cost"]) for r in content["constrained"]]
        assert found == [(4, None), (7, None), (10, None)]
        with pytest.raises(UserError, match=r"has no argument target_cost.* Remove target_cost="):
            evaluate(run=str(other), task="fast", episodes=1, target_cost=4)


def test_invalid_limits_are_refused_in_one_sentence(path: Path) -> None:
    refused = {
        "at least one limit": {"target_cost": []},
        "each limit once": {"target_cost": [4, 4.0]},
        "at least 0": {"target_cost": -1},
        "returns no info 'cost', but a Careful reads the costs": {"task": "free"},
    }
    for message, keys in refused.items():
        with pytest.raises(UserError, match=message) as error:
            evaluate(run=str(path), episodes=1, **keys)
        assert "\n" not in str(error.value)


@pytest.mark.slow
def test_an_exported_bundle_keeps_the_target_cost_of_its_export(path: Path) -> None:
    export(run=str(path), target_cost=10)
    assert bundle.read(path).arguments == {"target_cost": 10}
    for runtime in ("onnx", "torch"):
        player = Player(policies.load(path, runtime=runtime))
        actions = [player.step(np.zeros(1), cost=2.0)[0] for _ in range(8)]
        assert actions == [1] * 6 + [-1] * 2  # the first cost is ignored


def test_a_video_states_the_cost_of_each_episode(path: Path) -> None:
    lines = list[str]()
    for name, kind in (("fast", Fast), ("free", Free)):
        env = gymnasium.wrappers.TimeLimit(kind(), 8)
        frames = play_episode(env, Player(policies.load(path)), 3, 1, lines)
        if name == "free":
            with pytest.raises(UserError, match="returns no info 'cost'"):
                list(frames)
        else:
            assert len(list(frames)) == 9
    assert lines == ["seed 3: return 3.0, cost 6.0, 8 steps"]
