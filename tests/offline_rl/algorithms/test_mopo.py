"""MOPO: the three uncertainties of an ensemble in closed form.

Rollouts, penalized rewards and updates are tested in common/test_rollouts.py.
"""

import math

import pytest
import torch

from offline_rl.algorithms.common.models.rollouts import Prediction
from offline_rl.algorithms.mopo import uncertainty

# two members, one state; the last of three outputs is the reward
MEANS = torch.tensor([[[1.0, 2.0, 9.0]], [[7.0, 10.0, -9.0]]])
STDS = torch.tensor([[[1.0, 2.0, 2.0]], [[2.0, 4.0, 4.0]]])


def value(kind, means=MEANS, stds=STDS):
    nothing = torch.zeros(1)
    return uncertainty(Prediction(nothing, nothing, means, stds), kind).item()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("aleatoric", 6.0),  # sqrt(4 + 16 + 16), of the second member
        ("disagreement", 5.0),  # both members are (3, 4) from their mean (4, 6)
        ("spread", math.sqrt((9 + 16) / 2)),
    ],
)
def test_the_uncertainty_of_two_members(kind, expected):
    assert value(kind) == pytest.approx(expected)


def test_the_reward_counts_only_in_the_predicted_noise():
    means, stds = MEANS.clone(), STDS.clone()
    means[..., -1], stds[..., -1] = 0.0, 0.0
    for kind in ("disagreement", "spread"):
        assert value(kind, means) == value(kind)
    assert value("aleatoric", stds=stds) == pytest.approx(math.sqrt(20))


def test_a_third_member_at_the_mean_reduces_the_spread_and_not_the_largest_distance():
    means = torch.cat([MEANS, MEANS.mean(0, keepdim=True)])
    assert value("disagreement", means) == pytest.approx(5.0)
    assert value("spread", means) == pytest.approx(math.sqrt((9 + 16) / 3))
