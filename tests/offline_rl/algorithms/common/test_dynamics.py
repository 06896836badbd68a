"""Transition model: training rows, elites, and sampled changes."""

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from offline_rl.algorithms.common.base import State
from offline_rl.algorithms.common.models import dynamics
from offline_rl.algorithms.common.optim import Adam
from offline_rl.utils.random import Random

MEMBERS = 4


class Learner:
    """The part of an algorithm that `update_dynamics` uses."""

    average, trained_with = None, MappingProxyType({})

    def __init__(self) -> None:
        torch.manual_seed(0)
        ensemble = dynamics.Ensemble(3, 2, (8,), MEMBERS)
        self.modules = {"dynamics": ensemble, "fit": dynamics.Fit(MEMBERS)}

    def optimizers(self) -> dict[str, Adam]:
        return {"dynamics": Adam(1e-2)}

    def encoder_of(self, network: str) -> None:
        """Return None: there is no encoder."""


def initial_state() -> State:
    learner: Any = Learner()
    params = {
        k: {n: p.detach() for n, p in m.named_parameters()} for k, m in learner.modules.items()
    }
    optimizer = {"dynamics": learner.optimizers()["dynamics"].init(params["dynamics"])}
    return State(learner, params, optimizer, Random(torch.tensor(0), torch.tensor(0)))


def rows(count: int = 20) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs, changes, and the held-out mask: every fifth row."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(count, 3, generator=draw)
    return x, x[:, :2] - 0.5 * x[:, 2:], (torch.arange(count) % 5 == 0).float()


def test_members_are_trained_on_the_likelihood_of_rows_that_are_not_held_out():
    """The loss is -2 log N(change) without its constant, plus the width of the variance bounds."""
    state, (x, change, held_out) = initial_state(), rows()
    new, told = dynamics.update_dynamics(state, x, change, held_out)
    mean, log_variance = state.dynamics(x)
    density = Normal(mean.double(), (0.5 * log_variance).exp().double())
    surprise = -2 * density.log_prob(change.double()) - torch.tensor(2 * torch.pi).log().double()
    own = surprise.mean(-1)[:, held_out == 0].mean(1)
    width = (state.params["dynamics"]["most"] - state.params["dynamics"]["least"]).sum()
    assert told["dynamics_loss"].item() == pytest.approx(
        (own.sum() + 0.01 * width).item(), rel=1e-5
    )
    other = change + 7 * held_out[:, None]
    again, _ = dynamics.update_dynamics(state, x, other, held_out)
    for name, value in new.params["dynamics"].items():
        assert torch.equal(again.params["dynamics"][name], value), name
        assert not torch.equal(state.params["dynamics"][name], value), name


def test_the_fit_follows_the_held_out_error():
    """The running error moves 2 % per update; 1 is no better than the mean change."""
    state, (x, change, held_out) = initial_state(), rows()
    new, told = dynamics.update_dynamics(state, x, change, held_out)
    error = (state.dynamics(x)[0] - change).square().sum(-1)[:, held_out == 1].mean(1)
    share = error / (change - change.mean(0)).square().sum(0).sum() * (len(change) - 1)
    expected = 0.98 + 0.02 * share
    torch.testing.assert_close(new.params["fit"]["error"], expected)
    assert told["held_out_error"] == new.params["fit"]["error"].min()
    same, _ = dynamics.update_dynamics(new, x, change, torch.zeros_like(held_out))
    assert torch.equal(same.params["fit"]["error"], new.params["fit"]["error"])
    errors = torch.tensor([0.5, 0.1, 0.9, 0.3])
    rated = replace(state, params={**state.params, "fit": {"error": errors}})
    assert dynamics.elite_members(rated, 2).tolist() == [1, 3]


def test_each_row_is_sampled_from_its_member():
    state, (x, _, _) = initial_state(), rows(8)
    member = torch.tensor([0, 3, 1, 2, 2, 1, 3, 0])
    noise = torch.randn(8, 2, generator=torch.Generator().manual_seed(2))
    found = dynamics.sample_change(state, x, member, noise)
    for row, who in enumerate(member.tolist()):
        mean, log_variance = (answer[who] for answer in state.dynamics(x[row]))
        deviation = log_variance.double().exp().sqrt()
        torch.testing.assert_close(found[row].double(), mean.double() + deviation * noise[row])


@pytest.mark.parametrize(("told", "log_variance"), [(1e3, 0.5), (-1e3, -10.0)])
def test_a_variance_stays_between_its_bounds(told: float, log_variance: float):
    state = initial_state()
    last = max(name for name in state.params["dynamics"] if "biases" in name)
    state.params["dynamics"][last][..., 2:] = told  # two means, then two variances
    found = state.dynamics(torch.zeros(1, 3))[1]
    torch.testing.assert_close(found, torch.full_like(found, log_variance), atol=1e-3, rtol=0)
