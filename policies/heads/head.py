"""Interfaces of action heads: networks that map observations to actions in [-1, 1].

A head has `act(observations) -> actions` (deterministic, for evaluation and robots) and
`explore(observations, random) -> actions`. `random` provides `normal(shape)` and `uniform(shape)`.
Noise is always passed in, so that an update uses the same numbers however it is run.

Instead of `act`, a head with a memory has the methods of `Recurrent`, and a head that predicts
chunks of actions those of `Planner`. The attribute `arguments` holds the constructor arguments that
a bundle needs to rebuild the head. A bundle names the class of its head, which is looked up in the
modules of this folder.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

Context = dict[str, Tensor]  # memory of a policy in B episodes, tensors [B, …]


class Recurrent(Protocol):
    """A policy with a memory of its episode, such as an observation history or returns.

    The memory is a dict of tensors that is passed in and returned, so that it can be on the device
    and be stacked over seeds. A head whose memory does not read rewards can set
    `needs_rewards = False`. It can then act where there are no rewards, for example on a robot.
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
    """A policy that predicts a chunk of actions, the present one first.

    `policies.chunks.Queue` keeps its episode state: the observation history, the current chunk, and
    the number of chunks predicted, which determines the noise of the next one.
    """

    n_obs_steps: int  # observations in its input, the present one last
    chunk_size: int  # actions that it predicts
    n_action_steps: int  # actions of a chunk that are executed before the next one is predicted
    # optional: `temporal_ensemble_coeff: float | None`, see `policies.chunks.Queue`
    noise_shape: tuple[int, ...]  # shape of the standard normal noise of one chunk; () for none

    def plan(self, observations: Tensor, noise: Tensor) -> Tensor:
        """Return the chunks [B, chunk_size, A], a function of the arguments alone.

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
