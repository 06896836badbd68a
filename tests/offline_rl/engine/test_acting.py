"""Stacked policies with a memory, noise and chunks act like each seed's head in each episode."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from offline_rl.engine.acting import StackedPolicy
from offline_rl.utils.errors import UserError
from policies import noise
from policies.heads.best_of_n import BestOfN
from policies.heads.head import Head
from policies.heads.recurrent import RecurrentActor
from policies.networks.mlp import Critic

EPISODES = np.array([5, 6, 7])  # seeds of each policy's episodes


class Everything(Head):
    """A head with history, memory, rewards, costs, noise and chunks: two of three are executed."""

    n_obs_steps, chunk_size, n_action_steps, noise_shape = 2, 3, 2, (2,)

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(()))

    def initial_memory(self, batch: int) -> dict[str, Tensor]:
        zeros = {name: torch.zeros(batch) for name in ("rewards", "costs")}
        return {"total": torch.ones(batch, 2)} | zeros

    def decide(self, observations: Tensor, memory: Any, noise: Tensor) -> Any:
        feedback = memory["rewards"] - 3 * memory["costs"]
        total = memory["total"] + observations.sum(1) + feedback[:, None]
        steps = torch.arange(3.0)[:, None]
        chunk = self.scale * (total + noise)[:, None] + steps
        return chunk, memory | {"total": total}


class BestRecurrent(BestOfN):
    """The best of three actions of a `RecurrentActor`, whose memory is that of the best one."""

    def __init__(self) -> None:
        critic = Critic(2, 2, (8,)).arguments
        super().__init__(
            "RecurrentActor", RecurrentActor(2, 2, (8,)).arguments, critic, num_samples=3
        )


KINDS = [Everything, lambda: RecurrentActor(2, 2, (8,), recurrent=6, latent=3), BestRecurrent]


def make_policy(make: Any, heads: int = 2) -> tuple[list[Any], StackedPolicy]:
    torch.manual_seed(0)
    policies = [make() for _ in range(heads)]
    named = [dict(each.named_parameters()) for each in policies]
    params = {k: torch.stack([each[k].detach() for each in named]) for k in named[0]}
    seeds, device = torch.arange(heads), torch.device("cpu")
    return policies, StackedPolicy(make(), params, seeds, (2,), 3, explore=False, device=device)


class Alone:
    """One episode of one head, computed step by step without `RunningEpisodes`."""

    def __init__(self, head: Head, seed: int) -> None:
        self.head, self.seed, self.decisions = head, seed, 0
        self.memory, self.seen, self.chunk = head.initial_memory(1), list[Tensor](), list[Tensor]()
        self.rewards = self.costs = 0.0

    def step(self, observation: Tensor) -> Tensor:
        self.seen.append(observation)
        if not self.chunk:
            past = [
                self.seen[max(0, len(self.seen) - k)] for k in range(self.head.n_obs_steps, 0, -1)
            ]
            numbers = noise.normal(
                np.array([self.seed]), np.array([self.decisions]), self.head.noise_shape
            )
            for name in self.memory.keys() & {"rewards", "costs"}:
                self.memory[name] = torch.tensor([getattr(self, name)])
            with torch.no_grad():
                chunk, self.memory = self.head.decide(
                    torch.stack(past)[None], self.memory, torch.from_numpy(numbers)
                )
            self.chunk, self.rewards = [*chunk[0, : self.head.n_action_steps]], 0.0
            self.costs = 0.0
            self.decisions += 1
        return self.chunk.pop(0)


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("seeds", [1, 2])
def test_a_head_with_memory_acts_in_each_episode_as_if_alone(make: Any, seeds: int) -> None:
    """An episode restarts between two decisions. A copy continues from a stored memory."""
    heads, stacked = make_policy(make, seeds)
    assert stacked.has_memory
    stacked.reset(np.tile(EPISODES, seeds))
    alone = [Alone(head, seed) for head in heads for seed in EPISODES]
    torch.manual_seed(1)
    for step in range(7):
        if step == 3:
            stacked.reset(np.array([9]), np.array([1]))
            alone[1] = Alone(heads[0], 9)
        if step == 4:
            _, other = make_policy(make, seeds)
            for s in range(seeds):
                other.restore_memory(s, stacked.memory(s))
            stacked = other
        observations, rewards = torch.randn(seeds, 3, 2), torch.randn(seeds, 3)
        costs = torch.rand(seeds, 3)
        expected = [a.step(o) for a, o in zip(alone, observations.flatten(0, 1), strict=True)]
        actions = stacked(observations, step)
        torch.testing.assert_close(actions.flatten(0, 1), torch.stack(expected))
        stacked.observe(rewards, costs)
        feedback = zip(rewards.flatten().tolist(), costs.flatten().tolist(), strict=True)
        for each, (reward, cost) in zip(alone, feedback, strict=True):
            each.rewards, each.costs = each.rewards + reward, each.costs + cost


def test_a_policy_that_reads_costs_is_refused_in_an_environment_without_costs() -> None:
    _, stacked = make_policy(Everything, 1)
    stacked(torch.zeros(1, 3, 2))
    with pytest.raises(UserError, match="no info 'cost', but a Everything reads the costs"):
        stacked.observe(torch.zeros(1, 3))
    _, other = make_policy(KINDS[1], 1)  # this policy reads no costs
    other(torch.zeros(1, 3, 2))
    other.observe(torch.zeros(1, 3))
