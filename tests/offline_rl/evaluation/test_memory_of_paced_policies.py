"""Memories of policies that decide every few steps, or late: time, returns and earlier actions."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from offline_rl.evaluation.decisions.player import Pace, PacedPlayer
from policies import Bundle, Normalizer, Spec
from policies.heads.decision_transformer import DecisionTransformer
from policies.heads.gaussian import StepGaussianActor
from policies.heads.head import Head
from policies.heads.safety.switching import SwitchingActor
from policies.heads.sequences.decision_mamba import DecisionMamba
from policies.heads.sequences.planner import SequenceActor
from policies.networks.mlp import Critic
from policies.policy import BundlePolicy
from policies.runtimes.network import make_network

HORIZON = 3
OBSERVATIONS = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)


def policy_of(head: Head, runtime: str = "torch") -> BundlePolicy:
    """Return the policy with a copy of the head's parameters."""
    weights = {k: v.detach().numpy().copy() for k, v in head.state_dict().items()}
    sizes: Any = {"chunk_size": head.chunk_size, "n_action_steps": head.n_action_steps}
    kind, identity = type(head).__name__, Normalizer.identity((5,))
    bundle = Bundle(Spec((5,), 2, **sizes), kind, head.arguments, weights, identity)
    return BundlePolicy(bundle, make_network(bundle, runtime))


class Planner:
    """A sequence policy of torch.nn.GRUCell, with the parameters of a `SequenceActor`."""

    def __init__(self, head: SequenceActor) -> None:
        p = {k: v.detach() for k, v in head.state_dict().items()}
        self.p, self.cell = p, nn.GRUCell(2, 16)
        with torch.no_grad():
            self.cell.weight_ih.copy_(p["gru_input.weights.0"].T)
            self.cell.weight_hh.copy_(p["gru_state.weights.0"].T)
            self.cell.bias_ih.copy_(p["gru_input.biases.0"])
            self.cell.bias_hh.copy_(p["gru_state.biases.0"])

    def plan(self, observation: np.ndarray, previous: torch.Tensor, steps: int) -> list[Any]:
        """Return `steps` actions from one observation. previous: the action before it."""
        p, x = self.p, torch.from_numpy(observation)[None]
        h = (x @ p["start.weights.0"] + p["start.biases.0"]).relu()
        h = h @ p["start.weights.1"] + p["start.biases.1"]
        actions = list[Any]()
        for _ in range(steps):
            h = self.cell(previous, h)
            previous = (h @ p["mean.weights.0"] + p["mean.biases.0"]).tanh()
            actions.append(previous)
        return actions


def planner() -> SequenceActor:
    torch.manual_seed(0)
    head = SequenceActor(5, 2, (16, 16), horizon=HORIZON)
    for parameter in head.parameters():
        parameter.data *= 2
    return head


@pytest.mark.parametrize("runtime", ["torch", "numpy"])
def test_a_recurrent_plan_continues_beyond_its_horizon(runtime: str) -> None:
    """Five actions per decision from a policy that plans three; without torch, it repeats them."""
    head = planner()
    player, loop = PacedPlayer(policy_of(head, runtime), Pace(5)), Planner(head)
    player.reset(0)
    actions = np.stack([player.step(s) for s in OBSERVATIONS])
    if runtime == "numpy":
        np.testing.assert_allclose(actions[3:5], actions[[2, 2]])
        return
    previous, expected = torch.zeros(1, 2), list[Any]()
    for start in (0, 5, 10):
        expected += loop.plan(OBSERVATIONS[start], previous, 5)
        previous = expected[-1]
    planned = torch.cat(expected).detach().numpy()[: len(actions)]
    np.testing.assert_allclose(actions, planned, atol=1e-5)
    assert np.abs(np.diff(actions[2:5], axis=0)).min() > 1e-4  # nothing is repeated


