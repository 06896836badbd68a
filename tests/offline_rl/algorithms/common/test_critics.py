"""Ensemble critics: sampled members, their gradients, and how their values are combined."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import advance, chunked, made_batch, opinionated, start
from torch import Tensor

from offline_rl.algorithms.common.base import Metrics, State
from offline_rl.algorithms.common.critics import reduce_q, sample_members, sampled_q
from offline_rl.algorithms.common.registry import algorithm_class
from offline_rl.utils.random import Random


def at(update: int) -> Any:
    return SimpleNamespace(random=Random(torch.tensor(3), torch.tensor(update)))


def test_sampled_critics_and_their_gradients_equal_indexing() -> None:
    """A member that is drawn twice has the sum of both gradients."""
    twice = 0
    for update in range(8):
        q, same = (torch.arange(12.0).reshape(3, 4).requires_grad_() for _ in range(2))
        members = sample_members(at(update), 3, 2, replace=True)
        assert members is not None
        twice += int(members[0] == members[1])
        weights = torch.tensor([[1.0], [10.0]])
        found, expected = sampled_q(at(update), q, 2), same[members]
        assert torch.equal(found, expected)
        (weights * found).sum().backward()
        (weights * expected).sum().backward()
        assert torch.equal(q.grad, same.grad)
    assert 0 < twice < 8
    assert sampled_q(at(0), q, None) is q


def combined(q: Tensor, **config: Any) -> Tensor:
    cfg = algorithm_class("sac").Config(**config)
    state: Any = SimpleNamespace(algorithm=SimpleNamespace(cfg=cfg))
    return reduce_q(state, q)


def test_values_are_the_minimum_or_the_mean_less_population_standard_deviations() -> None:
    """The standard deviation of 0, 3 and 6 is sqrt(6) with the divisor 3."""
    q = torch.tensor([[0.0, 1.0], [3.0, 1.0], [6.0, 1.0]])
    lowered = combined(q, q_aggregate="mean", rho=2.0)
    np.testing.assert_allclose(combined(q).numpy(), [0, 1])
    np.testing.assert_allclose(combined(q, q_aggregate="mean").numpy(), [3, 1])
    np.testing.assert_allclose(lowered.numpy(), [3 - 2 * 6**0.5, 1], rtol=1e-6)


def test_unread_options_of_combined_values_are_refused() -> None:
    with pytest.raises(ValueError, match="rho is not used with q_aggregate=min"):
        algorithm_class("iql").Config(rho=1.0)
    with pytest.raises(ValueError, match="q_aggregate is not used with beta"):
        algorithm_class("msg").Config(q_aggregate="mean")
    with pytest.raises(ValueError, match="q_aggregate is not used with independent=True"):
        algorithm_class("ro2o").Config(independent=True, q_aggregate="mean")


TWO = {"num_critics": 2}
SAMPLED = {"num_critics": 2, "num_min_critics": 2}
METHODS: dict[str, dict[str, Any]] = {
    "sac": {},
    "sac_n": TWO,
    "ro2o": TWO,
    "td3": {},
    "rebrac": {},
    "awac": {},
    "iql": {},
    "xql": {},
    "cql": {},
    "rlpd": SAMPLED,
    "mcq": {},
    "idql": {},
    "diffusion_ql": {},
    "gr_rl": {},
}


@pytest.mark.parametrize("name", METHODS)
def test_of_two_critics_the_mean_less_one_deviation_is_the_minimum(name: str) -> None:
    """(a + b) / 2 - |a - b| / 2 = min(a, b): one update has the same targets.

    Two deviations give lower targets, or another loss of V where the target is not combined.
    """
    cls, batch = algorithm_class(name), made_batch()
    sizes = {k: v for k, v in cls.Config.small().items() if k != "num_critics"}
    if name == "gr_rl":
        batch = chunked(batch, sizes.setdefault("horizon", 5))
    columns = {"next_actions": batch.actions.flip(0), "mc_returns": batch.rewards}
    batch = replace(batch, **columns)

    def learned(**config: Any) -> tuple[State, Metrics]:
        first = start(cls, **sizes | METHODS[name] | config)
        return advance(opinionated(first) if name != "gr_rl" else first, batch)

    (_, least), (_, same), (_, lower) = (
        learned(),
        learned(q_aggregate="mean", rho=1.0),
        learned(q_aggregate="mean", rho=2.0),
    )
    for metric, value in least.items():
        torch.testing.assert_close(same[metric], value, rtol=1e-3, atol=1e-4, msg=metric)
    is_in_v = "value_loss" in least
    if is_in_v:
        assert not torch.isclose(lower["value_loss"], least["value_loss"], rtol=1e-4)
    else:
        assert lower["target"] < least["target"] - 1e-4
