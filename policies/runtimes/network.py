"""The network interface of the runtimes (torch, onnx, numpy), and the choice of a runtime."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from policies.bundle import Bundle, BundleError

RUNTIMES = ("torch", "onnx", "numpy")  # in the order in which `auto` tries them
Inputs = np.ndarray | Mapping[str, np.ndarray]  # normalized [B, n_obs_steps, …], or by channel
Memory = Mapping[str, np.ndarray]  # [B, …] by name


class Network(Protocol):
    """A policy network in one of the runtimes. It acts in B episodes in parallel.

    The methods are those of `policies.heads.head.Head`, on arrays instead of tensors.
    """

    name: str  # name of the runtime
    module: Any  # the torch module; None in other runtimes
    noise_shape: tuple[int, ...]  # shape of the noise for one decision; () if deterministic

    def initial_memory(self, batch: int) -> Memory:
        """Return the memory at the start of `batch` episodes; {} for most policies."""
        ...

    def decide(
        self, observations: Inputs, memory: Memory, noise: np.ndarray
    ) -> tuple[np.ndarray, Memory]:
        """Return the chunks [B, chunk_size, A] and the next memory.

        noise: [B, *noise_shape] float32, standard normal; [B, 0] for a deterministic policy.
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
