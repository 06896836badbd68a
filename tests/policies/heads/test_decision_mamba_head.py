"""Decision Mamba: its scan by a loop in numpy, exact causality, and its running state."""

from pathlib import Path

import numpy as np
import pytest
import torch

import policies
from policies import bundle
from policies.bundle import Bundle
from policies.golden import seal
from policies.heads.sequences.decision_mamba import DecisionMamba
from policies.networks.sequences.mamba import Mixer, scan_states
from policies.normalizer import Normalizer
from policies.player import Player
from policies.spec import Spec

OPTIONS = {
    "target_return": 6.0,
    "return_scale": 2.0,
    "context_length": 4,
    "dim_model": 8,
    "num_layers": 2,
    "state_size": 3,
    "episode_steps": 10,
}


def make_net(**options) -> DecisionMamba:
    """Create a network with random parameters, so that every parameter has an effect."""
    torch.manual_seed(0)
    net = DecisionMamba(3, 2, **(OPTIONS | options))
    for p in net.parameters():
        p.data += 0.3 * torch.randn_like(p)
    return net.requires_grad_(False)


def make_context(steps: int, batch: int = 3) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return {
        "observations": torch.randn(batch, steps, 3),
        "actions": torch.rand(batch, steps, 2),
        "returns": torch.randn(batch, steps),
        "timesteps": torch.arange(steps).expand(batch, steps),
        "real": torch.ones(batch, steps, dtype=torch.bool),
    }


def changed_steps(net: DecisionMamba, name: str, step: int, steps: int = 20) -> dict[str, list]:
    """Return the steps whose outputs change at all when an input of one step changes."""
    x = make_context(steps)
    other = x | {name: x[name].clone()}
    other[name][:, step] += 1.0
    pairs = zip(net(**x), net(**other), strict=True)
    names = ("actions", "next_observations", "next_returns")
    return {
        key: (one != two).flatten(2).any(2).any(0).nonzero().flatten().tolist()
        if one.dim() > 2
        else (one != two).any(0).nonzero().flatten().tolist()
        for key, (one, two) in zip(names, pairs, strict=True)
    }


@pytest.mark.parametrize("count", [1, 2, 7, 12])
def test_the_parallel_scan_equals_a_loop(count: int) -> None:
    random = np.random.default_rng(0)
    decay, inputs = random.uniform(size=(2, count, 3, 2)), random.normal(size=(2, count, 3, 2))
    h = start = random.normal(size=(2, 3, 2))
    expected = []
    for t in range(count):
        h = decay[:, t] * h + inputs[:, t]
        expected.append(h)
    found = scan_states(*(torch.from_numpy(x) for x in (decay, inputs, start)))
    np.testing.assert_allclose(found, np.stack(expected, 1), atol=1e-12)


def test_a_mixer_equals_its_equations_in_numpy() -> None:
    torch.manual_seed(0)
    mixer = Mixer(5, 3).requires_grad_(False)
    x = torch.randn(7, 5)
    p = {k: v.double().numpy() for k, v in mixer.state_dict().items()}

    def silu(v):
        return v / (1 + np.exp(-v))

    both = x.double().numpy() @ p["weight_in"]  # [T, 2 I]
    u, gate = both[:, :10], both[:, 10:]
    h, expected = np.zeros((10, 3)), []
    for t in range(7):
        taps = (p["weight_conv"][3 - k] * u[t - k] for k in range(4) if t >= k)
        v = silu(p["bias_conv"] + sum(taps))
        low, b, c = np.split(v @ p["weight_select"], [1, 4])
        delta = np.log1p(np.exp(low @ p["delta.weights.0"] + p["delta.biases.0"]))
        h = np.exp(-delta[:, None] * np.exp(p["log_decay"])) * h + np.outer(delta * v, b)
        expected.append(((h @ c + p["skip"] * v) * silu(gate[t])) @ p["weight_out"])
    found, carry = mixer(x[None])
    np.testing.assert_allclose(found[0], expected, atol=1e-5)
    np.testing.assert_allclose(carry.state[0], h, atol=1e-5)
    np.testing.assert_allclose(carry.tail[0], u[-3:], atol=1e-5)


def test_initial_step_sizes_are_between_a_thousandth_and_a_tenth() -> None:
    steps = torch.nn.functional.softplus(Mixer(64).delta.biases[0])
    assert 9e-4 < steps.min() < 4e-3
    assert 0.03 < steps.max() < 0.101


