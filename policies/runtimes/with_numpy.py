"""MLP policies in numpy: the deterministic, Gaussian and chunk heads of `policies.heads`."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

from policies.bundle import Bundle
from policies.runtimes.network import Inputs, Memory

KINDS = ("DeterministicActor", "GaussianActor", "TanhGaussianActor", "ChunkActor", "OneStepActor")


def gelu(x: np.ndarray) -> np.ndarray:
    """Return x * Phi(x), computed with the error function."""
    erf = np.array([math.erf(v) for v in (x / math.sqrt(2)).ravel().tolist()], np.float32)
    return 0.5 * x * (1 + erf.reshape(x.shape))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """Return x * Phi(x) with the approximation of Phi by tanh."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: np.ndarray) -> np.ndarray:
    """Return x * sigmoid(x). The form with tanh does not overflow."""
    return x * 0.5 * (1 + np.tanh(0.5 * x))


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
    "tanh": np.tanh,
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
}


def find_problem(bundle: Bundle) -> str | None:
    """Return why numpy cannot run `bundle`. None if it can."""
    return None if bundle.kind in KINDS else f"runs {', '.join(KINDS)}, not {bundle.kind}"


def make(bundle: Bundle) -> NumpyNetwork:
    return NumpyNetwork(bundle)


class NumpyNetwork:
    """An MLP head in numpy; see `Network`.

    The last step maps the MLP output to actions in [-1, 1], by tanh or clipping.
    """

    name, module = "numpy", None
    noise_shape: tuple[int, ...] = ()

    def __init__(self, bundle: Bundle) -> None:
        weights, arguments = bundle.weights, bundle.arguments
        layers = next(k for k in count() if f"trunk.weights.{k}" not in weights)
        names = [(f"trunk.weights.{k}", f"trunk.biases.{k}") for k in range(layers)]
        self._layers = [(weights[weight], weights[bias]) for weight, bias in names]
        norms = [(f"trunk.norms.{k}.weight", f"trunk.norms.{k}.bias") for k in range(layers - 1)]
        self._norms = [(weights[gain], weights[bias]) for gain, bias in norms if gain in weights]
        self._activation = ACTIVATIONS[arguments.get("activation", "relu")]
        self._squash = choose_squashing(bundle.kind, arguments)
        self._horizon = arguments.get("horizon", 1)
        if bundle.kind == "OneStepActor":
            self.noise_shape = (self._horizon, arguments["actions"])

    def initial_memory(self, batch: int) -> Memory:
        return {}

    def decide(
        self, observations: Inputs, memory: Memory, noise: np.ndarray
    ) -> tuple[np.ndarray, Memory]:
        assert isinstance(observations, np.ndarray)
        parts = [observations, noise] if self.noise_shape else [observations]
        x = np.concatenate([part.reshape(len(observations), -1) for part in parts], -1)
        for k, (weight, bias) in enumerate(self._layers):
            x = (self._activation(x) if k else x) @ weight + bias
            x = normalize_layer(x, *self._norms[k]) if k < len(self._norms) else x
        return self._squash(x).reshape(len(x), self._horizon, -1), memory


def normalize_layer(x: np.ndarray, gain: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Apply layer normalization, as `policies.networks.mlp.LayerNorm` does."""
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt(np.square(centered).mean(-1, keepdims=True) + 1e-5) * gain + shift


def choose_squashing(kind: str, arguments: dict[str, Any]) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function from MLP output to actions, as in the method `act` of the head."""
    if kind == "TanhGaussianActor":
        return lambda x: np.tanh(x[:, : arguments["actions"]])
    unsquashed = kind == "GaussianActor" and not arguments.get("tanh_mean", True)
    if unsquashed or kind == "OneStepActor":
        return lambda x: x.clip(-1, 1)
    return np.tanh
