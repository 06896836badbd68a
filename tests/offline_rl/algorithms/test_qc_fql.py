"""QC-FQL: two updates by hand, on chunks of which some are cut short."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from by_hand import Recorded, close, gelu_perceptron, made_chunks, start
from torch import Tensor

from offline_rl.algorithms.common.base import State
from offline_rl.algorithms.fql import FQL
from offline_rl.algorithms.qc_fql import QCFQL
from offline_rl.replay.batch import Batch

SMALL: dict[str, Any] = {"hidden": (16, 16), "num_inference_steps": 3, "horizon": 3}


def losses_by_hand(state: State, batch: Batch, leaves, random: Recorded) -> dict[str, Tensor]:
    """Return the losses at the old parameters. Chunks are flat, [B, H * A] with H=3 and A=2."""
    cfg, size = state.algorithm.cfg, len(batch.rewards)
    s, s2, a = batch.observations[:, 0], batch.next_observations[:, 0], batch.actions.flatten(1)

    def q_of(params: dict[str, Tensor], s: Tensor, a: Tensor) -> Tensor:
        x = torch.cat([s, a], -1)
        return torch.stack([gelu_perceptron(params, "net.", x, k)[:, 0] for k in (0, 1)])

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        return gelu_perceptron(leaves["flow"], "network.trunk.", torch.cat([s, x, t], -1))

    def policy(s: Tensor, z: Tensor) -> Tensor:
        return gelu_perceptron(leaves["policy"], "trunk.", torch.cat([s, z], -1))

    with torch.no_grad():
        a2 = policy(s2, random.normal((size, 3, 2)).flatten(1)).clamp(-1, 1)
        y = batch.rewards + batch.discount * q_of(leaves["critic_target"], s2, a2).mean(0)
    x0 = random.normal((1, size, 3, 2)).reshape(size, 6)
    t = 1 - random.uniform((1, size))[0, :, None]
    z = random.normal((size, 3, 2)).flatten(1)
    errors = (velocity((1 - t) * x0 + t * a, t) - (a - x0)) ** 2
    squares = (q_of(leaves["critic"], s, a) - y) ** 2
    with torch.no_grad():
        x = z
        for k in range(3):
            x = x + velocity(x, torch.full((size, 1), k / 3)) / 3
    mu = policy(s, z)
    frozen = {k: v.detach() for k, v in leaves["critic"].items()}
    distance = (mu - x.clamp(-1, 1)).square().mean()  # over all chunks
    return {
        "critic": (squares * batch.weights).mean(),
        "flow": (errors * batch.valid.repeat_interleave(2, 1)).mean(),
        "policy": cfg.alpha * distance - q_of(frozen, s, mu.clamp(-1, 1)).mean(),
    }


def test_an_update_equals_plain_pytorch():
    state = start(QCFQL, **SMALL, alpha=3.0, normalize_q=False)
    for count in range(2):
        batch = made_chunks(count)
        leaves = {
            name: {k: v.clone().requires_grad_() for k, v in state.params[name].items()}
            for name in state.params
        }
        losses, before = losses_by_hand(state, batch, leaves, Recorded(count)), state
        sum(losses.values()).backward()
        state, metrics = state.algorithm.update(replace(state, random=Recorded(count)), batch, 0)
        for name, loss in losses.items():
            metric = "imitation_loss" if name == "flow" else f"{name}_loss"
            close(metrics[metric], loss)
            for k, leaf in leaves[name].items():
                old = before.optimizer[name]["first"][k]
                close(state.optimizer[name]["first"][k], 0.9 * old + 0.1 * leaf.grad)


@pytest.mark.parametrize("horizon", [1, 3])
def test_it_is_fql_with_chunks(horizon: int):
    batch, states = made_chunks(horizon=horizon), []
    for cls in (QCFQL, FQL):
        state = start(cls, **SMALL | {"horizon": horizon})
        states.append(state.algorithm.update(state, batch, 0)[0])
    for name, params in states[0].params.items():
        for k, value in params.items():
            assert torch.equal(value, states[1].params[name][k])
    assert QCFQL.Config().horizon == 5
    assert (QCFQL.Online().warmup_steps, QCFQL.Online().offline_fraction) == (5000, "rows")