@pytest.mark.parametrize("fine", [True, False])
def test_outputs_depend_on_no_later_input_and_on_no_action_that_they_predict(fine: bool) -> None:
    """Equality is exact. All later outputs change, so that no input is ignored."""
    net, later, after = make_net(fine=fine), [*range(8, 20)], [*range(9, 20)]
    for name in ("returns", "observations"):
        assert changed_steps(net, name, 8) == {
            "actions": later,
            "next_observations": later,
            "next_returns": later,
        }
    assert changed_steps(net, "actions", 8) == {
        "actions": after,
        "next_observations": later,
        "next_returns": later,
    }


def test_as_released_every_step_but_the_last_observes_its_own_action() -> None:
    net = make_net(as_released=True, running_state=False)
    leaks = [t for t in range(20) if t in changed_steps(net, "actions", t)["actions"]]
    assert leaks == [*range(19)]


def episode(net: DecisionMamba, steps: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the actions [B, T, A] of an episode, and its context."""
    x, memory = make_context(steps), net.initial_memory(3)
    torch.manual_seed(2)
    rewards, actions = torch.randn(3, steps), []
    x["returns"] = 6 - torch.cat([0 * rewards[:, :1], rewards.cumsum(1)[:, :-1]], 1)
    for t in range(steps):
        chunk, memory = net.decide(x["observations"][:, t : t + 1], memory, torch.zeros(3, 0))
        memory = memory | {"rewards": rewards[:, t]}
        actions.append(chunk[:, 0])
    return torch.stack(actions, 1), x | {"actions": torch.stack(actions, 1)}


@pytest.mark.parametrize("fine", [True, False])
def test_acting_with_a_running_state_equals_the_network_on_the_complete_episode(fine: bool) -> None:
    net = make_net(fine=fine)
    actions, context = episode(net, 12)
    torch.testing.assert_close(actions, net(**context).actions, atol=1e-5, rtol=0)
    assert actions.std() > 0.1


def test_acting_without_a_running_state_equals_the_network_on_the_last_steps() -> None:
    """Padding at the start of the first contexts changes nothing."""
    net = make_net(running_state=False)
    actions, context = episode(net, 9)
    for t in range(9):
        last = {k: v[:, max(0, t - 3) : t + 1] for k, v in context.items()}
        torch.testing.assert_close(actions[:, t], net(**last).actions[:, -1], atol=1e-5, rtol=0)


def test_the_running_state_does_not_grow() -> None:
    net = make_net()
    memory = net.initial_memory(1)
    for _ in range(3):
        _, following = net.decide(torch.randn(1, 1, 3), memory, torch.zeros(1, 0))
        assert {k: v.shape for k, v in following.items()} == {k: v.shape for k, v in memory.items()}
        memory = following


def write(path: Path, **options) -> Path:
    head = make_net(**options)
    weights = {k: v.numpy().copy() for k, v in head.state_dict().items()}
    normalizer = Normalizer.fit(np.random.default_rng(0).normal(1, 3, (20, 3)).astype(np.float32))
    parts = Bundle(Spec((3,), 2), type(head).__name__, head.arguments, weights, normalizer)
    bundle.write(path, seal(parts))
    return path


def play(policy) -> np.ndarray:
    """Return the actions of six steps of two episodes, [6, 2, 2]."""
    player, random = Player(policy), np.random.default_rng(0)
    player.reset([1, 2])
    steps = []
    for _ in range(6):
        s, reward = random.normal(size=(2, 3)).astype(np.float32), random.normal(size=2)
        steps.append(player.step(s, reward))
    return np.stack(steps)


def test_a_bundle_acts_with_another_target_or_another_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "policy.bundle")
    actions = play(policies.load(path))
    np.testing.assert_allclose(play(policies.load(path, target_return=6.0)), actions, atol=1e-6)
    assert np.abs(play(policies.load(path, target_return=1.0)) - actions).max() > 1e-3
    windows = play(policies.load(path, running_state=False))
    np.testing.assert_allclose(windows[:4], actions[:4], atol=1e-5)  # the context has four steps
    assert np.abs(windows[4:] - actions[4:]).max() > 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("running_state", [True, False])
def test_the_exported_bundle_acts_as_in_torch(tmp_path: Path, running_state: bool) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from policies.export import export_bundle

    path = write(tmp_path / "policy.bundle", running_state=running_state)
    exported, _ = export_bundle(bundle.read(path))
    bundle.write(path, exported)
    np.testing.assert_allclose(
        *(play(policies.load(path, runtime=each)) for each in ("onnx", "torch")), atol=1e-5
    )
