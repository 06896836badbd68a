"""A head that samples several chunks of another head and selects one by a critic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from policies.heads.head import Head, Memory, load_kinds
from policies.networks.mlp import Critic


class BestOfN(Head):
    """The best of N chunks that `policy` samples, by the values of the ensemble `critic`.

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
        aggregate: Literal["min", "mean"] = "min",
    ) -> None:
        """Create the policy and the critic.

        policy: class name in `policies.heads`.  policy_arguments: arguments of this class.
        critic_arguments: arguments of `Critic`; both classes store theirs in `arguments`.
        num_samples: number N of sampled chunks per decision.
        aggregate: how the values of the ensemble become the value of a chunk.
        """
        super().__init__()
        self.arguments = {
            "policy": policy,
            "policy_arguments": dict(policy_arguments),
            "critic_arguments": dict(critic_arguments),
            "num_samples": num_samples,
            "aggregate": aggregate,
        }
        head = load_kinds()[policy](**policy_arguments)
        if not head.noise_shape:
            raise ValueError(f"{policy} is deterministic: all of its samples would be equal")
        self.policy, self.critic = head, Critic(**critic_arguments)
        self.num_samples, self.aggregate = num_samples, aggregate
        self.n_obs_steps, self.chunk_size = head.n_obs_steps, head.chunk_size
        self.n_action_steps = head.n_action_steps
        self.temporal_ensemble_coeff = head.temporal_ensemble_coeff
        self.noise_shape = (num_samples, *head.noise_shape)

    def initial_memory(self, batch: int) -> Memory:
        """See `Head.initial_memory`."""
        return self.policy.initial_memory(batch)

    def decide(self, observations: Tensor, memory: Memory, noise: Tensor) -> tuple[Tensor, Memory]:
        """See `Head.decide`."""

        def repeat(x: Tensor) -> Tensor:  # [B, …] -> [B * N, …]
            return x[:, None].expand(-1, self.num_samples, *x.shape[1:]).flatten(0, 1)

        s, samples = repeat(observations), {name: repeat(x) for name, x in memory.items()}
        chunks, samples = self.policy.decide(s, samples, noise.flatten(0, 1))
        q = self.critic(s.flatten(1), chunks[:, : self.n_action_steps].flatten(1))  # [E, B * N]
        value = q.amin(0) if self.aggregate == "min" else q.mean(0)
        best = value.unflatten(0, (-1, self.num_samples)).argmax(1)  # [B]

        def select(x: Tensor) -> Tensor:  # [B * N, …] -> [B, …]
            x = x.unflatten(0, (-1, self.num_samples))
            index = best.reshape(-1, *[1] * (x.dim() - 1)).expand(-1, 1, *x.shape[2:])
            return torch.gather(x, 1, index).squeeze(1)

        return select(chunks), {name: select(x) for name, x in samples.items()}
