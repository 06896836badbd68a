"""Advantages, clips and reward scales, against plain loops and closed forms."""

import math

import numpy as np
import pytest
import torch

from offline_rl.algorithms.common.on_policy.ppo import (
    FIRST_COUNT,
    clip_range,
    clipped_loss,
    gae,
    normalize_rewards,
    reverse_scan,
    running_returns,
    standardize,
    update_moments,
)


def column(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


def test_a_time_out_cuts_the_advantages_and_bootstraps():
    """Four decisions: the second ends with the time limit, the fourth terminates.

    By hand with gamma 0.5 and lambda 0.5: chunks of 2 steps have a discount of 0.25. The chunk with
    the
    time-out has one step and 0.5. A_1 contains V = 8 after the time-out and nothing of later steps.
    """
    found = gae(
        column(1, 2, 0, 4),
        column(1, 1, 2, 3),
        column(1, 8, 3, 100),
        column(0.25, 0.5, 0.25, 0),
        column(0, 1, 0, 1),
        0.5,
    )
    fourth = 4 - 3
    third = 0 + 0.25 * 3 - 2 + 0.25 * 0.5 * fourth
    second = 2 + 0.5 * 8 - 1
    first = 1 + 0.25 * 1 - 1 + 0.25 * 0.5 * second
    assert found[:, 0].tolist() == pytest.approx([first, second, third, fourth])


def test_with_lambda_one_advantages_are_returns_minus_values():
    draw = np.random.default_rng(0)
    rewards, values, following = (torch.from_numpy(draw.normal(size=(9, 3))) for _ in range(3))
    following[:-1] = values[1:]
    nothing, gamma = torch.zeros(9, 3, dtype=torch.float64), torch.full((9, 3), 0.9).double()
    found = gae(rewards, values, following, gamma, nothing, 1.0)
    for t in range(9):
        told = sum(0.9**k * rewards[t + k] for k in range(9 - t)) + 0.9 ** (9 - t) * following[-1]
        assert torch.allclose(found[t] + values[t], told)


def test_sums_in_log_passes_equal_a_loop():
    draw = np.random.default_rng(1)
    for length in (1, 2, 7, 64):
        values, factors = (torch.from_numpy(draw.normal(size=(length, 2))) for _ in range(2))
        told, later = torch.zeros(length, 2, dtype=torch.float64), torch.zeros(2)
        for t in reversed(range(length)):
            told[t] = later = values[t] + factors[t] * later
        assert torch.allclose(reverse_scan(values, factors), told)


def test_the_clip_widens_toward_the_last_step():
    clips = clip_range(torch.arange(10), 10, 0.1, 0.01, 3.0)
    assert clips[0].item() == pytest.approx(0.01)
    assert clips[-1].item() == pytest.approx(0.1)
    assert (clips.diff() > 0).all()
    assert (clips.diff().diff() > 0).all()  # ever faster
    middle = 0.01 + 0.09 * (math.exp(3 * 5 / 9) - 1) / (math.exp(3) - 1)
    assert clips[5].item() == pytest.approx(middle)
    assert (
        clip_range(torch.zeros(4, dtype=torch.int64), 1, 0.1, 0.01, 3.0).tolist()
        == [pytest.approx(0.1)] * 4
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "moves"),
    [
        (1.0, 2.0, -2.0, True),
        (1.5, 2.0, -2.4, False),  # better already by all that is allowed
        (0.5, 2.0, -1.0, True),  # worse: the way back is open
        (0.5, -2.0, 1.6, False),
        (1.5, -2.0, 3.0, True),
    ],
)
def test_a_ratio_gains_nothing_beyond_the_clip(ratio, advantage, loss, moves):
    log_ratio = torch.tensor([math.log(ratio)], requires_grad=True)
    found = clipped_loss(log_ratio, torch.tensor([advantage]), torch.tensor([0.2]))
    found.loss.backward()
    assert found.loss.item() == pytest.approx(loss)
    assert (log_ratio.grad.item() != 0) == moves
    assert found.divergence.item() == pytest.approx(ratio - 1 - math.log(ratio), abs=1e-6)
    assert found.share.item() == float(abs(ratio - 1) > 0.2)


def test_running_returns_continue_across_rollouts_and_reset_at_an_end():
    rewards, ended = column(1, 2, 4, 8), column(0, 1, 0, 0)
    gamma = torch.full((4, 1), 0.5).double()
    found = running_returns(rewards, ended, torch.tensor([6.0]).double(), gamma)
    assert found[:, 0].tolist() == [4, 4, 4, 10]


def test_moments_of_parts_equal_those_of_all_values():
    draw = np.random.default_rng(2)
    parts = [torch.from_numpy(draw.normal(3, 2, size=n)) for n in (50, 7, 300)]
    moments = torch.tensor([FIRST_COUNT, 0.0, 1.0], dtype=torch.float64)
    for part in parts:
        moments = update_moments(moments, part)
    whole = torch.cat(parts)
    assert moments[1].item() == pytest.approx(whole.mean().item(), rel=1e-4)
    assert moments[2].item() == pytest.approx(whole.var(correction=0).item(), rel=1e-3)
    apart = torch.tensor([0.0, 3.0, 1e6]).double()
    told = [0, 3 / whole.std(correction=0).item(), 10]
    assert normalize_rewards(apart, moments).tolist() == pytest.approx(told, rel=1e-3)


def test_equal_advantages_are_standardized_to_zero():
    assert standardize(torch.ones(5)).tolist() == [0] * 5
    values = standardize(torch.tensor([1.0, 2.0, 3.0]))
    assert values.tolist() == pytest.approx([-1, 0, 1])
