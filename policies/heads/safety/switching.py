"""A head that switches between policies, to keep the cost of an episode within a limit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from policies.episodes import COSTS, EXECUTED
from policies.heads.deterministic import DeterministicActor
from policies.heads.head import Head, Memory, steps_since, take_last
from policies.heads.safety.limits import discounted_limit
from policies.networks.dropout import Random
from policies.networks.mlp import Critic

SPENT = "spent"  # entry of the memory: [B], cost of the episode so far
STEPS = "steps"  # entry of the memory: [B], step of the last decision; -1 before the first one


class SwitchingActor(Head):
    """The action of one of H policies, selected by critics in each step (CAPS).

    The H policies share all layers but the last one. `critic` estimates returns and `cost_critic`
    discounted costs. A policy is admissible if its cost is below the limit for the remaining budget
    and the remaining steps. The admissible policy with the highest return acts. If there is none,
    the policy with the lowest cost acts. Returns are the minimum over an ensemble, costs the
    maximum.

    Chemingui et al., AAAI 2025, arXiv:2412.18946.
    """

    def __init__(
        self,
        policy_arguments: Mapping[str, Any],
        critic_arguments: Mapping[str, Any],
        cost_critic_arguments: Mapping[str, Any],
        *,
        num_heads: int,
        target_cost: float,
        episode_steps: int,
        cost_discount: float,
        noise: float = 0.1,
    ) -> None:
        """Create the policies and the critics.

        policy_arguments: arguments of `DeterministicActor`. Its output has the actions of all
        policies, [..., H * A].
        critic_arguments, cost_critic_arguments: arguments of `Critic`.
        num_heads: number H of policies.
        target_cost: limit on the undiscounted cost of an episode.
        episode_steps: steps that the limit is for. In later steps, one step remains.
        cost_discount: discount factor of the cost critic.
        noise: standard deviation of the exploration noise.
        """
        super().__init__()
        self.arguments = {
            "policy_arguments": dict(policy_arguments),
            "critic_arguments": dict(critic_arguments),
            "cost_critic_arguments": dict(cost_critic_arguments),
            "num_heads": num_heads,
            "target_cost": target_cost,
            "episode_steps": episode_steps,
            "cost_discount": cost_discount,
        }
        self.policy = DeterministicActor(**policy_arguments)
        self.critic, self.cost_critic = Critic(**critic_arguments), Critic(**cost_critic_arguments)
        self.num_samples, self.target_cost = num_heads, target_cost
        self.episode_steps, self.cost_discount, self.noise = episode_steps, cost_discount, noise

    def initial_memory(self, batch: int) -> Memory:
        """See `Head.initial_memory`."""
        steps, zeros = torch.full((batch,), -1), torch.zeros(batch)
        return {SPENT: zeros, STEPS: steps, COSTS: zeros.clone(), EXECUTED: zeros.clone()}

    def decide(self, observations: Tensor, memory: Memory, noise: Tensor) -> tuple[Tensor, Memory]:
        """See `Head.decide`."""
        spent, steps = memory[SPENT] + memory[COSTS], memory[STEPS] + steps_since(memory).long()
        actions, q, cost = self.evaluate(take_last(observations))
        is_admissible = cost < self.limit(spent, steps)[:, None]  # [B, H]
        best = torch.where(is_admissible, q, -math.inf).argmax(1)
        index = torch.where(is_admissible.any(1), best, cost.argmin(1))
        chunk = actions.gather(1, index[:, None, None].expand(-1, 1, actions.shape[-1]))
        return chunk, memory | {SPENT: spent, STEPS: steps}

    def explore(
        self, observations: Tensor, memory: Memory, noise: Tensor, random: Random
    ) -> tuple[Tensor, Memory]:
        """Return the action plus Gaussian noise, clipped to [-1, 1], and the next memory."""
        chunk, memory = self.decide(observations, memory, noise)
        return (chunk + self.noise * random.normal(chunk.shape)).clamp(-1, 1), memory

    def evaluate(self, observations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the actions [B, H, A], returns [B, H] and costs [B, H] of all policies.

        observations: [B, O].
        """
        actions = self.policy(observations).unflatten(-1, (self.num_samples, -1))
        s = observations[:, None].expand(-1, self.num_samples, -1)
        return actions, self.critic(s, actions).amin(0), self.cost_critic(s, actions).amax(0)

    def limit(self, spent: Tensor, steps: Tensor) -> Tensor:
        """Return the limit of the cost critic after `steps` steps with the cost `spent`, [B]."""
        left = (self.episode_steps - steps).clamp(min=1).to(spent.dtype)
        budget = (self.target_cost - spent).clamp(min=0)
        limit: Tensor = discounted_limit(budget, left, self.cost_discount)
        return limit

    def selection_margins(self, observations: Tensor, memory: Memory, noise: Tensor) -> Tensor:
        """See `Head.selection_margins`. Two decisions count, the second one after a cost of 1."""
        _, q, cost = self.evaluate(take_last(observations))
        spent, steps = memory[SPENT], memory[STEPS] + 1
        limits = torch.stack([self.limit(spent + k, steps + k) for k in (0, 1)], 1)  # [B, 2]
        gaps = [x.sort(1).values.diff(dim=1).amin(1) for x in (q, cost)]
        return torch.stack([*gaps, (cost[..., None] - limits[:, None]).abs().amin((1, 2))]).amin(0)
