"""MOPO: the penalty for the uncertainty of predictions."""

from typing import Any

import numpy as np
import pytest
import torch
from by_hand import advance, close, made_batch
from in_a_model import filled, started

from offline_rl.algorithms.common.models.rollouts import ModelBased, Prediction
from offline_rl.algorithms.mopo import MOPO, uncertainty


def numpy_uncertainty(kind: str, means: np.ndarray, stds: np.ndarray) -> np.ndarray:
    """Return u [B] with loops over rows and members. means, stds: [E, B, O + 1]."""
    members, rows, outputs = means.shape
    result = np.zeros(rows)
    for b in range(rows):
        center = sum(means[m, b, :-1] for m in range(members)) / members
        far = [means[m, b, :-1] - center for m in range(members)]
        if kind == "aleatoric":
            result[b] = max(np.sqrt((stds[m, b] ** 2).sum()) for m in range(members))
        elif kind == "disagreement":
            result[b] = max(np.sqrt((x**2).sum()) for x in far)
        else:
            result[b] = np.sqrt(sum((x**2).sum() for x in far) / members / (outputs - 1))
    return result


KINDS: Any = pytest.mark.parametrize("kind", ["aleatoric", "disagreement", "spread"])


@KINDS
def test_the_penalty_has_the_units_of_the_data(kind):
    """All members take part, and only the standard deviations include that of the reward."""
    draw = np.random.default_rng(0)
    means, stds = draw.normal(size=(4, 9, 5)), draw.exponential(size=(4, 9, 5))
    expected = numpy_uncertainty(kind, means, stds)

    def u(means: np.ndarray, stds: np.ndarray) -> np.ndarray:
        tensors = [torch.from_numpy(x) for x in (means, stds)]
        none = torch.zeros(0)
        return uncertainty(Prediction(none, none, *tensors), kind).numpy()

    np.testing.assert_allclose(u(means, stds), expected, rtol=1e-12)
    np.testing.assert_allclose(u(30 * means, 30 * stds), 30 * expected, rtol=1e-12)
    np.testing.assert_allclose(u(means + draw.normal(size=(9, 5)), stds), expected, rtol=1e-9)


@KINDS
def test_rewards_of_predictions_are_reduced_by_the_penalty(kind):
    s = made_batch(5, 20).observations
    config = {"horizon": 2, "uncertainty": kind}
    state = started(MOPO, penalty=2.5, **config)
    found, free = (filled(x, s) for x in (state, started(MOPO, penalty=0.0, **config)))
    s_and_a = torch.cat([found["observations"], found["actions"]], -1)
    mean, log_variance = (x.double().numpy() for x in state.dynamics(s_and_a))
    u = numpy_uncertainty(kind, mean, np.exp(log_variance / 2))  # s cancels in differences
    close(found["rewards"], free["rewards"].double() - 2.5 * torch.from_numpy(u))
    assert (u > 1e-3).all()


def test_without_a_penalty_mopo_is_the_base_method():
    s, batches = made_batch(5, 20).observations, [made_batch(k) for k in range(3)]
    ours, base = started(MOPO, penalty=0.0), started(ModelBased)
    one, other = (filled(x, s) for x in (ours, base))
    assert one.keys() == other.keys()
    for name, column in one.items():
        assert torch.equal(column, other[name]), name
    a, b = (advance(x, *batches)[0] for x in (ours, base))
    for name, network in a.params.items():
        for key, value in network.items():
            assert torch.equal(value, b.params[name][key]), (name, key)
