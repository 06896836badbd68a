"""The head that switches between policies: remaining limit, choice, memory, and the runtimes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import policies
from offline_rl.utils.random import Random
from policies import Bundle, Normalizer, Player, Spec, bundle
from policies.golden import make_golden_input, run_golden, seal
from policies.heads.safety.switching import SwitchingActor
from policies.networks.mlp import Critic

HEADS, LIMIT, STEPS, DISCOUNT = 3, 6.0, 8, 0.9


def make_head(**options: Any) -> SwitchingActor:
    """Return a head whose costs are around 4, near its discounted limit at the start."""
    torch.manual_seed(0)
    policy = {"observations": 5, "actions": 2 * HEADS, "hidden": [16]}
    critics = [Critic(5, 2, (16,), ensemble=e).arguments for e in (2, 3)]
    settings: dict[str, Any] = {"target_cost": LIMIT, "episode_steps": STEPS}
    settings |= {"num_heads": HEADS, "cost_discount": DISCOUNT}
    head = SwitchingActor(policy, *critics, **settings | options).requires_grad_(False)
    for parameter in head.parameters():
        parameter.mul_(3)
    head.cost_critic.net.biases[-1].add_(1.5)
    return head


def value(critic: Critic, s: np.ndarray, a: np.ndarray) -> list[float]:
    """Return the values of all members for one observation and one action."""
    inputs = torch.from_numpy(s)[None], torch.from_numpy(a)[None]
    return critic(*inputs)[:, 0].tolist()


def select_by_hand(
    head: SwitchingActor, s: np.ndarray, spent: float, step: int
) -> tuple[int, bool]:
    """Return the head that must act, by loops, and True if at least one head is admissible."""
    n = max(STEPS - step, 1)
    evenly = [max(LIMIT - spent, 0) / n * DISCOUNT**k for k in range(n)]  # cost of each step
    actions = head.policy(torch.from_numpy(s)[None]).reshape(HEADS, 2).numpy()
    returns = [min(value(head.critic, s, a)) for a in actions]
    costs = [max(value(head.cost_critic, s, a)) for a in actions]
    admissible = [k for k in range(HEADS) if costs[k] < sum(evenly)]
    if admissible:
        return max(admissible, key=lambda k: returns[k]), True
    return min(range(HEADS), key=lambda k: costs[k]), False


def test_the_admissible_policy_of_highest_return_acts_else_the_one_of_lowest_cost() -> None:
    """Ten episodes of ten steps with costs of 0 or 2. The limit is for eight steps."""
    head, random, count = make_head(), np.random.default_rng(0), 10
    memory, spent, cost = head.initial_memory(count), np.zeros(count), np.zeros(count)
    cases = set()
    for step in range(10):
        s = random.normal(size=(count, 5)).astype(np.float32)
        spent += cost
        memory["costs"] = torch.from_numpy(cost).float()
        chunk, memory = head.decide(torch.from_numpy(s)[:, None], memory, torch.zeros(count, 0))
        assert chunk.shape == (count, 1, 2)
        actions = head.policy(torch.from_numpy(s)).reshape(count, HEADS, 2)
        for b in range(count):
            case = select_by_hand(head, s[b], spent[b], step)
            torch.testing.assert_close(chunk[b, 0], actions[b, case[0]])
            cases.add(case)
        cost = random.choice([0.0, 0.0, 2.0], count)
    assert cases == {(k, is_any) for k in range(HEADS) for is_any in (True, False)}


def test_without_budget_left_only_negative_costs_are_admissible() -> None:
    head = make_head()
    limits = head.limit(torch.tensor([6.0, 7.0, 5.0]), torch.tensor([3, 3, 7]))
    np.testing.assert_allclose(
        limits, [0, 0, 1], rtol=1e-6
    )  # one step left may spend the remaining 1


def test_exploration_adds_noise_to_the_selected_action() -> None:
    head = make_head(noise=0.2)
    for parameter in (head.policy.trunk.weights[-1], head.policy.trunk.biases[-1]):
        parameter.zero_()  # the action is 0
    s, memory = torch.randn(4000, 1, 5), head.initial_memory(4000)
    chunk, expected = head.decide(s, memory, torch.zeros(4000, 0))
    assert not chunk.any()
    random = Random(torch.tensor(1), torch.tensor(2))
    explored, following = head.explore(s, memory, torch.zeros(4000, 0), random)
    assert 0.5 < explored.abs().max() <= 1
    assert explored.std() == pytest.approx(0.2, rel=0.05)
    assert following["steps"].equal(expected["steps"])
    head.noise = 2.0
    explored, _ = head.explore(s, memory, torch.zeros(4000, 0), random)
    assert (explored.min(), explored.max()) == (-1, 1)  # clipped


def write(path: Path, head: SwitchingActor) -> Path:
    weights = {k: v.numpy().copy() for k, v in head.state_dict().items()}
    normalizer = Normalizer.fit(np.random.default_rng(0).normal(1, 3, (20, 5)).astype(np.float32))
    kind, arguments = type(head).__name__, head.arguments
    bundle.write(path, seal(Bundle(Spec((5,), 2), kind, arguments, weights, normalizer)))
    return path


def play(policy: Any, seed: int = 0) -> np.ndarray:
    """Return the actions of twelve steps of three episodes, [12, 3, 2]."""
    player, random = Player(policy), np.random.default_rng(seed)
    player.reset([1, 2, 3])
    steps = []
    for _ in range(12):
        s, cost = random.normal(1, 3, (3, 5)).astype(np.float32), random.choice([0.0, 1.0], 3)
        steps.append(player.step(s, cost=cost))
    return np.stack(steps)


def test_the_bundle_acts_alike_in_numpy_and_torch_and_for_another_limit(tmp_path: Path) -> None:
    path = write(tmp_path / "policy.bundle", make_head())
    numpy, torch_ = (policies.load(path, runtime=each) for each in ("numpy", "torch"))
    assert numpy.needs_costs
    np.testing.assert_allclose(play(numpy), play(torch_), atol=1e-5)
    for limit in (0.0, 50.0):
        pair = [policies.load(path, runtime=each, target_cost=limit) for each in ("numpy", "torch")]
        np.testing.assert_allclose(*map(play, pair), atol=1e-5)
        assert np.abs(play(pair[0]) - play(numpy)).max() > 0.1
    _, state = numpy.act(np.zeros(5, np.float32))
    with pytest.raises(ValueError, match="reads the costs of its episode"):
        numpy.act(np.zeros(5, np.float32), state)


@pytest.mark.slow
def test_the_exported_bundle_acts_as_in_torch(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from policies.export import export_bundle

    path = write(tmp_path / "policy.bundle", make_head())
    exported, _ = export_bundle(bundle.read(path))
    bundle.write(path, exported)
    np.testing.assert_allclose(
        *(play(policies.load(path, runtime=each)) for each in ("onnx", "torch")), atol=1e-5
    )


def test_the_golden_input_has_no_close_decisions(tmp_path: Path) -> None:
    """Rounding errors of 1e-3 in returns and costs change no decision of the golden output."""
    saved = bundle.read(write(tmp_path / "policy.bundle", make_head()))
    policy, _ = run_golden(saved, "torch")
    golden = make_golden_input(policy)
    (channel,) = golden.observations
    s = torch.from_numpy(saved.normalizers[channel](golden.observations[channel]))[:, 0]
    actions, q, cost = policy.module.evaluate(s)
    assert golden.noise is None
    for values in (q, cost):
        assert values.sort(1).values.diff(dim=1).min() > 1e-3
    for spent in (0.0, 1.0):
        limit = policy.module.limit(torch.full((len(s),), spent), torch.full((len(s),), int(spent)))
        assert (cost - limit[:, None]).abs().min() > 1e-3
    assert actions.shape == (len(s), HEADS, 2)
