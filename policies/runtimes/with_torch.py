"""Any head, by torch."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from policies.bundle import Bundle, BundleError
from policies.runtimes.network import Seen

if TYPE_CHECKING:
    from torch import Tensor


def lacks(bundle: Bundle) -> str | None:
    """Why torch cannot run it; None where it can."""
    return None if find_spec("torch") else "needs torch: pip install torch"


def make(bundle: Bundle) -> TorchNetwork:
    return TorchNetwork(bundle)


class TorchNetwork:
    """A head of `policies.heads`; see `Network`."""

    name = "torch"

    def __init__(self, bundle: Bundle) -> None:
        import torch

        from policies.heads.head import kinds
        from policies.networks.defaults import torch_defaults

        known = kinds()
        if bundle.kind not in known:
            raise BundleError(
                f"unknown policy {bundle.kind!r}; known are {', '.join(sorted(known))}"
            )
        self._defaults = torch_defaults
        with torch_defaults():
            self.module: Any = known[bundle.kind](**bundle.arguments)
        self.module.load_state_dict({k: torch.from_numpy(v) for k, v in bundle.weights.items()})
        self.module.eval()
        self.noise_shape = tuple(getattr(self.module, "noise_shape", ()))
        self.remembers = hasattr(self.module, "step")
        self.needs_rewards = self.remembers and getattr(self.module, "needs_rewards", True)

    def plan(self, observations: Seen, noise: np.ndarray) -> np.ndarray:
        import torch

        if self.remembers:
            rewards = np.zeros(len(noise), np.float32)
            return self.step(observations, rewards, self.reset(len(noise)))[0]
        with self._defaults(), torch.inference_mode():
            if hasattr(self.module, "plan"):
                chunk = self.module.plan(tensors(observations), torch.from_numpy(noise))
            else:
                chunk = self.module.act(last(tensors(observations)))[:, None]
        found: np.ndarray = chunk.numpy()
        return found

    def reset(self, batch: int) -> dict[str, Tensor]:
        with self._defaults():
            found: dict[str, Tensor] = self.module.reset(batch)
        return found

    def step(
        self, observations: Seen, rewards: np.ndarray, memory: dict[str, Tensor]
    ) -> tuple[np.ndarray, dict[str, Tensor]]:
        import torch

        given = torch.from_numpy(rewards)
        if any(len(value) != len(given) for value in memory.values()):
            count = len(next(iter(memory.values())))
            raise ValueError(f"{len(given)} observations: the episodes' memory is for {count}")
        with self._defaults(), torch.inference_mode():
            actions, memory = self.module.step(last(tensors(observations)), given, memory)
        return actions.numpy()[:, None], memory


def tensors(observations: Seen) -> Any:
    """The arrays as tensors of the same memory."""
    import torch

    if isinstance(observations, Mapping):
        return {name: torch.from_numpy(value) for name, value in observations.items()}
    return torch.from_numpy(observations)


def last(observations: Any) -> Any:
    """Of each history the present."""
    if isinstance(observations, Mapping):
        return {name: value[:, -1] for name, value in observations.items()}
    return observations[:, -1]
