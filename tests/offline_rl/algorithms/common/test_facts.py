"""Facts of a task in the units of training: normalized observations, scaled rewards."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from envs.outcomes import Outcomes
from offline_rl.algorithms.common.models.facts import Facts
from offline_rl.data import Dataset
from offline_rl.data.transform import Transform
from offline_rl.training.sources import facts_of
from offline_rl.utils.errors import UserError
from policies.normalizer import Normalizer

NORMALIZER = Normalizer(np.array([1.0, -20.0], np.float32), np.array([0.5, 7.0], np.float32))


def ends(s: Any, a: Any, s2: Any) -> Any:
    """Return True where a step is long in raw units."""
    return abs(s2 - s)[..., 1] + a[..., 0] > 9


def reward(s: Any, a: Any, s2: Any) -> Any:
    return 3 * s[..., 0] - s2[..., 1] + a[..., 0]


def outcomes(**changes: Any) -> Outcomes:
    known: dict[str, Any] = {"ends": {"task": ends}, "reward": reward}
    return Outcomes(**known | changes)


UNGUARDED = {"guardian": "none", "ood_penalty": 1.0}


def facts(known: Any, data: Dataset | None = None, **cfg: Any) -> Facts:
    """Return the facts of a run with a normalizer, and rewards that are scaled and shifted."""
    options = SimpleNamespace(**{"ends": "task", "rewards": "task", **UNGUARDED} | cfg)
    task, method = SimpleNamespace(name="lab/arm", outcomes=known), SimpleNamespace(cfg=options)
    prepared: Any = SimpleNamespace(
        run=SimpleNamespace(task=task, method=method), data=data, spec=None
    )
    transform: Any = SimpleNamespace(normalizer=NORMALIZER, reward_scale=0.1, reward_shift=-2.0)
    return facts_of(prepared, transform)


def transitions(count: int = 200) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return raw transitions."""
    draw = np.random.default_rng(0)
    s, s2 = (draw.normal(size=(count, 2)) * [0.5, 7] + [1, -20] for _ in "ss")
    return s.astype(np.float32), draw.uniform(-1, 1, (count, 1)), s2.astype(np.float32)


def in_units_of_training(s: np.ndarray, a: np.ndarray, s2: np.ndarray) -> list[Tensor]:
    return [torch.from_numpy(x).float() for x in (NORMALIZER(s), a, NORMALIZER(s2))]


def test_ends_and_rewards_are_those_of_raw_transitions():
    """Rewards are scaled and shifted as those of the data. Several leading axes are allowed."""
    raw, known = transitions(), facts(outcomes())
    units = in_units_of_training(*raw)
    np.testing.assert_allclose(known.raw(units[0]), raw[0], rtol=1e-5, atol=1e-5)
    is_end = known.is_end("task", *units)
    assert is_end.dtype == torch.bool
    assert 0.2 < ends(*raw).mean() < 0.8
    np.testing.assert_array_equal(is_end, ends(*raw))
    expected = 0.1 * reward(*raw) - 2
    np.testing.assert_allclose(known.task_reward(*units), expected, rtol=1e-4, atol=1e-5)
    folded = [x.unflatten(0, (10, 20)) for x in units]
    assert torch.equal(known.is_end("task", *folded).flatten(), is_end)
    assert not known.is_end("never", *units).any()
    assert known.is_end("never", *units).dtype == torch.bool


def test_the_transform_of_the_data_and_the_facts_agree():
    """The reward of a predicted transition is that of the same transition in the data."""
    s, a, s2 = transitions()
    raw = Dataset.from_arrays(
        s, a.astype(np.float32), reward(s, a, s2), np.ones(len(s), bool), None, s2
    )
    transform = Transform(normalizer=NORMALIZER, reward_scale=0.1, reward_shift=-2.0)
    data, known = transform.apply(raw), facts(outcomes())
    units = in_units_of_training(s, a, s2)
    np.testing.assert_allclose(data.observations[: len(s)], units[0], atol=1e-6)
    np.testing.assert_allclose(data.rewards, known.task_reward(*units), rtol=1e-4, atol=1e-5)


def test_published_ends_are_those_of_the_task_unless_they_differ():
    units = in_units_of_training(*transitions())
    opposite = {"task": ends, "published": lambda s, a, s2: ~ends(s, a, s2)}
    same, other = (facts(outcomes(ends=e), ends="published") for e in ({"task": ends}, opposite))
    expected = same.is_end("task", *units)
    assert torch.equal(same.is_end("published", *units), expected)
    assert torch.equal(other.is_end("published", *units), ~expected)


