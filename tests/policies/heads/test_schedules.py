"""Sampler tables and the sampling loop, compared with diffusers."""

import math

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, DDPMScheduler

from policies.heads.schedules import cosine_alphas, count_noises, ddim, ddpm, euler, sample

LEVELS = 100
KINDS = ("epsilon", "sample")


def network(x, time: float):
    """Compute an arbitrary function of both arguments."""
    return 0.7 * x - 0.3 + math.sin(time)


def sample_with_diffusers(
    scheduler, num_inference_steps: int, noise: torch.Tensor, **options
) -> torch.Tensor:
    """Run the sampling loop of diffusers' documentation with the noise passed in."""
    scheduler.set_timesteps(num_inference_steps)
    x, remaining = noise[:, 0], iter(noise[:, 1:].unbind(1))
    deterministic = isinstance(scheduler, DDIMScheduler) and not options["eta"]
    for k in scheduler.timesteps.tolist():
        fresh = torch.zeros_like(x) if deterministic or k == 0 else next(remaining)
        name = "variance_noise" if isinstance(scheduler, DDIMScheduler) else "generator"
        x = scheduler.step(network(x, k), k, x, **options, **{name: fresh}).prev_sample
    assert next(remaining, None) is None
    return x


@pytest.fixture(autouse=True)
def pass_noise_as_generator(monkeypatch):
    """Patch diffusers: the DDPM step uses its argument `generator` as the noise."""
    from diffusers.schedulers import scheduling_ddpm

    monkeypatch.setattr(scheduling_ddpm, "randn_tensor", lambda shape, generator, **_: generator)


def make_noise(count: int) -> torch.Tensor:
    return torch.randn((6, count, 5, 2), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("prediction_type", KINDS)
@pytest.mark.parametrize("num_inference_steps", [100, 10, 7])
def test_ddpm_equals_that_of_diffusers(num_inference_steps: int, prediction_type: str):
    table = ddpm(cosine_alphas(LEVELS), num_inference_steps, prediction_type)
    noise = make_noise(count_noises(table))
    scheduler = DDPMScheduler(
        LEVELS, beta_schedule="squaredcos_cap_v2", prediction_type=prediction_type
    )
    expected = sample_with_diffusers(scheduler, num_inference_steps, noise)
    assert (sample(table, network, noise) - expected).abs().max() < 2e-5


@pytest.mark.parametrize("prediction_type", KINDS)
@pytest.mark.parametrize(
    ("num_inference_steps", "eta"), [(10, 0.0), (16, 0.0), (10, 1.0), (5, 0.4)]
)
def test_ddim_equals_that_of_diffusers(num_inference_steps: int, eta: float, prediction_type: str):
    table = ddim(cosine_alphas(LEVELS), num_inference_steps, prediction_type, eta)
    assert count_noises(table) == (num_inference_steps if eta else 1)
    noise = make_noise(count_noises(table))
    scheduler = DDIMScheduler(
        LEVELS, beta_schedule="squaredcos_cap_v2", prediction_type=prediction_type
    )
    expected = sample_with_diffusers(scheduler, num_inference_steps, noise, eta=eta)
    assert (sample(table, network, noise) - expected).abs().max() < 2e-5


def test_every_sampler_reaches_the_chunk_that_the_network_predicts():
    """The prediction is exact at each noise level, and the last denoising step adds no noise."""
    chunk = torch.full((1, 5, 2), 0.6)
    alphas = cosine_alphas(LEVELS)

    def predict_noise(x, k):
        return (x - alphas[int(k)] ** 0.5 * chunk) / (1 - alphas[int(k)]) ** 0.5

    for table in (
        ddpm(alphas, 10, "epsilon"),
        ddim(alphas, 10, "epsilon"),
        ddim(alphas, 4, "epsilon"),
    ):
        result = sample(table, predict_noise, make_noise(count_noises(table)))
        assert (result - chunk).abs().max() < 1e-5


def test_euler_steps_along_the_true_velocity_end_in_the_chunk():
    """x_t = t a + (1 - t) noise, so that dx/dt = a - noise."""
    noise = make_noise(1)
    a = torch.linspace(-1, 1, 10).reshape(1, 5, 2)
    result = sample(euler(7), lambda x, t: a - noise[:, 0], noise)
    assert (result - a).abs().max() < 1e-5


def test_sampling_gives_the_same_result_on_numpy_arrays_and_tensors():
    table = ddpm(cosine_alphas(LEVELS), 10, "epsilon")
    noise = make_noise(count_noises(table))
    expected = sample(table, network, noise).numpy()
    np.testing.assert_allclose(sample(table, network, noise.numpy()), expected, atol=1e-5)
