"""Tests of options passed from Python as NumPy and torch values, and of arrays as tensors."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offline_rl.data import Dataset
from offline_rl.runs.run import runs_of
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import build, coerce, parse_options
from policies.arrays import as_array


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (np.int64(3), int, 3),
        (np.array(3), int, 3),
        (np.float64(3), int, 3),
        (torch.tensor(3), int, 3),
        (np.float32(2.5), float, 2.5),
        (torch.tensor(2.5, requires_grad=True), float, 2.5),
        (np.bool_(True), bool, True),
        (np.str_("name"), str, "name"),
        (Path("a/b"), str, "a/b"),
        (np.array([1, 2]), list[int], [1, 2]),
        (range(2), int | list[int], [0, 1]),
        (np.array([8, 8]), tuple[int, ...], (8, 8)),
        (torch.tensor([[0.0, 1.0], [2.0, 3.0]]), list[float] | list[list[float]], [[0, 1], [2, 3]]),
    ],
)
def test_an_option_takes_numpys_and_torchs_values(value: Any, hint: Any, expected: Any) -> None:
    result = coerce(value, hint, "key")
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("value", "hint"),
    [(np.float64(2.5), int), (np.bool_(True), int), (np.array([1, 2]), int), (np.int64(1), bool)],
)
def test_an_ambiguous_value_is_refused(value: Any, hint: Any) -> None:
    with pytest.raises(UserError, match=r"key=.*expected"):
        coerce(value, hint, "key")


def test_an_array_or_tuple_of_values_makes_one_run_per_value() -> None:
    keys = {"algorithm": "td3_bc", "task": "none", "seeds": np.array([2, 5])}
    for values in (np.array([1.0, 2.5]), (1.0, 2.5), [1.0, 2.5]):
        runs = runs_of(keys | {"algorithm__alpha": values, "num_updates": np.int64(20)})
        assert [(run.name, run.method.cfg.alpha, run.seed) for run in runs] == [
            (f"default-alpha_{alpha}", alpha, seed) for alpha in (1.0, 2.5) for seed in (2, 5)
        ]
        assert {run.budget.num_updates for run in runs} == {20}


def test_a_data_set_is_built_from_tensors_with_gradients_and_bfloat16() -> None:
    x = torch.tensor([[0.5], [0.25]], requires_grad=True)
    ends, costs = torch.tensor([False, True]), x[:, 0]
    limits = np.array([-2.0, 2.0])
    data = Dataset.from_arrays(
        x.bfloat16(), x, list(x[:, 0]), ends, extras={"costs": costs}, action_range=limits
    )
    assert data.observations.dtype == np.float32
    assert data.observations.tolist() == [[0.5], [0.25]]
    assert data.actions.tolist() == [[0.25], [0.125]]
    assert data.rewards.tolist() == data.extras["costs"].tolist() == [0.5, 0.25]


def test_an_array_keeps_its_memory() -> None:
    x = np.zeros(3, np.float32)
    assert as_array(x, np.float32) is x


@dataclass(frozen=True)
class Rates:
    """Options of a test."""

    lr: float = 1e-3


@pytest.mark.parametrize("key", [1.5, True, None])
def test_a_key_of_a_file_that_is_no_text_is_an_unknown_option(key: Any) -> None:
    """A YAML file can contain the line `1.5: 2`."""
    with pytest.raises(UserError, match=rf"^table\.yaml: unknown option '{key}'"):
        build(Rates, {key: 2.0}, "table.yaml: ")


@pytest.mark.parametrize("argument", ["stl=always[0,2](x > 1), y", "stl='always[0,2](x > 1), y'"])
def test_a_formula_needs_no_inner_quotes(argument: str) -> None:
    assert parse_options([argument]) == {"stl": "always[0,2](x > 1), y"}
    assert parse_options(["stl='a b' > 0 and 'c' < 1"]) == {"stl": "'a b' > 0 and 'c' < 1"}
