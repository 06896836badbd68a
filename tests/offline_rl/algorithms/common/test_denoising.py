"""Denoising steps as actions: means, densities and replayed chains, by independent code."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from offline_rl.algorithms.common.on_policy.denoising import (
    mean_over_executed,
    normal_log_prob,
    replay_log_prob,
    sample_chain,
    table_rows,
    transition_params,
)
from policies.heads.schedules import Table, cosine_alphas, ddim, ddpm, euler, sample

ALPHAS = cosine_alphas(20)
TABLES = {
    "ddpm": ddpm(ALPHAS, 20, "epsilon"),
    "ddim": ddim(ALPHAS, 5, "epsilon", eta=1.0),
    "flow": euler(6, eta=0.7),
}
every_table = pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)


def answer(x: Tensor, times: Tensor) -> Tensor:
    """Return the prediction of a toy network."""
    return torch.sin(3 * x) + times[..., None, None] / 500


def chains(table: Table, tuned: int, floor: float = 0.1) -> tuple[Tensor, Tensor]:
    """Return chains and the noise they were sampled with."""
    torch.manual_seed(0)
    noise = torch.randn(7, len(table) + 1, 4, 2, dtype=torch.float64)
    return sample_chain(table, answer, answer, noise, tuned=tuned, floor=floor, cut=3.0), noise


@every_table
def test_a_chain_without_floor_equals_the_policys_sampler(table: Table):
    chain, noise = chains(table, 3, floor=0.0)
    cut = torch.cat([noise[:, :1], noise[:, 1:].clamp(-3, 3)], 1)
    as_plain = sample(table, lambda x, time: answer(x, torch.full((7,), time)), cut)
    assert chain.shape == (7, 4, 4, 2)
    assert torch.allclose(chain[:, -1], as_plain, atol=1e-6)


@every_table
def test_densities_are_normal_around_the_mean_of_each_step(table: Table):
    """The floor of the density differs from that of sampling."""
    tuned, floor = 3, 0.2
    chain, _ = chains(table, tuned)
    found = replay_log_prob(table, answer, chain, floor)
    for k, row in enumerate(table[-tuned:]):
        x = chain[:, k]
        f = answer(row[1] * x, torch.full((7,), row[0]))
        guess = (row[2] * x + row[3] * f).clamp(-1, 1)
        told = Normal(row[4] * x + row[5] * f + row[6] * guess, max(row[7], floor))
        assert torch.allclose(found[:, k], told.log_prob(chain[:, k + 1]), atol=1e-5)


def test_a_density_integrates_to_one_and_has_the_mean_of_its_step():
    x = torch.linspace(-4, 6, 20_001, dtype=torch.float64)
    p = normal_log_prob(x, torch.tensor(0.7), torch.tensor(0.35)).exp().numpy()
    assert np.trapezoid(p, x.numpy()) == pytest.approx(1, abs=1e-6)
    assert np.trapezoid(p * x.numpy(), x.numpy()) == pytest.approx(0.7, abs=1e-6)


@every_table
def test_a_replayed_chain_has_the_ratio_one_to_the_bit(table: Table):
    """Denoising steps drawn in any order have the log density of the complete chain."""
    chain, _ = chains(table, 3)
    old = replay_log_prob(table, answer, chain, 0.1)
    k = torch.tensor([2, 0, 1, 1, 0, 2, 2])
    own = torch.arange(7)
    numbers = table_rows(table, 3, chain)[k]
    mean, spread = transition_params(answer, numbers, chain[own, k])
    new = normal_log_prob(chain[own, k + 1], mean, spread.clamp(min=0.1))
    assert torch.equal((new - old[own, k]).exp(), torch.ones_like(new))


def test_the_floor_is_the_last_steps_standard_deviation_and_a_lower_bound():
    for table in TABLES.values():
        assert table[-1][7] == 0
    chain, noise = chains(TABLES["ddpm"], 1, floor=0.1)
    mean, spread = transition_params(
        answer, table_rows(TABLES["ddpm"], 1, chain).expand(7, 9), chain[:, 0]
    )
    assert spread.max() == 0
    drawn = (chain[:, 1] - mean) / noise[:, -1].clamp(-3, 3)
    assert torch.allclose(drawn, torch.full_like(drawn, 0.1))


def test_early_steps_use_the_pretrained_network_only():
    asked = {"base": [], "tuned": []}

    def of(name: str):
        def network(x: Tensor, times: Tensor) -> Tensor:
            asked[name].append(times[0].item())
            return x

        return network

    noise = torch.randn(2, 6, 4, 2)
    sample_chain(TABLES["ddim"], of("base"), of("tuned"), noise, tuned=2, floor=0.1, cut=3.0)
    assert asked == {"base": [16, 12, 8], "tuned": [4, 0]}


def test_the_noise_of_a_flow_keeps_its_share_of_x():
    """The only chunk is 0.3 everywhere, so at time t x is t 0.3 + (1 - t) noise."""

    def direction(x: Tensor, times: Tensor) -> Tensor:
        return (0.3 - x) / (1 - times[:, None, None] / 1000)  # E[a - noise | x]

    torch.manual_seed(0)
    for eta in (0.0, 0.5, 1.0):
        noise = torch.randn(40_000, 6, 1, 1)
        table = euler(5, eta=eta)
        chain = sample_chain(table, direction, direction, noise, tuned=5, floor=0.0, cut=9.0)
        for k in range(6):
            assert chain[:, k].mean() == pytest.approx(0.3 * k / 5, abs=0.02)
            assert chain[:, k].std() == pytest.approx(1 - k / 5, abs=0.02)


def test_eta_zero_is_the_deterministic_flow_step():
    for k, row in enumerate(euler(10)):
        assert row[4:] == (1.0, 0.1, 0.0, 0.0, 0.0)
        assert row[0] == pytest.approx(100 * k)
    spreads = [row[7] for row in euler(10, eta=0.7)]
    assert spreads == pytest.approx([math.sin(0.35 * math.pi) * (9 - k) / 10 for k in range(10)])


def test_only_executed_actions_count():
    values = torch.arange(12.0).reshape(1, 6, 2)
    executed = torch.tensor([[True, True, False]])
    assert mean_over_executed(values, executed, 1).tolist() == [(2 + 3 + 4 + 5) / 4]