@pytest.mark.parametrize("delay", [1, 2, 4])
def test_a_late_plan_follows_the_action_that_was_executed_before_its_observation(
    delay: int,
) -> None:
    """Decision t uses observation t - delay, and the action executed at step t - delay - 1."""
    head = planner()
    player, loop = PacedPlayer(policy_of(head), Pace(delay=delay)), Planner(head)
    player.reset([0, 1])
    rows = np.stack([OBSERVATIONS, OBSERVATIONS[::-1]], 1)  # two episodes
    actions = np.stack([player.step(row) for row in rows])
    for episode in (0, 1):
        executed = loop.plan(rows[0, episode], torch.zeros(1, 2), delay + 1)
        for t in range(delay + 1, len(rows)):
            late = t - delay
            executed.append(loop.plan(rows[late, episode], executed[late - 1], delay + 1)[-1])
        expected = torch.cat(executed).detach().numpy()
        np.testing.assert_allclose(actions[:, episode], expected, atol=1e-5)


def steps_of(pace: Pace) -> list[int]:
    """Return the networks by which a policy with one for each step acts in eight steps."""
    head = StepGaussianActor(5, 2, (8,), num_steps=8)
    player = PacedPlayer(policy_of(head), pace)
    player.reset(0)
    used = []
    for s in OBSERVATIONS[:8]:
        action = player.step(np.full_like(s, 0.5))
        outputs = head.trunk(torch.full((1, 5), 0.5))[:, 0].detach().clamp(-1, 1)
        used.append(int(np.abs(outputs.numpy() - action).sum(-1).argmin()))
    return used


def test_a_policy_for_each_step_counts_environment_steps() -> None:
    """A late policy uses the network of the step of its observation."""
    assert steps_of(Pace()) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert steps_of(Pace(3)) == [0, 0, 0, 3, 3, 3, 6, 6]
    assert steps_of(Pace(delay=2)) == [0, 0, 0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("running_state", [None, True, False])
def test_sequence_models_receive_the_time_and_the_return_of_their_observation(
    running_state: bool | None,
) -> None:
    """The reward of step t is t + 1, and the target return 100."""
    sizes: dict[str, Any] = {"context_length": 4, "dim_model": 8, "num_layers": 1}
    sizes |= {"target_return": 100.0, "episode_steps": 20}
    head: Head = DecisionTransformer(5, 2, **sizes)
    if running_state is not None:
        head = DecisionMamba(5, 2, **sizes, running_state=running_state)
    for pace, last in ((Pace(), 9), (Pace(4), 8), (Pace(delay=3), 6)):
        player = PacedPlayer(policy_of(head), pace)
        player.reset([0, 1])
        for t in range(10):
            rewards = None if t == 0 else np.full(2, float(t))
            player.step(np.tile(OBSERVATIONS[t], (2, 1)), rewards)
        memory = player.episodes.memory
        time, to_go = (
            np.reshape(memory[name], (2, -1))[:, -1] for name in ("timesteps", "returns")
        )
        assert time.tolist() == [last] * 2
        np.testing.assert_allclose(to_go, 100 - last * (last + 1) / 2)


@pytest.mark.parametrize("runtime", ["torch", "numpy"])
def test_a_cost_limit_is_for_the_environment_steps_that_remain(runtime: str) -> None:
    """The cost of each step is 1."""
    actor = {"observations": 5, "actions": 4, "hidden": [8]}
    critics = [Critic(5, 2, (8,)).arguments] * 2
    limits: dict[str, Any] = {"target_cost": 9.0, "episode_steps": 20, "cost_discount": 0.9}
    policy = policy_of(SwitchingActor(actor, *critics, num_heads=2, **limits), runtime)
    for pace, last in ((Pace(), 9), (Pace(4), 8), (Pace(delay=3), 6)):
        player = PacedPlayer(policy, pace)
        player.reset([0, 1])
        for t in range(10):
            player.step(np.tile(OBSERVATIONS[t], (2, 1)), cost=None if t == 0 else np.ones(2))
        assert player.episodes.memory["steps"].tolist() == [last] * 2
        assert player.episodes.memory["spent"].tolist() == [last] * 2
