"""Guardians: densities and distances by hand, their threshold, and guardians in bundles."""

from dataclasses import replace
from math import exp, pi, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import policies
from policies import Bundle, BundleError, Normalizer, Spec, bundle
from policies.golden import seal
from policies.runtimes.guardian import Guardian, fit

RNG = np.random.default_rng(0)
S, A = RNG.normal(3, 10, (400, 3)), RNG.uniform(-1, 1, (400, 2))


def test_the_kernel_density_is_a_mean_of_gaussian_kernels() -> None:
    """Each kernel has the factor 1 / (sigma sqrt(2 pi)), whatever the number of columns."""
    points = RNG.normal(size=(7, 3))
    center, width = np.array([1.0]), np.array([2.0])
    guardian = Guardian("kde", points, center, width, threshold=0.0, bandwidth=0.535)
    s, a = RNG.normal(size=(5, 1)), RNG.normal(size=(5, 2))
    for row, score in enumerate(guardian.score(s, a)):
        x = [(s[row, 0] - 1) / 2, *a[row]]
        kernels = [
            exp(-sum((u - v) ** 2 for u, v in zip(x, p, strict=True)) / (2 * 0.535**2))
            for p in points
        ]
        assert exp(score) == pytest.approx(sum(kernels) / 7 / (0.535 * sqrt(2 * pi)), rel=1e-12)


def test_densities_too_small_for_a_float_have_finite_scores() -> None:
    guardian = Guardian("kde", np.zeros((4, 2)), np.zeros(1), np.ones(1), threshold=0.0)
    (score,) = guardian.score(np.full((1, 1), 100.0), np.zeros((1, 1)))
    assert score == pytest.approx(-5000 - np.log(sqrt(2 * pi)))


def test_the_neighbor_score_is_the_distance_to_the_neighbor_of_that_rank() -> None:
    points = RNG.normal(size=(30, 3))
    s, a = RNG.normal(size=(6, 2)), RNG.normal(size=(6, 1))
    pairs = np.concatenate([s, a], 1)
    distances = np.sort(np.sqrt(((pairs[:, None] - points) ** 2).sum(-1)), 1)
    for rank in (1, 4, 30):
        guardian = Guardian("neighbor", points, np.zeros(2), np.ones(2), 0.0, neighbor=rank)
        np.testing.assert_allclose(guardian.score(s, a), -distances[:, rank - 1], atol=1e-7)


@pytest.mark.parametrize("kind", ["kde", "neighbor"])
def test_a_quantile_of_new_data_is_out_of_distribution(kind: Any) -> None:
    """Units of the observations do not matter, nor does a column that never changes."""
    rng = np.random.default_rng(1)
    s = np.concatenate([rng.normal(size=(4000, 2)), np.full((4000, 1), 7.0)], 1)
    a = rng.uniform(-1, 1, (4000, 1))
    guardian = fit(s[:3000], a[:3000], kind, rows=1000, quantile=0.1)
    inside, scores = guardian.in_distribution(s[3000:], a[3000:])
    assert 0.07 < 1 - inside.mean() < 0.13
    np.testing.assert_array_equal(inside, scores >= guardian.threshold)
    assert not guardian.in_distribution(s[3000:] + 10, a[3000:])[0].any()
    units = np.array([1000.0, 1e-3, 1.0])
    other = fit(s[:3000] * units, a[:3000], kind, rows=1000, quantile=0.1)
    again = other.score(s[3000:] * units, a[3000:])
    np.testing.assert_allclose(again, scores, rtol=1e-3, atol=1e-3)


def test_the_threshold_is_a_quantile_over_pairs_outside_the_sample() -> None:
    """The sample's own scores are higher: a pair's kernel at itself counts, or distance 0."""
    for kind in ("kde", "neighbor"):
        guardian = fit(S, A, kind, rows=200, quantile=0.5)  # type: ignore[arg-type]
        order = np.random.default_rng(0).permutation(400)
        sample, others = order[:200], order[200:]
        assert guardian.threshold == np.median(guardian.score(S[others], A[others]))
        assert guardian.threshold < np.median(guardian.score(S[sample], A[sample]))


def test_a_score_equal_to_the_threshold_is_in_distribution() -> None:
    """Most pairs are equal, and the threshold is their score. They are not flagged."""
    guardian = Guardian("neighbor", np.zeros((3, 2)), np.zeros(1), np.ones(1), 0.0, neighbor=1)
    s = np.array([[2.0], [2.0], [2.0], [3.0]])
    guardian = guardian.with_threshold(s, np.zeros((4, 1)), 0.5)
    assert guardian.threshold == -2
    inside, _ = guardian.in_distribution(s, np.zeros((4, 1)))
    assert inside.tolist() == [True, True, True, False]


def test_wrong_inputs_are_refused() -> None:
    guardian = fit(S, A, "kde", rows=100)
    with pytest.raises(
        ValueError, match=r"shapes \[B, 3\] and \[B, 2\], found \[4, 3\] and \[4, 1"
    ):
        guardian.score(S[:4], A[:4, :1])
    with pytest.raises(ValueError, match="needs more than 8 rows"):
        fit(S[:8], A[:8], "neighbor")
    with pytest.raises(ValueError, match="'knn' is not a kind of guardian"):
        replace(guardian, kind="knn")  # type: ignore[arg-type]


def made_bundle() -> Bundle:
    weights = {"trunk.weights.0": RNG.normal(size=(3, 2)), "trunk.biases.0": np.zeros(2)}
    spec = Spec((3,), 2, action_low=(0.0, 0.0), action_high=(10.0, 1.0))
    arguments: dict[str, Any] = {"observations": 3, "actions": 2, "hidden": []}
    arrays = {k: v.astype(np.float32) for k, v in weights.items()}
    return seal(Bundle(spec, "DeterministicActor", arguments, arrays, Normalizer.identity((3,))))


@pytest.mark.parametrize("kind", ["kde", "neighbor"])
def test_a_bundle_flags_pairs_without_torch(tmp_path: Path, kind: Any) -> None:
    """The numpy runtime gives the scores of the guardian that was written."""
    guardian = fit(S, A, kind, rows=100)
    bundle.write(tmp_path / "policy.bundle", replace(made_bundle(), guardian=guardian))
    policy = policies.load(tmp_path / "policy.bundle", runtime="numpy")
    inside, scores = policy.in_distribution(S[:50], A[:50])
    assert inside.sum() > 0
    np.testing.assert_array_equal(scores, guardian.score(S[:50], A[:50]))
    in_units = policies.load(tmp_path / "policy.bundle", runtime="numpy", units=True)
    actions = np.array([10, 1]) * (A[:50] + 1) / 2
    np.testing.assert_allclose(in_units.in_distribution(S[:50], actions)[1], scores, rtol=1e-9)


def test_a_bundle_without_a_guardian_says_how_to_add_one(tmp_path: Path) -> None:
    bundle.write(tmp_path / "policy.bundle", made_bundle())
    policy = policies.load(tmp_path / "policy.bundle", runtime="numpy")
    with pytest.raises(BundleError, match=r"no guardian\. Add one with offline-rl export"):
        policy.in_distribution(S[:5], A[:5])


def test_a_damaged_guardian_is_refused(tmp_path: Path) -> None:
    guardian = replace(fit(S, A, "kde", rows=100), bandwidth=2.0)
    object.__setattr__(guardian, "bandwidth", -1.0)
    bundle.write(tmp_path / "policy.bundle", replace(made_bundle(), guardian=guardian))
    with pytest.raises(BundleError, match=r"bandwidth=-1\.0"):
        bundle.read(tmp_path / "policy.bundle")
