"""A policy that reads costs: it switches when its budget is spent, in every runtime."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import policies
from policies import Bundle, BundleError, Normalizer, Player, Spec, bundle
from policies.episodes import RunningEpisodes
from policies.golden import seal
from policies.heads.head import Head
from policies.policy import refuse_feedback
from policies.runtimes import with_numpy

COSTS = [0.0, 2.0, 1.0, 4.0, 0.0, 3.0, 0.0, 0.0]  # of the steps of an episode


class Budget(Head):
    """A head that returns `speed` until the costs exceed `target_cost`, and then -`speed`."""

    chunk_size = n_action_steps = 2

    def __init__(self, target_cost: float) -> None:
        super().__init__()
        self.arguments = {"target_cost": target_cost}
        self.target_cost, self.speed = target_cost, nn.Parameter(torch.tensor(0.5))

    def initial_memory(self, batch: int) -> dict[str, Tensor]:
        return {name: torch.zeros(batch) for name in ("spent", "costs")}

    def decide(self, observations: Tensor, memory: Any, noise: Tensor) -> Any:
        spent = memory["spent"] + memory["costs"]
        sign = 1 - 2 * (spent > self.target_cost).float()
        chunk = (self.speed * sign)[:, None, None] + 0 * observations[:, -1:, :1]
        return chunk.expand(-1, 2, 1), memory | {"spent": spent}


class NumpyBudget(with_numpy.NumpyNetwork):
    """`Budget` in numpy."""

    def __init__(self, bundle: Bundle) -> None:
        self.target_cost, self.speed = bundle.arguments["target_cost"], bundle.weights["speed"]

    def initial_memory(self, batch: int) -> dict[str, np.ndarray]:
        return {name: np.zeros(batch, np.float32) for name in ("spent", "costs")}

    def decide(self, observations: Any, memory: Mapping[str, Any], noise: Any) -> Any:
        spent = memory["spent"] + memory["costs"]
        action = np.where(spent > self.target_cost, -self.speed, self.speed)
        return np.repeat(action[:, None, None], 2, 1), {**memory, "spent": spent}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a bundle of `Budget` with a target cost of 3."""
    monkeypatch.setattr("policies.heads.head.load_kinds", lambda: {"Budget": Budget})
    monkeypatch.setattr(with_numpy, "find_problem", lambda bundle: None)
    monkeypatch.setattr(with_numpy, "make", NumpyBudget)
    spec, head = Spec((3,), 1, chunk_size=2, n_action_steps=2), Budget(3.0)
    weights = {"speed": head.speed.detach().numpy()}
    policy = Bundle(spec, "Budget", head.arguments, weights, Normalizer.identity((3,)))
    bundle.write(tmp_path / "policy.bundle", seal(policy))
    return tmp_path / "policy.bundle"


@pytest.fixture
def exported(path: Path) -> Path:
    """Return the same bundle with ONNX graphs."""
    from policies.export import export_bundle

    bundle.write(path, export_bundle(bundle.read(path))[0])
    return path


def signs(player: Player) -> list[list[float]]:
    """Return the signs of the actions of two episodes. Only the second one has costs, `COSTS`."""
    actions = [player.step(np.zeros((2, 3)))]
    actions += [player.step(np.zeros((2, 3)), None, [0, cost]) for cost in COSTS]
    assert {*np.abs(actions).ravel()} == {0.5}
    return np.sign(actions)[..., 0].T.tolist()


def assert_switches(policy: policies.policy.BundlePolicy) -> None:
    """Check the actions in two episodes of each seed.

    The running sums are 0 2 3 7 7 10 10 10, so the first decision above 3 is before step 5.
    Decisions are before steps 1, 3, 5, ... A new episode has a new budget.
    """
    assert (policy.needs_costs, policy.needs_rewards) == (True, False)
    player = Player(policy)
    for seeds in ([1, 2], [3, 4]):
        player.reset(seeds)
        assert signs(player) == [[1] * 9, [1] * 4 + [-1] * 5]


@pytest.mark.parametrize("runtime", ["torch", "numpy"])
def test_the_policy_switches_at_the_first_decision_after_its_budget_is_spent(
    path: Path, runtime: str
) -> None:
    assert_switches(policies.load(path, runtime=runtime))


@pytest.mark.slow
def test_the_exported_policy_switches_at_the_same_step_and_has_a_fixed_target_cost(
    exported: Path,
) -> None:
    assert_switches(policies.load(exported, runtime="onnx"))
    with pytest.raises(BundleError, match=r"fixed arguments\. To change target_cost"):
        policies.load(exported, runtime="onnx", target_cost=9.0)


@pytest.mark.parametrize("runtime", ["torch", "numpy"])
def test_a_bundle_acts_with_another_target_cost(path: Path, runtime: str) -> None:
    """The sums 0 2 3 7 7 10 exceed 9 before the decision at step 7, and never 10."""
    for target, switch in ((9.0, 6), (10.0, 9)):
        player = Player(policies.load(path, runtime=runtime, target_cost=target))
        player.reset([0, 1])
        assert signs(player)[1] == [1] * switch + [-1] * (9 - switch)


def test_a_target_cost_that_is_no_limit_is_refused(path: Path) -> None:
    for value in (-1, np.nan, "9"):
        with pytest.raises(BundleError, match=r"target_cost=.* is not a number of at least 0"):
            policies.load(path, target_cost=value)


def test_act_appends_the_costs_and_refuses_missing_and_invalid_ones(path: Path) -> None:
    policy = policies.load(path)
    _, start = policy.act(np.zeros(3))
    for cost, sign in ((3.0, 1), (3.5, -1)):
        assert np.sign(policy.act(np.zeros(3), start, cost=cost)[0]).tolist() == [[sign]] * 2
    with pytest.raises(ValueError, match="pass the cost of the previous action: act"):
        policy.act(np.zeros(3), start, reward=1.0)
    with pytest.raises(ValueError, match="cost: expected 1 finite numbers"):
        policy.act(np.zeros(3), start, cost=np.nan)


def test_a_place_without_costs_refuses_the_policy(path: Path) -> None:
    with pytest.raises(BundleError, match="reads the costs of its episode, but a robot does not"):
        refuse_feedback(policies.load(path), "a robot")


def test_stored_episodes_contain_the_costs_of_a_policy_that_reads_them_only() -> None:
    def decide(observations: Any, memory: Any, noise: Any, rows: Any) -> Any:
        return np.zeros((len(rows), 1, 1), np.float32), memory

    for names in (("costs",), ("rewards",)):
        episodes = RunningEpisodes(decide, lambda n: {k: np.zeros(n) for k in names})  # noqa: B023
        episodes.reset(np.array([1, 2]))
        episodes.add_costs(np.array([5.0, 6.0]))  # before the first observation
        episodes.observe(np.zeros((2, 1)))
        episodes.add_costs(np.array([1.0, 2.0]))
        other = episodes.fork()
        other.add_costs(np.array([10.0, 10.0]))
        stored = episodes.state(np.array([1]))
        assert ("costs" in stored) is (names == ("costs",))
        assert stored.get("costs", np.array([2.0])).tolist() == [2.0]
