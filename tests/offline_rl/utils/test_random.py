"""Tests of the random numbers: distribution, independence and reproducibility."""

import math

import pytest
import torch
from torch.func import vmap

from offline_rl.utils.random import Random


def random(seed: int = 3, update: int = 5) -> Random:
    return Random(torch.tensor(seed), torch.tensor(update))


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1].item()


N = 100_000
FIVE_SIGMA = 5 / math.sqrt(N)  # of the correlation of N independent pairs


def test_same_key_same_numbers_and_nothing_else_matters():
    first = random().normal((4, 5))
    torch.manual_seed(99)
    torch.rand(7)
    assert torch.equal(random().normal((4, 5)), first)


def test_numbers_never_change_from_one_version_to_the_next():
    """A resumed run must get the same numbers as an uninterrupted one."""
    assert random(0, 0).bits((4,)).tolist() == [1309527680, 267034782, 3411095086, 1409068088]
    assert random(12345, 10**9).bits((4,)).tolist() == [
        2293675041,
        1334544876,
        4161978167,
        644904470,
    ]


def test_uniform_fills_equal_bins_equally():
    u = random().uniform((N,))
    assert u.min() >= 0
    assert u.max() < 1
    counts = torch.histc(u, bins=100, min=0, max=1)
    chi_square = ((counts - N / 100).square() / (N / 100)).sum().item()
    assert abs(chi_square - 99) < 5 * math.sqrt(2 * 99)  # mean and deviation for 99 degrees


def test_every_bit_is_fair():
    bits = random().bits((N,))
    assert bits.min() >= 0
    assert bits.max() < 2**32
    for place in range(32):
        share = (bits >> place & 1).double().mean().item()
        assert abs(share - 0.5) < 5 * 0.5 / math.sqrt(N), place


def test_normal_has_the_moments_of_a_standard_normal():
    x = random().normal((N,)).double()
    assert x.isfinite().all()
    for power, moment in enumerate([0, 1, 0, 3, 0, 15], start=1):
        deviation = x.pow(power).std() / math.sqrt(N)
        assert abs(x.pow(power).mean() - moment) < 5 * deviation, power
    assert (x.abs() > 3).double().mean().item() == pytest.approx(0.0027, rel=0.3)


@pytest.mark.parametrize("high", [1, 3, 7, 1000])
def test_integers_take_every_value_equally_often(high):
    x = random().integers(torch.tensor(high), (N,))
    counts = torch.bincount(x, minlength=high)
    assert len(counts) == high
    assert (counts - N / high).abs().max() < 5 * math.sqrt(N / high) + 1


def test_integers_reach_the_last_row_of_the_largest_buffer():
    high = 2**31 - 1
    x = random().integers(torch.tensor(high), (N,))
    assert x.min() >= 0
    assert high * 0.999 < x.max().item() < high


@pytest.mark.parametrize(
    ("a", "b"),
    [((0, 0), (1, 0)), ((0, 0), (0, 1)), ((1, 0), (0, 1)), ((7, 3), (3, 7)), ((0, 0), (2**32, 0))],
)
def test_neighboring_seeds_and_updates_are_independent(a, b):
    x, y = (random(*key).uniform((N,)) for key in (a, b))
    assert abs(correlation(x, y)) < FIVE_SIGMA
    assert abs(correlation(x[1:], y[:-1])) < FIVE_SIGMA  # nor are they the same ones shifted
    assert (x == y).double().mean() < 1e-4


def test_call_sites_are_independent():
    source = random()
    x, y = source.uniform((N,)), source.uniform((N,))
    assert abs(correlation(x, y)) < FIVE_SIGMA
    assert abs(correlation(x[1:], y[:-1])) < FIVE_SIGMA


@pytest.mark.parametrize("lag", [1, 2, 7, 256])
def test_elements_are_independent(lag):
    x = random().uniform((N,))
    assert abs(correlation(x[lag:], x[:-lag])) < FIVE_SIGMA


def test_no_two_of_many_updates_share_their_first_numbers():
    """No two of 200,000 updates share their first two numbers: the key has 64 bits."""
    updates = torch.arange(200_000)
    first = vmap(lambda u: Random(torch.tensor(3), u).bits((2,)))(updates)
    assert len(torch.unique(first, dim=0)) == len(updates)


def test_stacked_seeds_draw_what_single_ones_draw():
    seeds = torch.tensor([0, 1, 5])
    stacked = vmap(lambda s: Random(s, torch.tensor(2)).normal((3, 4)))(seeds)
    for seed, numbers in zip(seeds, stacked, strict=True):
        assert torch.equal(Random(seed, torch.tensor(2)).normal((3, 4)), numbers)
