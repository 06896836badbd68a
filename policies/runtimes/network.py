"""What runs a bundle's head, whichever library does, and which one is taken."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from policies.bundle import Bundle, BundleError

RUNTIMES = ("torch", "onnx", "numpy")  # auto: the first that is installed and can run the bundle
Seen = np.ndarray | Mapping[str, np.ndarray]  # normalized, [B, n_obs_steps, …]; of several by name


class Network(Protocol):
    """One decision of B episodes at a time."""

    name: str  # of the runtime
    noise_shape: tuple[int, ...]  # of what one decision takes; () for none
    remembers: bool  # it has a memory of episodes, `step` and `reset`
    needs_rewards: bool  # that memory reads the rewards of the episode

    def plan(self, observations: Seen, noise: np.ndarray) -> np.ndarray:
        """The chunk [B, chunk_size, A]; of what remembers, that of an episode's first step.

        noise: [B, *noise_shape] float32, standard normal; [B, 0] where it takes none.
        """
        ...

    def reset(self, batch: int) -> Any:
        """The memory at the start of `batch` episodes."""
        ...

    def step(self, observations: Seen, rewards: np.ndarray, memory: Any) -> tuple[np.ndarray, Any]:
        """The chunk, and the memory; rewards: [B] raw, of the actions before."""
        ...


def network(bundle: Bundle, runtime: str = "auto") -> Network:
    """The network of `bundle` in `runtime`. Raises BundleError where that cannot run it."""
    if runtime not in ("auto", *RUNTIMES):
        raise BundleError(f"runtime={runtime} is unknown; auto, {', '.join(RUNTIMES)} are known")
    reasons = []
    for name in RUNTIMES if runtime == "auto" else (runtime,):
        module = import_module(f"policies.runtimes.with_{name}")
        if (reason := module.lacks(bundle)) is None:
            found: Network = module.make(bundle)
            return found
        reasons.append(f"runtime={name} {reason}")
    raise BundleError("; ".join(reasons))
