"""Policies on a frozen base policy: what they do together, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from steered import ECHO, NOISY, OBS, STEPS, base_bundle, steering_bundle

import policies
from policies import Bundle, BundleError, Channel, Normalizer, Player, Spec, bundle, noise
from policies.channels import BASE_ACTION
from policies.composed import ComposedPolicy, SteeredEpisodes
from policies.episodes import RunningEpisodes
from policies.export import export_bundle
from policies.golden import seal
from policies.heads.vision import VisionHead
from policies.policy import BundlePolicy
from policies.runtimes.network import make_network

LIMITS: dict[str, Any] = {"action_low": (0.0,), "action_high": (4.0,), "action_names": ("pull",)}


def residual_bundle(base: Bundle) -> Bundle:
    """Return the bundle of a residual policy that adds 0.2 tanh(0.5) to every action of `base`."""
    channels = (*base.spec.channels, Channel(BASE_ACTION, (1,)))
    shapes = {channel.name: channel.shape for channel in channels}
    options = {"actions": 1, "hidden": [4], "scale": 0.2}
    head = VisionHead(shapes, "ResidualActor", options, {})
    weights = {name: value.numpy() for name, value in head.state_dict().items()}
    weights |= {name: np.full_like(x, 0.5) for name, x in weights.items() if "biases.1" in name}
    normalizers = {name: Normalizer.identity(shape) for name, shape in shapes.items()}
    spec = replace(base.spec, channels=channels, n_obs_steps=1, chunk_size=1, n_action_steps=1)
    parts: dict[str, Any] = {"composition": bundle.Composition("residual"), "base": base}
    return Bundle(spec, "VisionHead", head.arguments, weights, normalizers, **parts)


def load(path: Path, made: Bundle, **options: Any) -> Any:
    bundle.write(path, made)
    return policies.load(path, **options)


@pytest.mark.parametrize("table", [ECHO, NOISY])
def test_a_steered_policy_acts_as_its_base_from_the_chosen_noise(
    tmp_path: Path, table: Any
) -> None:
    """A decision lasts three steps. Fresh noise of later denoising steps stays the episode's."""
    base, whole = base_bundle(table), seal(steering_bundle(base_bundle(table)))
    policy = load(tmp_path / "steered.bundle", whole)
    frozen, steering = (BundlePolicy(each, make_network(each)) for each in (base, whole))
    player, seeds = Player(policy), np.array([3, 4])
    player.reset(seeds)
    draw = np.random.default_rng(0)
    seen = [draw.normal(size=(2, OBS)).astype(np.float32) for _ in range(8)]
    for t, present in enumerate(seen):
        action = player.step(present)
        if t % STEPS == 0:
            history = np.stack([seen[max(t - 1, 0)], present], 1)
            numbers = noise.normal(seeds, np.full(2, t // STEPS), frozen.noise_shape)
            numbers[:, 0] = 1.5 * steering.act(present)[0].reshape(2, -1, 1)
            chunk, _ = frozen.decide(history, {}, numbers)
        np.testing.assert_allclose(action, chunk[:, t % STEPS], atol=1e-6)
    assert np.abs(chunk).min() < 1


def test_a_steered_policy_has_the_spec_of_its_base(tmp_path: Path) -> None:
    base = base_bundle(**LIMITS, rate_hz=20.0)
    path, whole = tmp_path / "steered.bundle", seal(steering_bundle(base))
    plain, scaled = load(path, whole), load(path, whole, units=True)
    assert plain.spec == base.spec
    assert plain.bundle.spec.action_dim == 4
    one, two = (each.act(np.ones(OBS))[0] for each in (plain, scaled))
    np.testing.assert_allclose(two, 2 + 2 * one, rtol=1e-6)


@pytest.mark.parametrize("make", [steering_bundle, residual_bundle])
def test_the_state_of_a_composed_episode_is_restored_in_mid_chunk(
    tmp_path: Path, make: Any
) -> None:
    """The chunk is that of the outer policy with steering, and of the inner one otherwise."""
    policy = load(tmp_path / "composed.bundle", seal(make(base_bundle(NOISY))))
    seen = np.random.default_rng(0).normal(size=(6, 2, OBS)).astype(np.float32)
    one, two = policy.new_episodes(), policy.new_episodes()
    one.reset(np.array([5, 6]))
    for present in seen[:4]:
        one.step(present)
    two.reset(np.array([0, 0]))
    two.load(np.arange(2), one.state(np.arange(2)))
    fork = one.fork()
    for present in seen[4:]:
        expected = one.step(present)
        np.testing.assert_array_equal(two.step(present), expected)
        np.testing.assert_array_equal(fork.step(present), expected)


@pytest.mark.parametrize("make", [steering_bundle, residual_bundle])
def test_the_golden_output_covers_the_policy_together_with_its_base(
    tmp_path: Path, make: Any
) -> None:
    """Each part reproduces its own golden output; only together they differ from the recorded."""
    whole = seal(make(base_bundle(NOISY)))
    assert isinstance(load(tmp_path / "whole.bundle", whole), ComposedPolicy)
    assert seal(whole).golden is whole.golden
    changed = replace(whole, base=base_bundle([*NOISY, *NOISY]))
    if make is steering_bundle:
        changed = replace(whole, composition=bundle.Composition("noise", 0.5))
    with pytest.raises(BundleError, match="together with its base does not reproduce its golden"):
        load(tmp_path / "changed.bundle", changed)


def test_bundles_without_the_golden_output_of_both_are_not_written(tmp_path: Path) -> None:
    whole = seal(steering_bundle(base_bundle()))
    assert whole.golden is not None
    with pytest.raises(BundleError, match="no golden output"):
        bundle.write(tmp_path / "b", replace(whole, golden=replace(whole.golden, composed=None)))


@pytest.mark.slow
def test_a_composed_policy_runs_in_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    whole = seal(steering_bundle(base_bundle(NOISY)))
    exported, difference = export_bundle(whole)
    assert difference <= 1e-4
    torch_policy = load(tmp_path / "torch.bundle", whole)
    onnx_policy = load(tmp_path / "onnx.bundle", exported, runtime="onnx")
    players = [Player(each) for each in (torch_policy, onnx_policy)]
    for present in np.random.default_rng(0).normal(size=(5, OBS)).astype(np.float32):
        one, two = (player.step(present) for player in players)
        np.testing.assert_allclose(one, two, atol=1e-5)


def wider() -> dict[str, Any]:
    """Return the parts of a steering policy's bundle with five actions."""
    weights = {"trunk.weights.0": np.ones((OBS, 5)), "trunk.biases.0": np.ones(5)}
    arguments = {"observations": OBS, "actions": 5, "hidden": []}
    weights = {name: value.astype(np.float32) for name, value in weights.items()}
    return {"spec": Spec((OBS,), 5), "arguments": arguments, "weights": weights, "actions": None}


def without_sampler() -> Bundle:
    """Return the bundle of a base policy that is an MLP."""
    return seal(steering_bundle(None, composition=None))


@pytest.mark.parametrize(
    ("made", "fault"),
    [
        (lambda: steering_bundle(without_sampler()), "DeterministicActor, has no sampler with a"),
        (
            lambda: replace(steering_bundle(base_bundle()), **wider()),
            "chooses 5 numbers, but the base starts from 4",
        ),
        (
            lambda: steering_bundle(base_bundle(), composition=None),
            "contains a base policy, but it has no composition",
        ),
        (
            lambda: replace(
                steering_bundle(base_bundle()), composition=bundle.Composition("residual")
            ),
            "does not observe base_action",
        ),
    ],
)
def test_a_base_that_does_not_fit_is_refused(made: Any, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        seal(made())


def test_a_fork_leaves_the_history_of_a_steering_policy_unchanged() -> None:
    def steer(observations: Any, memory: Any, noise: Any, rows: Any) -> Any:
        return observations.sum(1)[:, None], memory

    def base(observations: Any, memory: Any, noise: Any, rows: Any) -> Any:
        return noise, memory

    steering = RunningEpisodes(steer, n_obs_steps=2)
    episodes = SteeredEpisodes(steering, 1.0, decide=base, noise_shape=(1, 1))
    episodes.reset(np.zeros(1, np.int64))
    episodes.step(np.full((1, 1), 1.0, np.float32))
    for _ in range(2):
        other = episodes.fork()
        other.observe(np.full((1, 1), 2.0, np.float32))
        assert other.predict_chunk().item() == 3  # the sum of the last two observations
