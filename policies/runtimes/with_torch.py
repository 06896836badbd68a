"""The torch runtime, which runs all heads of `policies.heads`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from policies.bundle import Bundle, BundleError
from policies.channels import map_channels
from policies.runtimes.network import Inputs, Memory

if TYPE_CHECKING:
    from policies.heads.head import Head


def find_problem(bundle: Bundle) -> str | None:
    """Return why torch cannot run `bundle`. None if it can."""
    return None if find_spec("torch") else "needs torch: pip install torch"


def make(bundle: Bundle) -> TorchNetwork:
    return TorchNetwork(bundle)


class TorchNetwork:
    """A head of `policies.heads` in torch; see `Network`."""

    name = "torch"

    def __init__(self, bundle: Bundle) -> None:
        import torch

        from policies.heads.head import load_kinds
        from policies.networks.defaults import torch_defaults

        kinds = load_kinds()
        if bundle.kind not in kinds:
            raise BundleError(
                f"unknown policy {bundle.kind!r}. Available: {', '.join(sorted(kinds))}"
            )
        self._defaults = torch_defaults
        with torch_defaults():
            self.module: Head = kinds[bundle.kind](**bundle.arguments)
        self.module.load_state_dict({k: torch.from_numpy(v) for k, v in bundle.weights.items()})
        self.module.eval()
        self.noise_shape = self.module.noise_shape

    def initial_memory(self, batch: int) -> Memory:
        import torch

        with self._defaults(), torch.inference_mode():
            memory = self.module.initial_memory(batch)
        return {name: value.numpy() for name, value in memory.items()}

    def decide(
        self, observations: Inputs, memory: Memory, noise: np.ndarray
    ) -> tuple[np.ndarray, Memory]:
        import torch

        with self._defaults(), torch.inference_mode():
            inputs = map_channels(torch.from_numpy, observations)
            tensors = {name: torch.from_numpy(value) for name, value in memory.items()}
            chunk, tensors = self.module.decide(inputs, tensors, torch.from_numpy(noise))
        return chunk.numpy(), {name: value.numpy() for name, value in tensors.items()}