def test_what_is_not_known_of_a_task_is_refused_with_a_remedy():
    nothing = {"rewards": "model", "ends": "never"}
    assert facts(None, **nothing).ends == {}
    with pytest.raises(UserError, match=r"algorithm.ends=task: .*lab/arm end.*ends=never if"):
        facts(None, rewards="model")
    with pytest.raises(UserError, match=r"algorithm.ends=published: .*lab/arm"):
        facts(outcomes(ends={}), ends="published")
    for known in (None, outcomes(reward=None)):
        with pytest.raises(UserError, match=r"rewards=task: .*lab/arm .*rewards=model"):
            facts(known, ends="never")
    assert facts(outcomes(reward=None), rewards="model").reward is None


def test_the_range_is_that_of_normalized_data_with_the_states_after_the_last_step():
    """The data has four rows of two episodes, and an extra row at the end of each."""
    s = np.array([[1, -20], [2, -6], [0, -27], [1, -20]], np.float32)
    last = np.array([[1, -34], [3, -20]], np.float32)
    data = Dataset.from_arrays(
        s, s[:, :1] / 40, s[:, 0], s[:, 0] > 9, np.arange(4) % 2 == 1, final_observations=last
    )
    known = facts(outcomes(), data)
    assert (list(known.low), list(known.high)) == ([-2, -2], [4, 2])
    assert (list(facts(outcomes()).low), list(facts(outcomes()).high)) == ([], [])


def test_a_clipped_state_can_end_an_episode():
    """A fall, below -30, is only seen in the state after the last step."""
    s = np.array([[1, -20], [2, -29]], np.float32)
    data = Dataset.from_arrays(
        s, s[:, :1] / 40, s[:, 0], np.array([False, True]), None, np.array([s[1], [2, -31]])
    )
    known = facts(outcomes(ends={"task": lambda s, a, s2: s2[..., 1] < -30}), data)
    s2 = known.clamp(torch.from_numpy(NORMALIZER(np.array([[2, -50]], np.float32))))
    assert known.is_end("task", s2, s2[:, :1], s2).all()


def test_states_are_clipped_to_the_range():
    box = Facts(center=[0.0, 0.0], width=[1.0, 1.0], low=[-2.0, 1.0], high=[2.0, 5.0])
    x = torch.tensor([[-2.5, 3.0], [2.0, 0.5], [2.5, 9.0], [-2.0, 5.0]])
    expected = torch.tensor([[-2.0, 3.0], [2.0, 1.0], [2.0, 5.0], [-2.0, 5.0]])
    assert torch.equal(box.clamp(x), expected)


def test_a_state_is_outside_beyond_one_width_of_the_range_in_any_dimension():
    """The range [-2, 2] has the width 4: up to 6 and -6 is inside. [1, 5] likewise: -3 and 9."""
    box = Facts(center=[0.0, 0.0], width=[1.0, 1.0], low=[-2.0, 1.0], high=[2.0, 5.0])
    above = np.nextafter(np.float32(6), np.float32(7))
    beyond = np.nextafter(np.float32(9), np.float32(10))
    states = [
        ([0.0, 2.0], False),
        ([6.0, 2.0], False),
        ([-6.0, 2.0], False),
        ([above, 2.0], True),
        ([-above, 2.0], True),
        ([0.0, 9.0], False),
        ([0.0, -3.0], False),
        ([0.0, beyond], True),
        ([0.0, -3.001], True),
        ([np.nan, 2.0], True),
        ([0.0, -np.inf], True),
        ([np.inf, np.nan], True),
    ]
    x = torch.tensor(np.array([state for state, _ in states], np.float32))
    assert box.is_outside(x).tolist() == [outside for _, outside in states]
    assert box.is_outside(x.unflatten(0, (3, 4))).shape == (3, 4)


def test_a_number_that_is_constant_in_the_data_does_not_place_a_state_outside():
    """A prediction of the contact forces of Ant, which are 0 in the data, has small noise."""
    box = Facts(center=[0.0, 0.0], width=[1.0, 1.0], low=[-2.0, 0.0], high=[2.0, 0.0])
    x = torch.tensor([[0.0, 1e-3], [0.0, -1e-3], [7.0, 0.0], [0.0, torch.nan]])
    assert box.is_outside(x).tolist() == [False, False, True, True]
