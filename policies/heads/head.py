"""Interfaces of action heads: networks that map observations to actions in [-1, 1].

A head has the methods `act(observations) -> actions` (deterministic, for evaluation and robots) and
`explore(observations, random) -> actions`. `random` provides `normal(shape)` and `uniform(shape)`.
A head has no random number generator of its own: the caller passes all noise. An update therefore
uses the same random numbers whether it runs eagerly, compiled or stacked over seeds.

Recurrent heads have the methods of `Recurrent` instead of `act`. Heads that predict chunks of
actions have the methods of `Planner` instead. The attribute `arguments` holds the constructor
arguments that a bundle needs to rebuild the head. A bundle stores the class name of its head;
`load_kinds` finds the class in the modules of this folder.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

Context = dict[str, Tensor]  # memory of a recurrent policy in B episodes, tensors [B, …]


class Recurrent(Protocol):
    """A policy with a memory of its episode, such as earlier observations or the return-to-go.

    The caller holds the memory and passes it to each step. The memory can therefore be on the
    device, and training can stack the memories of several seeds. A head whose memory does not read
    rewards can set `needs_rewards = False`. The head can then act where there are no rewards, for
    example on a robot.
    """

    def reset(self, batch: int) -> Context:
        """Return the memory at the start of `batch` episodes."""
        ...

    def step(
        self, observations: Tensor, rewards: Tensor, context: Context
    ) -> tuple[Tensor, Context]:
        """Return the actions [B, A] and the next memory.

        observations: [B, O].  rewards: [B], raw, of the previous actions; 0 at the first step.
        """
        ...


class Planner(Protocol):
    """A policy that predicts a chunk: actions for consecutive steps, beginning at the current step.

    A planner has no state. `policies.chunks.ChunkExecutor` stores the state of an episode: the
    observation history, the current chunk, and the number of predicted chunks, which determines the
    noise of the next chunk.
    """

    n_obs_steps: int  # number of observations in the input; the last one is the current one
    chunk_size: int  # number of predicted actions
    n_action_steps: int  # number of executed actions per chunk, before the next prediction
    # optional: `temporal_ensemble_coeff: float | None`, see `policies.chunks.ChunkExecutor`
    noise_shape: tuple[int, ...]  # shape of the standard normal noise for one chunk; () for none

    def plan(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Return the chunks [B, chunk_size, A], which depend on the arguments only.

        observations: [B, n_obs_steps, *obs].
        noise: [B, *noise_shape]; [B, 0] if noise_shape is ().
        """
        ...


def load_kinds() -> dict[str, type[nn.Module]]:
    """Return the classes of the heads in this folder, by name."""
    kinds: dict[str, type[nn.Module]] = {}
    for info in pkgutil.iter_modules([str(Path(__file__).parent)]):
        module = importlib.import_module(f"{__package__}.{info.name}")
        for name, value in vars(module).items():
            is_local = isinstance(value, type) and value.__module__ == module.__name__
            if is_local and issubclass(value, nn.Module):
                kinds[name] = value
    return kinds
