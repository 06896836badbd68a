"""Samplers' tables against diffusers' own steps, and the loop that runs them."""

import math

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, DDPMScheduler

from policies.heads.schedules import cosine_alphas, ddim, ddpm, count_noises, euler, sample

LEVELS = 100
KINDS = ("epsilon", "sample")


def network(x, time: float):
    """Anything that depends on both."""
    return 0.7 * x - 0.3 + math.sin(time)


def by_diffusers(
    scheduler, num_inference_steps: int, noise: torch.Tensor, **options
) -> torch.Tensor:
    """The loop of its documentation, with the noise handed in draw by draw."""
    scheduler.set_timesteps(num_inference_steps)
    x, later = noise[:, 0], iter(noise[:, 1:].unbind(1))
    certain = isinstance(scheduler, DDIMScheduler) and not options["eta"]
    for k in scheduler.timesteps.tolist():
        fresh = torch.zeros_like(x) if certain or k == 0 else next(later)
        word = "variance_noise" if isinstance(scheduler, DDIMScheduler) else "generator"
        x = scheduler.step(network(x, k), k, x, **options, **{word: fresh}).prev_sample
    assert next(later, None) is None
    return x


@pytest.fixture(autouse=True)
def noise_is_handed_in(monkeypatch):
    """DDPM's step draws its own, by a generator: here that is the noise."""
    from diffusers.schedulers import scheduling_ddpm

    monkeypatch.setattr(scheduling_ddpm, "randn_tensor", lambda shape, generator, **_: generator)


def some_noise(count: int) -> torch.Tensor:
    return torch.randn((6, count, 5, 2), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("prediction_type", KINDS)
@pytest.mark.parametrize("num_inference_steps", [100, 10, 7])
def test_ddpm_is_that_of_diffusers(num_inference_steps: int, prediction_type: str):
    table = ddpm(cosine_alphas(LEVELS), num_inference_steps, prediction_type)
    noise = some_noise(count_noises(table))
    scheduler = DDPMScheduler(
        LEVELS, beta_schedule="squaredcos_cap_v2", prediction_type=prediction_type
    )
    expected = by_diffusers(scheduler, num_inference_steps, noise)
    assert (sample(table, network, noise) - expected).abs().max() < 2e-5


@pytest.mark.parametrize("prediction_type", KINDS)
@pytest.mark.parametrize(
    ("num_inference_steps", "eta"), [(10, 0.0), (16, 0.0), (10, 1.0), (5, 0.4)]
)
def test_ddim_is_that_of_diffusers(num_inference_steps: int, eta: float, prediction_type: str):
    table = ddim(cosine_alphas(LEVELS), num_inference_steps, prediction_type, eta)
    assert count_noises(table) == (num_inference_steps if eta else 1)
    noise = some_noise(count_noises(table))
    scheduler = DDIMScheduler(
        LEVELS, beta_schedule="squaredcos_cap_v2", prediction_type=prediction_type
    )
    expected = by_diffusers(scheduler, num_inference_steps, noise, eta=eta)
    assert (sample(table, network, noise) - expected).abs().max() < 2e-5


def test_a_network_that_knows_the_chunk_leads_every_sampler_to_it():
    """Its guess is right at each level, so that the last round, which adds nothing, is too."""
    chunk = torch.full((1, 5, 2), 0.6)
    alphas = cosine_alphas(LEVELS)

    def knows(x, k):
        return (x - alphas[int(k)] ** 0.5 * chunk) / (1 - alphas[int(k)]) ** 0.5

    for table in (
        ddpm(alphas, 10, "epsilon"),
        ddim(alphas, 10, "epsilon"),
        ddim(alphas, 4, "epsilon"),
    ):
        found = sample(table, knows, some_noise(count_noises(table)))
        assert (found - chunk).abs().max() < 1e-5


def test_euler_steps_along_the_true_velocity_end_in_the_chunk():
    """x_t = t a + (1 - t) noise, so that dx/dt = a - noise: from the noise, forward."""
    noise = some_noise(1)
    a = torch.linspace(-1, 1, 10).reshape(1, 5, 2)
    found = sample(euler(7), lambda x, t: a - noise[:, 0], noise)
    assert (found - a).abs().max() < 1e-5


def test_the_loop_runs_on_numpys_arrays_as_on_tensors():
    table = ddpm(cosine_alphas(LEVELS), 10, "epsilon")
    noise = some_noise(count_noises(table))
    by_torch = sample(table, network, noise).numpy()
    np.testing.assert_allclose(sample(table, network, noise.numpy()), by_torch, atol=1e-5)
