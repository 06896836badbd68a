"""Sparse dynamics: terms, thresholded least squares, ensembles, equations."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks.sindy import DMSD, PIPELINE, System, compare, read
from offline_rl.algorithms.common.models import sparse
from offline_rl.algorithms.common.models.sparse import SparseDynamics, SparseOptions, solve
from offline_rl.utils.errors import UserError
from offline_rl.utils.random import Random
from policies.networks.polynomial import Library, format_sum

LIBRARY = Library(3, 1)


def random(seed: int = 0) -> Random:
    return Random(torch.tensor(seed), torch.tensor(0))


def rows(count: int = 400, noise: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return [s, a] and targets: two sparse polynomials, nothing, and a reward of a and s_1^2."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(count, 4, generator=draw) * torch.tensor([1, 2, 0.5, 1])
    s1, s2, _, a = x.unbind(-1)
    y = torch.stack([0.2 * s2 - 3 * s1 * a, 0.1 * s1.square(), 0 * s1, a - 0.5 * s1.square()], -1)
    return x, y + noise * torch.randn(y.shape, generator=draw)


def reference(
    theta: np.ndarray, y: np.ndarray, ridge: float, threshold: float, normalize: bool
) -> np.ndarray:
    """Return [T, Y] by thresholded least squares on the rows themselves, with `lstsq`."""
    lengths = np.linalg.norm(theta, axis=0), np.linalg.norm(y, axis=0)
    scale, size = lengths if normalize else (np.ones(theta.shape[1]), np.ones(y.shape[1]))
    theta, y, result = theta / scale, y / size, np.zeros((theta.shape[1], y.shape[1]))
    for k in range(y.shape[1]):
        kept = np.arange(theta.shape[1])
        for _ in range(20):
            rows = np.concatenate([theta[:, kept], math.sqrt(ridge) * np.eye(len(kept))])
            target = np.concatenate([y[:, k], np.zeros(len(kept))])
            kept = kept[abs(np.linalg.lstsq(rows, target, rcond=None)[0]) >= threshold]
        result[kept, k] = np.linalg.lstsq(theta[:, kept], y[:, k], rcond=None)[0]
    return result / scale[:, None] * size


def test_terms_are_polynomials_of_the_state_the_actions_and_their_products():
    library = Library(2, 1, 2, constant=True)
    s1, s2, a = 3.0, 5.0, 7.0
    values = [1, s1, s2, s1**2, s1 * s2, s2**2, a, *(a * v for v in (3, 5, 9, 15, 25))]
    assert library(torch.tensor([[s1, s2, a]])).tolist() == [values]
    assert library.names(["x", "y"], ["u"])[3:8] == ["x^2", "x y", "y^2", "u", "x u"]
    assert Library(2, 1, 3, interactions=False, products=False).names() == [
        *("s_1", "s_2", "s_1^2", "s_2^2", "s_1^3", "s_2^3", "a_1")
    ]


@pytest.mark.parametrize(("states", "actions", "degree"), [(17, 6, 2), (4, 0, 3), (1, 1, 5)])
def test_the_number_of_terms_is_a_binomial(states: int, actions: int, degree: int):
    polynomials = math.comb(states + degree, degree) - 1
    assert len(Library(states, actions, degree).terms) == polynomials * (1 + actions) + actions


@pytest.mark.parametrize("normalize", [True, False])
def test_a_fit_equals_thresholded_least_squares_on_the_rows(normalize: bool):
    """Each member has its own rows, some of them several times, and its own terms."""
    x, y = rows(noise=0.3)
    bags = random().integers(len(x), (3, len(x)))
    keep = sparse.draw_terms(random(), 3, len(LIBRARY.terms), 2)
    gram = sparse.gram_matrices(LIBRARY, x, y, bags)
    fit = sparse.threshold_least_squares(gram, keep, 1e-3, 0.05, normalize=normalize)
    theta, target = LIBRARY(x.double()).numpy(), y.double().numpy()
    assert 0 < (fit != 0).double().mean() < 0.8
    for m, bag in enumerate(bags.numpy()):
        kept = keep[m].numpy()
        expected = np.zeros_like(fit[m].numpy())
        expected[kept] = reference(theta[bag][:, kept], target[bag], 1e-3, 0.05, normalize)
        np.testing.assert_allclose(fit[m].numpy(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("normalize", [True, False])
def test_a_fit_equals_pysindy(normalize: bool):
    pysindy = pytest.importorskip("pysindy", reason="needs the extra sindy")
    x, y = rows(noise=0.3)
    bags = random().integers(len(x), (3, len(x)))
    keep = sparse.draw_terms(random(), 3, len(LIBRARY.terms), 2)
    gram = sparse.gram_matrices(LIBRARY, x, y, bags)
    fit = sparse.threshold_least_squares(gram, keep, 1e-3, 0.05, normalize=normalize).numpy()
    theta, target = LIBRARY(x.double()).numpy(), y.double().numpy()
    for m, bag in enumerate(bags.numpy()):
        size = np.linalg.norm(target[bag], axis=0) if normalize else np.ones(4)
        kept, expected = keep[m].numpy(), np.zeros_like(fit[m])
        optimizer = pysindy.STLSQ(threshold=0.05, alpha=1e-3, normalize_columns=normalize)
        optimizer.fit(theta[bag][:, kept], target[bag] / size)
        expected[kept] = optimizer.coef_.T * size
        np.testing.assert_allclose(fit[m], expected, rtol=0, atol=1e-8)


def test_the_polynomials_are_those_of_pysindy():
    pysindy = pytest.importorskip("pysindy", reason="needs the extra sindy")
    s = np.random.default_rng(0).normal(size=(5, 3))
    for interactions in (True, False):
        theirs = pysindy.PolynomialLibrary(
            degree=3, include_bias=False, include_interaction=interactions
        )
        ours = Library(3, 0, 3, interactions)(torch.from_numpy(s))
        np.testing.assert_allclose(ours, theirs.fit_transform(s), rtol=1e-12)


def test_sums_over_chunks_of_rows_are_those_over_all_rows(monkeypatch: pytest.MonkeyPatch):
    x, y = rows(101)
    bags = random().integers(len(x), (3, len(x)))
    theta, target = LIBRARY(x.double())[bags], y.double()[bags]
    monkeypatch.setattr(sparse, "CHUNK", 3 * len(LIBRARY.terms) * 20)
    gram = sparse.gram_matrices(LIBRARY, x, y, bags)
    torch.testing.assert_close(gram.terms, torch.einsum("ent,enu->etu", theta, theta))
    torch.testing.assert_close(gram.cross, torch.einsum("ent,eny->ety", theta, target))
    torch.testing.assert_close(gram.squares, target.square().sum(1))


def test_parts_of_the_targets_are_fitted_as_all_targets(monkeypatch: pytest.MonkeyPatch):
    x, y = rows(noise=0.1)
    whole = solve(x, y, random(), SparseOptions(members=3))
    monkeypatch.setattr(sparse, "SYSTEMS", 1)
    parts = solve(x, y, random(), SparseOptions(members=3))
    torch.testing.assert_close(parts["coefficients"], whole["coefficients"])


def test_a_noisy_system_is_recovered_with_the_variance_of_its_noise():
    x, y = rows(20_000, noise=0.1)
    options = SparseOptions(threshold=0.02, members=5)
    model = SparseDynamics(3, 1, options)
    model.load_state_dict(solve(x, y, random(), options))
    found = sparse.equations(model.median(), model.library, ["x", "y", "z"], ["u"], digits=2)
    assert found[:2] == ["d x = +0.2 y -3 x u", "d y = +0.1 x^2"]
    assert found[3] == "reward = -0.5 x^2 +1 u"
    mean, log_variance = model(x)
    assert mean.shape == log_variance.shape == (5, len(x), 4)
    # members that do without a term of the equation have a larger residual
    assert (log_variance[0, 0, [1, 2]] - 2 * math.log(0.1)).abs().max() < 0.2
    torch.testing.assert_close(mean[:, :, 0].median(0).values, y[:, 0], rtol=0, atol=0.6)


def test_the_model_maps_inputs_of_any_shape():
    model = SparseDynamics(3, 1, SparseOptions(members=2))
    torch.nn.init.normal_(model.coefficients)
    x = torch.randn(2, 5, 4)
    mean, log_variance = model(x)
    assert mean.shape == log_variance.shape == (2, 2, 5, 4)
    torch.testing.assert_close(mean[1], model.library(x) @ model.coefficients[1])
    second, _ = model(x, members=torch.tensor([1]))
    torch.testing.assert_close(second[0], mean[1])


def test_single_members_can_be_evaluated():
    model = SparseDynamics(2, 1, SparseOptions(members=3))
    model.coefficients.data.normal_()
    x, members = torch.randn(4, 3), torch.tensor([2, 0])
    mean, log_variance = model(x, members=members)
    assert torch.equal(mean, model(x)[0][members])
    assert log_variance.shape == (2, 4, 3)


def test_members_use_other_rows_and_all_terms_but_some():
    keep = sparse.draw_terms(random(), 50, 7, 2)
    assert (keep.sum(1) == 5).all()
    assert len(keep.unique(dim=0)) > 10
    assert sparse.draw_terms(random(), 3, 2, 5).sum(1).tolist() == [1, 1, 1]
    x, y = rows(noise=0.5)
    options = SparseOptions(members=4, drop_terms=0, threshold=0.0)
    spread = solve(x, y, random(), options)["coefficients"].std(0)
    every_row = torch.linalg.lstsq(LIBRARY(x.double()), y.double()).solution
    error = (LIBRARY(x.double()) @ every_row - y.double()).square().mean(0)
    inverse = torch.linalg.inv(LIBRARY(x.double()).T @ LIBRARY(x.double())).diagonal()
    expected = (inverse[:, None] * error).sqrt()  # standard errors of least squares
    assert (spread / expected).square().mean().sqrt() == pytest.approx(1, abs=0.4)


def test_stacked_and_traced_fits_equal_single_ones():
    x, y = rows(60, noise=0.2)
    options = SparseOptions(members=2, max_iter=3)

    def fit(seed: Tensor) -> dict[str, Tensor]:
        return solve(x, y, Random(seed, torch.tensor(0)), options)

    stacked = vmap(fit)
    seeds = torch.arange(2)
    traced = make_fx(stacked)(seeds + 7)(seeds)
    for k in range(2):
        for name, value in fit(seeds[k]).items():
            torch.testing.assert_close(stacked(seeds)[name][k], value)
            torch.testing.assert_close(traced[name][k], value)
    assert (traced["coefficients"][0] != traced["coefficients"][1]).any()


def test_proportional_and_absent_terms_leave_the_predictions_right():
    """The state s_2 is twice s_1, and s_3 is always 0."""
    s1 = torch.linspace(-1, 1, 50)
    x = torch.stack([s1, 2 * s1, 0 * s1], -1)
    options = SparseOptions(degree=1, products=False, members=3, drop_terms=0)
    y = torch.stack([s1, 3 * s1, 0 * s1, s1], -1)
    model = SparseDynamics(3, 0, options)
    model.load_state_dict(solve(x, y, random(), options))
    mean, _ = model(x)
    torch.testing.assert_close(mean, y.expand_as(mean), rtol=0, atol=1e-3)
    assert (model.coefficients[:, 2] == 0).all()


def test_the_median_of_an_even_number_of_members_is_the_mean_of_the_middle_two():
    coefficients = torch.tensor([9.0, 1.0, 2.0, 4.0])
    assert sparse.median(coefficients) == 3
    assert sparse.median(coefficients[:3]) == 2


def test_equations_show_significant_digits_and_an_empty_sum():
    assert format_sum([0.123456, 0.0, -20.0], ["1", "x", "x y"], 3) == "+0.123 -20 x y"
    lines = sparse.equations(torch.zeros(2, 2), Library(1, 1, 1, products=False))
    assert lines == ["d s_1 = 0", "reward = 0"]


def test_a_fit_without_rows_and_a_library_too_large_are_refused():
    with pytest.raises(UserError, match="has no rows"):
        solve(torch.zeros(0, 4), torch.zeros(0, 4), random(), SparseOptions())
    terms = (math.comb(63, 3) - 1) * 7 + 6
    with pytest.raises(UserError, match=rf"{terms:,} terms.*Use a lower algorithm.degree"):
        SparseDynamics(60, 6, SparseOptions(degree=3))
    with pytest.raises(UserError, match=r"more than 10\^12 terms"):  # before it makes the terms
        SparseDynamics(120, 6, SparseOptions(degree=400))


@pytest.mark.parametrize("interactions", [False, True])
@pytest.mark.parametrize("products", [False, True])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("degree", [1, 3])
def test_terms_are_counted_without_making_them(interactions, products, constant, degree):
    library = Library(3, 2, degree, interactions, products, constant)
    assert library.num_terms == len(library.terms)


def few_members(system: System) -> System:
    return system._replace(options=replace(system.options, members=5))


def test_the_equations_of_two_masses_are_recovered_from_logged_data(data_dir: Path):
    """Explicit Euler with the constants of the benchmark; targets and rewards are not linear."""
    x, y = read(data_dir, "DMSD", "val", 5000)
    result = compare(x, y, few_members(DMSD))
    assert [row.exact for row in result[:4]] == [True] * 4
    assert max(row.error for row in result[:4]) < 0.01


def test_the_shift_registers_of_the_pipeline_are_recovered_from_logged_data(data_dir: Path):
    x, y = read(data_dir, "Pipeline", "train", 20_000)
    result = compare(x, y, few_members(PIPELINE))
    assert [row.name for row in result if not row.exact] == ["target"]
    assert max(row.error for row in result if row.exact) < 0.01
