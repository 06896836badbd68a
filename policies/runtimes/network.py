"""The network interface of the runtimes (torch, onnx, numpy), and the choice of a runtime."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from policies.bundle import Bundle, BundleError

RUNTIMES = ("torch", "onnx", "numpy")  # auto: the first that is installed and can run the bundle
Inputs = np.ndarray | Mapping[str, np.ndarray]  # normalized, [B, n_obs_steps, …]; maybe by channel


class Network(Protocol):
    """A policy network that acts in B episodes at a time."""

    name: str  # name of the runtime
    noise_shape: tuple[int, ...]  # shape of the noise of one chunk; () for none
    remembers: bool  # True if it keeps a memory of its episodes, by `reset` and `step`
    needs_rewards: bool  # True if this memory reads the rewards of the episode

    def plan(self, observations: Inputs, noise: np.ndarray) -> np.ndarray:
        """Return the chunks [B, chunk_size, A]. A recurrent policy acts as at an episode's start.

        noise: [B, *noise_shape] float32, standard normal; [B, 0] if it takes none.
        """
        ...

    def reset(self, batch: int) -> Any:
        """Return the memory at the start of `batch` episodes."""
        ...

    def step(
        self, observations: Inputs, rewards: np.ndarray, memory: Any
    ) -> tuple[np.ndarray, Any]:
        """Return the chunks and the next memory. rewards: [B], raw, of the previous actions."""
        ...


def make_network(bundle: Bundle, runtime: str = "auto") -> Network:
    """Return the network of `bundle` in `runtime`. Raises BundleError if it cannot run there."""
    if runtime not in ("auto", *RUNTIMES):
        raise BundleError(f"runtime={runtime} is unknown. Use auto, {', '.join(RUNTIMES)}")
    reasons = []
    for name in RUNTIMES if runtime == "auto" else (runtime,):
        module = import_module(f"policies.runtimes.with_{name}")
        if (reason := module.find_problem(bundle)) is None:
            made: Network = module.make(bundle)
            return made
        reasons.append(f"runtime={name} {reason}")
    raise BundleError("; ".join(reasons))
