"""The network interface of the runtimes (torch, onnx, numpy), and the choice of a runtime."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from policies.bundle import Bundle, BundleError

RUNTIMES = ("torch", "onnx", "numpy")  # in the order in which `auto` tries them
Inputs = np.ndarray | Mapping[str, np.ndarray]  # normalized [B, n_obs_steps, …], or by channel


class Network(Protocol):
    """A policy network in one of the runtimes. It acts in B episodes in parallel."""

    name: str  # name of the runtime
    noise_shape: tuple[int, ...]  # shape of the noise for one chunk; () if deterministic
    is_recurrent: bool  # True if the policy has a memory of the episode: use `reset` and `step`
    needs_rewards: bool  # True if the memory reads the rewards of the episode

    def plan(self, observations: Inputs, noise: np.ndarray) -> np.ndarray:
        """Return the chunks [B, chunk_size, A].

        A recurrent policy acts as in the first step of an episode.
        noise: [B, *noise_shape] float32, standard normal; [B, 0] for a deterministic policy.
        """
        ...

    def reset(self, batch: int) -> Any:
        """Return the initial memory for `batch` episodes."""
        ...

    def step(
        self, observations: Inputs, rewards: np.ndarray, memory: Any
    ) -> tuple[np.ndarray, Any]:
        """Return the chunks and the next memory.

        rewards: [B], raw rewards of the previous actions.
        """
        ...


def make_network(bundle: Bundle, runtime: str = "auto") -> Network:
    """Return the network of `bundle` in `runtime`. Raises BundleError if it cannot run there."""
    if runtime not in ("auto", *RUNTIMES):
        raise BundleError(f"runtime={runtime} is unknown. Use auto, {', '.join(RUNTIMES)}")
    reasons = []
    for name in RUNTIMES if runtime == "auto" else (runtime,):
        module = import_module(f"policies.runtimes.with_{name}")
        if (reason := module.find_problem(bundle)) is None:
            network: Network = module.make(bundle)
            return network
        reasons.append(f"runtime={name} {reason}")
    raise BundleError("; ".join(reasons))
