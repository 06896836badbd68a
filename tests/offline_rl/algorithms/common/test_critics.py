"""Ensemble critics: sampled members and their gradients."""

from types import SimpleNamespace
from typing import Any

import torch

from offline_rl.algorithms.common.critics import sample_members, sampled_q
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
