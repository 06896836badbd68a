"""Heads of discretized actions: bins, soft advantages, walks through the bins, and the runtimes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import policies
from offline_rl.utils.random import Random
from policies import Bundle, Normalizer, Spec, bundle
from policies.golden import seal
from policies.heads.discretized.autoregressive import AutoregressiveActor
from policies.heads.discretized.bins import discretize
from policies.heads.discretized.coarse_to_fine import CoarseToFineActor
from policies.heads.head import Head

ALPHA = 0.5


def make_autoregressive(**options: Any) -> AutoregressiveActor:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"levels": 2, "bins": 4, "alpha": ALPHA} | options
    return spread(AutoregressiveActor(5, 2, (16, 8), **settings))


def make_coarse_to_fine() -> CoarseToFineActor:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"features": 6, "levels": 3, "bins": 5, "atoms": 7}
    return spread(CoarseToFineActor(5, 2, (16, 8), **sizes, v_min=-1.0, v_max=4.0))


def spread(head: Any) -> Any:
    """Return the head with random numbers added to its parameters, so that its bins differ."""
    for parameter in head.requires_grad_(False).parameters():
        parameter.add_(0.5 * torch.randn(parameter.shape))
    return head


HEADS = {
    "autoregressive": make_autoregressive,
    "by_level": lambda: make_autoregressive(conditioning="level"),
    "coarse_to_fine": make_coarse_to_fine,
}


@pytest.mark.parametrize(("levels", "bins"), [(1, 41), (2, 7), (3, 5)])
def test_bins_are_the_digits_of_the_action_and_decode_to_the_middle(levels: int, bins: int) -> None:
    """The cells of all levels are numbered from -1 to 1; the number in base K has the bins."""
    cells = bins**levels
    number = np.arange(cells)
    middles = (2 * number + 1) / cells - 1
    actions = np.stack([middles, middles + 0.9 / cells, middles - 0.9 / cells], -1)
    indices, walk = discretize(torch.from_numpy(actions), levels, bins)
    digits = np.stack([number // bins ** (levels - 1 - k) % bins for k in range(levels)], -1)
    np.testing.assert_array_equal(indices, np.repeat(digits[..., None], 3, -1))
    np.testing.assert_allclose(walk[:, -1], np.repeat(middles[:, None], 3, -1), atol=1e-12)
    assert not walk[:, 0].any()
    ends, _ = discretize(torch.tensor([-1.0, 1.0]), levels, bins)
    assert ends.tolist() == [[0, bins - 1]] * levels


def test_the_exponentials_of_soft_advantages_sum_to_one() -> None:
    advantages, _ = make_autoregressive().evaluate(torch.randn(9, 5), torch.rand(9, 2) * 2 - 1)
    assert advantages.shape == (2, 9, 4, 4)
    torch.testing.assert_close((advantages / ALPHA).exp().sum(-1), torch.ones(2, 9, 4))


@pytest.mark.parametrize("conditioning", ["decision", "level"])
def test_a_decision_depends_on_earlier_decisions_alone(conditioning: str) -> None:
    """A decision depends on no decision of its level with conditioning=level.

    The bin of one decision changes. Decisions 0 and 1 are of level 0, decisions 2 and 3 of level 1.
    """
    head, s = make_autoregressive(conditioning=conditioning), torch.randn(1, 5)
    start = torch.full((1, 2), -0.95)  # the first bin of both levels
    before, _ = head.evaluate(s, start)
    for number in range(4):
        moved = start.clone()
        moved[:, number % 2] += 0.5 if number < 2 else 0.125  # the width of a bin
        same = (head.evaluate(s, moved)[0] == before).all(-1).all(0)[0].tolist()
        first = number + 1 if conditioning == "decision" else 2 * (number // 2 + 1)
        assert same == [True] * first + [False] * (4 - first)


@pytest.mark.parametrize("name", ["autoregressive", "by_level"])
def test_each_greedy_decision_has_the_largest_minimum_of_both_advantages(name: str) -> None:
    """The training pass computes the advantages of all decisions of the action at once."""
    head, s = HEADS[name](), torch.randn(50, 5)
    advantages, is_selected = head.evaluate(s, head.act(s))
    assert advantages.amin(0).argmax(-1).equal(is_selected.int().argmax(-1))
    assert head.act(s).std() > 0.3


def test_explored_bins_have_the_probabilities_of_the_softmax() -> None:
    head = make_autoregressive(levels=1)
    s = torch.randn(1, 5)
    random = Random(torch.tensor(1), torch.tensor(2))
    actions = head.explore_action(s.expand(4000, -1), random)
    advantages, _ = head.evaluate(s, torch.zeros(1, 2))
    expected = (advantages.amin(0)[0, 0] / ALPHA).softmax(-1)
    share = discretize(actions, 1, 4)[0][:, 0, 0].bincount(minlength=4) / 4000
    torch.testing.assert_close(share, expected, atol=0.03, rtol=0)
    assert expected.amax() < 0.9


def test_coarse_to_fine_exploration_adds_noise_and_rounds_to_middles() -> None:
    head, s = make_coarse_to_fine(), torch.zeros(2000, 5)
    actions = head.explore_action(s, Random(torch.tensor(1), torch.tensor(2)))
    cells = (actions.double() + 1) / 2 * 125 - 0.5
    torch.testing.assert_close(cells, cells.round(), atol=1e-4, rtol=0)
    inside = head.act(s)[0].abs() < 0.7
    assert inside.any()
    assert (actions - head.act(s))[:, inside].std().item() == pytest.approx(0.1, rel=0.05)


def write(path: Path, head: Head) -> Path:
    weights = {k: v.numpy().copy() for k, v in head.state_dict().items()}
    normalizer = Normalizer.fit(np.random.default_rng(0).normal(1, 3, (20, 5)).astype(np.float32))
    kind, arguments = type(head).__name__, head.arguments
    bundle.write(path, seal(Bundle(Spec((5,), 2), kind, arguments, weights, normalizer)))
    return path


def assert_equal_actions(path: Path, runtime: str) -> None:
    """Assert equal actions of a runtime and torch."""
    s = np.random.default_rng(3).normal(size=(50, 5)).astype(np.float32) * 4
    actions, expected = (policies.load(path, runtime=x).act(s)[0] for x in (runtime, "torch"))
    assert expected.std() > 0.2
    np.testing.assert_allclose(actions, expected, atol=1e-5)


@pytest.mark.parametrize("name", HEADS)
def test_the_bundle_acts_alike_in_numpy_and_torch(name: str, tmp_path: Path) -> None:
    assert_equal_actions(write(tmp_path / "policy.bundle", HEADS[name]()), "numpy")


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_the_exported_bundle_acts_as_in_torch(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from policies.export import export_bundle

    path = write(tmp_path / "policy.bundle", HEADS[name]())
    exported, _ = export_bundle(bundle.read(path))
    bundle.write(path, exported)
    assert_equal_actions(path, "onnx")


@pytest.mark.parametrize("name", HEADS)
def test_the_margin_is_the_smallest_one_on_the_way_to_the_action(name: str) -> None:
    """The training pass evaluates the bins along the greedy action."""
    head, s = HEADS[name](), torch.randn(40, 5)
    outputs, _ = head.evaluate(s, head.act(s))
    values = head.mean(outputs) if name == "coarse_to_fine" else outputs.amin(0)
    best = values.sort(-1, descending=True).values
    expected = (best[..., 0] - best[..., 1]).flatten(1).amin(1)
    margins = head.selection_margins(s[:, None], {}, torch.zeros(40, 0))
    torch.testing.assert_close(margins, expected, atol=1e-5, rtol=0)
