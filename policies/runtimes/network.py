"""The network interface of the runtimes (torch, onnx, numpy), and the choice of a runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from policies.bundle import Bundle, BundleError
from policies.heads.schedules import count_noises, sample
from policies.normalizer import center_and_half_width

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


class Sampler:
    """Sampling loop of a denoising policy; see `policies.heads.diffusion.DiffusionActor`."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        """Read the sampler table and the sizes. arguments: those of the policy's class."""
        self._table, self._present = arguments["table"], arguments["n_obs_steps"] - 1
        bounds = zip(arguments["action_low"], arguments["action_high"], strict=True)
        ranges = np.array([center_and_half_width(*each) for each in bounds], np.float32)
        self._center, self._half_width = ranges.T
        sizes = arguments["horizon"], arguments["actions"]
        self.noise_shape = (count_noises(self._table), *sizes)

    def __call__(
        self, network: Callable[[np.ndarray, float], np.ndarray], noise: np.ndarray
    ) -> np.ndarray:
        """Return the chunks [B, chunk_size, A].

        network: the denoising network, a function of x [B, T, A] and a time.
        """
        chunk = sample(self._table, network, noise).clip(-1, 1)[:, self._present :]
        actions: np.ndarray = (chunk * self._half_width + self._center).clip(-1, 1)
        return actions


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
