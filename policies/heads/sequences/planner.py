"""A recurrent policy that emits a sequence of actions from one observation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from policies.episodes import EXECUTED, PLAN
from policies.heads.gaussian import tanh_normal
from policies.heads.head import Head, Memory
from policies.networks.dropout import Random
from policies.networks.init import torch_init, xavier_init
from policies.networks.mlp import MLP, Activation


class SequenceActor(Head):
    """A GRU whose inputs are its own actions (Patel, Siegelmann, arXiv:2410.08979).

        h_0 = MLP(s),  h_k+1 = GRU(a_k-1, h_k),  a_k = tanh(u_k),  u_k ~ N(mean(h_k+1), std(h_k+1))

    a_-1 is the action before the observation s, and zero at the start of an episode. The memory
    holds the last chunk, from which this action is read. Without exploration, a_k = tanh(mean).
    """

    memory_starts_anywhere = True  # the first a_-1 is then zero
    chunk_argument = "horizon"

    def __init__(
        self,
        observations: int,
        actions: int,
        hidden: Sequence[int],
        *,
        horizon: int,
        activation: Activation = "relu",
        log_std_range: Sequence[float] = (-20.0, 2.0),
    ) -> None:
        """Create the head.

        hidden: sizes of the hidden layers of the MLP of h_0; the last one is the size of h.
        horizon: number of actions in a chunk. All of them are executed.
        """
        super().__init__()
        self.arguments = {"observations": observations, "actions": actions, "hidden": [*hidden]}
        self.arguments |= {"horizon": horizon, "activation": activation}
        self.arguments |= {"log_std_range": [*log_std_range]}
        self.chunk_size = self.n_action_steps = horizon
        self.log_std_range = (log_std_range[0], log_std_range[1])
        size = hidden[-1]
        xavier: dict[str, Any] = {"activation": activation, "init": xavier_init}
        self.start = MLP(observations, size, hidden[:-1], **xavier)
        # initialized like torch.nn.GRUCell
        options: dict[str, Any] = {"activation": activation, "inner": True}
        options["init"] = partial(uniform_init, 1 / math.sqrt(size))
        self.gru_input, self.gru_state = (MLP(n, 3 * size, (), **options) for n in (actions, size))
        self.mean, self.log_std = (MLP(size, actions, (), **xavier) for _ in range(2))

    def step(self, state: Tensor, previous: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the next state [B, hidden], and mean and log_std before the tanh, [B, A].

        state: [B, hidden].  previous: [B, A], the previous action.
        """
        x, h = self.gru_input(previous), self.gru_state(state)
        (reset, update), candidate = ((x + h).chunk(3, -1)[:2]), x.chunk(3, -1)[2]
        candidate = (candidate + reset.sigmoid() * h.chunk(3, -1)[2]).tanh()
        state = torch.lerp(candidate, state, update.sigmoid())
        return state, self.mean(state), self.log_std(state).clamp(*self.log_std_range)

    def sample(
        self, observations: Tensor, previous: Tensor, random: Random, steps: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return sampled chunks [B, steps, A] and the log densities of their actions, [B, steps].

        observations: [B, O].  previous: [B, A], the previous actions.  steps: default `chunk_size`.
        """
        state, chunk, log_probs = self.start(observations), list[Tensor](), list[Tensor]()
        for _ in range(self.chunk_size if steps is None else steps):
            state, mean, log_std = self.step(state, previous)
            previous, log_prob = tanh_normal(mean, log_std, random.normal(mean.shape))
            chunk.append(previous)
            log_probs.append(log_prob)
        return torch.stack(chunk, -2), torch.stack(log_probs, -1)

    def forward(self, observations: Tensor, previous: Tensor) -> Tensor:
        """Return the chunks without exploration, [B, chunk_size, A]. Arguments: see `sample`."""
        state, chunk = self.start(observations), list[Tensor]()
        for _ in range(self.chunk_size):
            state, mean, _ = self.step(state, previous)
            previous = mean.tanh()
            chunk.append(previous)
        return torch.stack(chunk, -2)

    def initial_memory(self, batch: int) -> Memory:
        """See `Head.initial_memory`."""
        plan = torch.zeros(batch, self.chunk_size, self.arguments["actions"])
        return {PLAN: plan, EXECUTED: torch.zeros(batch)}

    def decide(self, observations: Tensor, memory: Memory, noise: Tensor) -> tuple[Tensor, Memory]:
        """See `Head.decide`."""
        chunk = self(observations[:, -1], last_executed(memory))
        return chunk, {PLAN: chunk, EXECUTED: memory[EXECUTED]}

    def explore(
        self, observations: Tensor, memory: Memory, noise: Tensor, random: Random
    ) -> tuple[Tensor, Memory]:
        """See `Head.explore`."""
        chunk, _ = self.sample(observations[:, -1], last_executed(memory), random)
        return chunk, {PLAN: chunk, EXECUTED: memory[EXECUTED]}


def last_executed(memory: Memory) -> Tensor:
    """Return the last executed actions of the chunks, [B, A]; zero at the start of an episode."""
    plan = memory[PLAN]
    index = memory[EXECUTED].clamp(1, plan.shape[1]) - 1  # the last action may be repeated
    steps = torch.arange(plan.shape[1], device=plan.device)
    return (plan * (steps == index[:, None]).to(plan.dtype)[..., None]).sum(1)


def uniform_init(bound: float, weight: Tensor, bias: Tensor, fan_in: int, is_last: bool) -> None:
    """Initialize weights and biases uniformly in +-bound."""
    torch_init(weight, bias, round(bound**-2), is_last)
