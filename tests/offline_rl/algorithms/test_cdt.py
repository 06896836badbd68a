"""CDT: its conditions, its sampling of episodes, its new episodes and its options."""

from typing import Any

import numpy as np
import pytest
import torch
from by_hand import Recorded, advance, close, completed, start, taught

from offline_rl.algorithms.cdt import CDT
from offline_rl.data import Dataset
from offline_rl.training.sources import offline_source
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import build
from policies.heads.decision_transformer import ConstrainedTransformer
from policies.spec import Spec

SMALL: dict[str, Any] = {"context_length": 3, "dim_model": 8, "num_layers": 1, "num_heads": 2}
SMALL |= {"episode_steps": 5, "target_cost": 1.0, "return_scale": 1.0}


def episodes() -> Dataset:
    """Return episodes of 2, 3 and 4 steps with costs 0, 3 and 40. Rewards are row numbers."""
    number = np.arange(9, dtype=np.float32)
    columns = {"observations": number[:, None], "actions": number[:, None] / 10, "rewards": number}
    costs = np.array([0, 0, 1, 1, 1, 10, 10, 10, 10], np.float32)
    truncated = np.isin(number, [1, 4, 8])
    none = np.zeros(9, bool)
    return Dataset.from_arrays(
        **columns, truncated=truncated, terminated=none, extras={"costs": costs}
    )


def sampled(size: int, **config: Any) -> tuple[Any, Any]:
    """Return a state and a batch of its windows."""
    state = start(CDT, spec=Spec((1,), 1), **SMALL | {"target_return": 1.0} | config)
    learner: Any = state.algorithm
    data = learner.prepare(episodes())[0]
    source = learner.source("update", {"offline": offline_source(learner, data)})
    tensors = {k: v[0] for k, v in source.tensors().items()}
    return state, source.sample(tensors, Recorded(), size, learner.cfg.discount)


def test_windows_start_in_cheap_episodes_and_know_both_targets() -> None:
    """The probabilities of the three episodes are 10, 7 and 0 of 17, and equal within each."""
    _, batch = sampled(20_000, augmentation=0.0, max_episode_cost=10.0)
    first = batch.observations[:, 0, 0].round().long()
    counts = torch.bincount(first, minlength=9).double() / 20_000
    expected = [5 / 17] * 2 + [7 / 51] * 3 + [0.0] * 4
    np.testing.assert_allclose(counts, expected, atol=0.012)
    returns, costs = np.array([1, 1, 9, 7, 4]), np.array([0, 0, 3, 2, 1])
    np.testing.assert_array_equal(batch.mc_returns[:, 0], returns[first])
    np.testing.assert_array_equal(batch.mc_costs[:, 0], costs[first])
    assert (batch.valid.sum(1) == torch.tensor([2, 1, 3, 2, 1])[first]).all()


def test_new_episodes_have_targets_that_fall_like_those_of_their_steps() -> None:
    """One of three episodes is repeated, with a cost of 0 and a return above the best one."""
    algorithm: Any = start(
        CDT, spec=Spec((1,), 1), **SMALL, augmentation=0.4, target_return=1.0
    ).algorithm
    data, _ = algorithm.prepare(episodes())
    columns = algorithm.make_columns(data)
    rows = slice(9, None)
    assert len(data.episode_starts) == 4
    own = np.array([1, 1, 9, 7, 4, 26, 21, 15, 8]), np.array([0, 0, 3, 2, 1, 40, 30, 20, 10])
    numbers = data.rewards[rows].astype(int)
    for name, values in zip(("mc_returns", "mc_costs"), own, strict=True):
        np.testing.assert_array_equal(columns[name][:9], values)
        offset = columns[name][rows] - values[numbers]
        np.testing.assert_allclose(offset, offset[0], atol=1e-5)
        assert len(offset) in (2, 3, 4)
    assert columns["mc_returns"][9] > 9  # above the best return at its cost, 0


def test_new_returns_exceed_the_best_of_the_data_by_at_most_a_tenth_of_their_range() -> None:
    """The returns of the data are 1, 9 and 26. A new episode is added for each of them."""
    options = SMALL | {"augmentation": 1.0, "target_return": 1.0}
    algorithm: Any = start(CDT, spec=Spec((1,), 1), **options).algorithm
    data, _ = algorithm.prepare(episodes())
    new = algorithm.make_columns(data)["mc_returns"][data.episode_starts[3:]]
    assert len(new) == 3
    assert new.max() <= 26 + 2.5


def test_it_acts_like_the_data_with_its_return_and_cost() -> None:
    """One observation: +0.5 earned and cost 1, -0.5 earned and cost nothing."""
    rows, risky = np.zeros((64, 1), np.float32), (np.arange(64) % 2).astype(np.float32)
    data = Dataset.from_arrays(rows, risky[:, None] - 0.5, risky, rows[:, 0] == 0)
    object.__setattr__(data, "extras", {"costs": risky})
    config = SMALL | {"dim_model": 16, "dropout": 0.0, "lr": 1e-2, "num_warmup_updates": 1}
    config |= {"target_return": 1.0, "cost_shift": 0.0, "augmentation": 0.0}
    state = taught(CDT, data, num_updates=150, **config)
    arguments = state.algorithm.modules["policy"].arguments
    for target in (1.0, 0.0):
        net = ConstrainedTransformer(**arguments | {"target_return": target, "target_cost": target})
        net.load_state_dict(dict(state.params["policy"]))
        action, _ = net.decide(torch.zeros(1, 1, 1), net.initial_memory(1), torch.zeros(1, 0))
        assert action.item() == pytest.approx(target - 0.5, abs=0.2)


def test_the_temperature_moves_the_entropy_to_minus_the_number_of_actions() -> None:
    """The gradient of the logarithm is temperature * (entropy + 1); its first Adam step is lr."""
    state, batch = sampled(32, dropout=0.0, temperature_lr=0.01)
    after, metrics = advance(state, batch)
    assert metrics["entropy"] > -1
    close(metrics["temperature"], 0.1)
    close(after.params["log_alpha"]["value"], np.log(0.1) - 0.01)
    gradient = after.optimizer["log_alpha"]["first"]["value"] / 0.1  # 1 - beta1
    close(gradient, 0.1 * (metrics["entropy"] + 1))
    _, log_std, _ = state.policy(
        batch.observations,
        batch.actions,
        batch.mc_returns,
        batch.timesteps.long(),
        batch.valid,
        costs_to_go=batch.mc_costs,
    )
    each = torch.distributions.Normal(0.0, log_std.exp()).entropy()[..., 0]
    close(metrics["entropy"], each[batch.valid].mean())


def test_targets_follow_from_the_data_where_they_are_null() -> None:
    cfg = completed(CDT, episodes(), CDT.Config(target_cost=1.0, return_scale=None))
    assert (cfg.cost_limits, cfg.target_returns) == ((0.0, 3.0, 40.0), (1.0, 9.0, 26.0))
    assert cfg.return_scale == 26
    given = completed(CDT, episodes(), CDT.Config(target_cost=1.0, target_return=5.0))
    assert (given.cost_limits, given.target_return) == ((), 5.0)


@pytest.mark.parametrize(
    "values",
    [
        {"cost_limits": [10, 20], "target_returns": [1]},
        {"cost_limits": [20, 10], "target_returns": [1, 2]},
    ],
)
def test_a_table_of_targets_that_is_not_one_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="must be increasing, with one of target_returns="):
        build(CDT.Config, values)
