"""COPlanner: which of several continuations it chooses, in the model and in the environment."""

from typing import Any

import pytest
import torch
from by_hand import Recorded, start
from torch import Tensor

from offline_rl.algorithms.common.registry import tuned
from offline_rl.algorithms.coplanner import Config, COPlanner, planned_action
from offline_rl.algorithms.mbpo import MBPO
from offline_rl.engine.engine import Engine
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.utils.options import build
from offline_rl.utils.random import Random
from policies.heads.gaussian import TanhGaussianActor
from policies.spec import Spec

SMALL: dict[str, Any] = {"hidden": (8,), "dynamics_hidden": (8,), "dynamics_decay": (1e-5,)}
SMALL |= {"members": 3, "elites": 2}


class Drift:
    """Policy that returns its noise: actions [B, 1]."""

    def explore_action(self, s: Tensor, random: Random) -> Tensor:
        return random.normal((len(s), 1))


class Line:
    """Two members on a line: x' = x + a. The reward is -|x| / 2, and their disagreement |a|.

    Nothing else is uncertain: the standard deviation of all predictions is e^-20.
    """

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        position, a = x[:, :1], x[:, 1:]
        reward = -position.abs() / 2
        mean = torch.stack([torch.cat([a, reward + sign * a.abs()], 1) for sign in (-1, 1)])
        return mean, torch.full_like(mean, -40.0)


class Equal(Line):
    """Both members predict the same."""

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = super().__call__(x)
        return mean.mean(0, keepdim=True).expand(2, -1, -1), log_variance


def plan(model: Line, weight: float, states: Tensor, **config: Any) -> tuple[Tensor, list[Tensor]]:
    """Return planned actions, and all noise in order."""
    random, cfg = Recorded(), build(Config, config)
    elites = torch.arange(2)
    return planned_action(Drift(), model, elites, states, random, cfg, weight), random.given


@pytest.mark.parametrize(("weight", "best"), [(-1e4, "smallest"), (1e4, "largest")])
def test_uncertainty_counts_against_a_continuation_or_in_its_favor(weight: float, best: str):
    """The weight is large, so the action of the least or greatest disagreement wins in one step.

    The standard deviation is |a| in the reward and 0 in the position, so its mean is |a| / 2.
    """
    states = torch.linspace(-1, 1, 6)[:, None]
    actions, numbers = plan(Line(), weight, states, plans=7, ahead=1)
    candidates = numbers[0].reshape(7, 6)  # the first draw
    size = candidates.abs()
    index = size.argmin(0) if best == "smallest" else size.argmax(0)
    assert torch.equal(actions[:, 0], candidates[index, torch.arange(6)])


def test_without_uncertainty_the_first_action_of_the_highest_discounted_reward_wins():
    """Rewards at x, x + a_0 and x + a_0 + a_1; every continuation draws its own later actions."""
    states = torch.linspace(-2, 2, 5)[:, None]
    actions, numbers = plan(Equal(), 3.0, states, plans=6, ahead=3, plan_discount=0.5)
    draws = [x.reshape(6, 5).double() for x in numbers if x.shape == (30, 1)]
    x, value = states[:, 0].double().expand(6, 5), torch.zeros(6, 5, dtype=torch.float64)
    for step, a in enumerate(draws):
        value, x = value - 0.5**step * x.abs() / 2, x + a
    assert len(draws) == 3
    best = value.argmax(0)
    torch.testing.assert_close(actions[:, 0].double(), draws[0][best, torch.arange(5)])
    assert len({*best.tolist()}) > 1


def test_a_single_plan_takes_the_action_of_the_policy():
    state = start(COPlanner, plans=1, **SMALL)
    s = torch.randn(4, 3)
    actions = state.algorithm.choose_action(state, s)
    assert torch.equal(actions, state.policy.explore_action(s, Recorded()))


def test_rollouts_avoid_and_exploration_seeks_what_is_uncertain():
    """Both equal `planned_action` with the weight's sign, and the elites of the record."""
    weights = {"caution": 7.0, "curiosity": 5.0, "plans": 6}
    state = start(COPlanner, **weights, **SMALL)
    algorithm, s = state.algorithm, torch.randn(20, 3)
    record = {**state.params["record"], "error": torch.tensor([2.0, 3.0, 1.0])}
    state.params["record"] = record
    elites = torch.tensor([2, 0])
    head = algorithm.exploring_head()
    head.load_state_dict(dict(algorithm.exploring_params(state.params)))
    found = [algorithm.choose_action(state, s), head.explore_action(s, Recorded())]
    for actions, weight in zip(found, (-7.0, 5.0), strict=True):
        networks = state.policy, state.dynamics, elites
        expected = planned_action(*networks, s, Recorded(), algorithm.cfg, weight)
        assert torch.equal(actions, expected)
    assert not torch.equal(*found)


def test_evaluations_and_exports_use_the_policy_alone():
    algorithm = start(COPlanner, **SMALL).algorithm
    assert type(algorithm.acting_head()) is TanhGaussianActor
    assert algorithm.acts == MBPO.acts == ("policy",)


def test_stacked_seeds_explore_as_single_seeds():
    def policy(*seeds: int) -> Any:
        cfg, source = build(Config, SMALL), ReplayBuffer((3,), 1, 5)
        engine = Engine(lambda _: COPlanner(Spec((3,), 1), cfg), seeds, {"online": source})
        return engine.stacked_policy(2, explore=True)

    observations = torch.randn(2, 2, 3)
    stacked = policy(4, 9)(observations, 3)
    for s, seed in enumerate((4, 9)):
        torch.testing.assert_close(policy(seed)(observations[s : s + 1], 3)[0], stacked[s])


def test_memory_of_planning_is_that_of_rollouts():
    """A piece of rollouts has fewer starts, because each state has several continuations."""
    algorithm = start(COPlanner, plans=4, starts=6_000, **SMALL).algorithm
    pieces = algorithm.schedule(0, 5_250, None)
    fills = [piece.size for piece in pieces if piece.phase == "rollouts_1"]
    assert fills == [2_500, 2_500, 1_000]


def test_rollouts_before_the_last_fit_are_removed():
    """The authors' ring has the size of one fit's rollouts."""
    algorithm = start(COPlanner, starts=100, **SMALL).algorithm
    assert algorithm.rings() == {"imagined": 100}


@pytest.mark.parametrize("task", ["Hopper-v4", "env:Humanoid-v5", "env:InvertedPendulum-v5"])
def test_target_entropies_are_those_of_mbpo(task: str):
    ours, theirs = (tuned(name, task)[1]["entropy_scale"] for name in ("coplanner", "mbpo"))
    assert ours == theirs
