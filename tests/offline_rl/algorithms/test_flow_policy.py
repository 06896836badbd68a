"""Flow policy: its loss by hand, its times, and the direction of its flow."""

import pytest
import torch
from by_hand import Recorded, close, start
from test_diffusion_policy import SMALL, chunks

from offline_rl.algorithms.common.noising.targets import flow_targets
from offline_rl.algorithms.flow_policy import FlowPolicy

OWN = {k: v for k, v in SMALL.items() if k not in ("num_train_timesteps", "sampler")}


@pytest.mark.parametrize("levels", [1, 3])
def test_the_loss_is_that_of_the_direction_from_noise_to_chunk(levels: int):
    state, batch = start(FlowPolicy, 20, levels=levels, **OWN), chunks()
    _, metrics = state.algorithm.update(state, batch, 0)
    random, a = Recorded(), batch.actions
    noise = random.normal((levels, *a.shape))
    t = 0.999 * (1 - random.uniform((levels, 8)) ** (2 / 3))
    losses = []
    for own, at in zip(noise, t, strict=True):
        x = own + at[:, None, None] * (a - own)
        told = state.model(batch.observations, x, 1000 * at)
        losses.append((told - (a - own)).square().mean())
    close(metrics["policy_loss"], sum(losses) / levels)


def test_times_are_nearer_to_the_noise():
    """1 - t / 0.999 has a Beta(1.5, 1) distribution, whose mean is 0.6."""
    times = flow_targets(Recorded(), torch.zeros(100_000, 1, 1), 1, 1.5, 0.999).times
    assert times.mean().item() / 999 == pytest.approx(0.4, abs=0.01)
    assert times.min() >= 0
    assert times.max() <= 999


def test_an_exact_network_reaches_the_chunk():
    """The exact velocity at x and t toward `a` is (a - x) / (1 - t)."""
    head = start(FlowPolicy, 20, **OWN).algorithm.head()
    a = torch.linspace(-0.9, 0.9, 8).reshape(1, 4, 2)
    head.predict = lambda seen, x, times: (a - x) / (1 - times[:, None, None] / 1000)
    noise = torch.randn(5, *head.noise_shape, generator=torch.Generator().manual_seed(0))
    found, _ = head.decide(torch.zeros(5, 2, 3), {}, noise)
    assert (found - a[:, 1:]).abs().max() < 1e-5
