"""Columns of costs: per step, and to the end of the episode."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from offline_rl.data import Dataset
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.columns import columns, shapes
from offline_rl.utils.random import Random


def data(costs: list[float], terminated: list[int], truncated: list[int]) -> Dataset:
    rows, ends = np.arange(len(costs)), np.zeros((2, len(costs)), bool)
    ends[0, terminated], ends[1, truncated] = True, True
    extras = {"costs": np.array(costs)}
    return Dataset.from_arrays(
        rows[:, None], np.zeros((len(rows), 1)), -rows, *ends, rows[:, None] + 1, extras=extras
    )


def test_the_cost_to_go_is_undiscounted_and_stops_at_every_end_of_an_episode():
    three = data([1, 0, 2.5, 0, 4, 1], terminated=[2], truncated=[4, 5])
    made = columns(["mc_costs"], three, lambda _: np.zeros(6))
    assert made["mc_costs"].tolist() == [3.5, 2.5, 2.5, 4, 4, 1]
    np.testing.assert_array_equal(made["costs"], three.extras["costs"])


def test_the_cost_to_go_continues_after_a_terminated_row_whose_episode_continues():
    continuing = data([1, 2, 3], terminated=[0], truncated=[2])
    continuing = replace(continuing, continues=np.array([True, False, False]))
    assert columns(["mc_costs"], continuing, lambda _: np.zeros(3))["mc_costs"][0] == 6


def test_the_cost_of_an_episode_is_its_first_cost_to_go():
    draw = np.random.default_rng(0)
    many = data(list(draw.uniform(size=90)), terminated=[29, 64], truncated=[89])
    to_go = columns(["mc_costs"], many, lambda _: np.zeros(90))["mc_costs"]
    expected = [many.extras["costs"][a:b].sum() for a, b in ((0, 30), (30, 65), (65, 90))]
    np.testing.assert_allclose(many.episode_costs(), expected, rtol=1e-12)
    np.testing.assert_allclose(to_go[[0, 30, 65]], expected, rtol=1e-6)


@pytest.mark.parametrize("n_step", [1, 3])
def test_batches_have_the_cost_to_go_of_their_first_row(n_step: int):
    six = data([1, 0, 2, 0, 4, 1], terminated=[2], truncated=[5])
    made = columns(["mc_costs"], six, lambda _: np.zeros(6))
    buffer = ReplayBuffer.from_dataset(six, columns=made).with_n_step(n_step)
    tensors = {k: v[0] for k, v in buffer.tensors().items()}
    batch = buffer.sample(tensors, Random(torch.tensor(0), torch.tensor(0)), 50, 0.5)
    first = batch.observations[:, 0].long()
    assert set(first.tolist()) == {*range(6)}
    assert torch.equal(batch.mc_costs, torch.tensor([3.0, 2, 2, 5, 5, 1])[first])


def test_experience_of_costs_to_go_has_room_for_the_costs_that_they_are_computed_from():
    assert shapes(["mc_costs", "expert"], 2) == {"mc_costs": (), "costs": ()}
