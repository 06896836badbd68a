"""Our updates beside the final numbers of public code, kept from `python -m benchmarks.conformance`.

Same weights, batches and random numbers in float64; see benchmarks/conformance.
"""

import pytest

from benchmarks.conformance import ours
from benchmarks.conformance.cases import CASES, WITHOUT
from benchmarks.conformance.command import FAULT, load
from benchmarks.conformance.compare import TOLERANCE, differences, last
from benchmarks.conformance.inputs import part

BY_NAME = {case.name: case for case in CASES}


def apart(name, fault=0.0):
    """Quantities, and how far ours are from the numbers that were kept."""
    given, mine = ours.run(BY_NAME[name], fault)
    mine = last(mine)
    return differences(mine, load(BY_NAME[name], mine), part(given, "params/"))


@pytest.mark.parametrize("name", BY_NAME)
def test_an_update_equals_public_code(name):
    found = apart(name)
    assert max(found.values()) < TOLERANCE, found


@pytest.mark.parametrize("name", BY_NAME)
def test_targets_a_millionth_too_large_are_found(name):
    assert max(apart(name, FAULT).values()) > 10 * TOLERANCE


def test_every_algorithm_has_a_row():
    assert {case.algorithm for case in CASES} | set(WITHOUT) == set(ours.algorithm_names())
