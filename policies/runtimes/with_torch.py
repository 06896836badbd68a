"""The torch runtime, which runs all heads of `policies.heads`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from policies.bundle import Bundle, BundleError
from policies.runtimes.network import Inputs

if TYPE_CHECKING:
    from torch import Tensor


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
            self.module: Any = kinds[bundle.kind](**bundle.arguments)
        self.module.load_state_dict({k: torch.from_numpy(v) for k, v in bundle.weights.items()})
        self.module.eval()
        self.noise_shape = tuple(getattr(self.module, "noise_shape", ()))
        self.is_recurrent = hasattr(self.module, "step")
        self.needs_rewards = self.is_recurrent and getattr(self.module, "needs_rewards", True)

    def plan(self, observations: Inputs, noise: np.ndarray) -> np.ndarray:
        import torch

        if self.is_recurrent:
            rewards = np.zeros(len(noise), np.float32)
            return self.step(observations, rewards, self.reset(len(noise)))[0]
        with self._defaults(), torch.inference_mode():
            if hasattr(self.module, "plan"):
                chunk = self.module.plan(to_tensors(observations), torch.from_numpy(noise))
            else:
                chunk = self.module.act(take_last(to_tensors(observations)))[:, None]
        array: np.ndarray = chunk.numpy()
        return array

    def reset(self, batch: int) -> dict[str, Tensor]:
        with self._defaults():
            memory: dict[str, Tensor] = self.module.reset(batch)
        return memory

    def step(
        self, observations: Inputs, rewards: np.ndarray, memory: dict[str, Tensor]
    ) -> tuple[np.ndarray, dict[str, Tensor]]:
        import torch

        reward = torch.from_numpy(rewards)
        if any(len(value) != len(reward) for value in memory.values()):
            count = len(next(iter(memory.values())))
            raise ValueError(f"{len(reward)} observations, but the memory is for {count} episodes")
        with self._defaults(), torch.inference_mode():
            inputs = take_last(to_tensors(observations))
            actions, memory = self.module.step(inputs, reward, memory)
        return actions.numpy()[:, None], memory


def to_tensors(observations: Inputs) -> Any:
    """Convert arrays to tensors without copying."""
    import torch

    if isinstance(observations, Mapping):
        return {name: torch.from_numpy(value) for name, value in observations.items()}
    return torch.from_numpy(observations)


def take_last(observations: Any) -> Any:
    """Return the present observation, the last one of each observation history."""
    if isinstance(observations, Mapping):
        return {name: value[:, -1] for name, value in observations.items()}
    return observations[:, -1]
