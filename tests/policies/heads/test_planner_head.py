"""A recurrent policy that emits sequences of actions, against torch's GRU cell."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, TanhTransform, TransformedDistribution

import policies
from offline_rl.utils.random import Random
from policies import Normalizer, Player, Spec, bundle
from policies.episodes import RunningEpisodes
from policies.golden import seal
from policies.heads.sequences.planner import SequenceActor, last_executed

HORIZON = 4


def make_head() -> SequenceActor:
    torch.manual_seed(0)
    head = SequenceActor(5, 2, (7, 6), horizon=HORIZON)
    for parameter in head.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape)
    return head


def cells(head: SequenceActor) -> tuple[nn.Module, nn.GRUCell, nn.Linear, nn.Linear]:
    """Return the network of h_0, and the same cell and output layers in torch's own modules."""

    def linear(module: Any) -> nn.Linear:
        layer = nn.Linear(*module.weights[0].shape)
        layer.weight.data, layer.bias.data = module.weights[0].data.T, module.biases[0].data
        return layer

    cell = nn.GRUCell(2, 6)
    for name, module in (("ih", head.gru_input), ("hh", head.gru_state)):
        getattr(cell, f"weight_{name}").data = module.weights[0].data.T
        getattr(cell, f"bias_{name}").data = module.biases[0].data
    return head.start, cell, linear(head.mean), linear(head.log_std)


def test_each_action_is_an_input_of_the_next_one() -> None:
    head, s, previous = make_head(), torch.randn(3, 5), torch.rand(3, 2) * 2 - 1
    start, cell, mean, _ = cells(head)
    h, a, expected = start(s), previous, list[Tensor]()
    for _ in range(HORIZON):
        h = cell(a, h)
        a = mean(h).tanh()
        expected.append(a)
    torch.testing.assert_close(head(s, previous), torch.stack(expected, 1))


def test_samples_and_their_log_densities_are_those_of_torch() -> None:
    head, s, previous = make_head(), torch.randn(3, 5), torch.rand(3, 2) * 2 - 1
    random = Random(torch.tensor(1), torch.tensor(0))
    chunk, log_pi = head.sample(s, previous, random, 2)
    start, cell, mean, log_std = cells(head)
    h, a = start(s), previous
    for k in range(2):
        h = cell(a, h)
        normal = Normal(mean(h), log_std(h).clamp(-20, 2).exp())
        squashed = TransformedDistribution(normal, [TanhTransform(cache_size=1)])
        a = chunk[:, k]
        expected = squashed.log_prob(a.clamp(-1 + 1e-6, 1 - 1e-6)).sum(-1)
        torch.testing.assert_close(log_pi[:, k], expected, atol=1e-3, rtol=1e-3)


def test_the_action_before_a_decision_is_the_last_executed_one() -> None:
    plan = torch.arange(2 * HORIZON).reshape(1, HORIZON, 2).float().expand(4, -1, -1)
    memory = {"plan": plan, "executed": torch.tensor([1.0, 3.0, 4.0, 9.0])}
    assert last_executed(memory)[:, 0].tolist() == [0, 4, 6, 6]  # the last one is repeated
    assert not last_executed(make_head().initial_memory(2)).any()


def test_a_decision_receives_the_number_of_steps_since_the_last_one() -> None:
    received = list[list[float]]()

    def decide(observations: Any, memory: Any, noise: Any, rows: Any) -> Any:
        received.append(memory["executed"].tolist())
        return np.zeros((len(rows), 3, 1), np.float32), memory

    episodes = RunningEpisodes(
        decide, lambda count: {"executed": np.zeros(count, np.float32)}, n_action_steps=2
    )
    episodes.reset(np.arange(2))
    blank = np.zeros((2, 1), np.float32)
    for _ in range(5):
        episodes.step(blank)
    assert received == [[0, 0], [2, 2], [2, 2]]
    state = episodes.state(np.arange(2))
    episodes.reset(np.arange(1), np.array([1]))  # a new episode
    episodes.replan(np.array([0]))
    episodes.step(blank)
    assert received[3:] == [[1, 0]]
    episodes.reset(np.arange(2))
    episodes.load(np.arange(2), state)
    episodes.step(blank)  # the second step of a decision
    episodes.step(blank)
    assert received[4:] == [[2, 2]]


@pytest.mark.parametrize("runtime", ["numpy", pytest.param("onnx", marks=pytest.mark.slow)])
def test_other_runtimes_give_the_actions_of_torch(tmp_path: Path, runtime: str) -> None:
    from policies.export import export_bundle

    head, path = make_head(), tmp_path / "policy.bundle"
    weights = {k: v.numpy().copy() for k, v in head.state_dict().items()}
    spec = Spec((5,), 2, chunk_size=HORIZON, n_action_steps=HORIZON)
    made = seal(
        bundle.Bundle(spec, "SequenceActor", head.arguments, weights, Normalizer.identity((5,)))
    )
    bundle.write(path, export_bundle(made)[0] if runtime == "onnx" else made)
    players = [Player(policies.load(path, runtime=each)) for each in (runtime, "torch")]
    for player in players:
        player.reset([1, 2])
    x = np.random.default_rng(0).normal(size=(10, 2, 5)).astype(np.float32)
    ours, reference = (np.stack([player.step(row) for row in x]) for player in players)
    np.testing.assert_allclose(ours, reference, atol=1e-5)
    assert reference.std() > 0.1


def test_exploration_continues_from_the_last_executed_action() -> None:
    """It samples from the observation and this action, and remembers its own chunk."""
    head, s = make_head(), torch.randn(3, 5)
    plan = torch.rand(3, HORIZON, 2) * 2 - 1
    memory = {"plan": plan, "executed": torch.tensor([1.0, 2.0, 4.0])}
    arguments = s[:, None], memory, torch.zeros(3, 0)
    chunk, following = head.explore(*arguments, Random(torch.tensor(1), torch.tensor(0)))
    previous = plan[torch.arange(3), torch.tensor([0, 1, 3])]
    sampled, _ = head.sample(s, previous, Random(torch.tensor(1), torch.tensor(0)))
    torch.testing.assert_close(chunk, sampled)
    assert following["plan"].equal(chunk)
    greedy, following = head.decide(*arguments)
    torch.testing.assert_close(greedy, head(s, previous))
    assert following["plan"].equal(greedy)
