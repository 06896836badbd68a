"""Heads of several networks: best of N samples, a recurrent actor, and a steered sampler."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from offline_rl.utils.random import Random
from policies.heads.best_of_n import BestOfN
from policies.heads.diffusion import DiffusionActor
from policies.heads.gaussian import TanhGaussianActor
from policies.heads.recurrent import MIN_STD, RecurrentActor
from policies.heads.residual import SteeredActor, steering_problem
from policies.heads.schedules import euler
from policies.networks.mlp import Critic
from policies.networks.sequences.history import GRUCell


def make_best_of_n(aggregate: Any = "min", num_samples: int = 5, **options: Any) -> BestOfN:
    torch.manual_seed(0)
    policy = DiffusionActor(
        3,
        2,
        network="mlp",
        options={"hidden": [16], "time_size": 8},
        table=euler(3),
        n_obs_steps=2,
        horizon=4,
        n_action_steps=2,
    )
    critic = Critic(6, 4, (16,), ensemble=3)
    arguments = policy.arguments, critic.arguments
    options |= {"num_samples": num_samples, "aggregate": aggregate}
    return BestOfN("DiffusionActor", *arguments, **options)


@pytest.mark.parametrize("aggregate", ["min", "mean", "least_max"])
def test_the_executed_actions_have_the_highest_value_of_all_samples(aggregate: str) -> None:
    """The value of least_max is minus the maximum over the critics."""
    head = make_best_of_n(aggregate)
    assert head.noise_shape == (5, 1, 4, 2)
    assert (head.n_obs_steps, head.chunk_size, head.n_action_steps) == (2, 3, 2)
    observations, noise = torch.randn(8, 2, 3), torch.randn(8, *head.noise_shape)
    with torch.no_grad():
        chunks, memory = head.decide(observations, {}, noise)
        samples = torch.stack(
            [head.policy.decide(observations, {}, noise[:, n])[0] for n in range(5)]
        )
        q = torch.stack(
            [head.critic(observations.flatten(1), x[:, :2].flatten(1)) for x in samples]
        )  # [N, E, B]
    q = q.numpy()
    values = {"min": q.min(1), "mean": q.mean(1), "least_max": -q.max(1)}[aggregate]
    best = values.argmax(0)
    assert len(np.unique(best)) > 1
    assert memory == {}
    torch.testing.assert_close(chunks, samples[torch.from_numpy(best), torch.arange(8)])


def test_one_sample_is_the_policys_own_chunk() -> None:
    head = make_best_of_n(num_samples=1)
    observations, noise = torch.randn(4, 2, 3), torch.randn(4, *head.noise_shape)
    chunk, _ = head.policy.decide(observations, {}, noise[:, 0])
    assert torch.equal(head.decide(observations, {}, noise)[0], chunk)


def test_the_next_memory_is_that_of_the_selected_sample() -> None:
    torch.manual_seed(0)
    policy = RecurrentActor(3, 2, (8,), embedding=5, recurrent=6, latent=4)
    arguments = policy.arguments, Critic(3, 2, (16,), ensemble=2).arguments
    head = BestOfN("RecurrentActor", *arguments, num_samples=4)
    memory = {"state": torch.randn(7, 10), "action": torch.randn(7, 2)}
    observations, noise = torch.randn(7, 1, 3), torch.randn(7, 4, 4)
    with torch.no_grad():
        chunk, following = head.decide(observations, memory, noise)
        samples = [head.policy.decide(observations, memory, noise[:, n]) for n in range(4)]
        actions = torch.stack([each[:, 0] for each, _ in samples])
        q = head.critic(observations[:, 0].expand(4, -1, -1), actions)  # [E, N, B]
    selected = torch.minimum(q[0], q[1]).argmax(0), torch.arange(7)
    assert len(selected[0].unique()) > 1
    torch.testing.assert_close(chunk[:, 0], actions[selected])
    for name in memory:
        each = torch.stack([memories[name] for _, memories in samples])
        torch.testing.assert_close(following[name], each[selected])


def test_with_a_temperature_samples_have_softmax_probabilities() -> None:
    """A Gumbel variable per sample is computed from the last number of the sample's noise."""
    head = make_best_of_n(num_samples=4, temperature=0.02)
    assert head.noise_shape == (4, 9)
    samples, rows = torch.randn(1, 4, 8).expand(20_000, -1, -1), 20_000
    noise = torch.cat([samples, torch.randn(rows, 4, 1)], -1)
    with torch.no_grad():
        chosen, _ = head.decide(torch.ones(rows, 2, 3), {}, noise)
        observations, each = torch.ones(4, 2, 3), samples[0].reshape(4, 1, 4, 2)
        chunks, _ = head.policy.decide(observations, {}, each)
        q = head.critic(observations.flatten(1), chunks[:, :2].flatten(1)).double().numpy().min(0)
    weights = np.exp((q - q.max()) / 0.02)
    matches = (chosen[:, None] - chunks).abs().amax((-1, -2)) < 1e-5  # [rows, N]
    assert (matches.sum(1) == 1).all()
    frequencies, expected = matches.double().mean(0).numpy(), weights / weights.sum()
    assert 0.05 < expected.max() < 0.9
    np.testing.assert_allclose(frequencies, expected, atol=0.015)


