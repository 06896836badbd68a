"""EDAC: gradient similarity in closed form, and its gradient by pairs."""

from dataclasses import replace
from itertools import permutations

import pytest
import torch
from by_hand import (
    SMALL,
    advance,
    assert_equal_states,
    assert_same,
    close,
    descend,
    doubles,
    made_batch,
    plain,
    start,
    target_after,
    value_of,
)

from offline_rl.algorithms.edac import EDAC, gradient_similarity
from offline_rl.algorithms.sac_n import SACN
from policies import Spec


@pytest.mark.parametrize(
    ("directions", "value"),
    [
        ([[3, 4], [3, 4], [6, 8], [0.3, 0.4]], 4),  # equal directions: N, whatever the lengths
        ([[1, 0, 0], [0, 2, 0], [0, 0, 5]], 0),  # orthogonal
        ([[2, 0], [-1, 3**0.5], [-1, -(3**0.5)]], -1.5),  # a simplex: the least, -N / (N - 1)
        ([[1, 0], [-1, 0]], -2),
        ([[0, 0], [1, 0]], 0),  # a gradient that vanishes is similar to none
    ],
)
def test_similarity_in_closed_form(directions, value):
    gradients = torch.tensor(directions, dtype=torch.float32)[:, None].expand(-1, 7, -1)
    assert gradient_similarity(gradients).item() == pytest.approx(value, abs=1e-5)


def test_the_critics_update_equals_a_sum_over_pairs():
    """Computed in float64 by torch's double backward, one pair of critics at a time."""
    first = start(EDAC, num_critics=3, init="fan_out", eta=5.0, critic_lr=2e-3, **SMALL)
    batch = replace(made_batch(), discount=torch.zeros(32))  # y = r, whatever was drawn
    state, metrics = advance(first, batch)

    critics = [plain(first.params["critic"], "net.", k) for k in range(3)]
    adam = torch.optim.Adam([p for q in critics for p in q.parameters()], lr=2e-3)
    s, a, r, _, _ = doubles(batch)
    actions = [a.clone().requires_grad_() for _ in critics]
    values = [value_of(q, s, own) for q, own in zip(critics, actions, strict=True)]
    slopes = [
        torch.autograd.grad(q.sum(), own, create_graph=True)[0]
        for q, own in zip(values, actions, strict=True)
    ]
    pairs = sum(
        torch.nn.functional.cosine_similarity(slopes[i], slopes[j])
        for i, j in permutations(range(3), 2)
    )
    td = sum((q - r).pow(2).mean() for q in values)
    descend(td + 5 * pairs.mean() / 2, adam)
    for k in range(3):
        assert_same(state, "critic", critics[k], adam, member=k)
    close(metrics["similarity"], pairs.mean() / 2)
    close(metrics["critic_loss"], td)


def test_without_weight_it_is_sac_n():
    batches = made_batch(1), made_batch(2)
    ours, _ = advance(start(EDAC, num_critics=4, eta=0.0, **SMALL), *batches)
    sac_n, _ = advance(start(SACN, num_critics=4, **SMALL), *batches)
    assert_equal_states(ours, sac_n, tolerance=1e-6)


def test_the_penalty_reduces_gradient_similarity():
    batches = [made_batch(1)] * 12
    before = advance(start(EDAC, num_critics=3, eta=0.0, critic_lr=1e-2, **SMALL), *batches)[1]
    after = advance(start(EDAC, num_critics=3, eta=10.0, critic_lr=1e-2, **SMALL), *batches)[1]
    assert after["similarity"] < before["similarity"] - 0.3


def test_bootstraps_after_a_truncation_but_not_after_a_termination():
    assert target_after(EDAC, terminated=True, **SMALL) == 1
    assert target_after(EDAC, terminated=False, **SMALL) != 1


def test_seeds_of_large_ensembles_train_one_after_another_on_a_cpu():
    """A layer of one seed's critics fills a CPU's cache; a GPU always stacks seeds."""
    spec = Spec((3,), 2)
    assert not EDAC(spec, EDAC.Config()).prefers_stacked_seeds("cpu")
    assert EDAC(spec, EDAC.Config()).prefers_stacked_seeds("cuda")
    assert EDAC(spec, EDAC.Config(num_critics=2, hidden=(64,))).prefers_stacked_seeds("cpu")
