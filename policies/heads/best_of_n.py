"""A head that samples several chunks of another head and selects one by a critic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from math import prod
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from policies.heads.head import Head, Memory, load_kinds
from policies.networks.mlp import Critic

Aggregate = Literal["min", "mean", "least_max"]


class Samples(NamedTuple):
    """N sampled chunks per decision."""

    chunks: Tensor  # [B * N, chunk_size, A]
    memories: Memory  # next memory of each sample, [B * N, ...], by name
    values: Tensor  # [B, N]; the sample with the highest one is selected


class BestOfN(Head):
    """One of N chunks that `policy` samples, selected by the values of the ensemble `critic`.

    The critic evaluates the flattened observation history and the flattened executed actions, the
    first `n_action_steps` of a chunk. The observation is a single vector.
    """

    def __init__(
        self,
        policy: str,
        policy_arguments: Mapping[str, Any],
        critic_arguments: Mapping[str, Any],
        *,
        num_samples: int,
        aggregate: Aggregate = "min",
        temperature: float = 0.0,
    ) -> None:
        """Create the policy and the critic.

        policy: class name in `policies.heads`.  policy_arguments: arguments of this class.
        critic_arguments: arguments of `Critic`. Both classes store their arguments in `arguments`.
        num_samples: number N of sampled chunks per decision.
        aggregate: how the critics are combined to the value of a chunk. least_max: minus their
        maximum, for critics of costs. The chunk of the lowest maximum is then selected.
        temperature: 0 selects the chunk of the highest value. Otherwise the probability of a chunk
        is proportional to exp(value / temperature). The noise of each sample then has one more
        number, for the selection.
        """
        super().__init__()
        self.arguments = {
            "policy": policy,
            "policy_arguments": dict(policy_arguments),
            "critic_arguments": dict(critic_arguments),
            "num_samples": num_samples,
            "aggregate": aggregate,
            "temperature": temperature,
        }
        head = load_kinds()[policy](**policy_arguments)
        if not head.noise_shape:
            raise ValueError(f"{policy} is deterministic: all of its samples would be equal")
        self.policy, self.critic = head, Critic(**critic_arguments)
        self.num_samples, self.aggregate, self.temperature = num_samples, aggregate, temperature
        self.n_obs_steps, self.chunk_size = head.n_obs_steps, head.chunk_size
        self.n_action_steps = head.n_action_steps
        self.temporal_ensemble_coeff = head.temporal_ensemble_coeff
        shape = (prod(head.noise_shape) + 1,) if temperature else head.noise_shape
        self.noise_shape = (num_samples, *shape)

    def initial_memory(self, batch: int) -> Memory:
        """See `Head.initial_memory`."""
        return self.policy.initial_memory(batch)

    def decide(self, observations: Tensor, memory: Memory, noise: Tensor) -> tuple[Tensor, Memory]:
        """See `Head.decide`."""
        chunks, memories, values = self.evaluate(observations, memory, noise)
        index = values.argmax(1)  # [B]
        return select_rows(chunks, index, self.num_samples), {
            name: select_rows(x, index, self.num_samples) for name, x in memories.items()
        }

    def evaluate(self, observations: Tensor, memory: Memory, noise: Tensor) -> Samples:
        """Return the sampled chunks, their memories, and the values that select one of them."""
        count, selection_noise = self.num_samples, None
        if self.temperature:
            selection_noise = noise[..., -1]  # [B, N]
            noise = noise[..., :-1].unflatten(-1, self.policy.noise_shape)
        s = repeat_rows(observations, count)
        repeated = {name: repeat_rows(x, count) for name, x in memory.items()}
        chunks, memories = self.policy.decide(s, repeated, noise.flatten(0, 1))
        q = self.critic(s.flatten(1), chunks[:, : self.n_action_steps].flatten(1))  # [E, B * N]
        combined = {"min": q.amin, "mean": q.mean, "least_max": (-q).amin}[self.aggregate](0)
        values = combined.unflatten(0, (-1, count))
        if selection_noise is not None:
            values = values / self.temperature + gumbel(selection_noise)
        return Samples(chunks, memories, values)

    def selection_margins(self, observations: Tensor, memory: Memory, noise: Tensor) -> Tensor:
        """See `Head.selection_margins`."""
        best, second = self.evaluate(observations, memory, noise).values.topk(2).values.unbind(-1)
        return best - second


def repeat_rows(x: Tensor, count: int) -> Tensor:
    """Repeat each row `count` times, [B, ...] -> [B * N, ...]."""
    return x[:, None].expand(-1, count, *x.shape[1:]).flatten(0, 1)


def select_rows(x: Tensor, index: Tensor, count: int) -> Tensor:
    """Return one of each `count` consecutive rows, [B * N, ...] -> [B, ...].

    index: [B], which of the N rows.
    """
    x = x.unflatten(0, (-1, count))
    index = index.reshape(-1, *[1] * (x.dim() - 1)).expand(-1, 1, *x.shape[2:])
    return torch.gather(x, 1, index).squeeze(1)


def gumbel(noise: Tensor) -> Tensor:
    """Return standard Gumbel noise, -log(-log Phi(z)), for standard normal noise z.

    The largest of logits + Gumbel noise has the distribution of softmax(logits).
    """
    uniform = 0.5 * (1 + torch.erf(noise / math.sqrt(2)))
    return -(-uniform.clamp(1e-7, 1 - 1e-7).log()).log()
