"""HNPG on data whose episodes end by a time-out: targets of the last step."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from offline_rl.algorithms.common.base import State
from offline_rl.algorithms.hnpg import HNPG, Config
from offline_rl.utils.random import Random
from policies.spec import Spec


@pytest.mark.parametrize("num_steps", [1, 3])
def test_targets_after_the_last_step_use_its_own_networks(num_steps: int) -> None:
    """The networks of step min(h + 1, H - 1), as for later steps of a rollout; by loops."""
    sizes: dict[str, Any] = {"hidden": (8,), "value_hidden": (8,), "decisions": 12}
    cfg = Config(num_steps=num_steps, environments=2, batch_size=15, **sizes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        algorithm = HNPG(Spec((4,), 2), cfg)
        tree = algorithm.initial()
        off = SimpleNamespace(
            next_observations=torch.randn(num_steps, 5, 4),
            rewards=torch.randn(num_steps, 5),
            discount=torch.rand(num_steps, 5),
        )
        batch: Any = SimpleNamespace(offline=off, noise=torch.randn(num_steps, 5, 2))
    state = State(
        algorithm, tree["params"], tree["optimizer"], Random(torch.tensor(0), torch.tensor(0))
    )
    target = algorithm.td_target(state, batch)
    p = {k: v.double().numpy() for k, v in state.params["policy"].items()}
    c = {k: v.double().numpy() for k, v in state.params["critic"].items()}

    def mlp(weights: dict, prefix: str, k: int, x: np.ndarray) -> np.ndarray:
        hidden = np.tanh(x @ weights[f"{prefix}weights.0"][k] + weights[f"{prefix}biases.0"][k, 0])
        return hidden @ weights[f"{prefix}weights.1"][k] + weights[f"{prefix}biases.1"][k, 0]

    for h in range(num_steps):
        k = min(h + 1, num_steps - 1)
        for m in range(5):
            s2 = off.next_observations[h, m].double().numpy()
            noise = batch.noise[h, m].double().numpy()
            a2 = mlp(p, "trunk.", k, s2) + np.exp(p["log_std"][k, 0]) * noise
            q = mlp(c, "net.", k, np.concatenate([s2, a2.clip(-1, 1)]))[0]
            expected = off.rewards[h, m].item() + off.discount[h, m].item() * q
            assert target[h, m].item() == pytest.approx(expected, abs=1e-5)
