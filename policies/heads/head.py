"""Action heads: what turns an observation into an action in [-1, 1].

Each has `act(observations) -> actions` (deterministic, for evaluation and robots) and
`explore(observations, random) -> actions`. `random` gives `normal(shape)` and `uniform(shape)`;
noise is always handed in, so that an update draws the same numbers however it is run.

A head with memory has, instead of `act`, what `Recurrent` says, and one that answers with a chunk
of actions what `Planner` says. `arguments` are those of its constructor that a bundle needs to
build it again. A bundle names its head by class; it is found in the module of this folder that
defines it.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

Context = dict[str, Tensor]  # what a policy remembers of B running episodes, [B, …] each


class Recurrent(Protocol):
    """A policy that acts on more than the present observation: history, returns, a running chunk.

    Its memory is a dict of tensors that goes in and out, so that it lies on the device, is stacked
    over seeds, and belongs to no one. A head whose memory reads no rewards may say so with
    `needs_rewards = False`; then it can act where there are none, as on a robot.
    """

    def reset(self, batch: int) -> Context:
        """The memory at the start of `batch` episodes."""
        ...

    def step(
        self, observations: Tensor, rewards: Tensor, context: Context
    ) -> tuple[Tensor, Context]:
        """[B, O], the raw rewards [B] of the actions before (0 at first) -> [B, A], the memory."""
        ...


class Planner(Protocol):
    """A policy that answers with the actions of several steps, the present one first.

    What it needs of an episode, `policies.chunks.Queue` keeps: the history, the running chunk, and
    how many decisions were made, from which the noise of each follows.
    """

    n_obs_steps: int  # observations that it sees, the present one last
    chunk_size: int  # actions that it answers with
    n_action_steps: int  # of these, taken before it is asked again
    # and maybe `blending: float | None`, of `policies.chunks.Queue`
    noise_shape: tuple[int, ...]  # standard normal numbers that a decision takes; () for none

    def plan(self, observations: Tensor, noise: Tensor) -> Tensor:
        """[B, n_obs_steps, *obs], [B, *noise_shape] -> [B, chunk_size, A]; a function of these alone.

        Where noise_shape is (), noise is [B, 0].
        """
        ...


def kinds() -> dict[str, type[nn.Module]]:
    """The heads of this folder by the names of their classes."""
    found: dict[str, type[nn.Module]] = {}
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        own = importlib.import_module(f"{__package__}.{module.name}")
        for name, value in vars(own).items():
            here = isinstance(value, type) and value.__module__ == own.__name__
            if here and issubclass(value, nn.Module):
                found[name] = value
    return found