def test_samples_of_a_deterministic_policy_are_refused() -> None:
    arguments = {"observations": 3, "actions": 2, "hidden": [4]}
    with pytest.raises(ValueError, match="DeterministicActor is deterministic: all of its samples"):
        BestOfN("DeterministicActor", arguments, Critic(3, 2, ()).arguments, num_samples=2)


def test_the_gru_equals_the_equations_of_dreamer() -> None:
    """h' = u tanh(r c) + (1 - u) h, where u = sigmoid(U - 1) and r = sigmoid(R)."""
    torch.manual_seed(0)
    cell = GRUCell(3, 4)
    cell.norm = nn.Identity()  # type: ignore[assignment]
    x, h = torch.randn(5, 3), torch.randn(5, 4)
    weight, bias = cell.linear.weights[0], cell.linear.biases[0]
    parts = (torch.cat([x, h], -1) @ weight + bias).detach().double().numpy()
    reset, candidate, update = np.split(parts, 3, -1)

    def sigmoid(values: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-values))

    update = sigmoid(update - 1)
    expected = update * np.tanh(sigmoid(reset) * candidate) + (1 - update) * h.numpy()
    np.testing.assert_allclose(cell(x, h).detach().numpy(), expected, atol=1e-6)


def test_a_recurrent_actor_passes_its_latent_and_action_to_the_next_step() -> None:
    torch.manual_seed(0)
    head = RecurrentActor(3, 2, (8,), embedding=5, recurrent=6, latent=4)
    assert head.noise_shape == (4,)
    memory = head.initial_memory(7)
    assert {name: tuple(x.shape) for name, x in memory.items()} == {
        "state": (7, 10),
        "action": (7, 2),
    }
    for _ in range(3):
        observations, noise = torch.randn(7, 1, 3), torch.randn(7, 4)
        chunk, following = head.decide(observations, memory, noise)
        embedding = head.encoder(observations[:, 0])
        state, mean, std = head.step(memory["state"], memory["action"], embedding, noise)
        torch.testing.assert_close(following["state"], state)
        torch.testing.assert_close(state[:, 6:], mean + std * noise)
        assert (std > MIN_STD).all()
        torch.testing.assert_close(chunk[:, 0], head.actor(state).tanh())
        assert torch.equal(following["action"], chunk[:, 0])
        for name in ("state", "action"):
            changed = memory | {name: memory[name] + 1}
            assert not torch.allclose(head.decide(observations, changed, noise)[0], chunk)
        memory = following
    assert {name.split(".")[0] for name, _ in head.named_parameters()} == {
        "encoder",
        "model",
        "actor",
    }


def make_steered(table: Any = None, noise_scale: float = 1.5) -> SteeredActor:
    torch.manual_seed(0)
    options = {"hidden": [16], "time_size": 8}
    shape: dict[str, Any] = {"n_obs_steps": 2, "horizon": 4, "n_action_steps": 2}
    sampler = DiffusionActor(3, 2, network="mlp", options=options, table=table or euler(3), **shape)
    policy = TanhGaussianActor(6, 8, [16])
    arguments = "TanhGaussianActor", policy.arguments, "DiffusionActor", sampler.arguments
    return SteeredActor(*arguments, noise_scale=noise_scale)


def test_a_steered_policy_is_its_sampler_at_the_chosen_noise() -> None:
    head = make_steered()
    assert (head.noise_shape, head.n_obs_steps) == ((), 2)
    assert (head.chunk_size, head.n_action_steps) == (3, 2)
    observations, no_noise = torch.randn(5, 2, 3), torch.zeros(5, 0)
    start = 1.5 * head.policy(observations.flatten(1))[0].tanh()
    chunk, memory = head.decide(observations, {}, no_noise)
    expected, _ = head.sampler.decide(observations, {}, start.reshape(5, 1, 4, 2))
    assert memory == {}
    torch.testing.assert_close(chunk, expected)
    random = Random(torch.tensor(0), torch.tensor(0))
    explored, _ = head.explore(observations, {}, no_noise, random)
    assert (explored - chunk).abs().max() > 1e-3


def test_a_sampler_that_draws_fresh_noise_cannot_be_steered() -> None:
    with pytest.raises(ValueError, match="adds fresh noise in later denoising steps"):
        make_steered(euler(3, eta=0.5))
    assert steering_problem("TunedActor", (1, 4, 2)) is None
    assert steering_problem("TunedActor", (3, 4, 2)) is not None
    assert steering_problem("OneStepActor", (4, 2)) is None
