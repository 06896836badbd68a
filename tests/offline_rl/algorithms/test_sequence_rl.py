"""Sequence RL: the loss of a sequence, the model, and the column of previous actions.

`test_conformance.py` compares complete updates with the authors' code.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from by_hand import SMALL, Recorded, doubles, made_batch, plain, squashed, start
from torch import Tensor, nn

from offline_rl.algorithms.common.base import Network
from offline_rl.algorithms.sequence_rl import SequenceRL, sequence_loss
from offline_rl.data import Dataset
from offline_rl.replay.columns import columns

ALPHA, HORIZON = 0.3, 3


@pytest.mark.parametrize("predict_change", [True, False])
def test_the_loss_and_its_gradient_equal_plain_pytorch(predict_change: bool) -> None:
    """Predicted observations are constants: no gradient passes through the model."""
    options = {"horizon": HORIZON, "model_hidden": (8,), "predict_change": predict_change}
    state = start(SequenceRL, **SMALL, **options)
    previous = torch.rand(32, 2) * 2 - 1
    batch = replace(made_batch(1), previous_actions=previous)
    params = {k: v.clone().requires_grad_() for k, v in state.params["policy"].items()}
    policy = Network(state.algorithm.modules["policy"], params)
    loss, log_pi = sequence_loss(policy, state, batch, torch.tensor(ALPHA))
    gradients = torch.autograd.grad(loss, [*params.values()], allow_unused=True)
    ours = dict(zip(params, gradients, strict=True))

    own = {k: v.double() for k, v in state.params["policy"].items()}
    net, mean, log_std = (plain(own, f"{name}.") for name in ("start", "mean", "log_std"))
    cell = nn.GRUCell(2, own["gru_input.weights.0"].shape[1] // 3, dtype=torch.float64)
    for name, part in (("ih", "gru_input"), ("hh", "gru_state")):
        getattr(cell, f"weight_{name}").data = own[f"{part}.weights.0"].T.clone()
        getattr(cell, f"bias_{name}").data = own[f"{part}.biases.0"].clone()
    model = plain(state.params["model_target"], "net.")
    critics = [plain(state.params["critic"], "net.", k) for k in (0, 1)]
    random = Recorded()
    s, a, total, densities = doubles(batch)[0], previous.double(), torch.tensor(0.0), list[Tensor]()
    h = net(s)
    for _ in range(HORIZON):
        h = cell(a, h)
        noise = random.normal((32, 2)).double()
        a, density = squashed(torch.cat([mean(h), log_std(h)], 1), noise)
        q = torch.minimum(*[critic(torch.cat([s, a], 1))[:, 0] for critic in critics])
        total = total + (ALPHA * density - q).mean()
        densities.append(density)
        with torch.no_grad():
            output = model(torch.cat([s, a], 1))
            s = s + output if predict_change else output
    total.backward()
    assert loss.item() == pytest.approx(total.item(), rel=1e-4)
    assert log_pi.item() == pytest.approx(torch.stack(densities).mean().item(), rel=1e-4)
    pairs = {
        "gru_input.weights.0": cell.weight_ih.grad.T,
        "start.weights.0": net[0].weight.grad.T,
        "log_std.biases.0": log_std[0].bias.grad,
    }
    for name, expected in pairs.items():
        torch.testing.assert_close(ours[name].double(), expected, rtol=1e-3, atol=1e-5)


def test_the_previous_action_is_zero_at_the_start_of_an_episode() -> None:
    data = Dataset.from_arrays(
        observations=np.zeros((5, 1)),
        actions=np.array([[0.1], [0.2], [0.3], [0.4], [0.5]]),
        rewards=np.zeros(5),
        terminated=np.array([0, 0, 1, 0, 0], bool),
        truncated=np.array([0, 0, 0, 0, 1], bool),
    )
    made = columns(["previous_actions"], data, lambda _: np.zeros(5))["previous_actions"]
    np.testing.assert_allclose(made[:, 0], [0, 0.1, 0.2, 0, 0.4], rtol=1e-6)


def test_critics_and_model_have_the_authors_initialization() -> None:
    """Xavier's uniform distribution, and biases of zero."""
    params = start(SequenceRL, hidden=(64, 64), model_hidden=(64, 64)).params
    for name in ("critic", "model"):
        for key, value in params[name].items():
            if "biases" in key:
                assert not value.any()
            else:
                bound = (6 / sum(value.shape[-2:])) ** 0.5
                assert 0.9 * bound < value.abs().max() <= bound
