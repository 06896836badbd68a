"""The Decision Transformer with a cost limit: its context, its targets and its bundle."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import policies
from policies import Bundle, Normalizer, Player, Spec, bundle
from policies.golden import seal
from policies.heads.decision_transformer import ConstrainedTransformer

TABLE: dict[str, Any] = {"cost_limits": [10.0, 20.0], "target_returns": [100.0, 200.0]}


def make_net(**options: Any) -> ConstrainedTransformer:
    """Create a network with random parameters, so that every parameter has an effect."""
    torch.manual_seed(0)
    sizes = {"return_scale": 50.0, "context_length": 4, "dim_model": 8, "num_layers": 2}
    sizes |= {"num_heads": 2, "episode_steps": 10, "target_cost": 15.0, "cost_shift": 20.0}
    net = ConstrainedTransformer(3, 2, **sizes | TABLE | options).requires_grad_(False)
    for p in net.parameters():
        p += 0.3 * torch.randn_like(p)
    return net


def test_the_target_return_is_interpolated_at_the_cost_limit() -> None:
    limits = (0.0, 10.0, 12.5, 20.0, 80.0)
    found = [make_net(target_cost=c).target_return for c in limits]
    assert found == [100, 100, 125, 200, 200]
    assert make_net(target_return=7.0).target_return == 7
    with pytest.raises(ValueError, match="there is no table of target returns"):
        make_net(cost_limits=[], target_returns=[])


def test_acting_step_by_step_equals_the_network_on_the_last_steps_of_the_episode() -> None:
    """Two episodes of nine steps, with a context of four. Rewards and costs reduce the targets."""
    net, steps = make_net(), 9
    torch.manual_seed(2)
    observations, rewards = torch.randn(steps, 2, 3), 20 * torch.randn(steps, 2)
    costs = torch.rand(steps, 2)
    memory, reported = net.initial_memory(2), dict.fromkeys(("rewards", "costs"), torch.zeros(2))
    actions = list[torch.Tensor]()
    for t in range(steps):
        chunk, memory = net.decide(observations[t][:, None], memory | reported, torch.zeros(2, 0))
        first = max(0, t - 3)
        past = [*actions[first:], torch.full((2, 2), 99.0)]  # the present action is not observed
        earned, spent = (
            torch.cat([0 * x[:1], x.cumsum(0)])[first : t + 1] for x in (rewards, costs)
        )
        mean, _, _ = net(
            observations[first : t + 1].transpose(0, 1),
            torch.stack(past, 1),
            (150 - earned).T,
            torch.arange(first, t + 1).expand(2, -1),
            torch.ones(2, t + 1 - first, dtype=torch.bool),
            costs_to_go=(15 - spent).T,
        )
        torch.testing.assert_close(chunk[:, 0], mean[:, -1].clamp(-1, 1))
        actions.append(chunk[:, 0])
        reported = {"rewards": rewards[t], "costs": costs[t]}


def test_actions_know_the_cost_to_go_and_predicted_costs_know_the_action() -> None:
    net = make_net()
    x: dict[str, Any] = {"observations": torch.randn(5, 4, 3), "actions": torch.rand(5, 4, 2)}
    x |= {"returns": torch.randn(5, 4), "costs_to_go": 10 * torch.rand(5, 4)}
    x |= {"timesteps": torch.arange(4).expand(5, 4), "real": torch.ones(5, 4, dtype=torch.bool)}
    original = net(**x)
    for name, first in (("costs_to_go", 1), ("actions", 2)):
        changed = net(
            **x | {name: x[name] + (torch.arange(4) == 1).reshape(4, *[1] * (x[name].dim() - 2))}
        )
        for values, expected, start in (
            (changed.mean, original.mean, first),
            (changed.log_std, original.log_std, first),
            (changed.cost_logits, original.cost_logits, 1),
        ):
            difference = (values - expected).abs().amax((0, 2))  # [T]
            assert (difference[:start] == 0).all()
            assert (difference[start:] > 1e-6).all()


def write(path: Path) -> Path:
    head = make_net()
    weights = {k: v.numpy().copy() for k, v in head.state_dict().items()}
    normalizer = Normalizer.fit(np.random.default_rng(0).normal(1, 3, (20, 3)).astype(np.float32))
    kind, arguments = type(head).__name__, head.arguments
    bundle.write(path, seal(Bundle(Spec((3,), 2), kind, arguments, weights, normalizer)))
    return path


def play(policy: Any) -> np.ndarray:
    """Return the actions of six steps of two episodes, [6, 2, 2]."""
    player, random = Player(policy), np.random.default_rng(0)
    player.reset([1, 2])
    steps = []
    for _ in range(6):
        s, reward, cost = random.normal(size=(2, 3)), random.normal(size=2), random.random(2)
        steps.append(player.step(s.astype(np.float32), reward, cost))
    return np.stack(steps)


def test_a_bundle_acts_for_another_cost_limit(tmp_path: Path) -> None:
    path = write(tmp_path / "policy.bundle")
    policy = policies.load(path)
    assert policy.needs_rewards
    assert policy.needs_costs
    actions = play(policy)
    np.testing.assert_allclose(play(policies.load(path, target_cost=15.0)), actions, atol=1e-6)
    stricter = policies.load(path, target_cost=11.0)
    assert stricter.module.target_return == 110
    assert np.abs(play(stricter) - actions).max() > 1e-3


@pytest.mark.slow
def test_the_exported_bundle_acts_as_in_torch(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from policies.export import export_bundle

    path = write(tmp_path / "policy.bundle")
    exported, _ = export_bundle(bundle.read(path))
    bundle.write(path, exported)
    np.testing.assert_allclose(
        *(play(policies.load(path, runtime=each)) for each in ("onnx", "torch")), atol=1e-5
    )
