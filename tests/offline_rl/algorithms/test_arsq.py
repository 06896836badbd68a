"""ARSQ: the toy of dependent dimensions, targets, imitation losses, marks, and bad input."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import Recorded, advance, close, dependent_actions, made_batch, start
from torch.utils._pytree import tree_map

from offline_rl.algorithms.arsq import ARSQ, Config
from offline_rl.algorithms.common.base import Algorithm, Interaction
from offline_rl.algorithms.common.schedule import ONLINE
from offline_rl.algorithms.cqn import CQN
from offline_rl.data import Dataset
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.utils.errors import UserError
from policies.spec import Spec

SMALL: dict[str, Any] = {"hidden": (16, 16), "levels": 2, "bins": 3}


def test_it_finds_the_best_of_dependent_actions() -> None:
    """The soft value of the first dimension is alpha log sum exp of the rewards of the second.

    With alpha=0.1 it is 1.00 for + and 0.50 for -. The mean rewards would be 0.2 and 0.3.
    """
    alpha, batch = 0.1, dependent_actions()
    config = {"hidden": (16,), "levels": 1, "bins": 2, "alpha": alpha, "lr": 0.05}
    state = start(ARSQ, spec=Spec((1,), 2), imitation_weight=0.0, **config)
    state, _ = advance(state, *[batch] * 100)
    actions = torch.tensor([[0.5, 0.5], [0.5, -0.5], [-0.5, -0.5], [-0.5, 0.5]])
    rewards = np.array([1, 0, 0.5, 0])
    advantages, is_selected = state.policy.evaluate(torch.zeros(4, 1), actions)
    value = state.value(torch.zeros(1))[:, 0]  # [E]
    q = value[:, None] + (advantages * is_selected).sum((-1, -2))
    np.testing.assert_allclose(q.detach(), [rewards] * 2, atol=0.03)
    soft = alpha * np.log(np.exp(rewards / alpha).sum())
    np.testing.assert_allclose(value.detach(), soft, atol=0.03)
    first = alpha * np.log(np.exp(rewards.reshape(2, 2) / alpha).sum(1))  # of + and of -
    np.testing.assert_allclose(first, [1.0, 0.5], atol=0.01)
    np.testing.assert_allclose(advantages[0, 0, 0].detach(), (first - soft)[::-1], atol=0.03)
    assert state.policy.act(torch.zeros(1, 1)).tolist() == [[0.5, 0.5]]


def test_the_target_bootstraps_from_the_smaller_value_and_stops_at_terminations() -> None:
    state, batch = start(ARSQ, **SMALL), made_batch()
    with torch.no_grad():
        state.params["value_target"]["biases.2"].add_(torch.tensor([1.0, -1.0])[:, None, None])
    later = state.value_target(batch.next_observations)[..., 0]
    ends = torch.arange(32) % 4 == 0
    expected = (batch.rewards + torch.where(ends, 0, 0.99 * torch.minimum(*later))).mean()
    close(advance(state, batch)[1]["target"], expected)


@pytest.mark.parametrize("min_gap", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("imitation", ["cql", "margin"])
def test_the_imitation_loss_is_a_mean_over_demonstrations(imitation: str, min_gap: float) -> None:
    """The loss is the sum over two members; it is computed in float64, over pairs of bins."""
    options: dict[str, Any] = {"imitation": imitation, "min_gap": min_gap, "alpha": 1.0}
    temperature = 0.5 if imitation == "cql" else 1.0
    state = start(ARSQ, **SMALL, **options, imitation_temperature=temperature)
    with torch.no_grad():
        for parameter in state.params["policy"].values():
            parameter.mul_(20)
    marks = (torch.arange(32) % 3 == 0).float()
    batch = replace(made_batch(), demonstrations=marks)
    advantages, is_selected = state.policy.evaluate(batch.observations, batch.actions)
    a, chosen = advantages.detach().double().numpy(), is_selected.int().argmax(-1).numpy()
    total = 0.0
    for member in a:
        rows = []
        for row in np.flatnonzero(marks):
            gaps = [
                np.delete(decision, k) - decision[k]
                for decision, k in zip(member[row], chosen[row], strict=True)
            ]
            if imitation == "cql":
                soft = [0.5 * np.log(np.exp(2 * gap).sum()) for gap in gaps]
                rows.append(np.maximum(soft, min_gap).sum())
            else:
                rows.append(np.maximum(gaps, min_gap).sum(0).mean())
        total += np.mean(rows)
    close(advance(state, batch)[1]["imitation_loss"], total)


def test_without_demonstrations_there_is_no_imitation_loss() -> None:
    batch = replace(made_batch(), demonstrations=torch.zeros(32))
    assert advance(start(ARSQ, **SMALL), batch)[1]["imitation_loss"] == 0


def dataset(actions: np.ndarray, rewards: float) -> Dataset:
    count = len(actions)
    ends = np.arange(count) % 10 == 9
    s = np.zeros((count, 3), np.float32)
    return Dataset.from_arrays(s, actions, np.full(count, rewards, np.float32), ends)


@pytest.mark.parametrize("cls", [ARSQ, CQN])
def test_online_half_of_a_batch_is_data_and_the_other_half_is_from_all_rows(
    cls: type[Algorithm],
) -> None:
    """There are 100 rows of data (reward 1) and 300 of experience (reward 0)."""
    actions = np.zeros((300, 2), np.float32)
    data, own = (
        ReplayBuffer.from_dataset(dataset(actions[:n], r)) for n, r in ((100, 1), (300, 0))
    )
    cfg = cls.Config(**cls.Config.small())

    def sample(phase: str, **sources: ReplayBuffer) -> tuple[float, float]:
        """Return the shares of data and of marks, which are on all rows of the data."""
        algorithm = cls(Spec((3,), 2), cfg, 1, Interaction(cls.Online(), cfg))
        source = algorithm.for_phase(phase).source(phase, sources)
        batch = source.sample(tree_map(lambda x: x[0], source.tensors()), Recorded(), 4000, 0.99)
        return batch.rewards.mean().item(), batch.demonstrations.mean().item()

    assert sample("update", offline=data) == (1, 1)
    assert sample(ONLINE, online=own) == (0, 0)
    share, marks = sample(ONLINE, offline=data, online=own)
    assert share == marks == pytest.approx(0.5 + 0.5 * 100 / 400, abs=0.02)


@pytest.mark.parametrize("cls", [ARSQ, CQN])
def test_bins_wider_than_the_range_of_an_action_are_refused(cls: type[Algorithm]) -> None:
    """The second action varies by 0.01, within the middle one of 41 bins of width 0.0488."""
    actions = np.random.default_rng(0).uniform(-1, 1, (60, 2)).astype(np.float32)
    actions[:, 1] *= 0.005
    algorithm, data = cls(Spec((3,), 2), cls.Config()), dataset(actions, 1.0)
    with pytest.raises(
        UserError, match=r"dimension 1 varies between -0\.0.* one of its 41 bins of width"
    ):
        algorithm.prepare(data)
    cls(Spec((3,), 2), cls.Config(levels=3)).prepare(data)
    actions[:, 1] = 0.3  # a constant action needs no bins
    algorithm.prepare(dataset(actions, 1.0))


def test_options_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 1,048,576 bins per action"):
        Config(levels=4, bins=41)
    with pytest.raises(ValueError, match="Use at least one"):
        Config(hidden=())
    with pytest.raises(ValueError, match="imitation_temperature is not used with imitation=margin"):
        Config(imitation="margin", imitation_temperature=0.5)
