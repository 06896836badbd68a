"""Exported policies (see `policies.export`) in onnxruntime, without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec

import numpy as np

from policies.bundle import Bundle, BundleError
from policies.channels import flatten
from policies.runtimes.network import Inputs, Memory, Network, Sampler

# names of the graphs; `policy` predicts a chunk. In a diffusion policy, `policy` is one denoising
# step, and `encoder` is the observation encoder.
POLICY, ENCODER = "policy", "encoder"
# inputs of `policy`, `memory/<name>`, and its outputs, `next_memory/<name>`
OBSERVATIONS, NOISE, MEMORY = "observations", "noise", "memory"
CHUNK, NEXT_MEMORY = "chunk", "next_memory"
# inputs and output of a denoising step
FEATURES, X, TIME, STEP_OUTPUT = "features", "x", "time", "answer"


def find_problem(bundle: Bundle) -> str | None:
    """Return why onnxruntime cannot run `bundle`. None if it can."""
    if POLICY not in bundle.graphs:
        return "needs an exported network: run `offline-rl export run=…` where torch is installed"
    if find_spec("onnxruntime") is None:
        return "needs onnxruntime: pip install onnxruntime"
    return None


def make(bundle: Bundle) -> Network:
    return SamplerNetwork(bundle) if ENCODER in bundle.graphs else OnnxNetwork(bundle)


class Graph:
    """An ONNX model that runs on one CPU thread, without busy waiting."""

    def __init__(self, graph: bytes) -> None:
        """Load an ONNX model. Raises BundleError."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3  # errors only; onnxruntime warns about unfolded nodes
        with raise_bundle_errors():
            self._session = onnxruntime.InferenceSession(graph, options, ["CPUExecutionProvider"])
        self.inputs = {each.name: each.shape for each in self._session.get_inputs()}
        self.outputs = [each.name for each in self._session.get_outputs()]

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the outputs of the model. Raises BundleError."""
        with raise_bundle_errors():
            outputs: list[np.ndarray] = self._session.run(None, inputs)
        return outputs


@contextmanager
def raise_bundle_errors() -> Iterator[None]:
    """Turn every exception into a BundleError: onnxruntime has no common exception class."""
    try:
        yield
    except Exception as error:
        raise BundleError(f"the ONNX graph cannot be run: {' '.join(str(error).split())}") from None


class OnnxNetwork:
    """A network in one ONNX graph, from observations to a chunk; see `Network`."""

    name, module = "onnx", None

    def __init__(self, bundle: Bundle) -> None:
        """Load the graph. The golden input contains the memory at the start of an episode."""
        self._graph = Graph(bundle.graphs[POLICY])
        self.noise_shape = tuple(self._graph.inputs.get(NOISE, ())[1:])
        recorded = bundle.golden.memory if bundle.golden is not None else {}
        self._initial_memory = {name: value[:1] for name, value in recorded.items()}

    def initial_memory(self, batch: int) -> Memory:
        return {name: np.repeat(value, batch, 0) for name, value in self._initial_memory.items()}

    def decide(
        self, observations: Inputs, memory: Memory, noise: np.ndarray
    ) -> tuple[np.ndarray, Memory]:
        inputs = flatten({OBSERVATIONS: observations, MEMORY: memory})
        chunk, *others = self._graph(inputs | ({NOISE: noise} if self.noise_shape else {}))
        names = (name.removeprefix(f"{NEXT_MEMORY}/") for name in self._graph.outputs[1:])
        return chunk, dict(zip(names, others, strict=True))


class SamplerNetwork(OnnxNetwork):
    """A diffusion policy in two ONNX graphs: the encoder and one denoising step.

    The sampling loop runs in numpy. See `policies.heads.diffusion.DiffusionActor`.
    """

    def __init__(self, bundle: Bundle) -> None:
        self._initial_memory = {}
        self._encoder, self._denoiser = Graph(bundle.graphs[ENCODER]), Graph(bundle.graphs[POLICY])
        self._sampler = Sampler(bundle.arguments)
        self.noise_shape = self._sampler.noise_shape

    def decide(
        self, observations: Inputs, memory: Memory, noise: np.ndarray
    ) -> tuple[np.ndarray, Memory]:
        (features,) = self._encoder(flatten({OBSERVATIONS: observations}))

        def network(x: np.ndarray, time: float) -> np.ndarray:
            times = np.full(len(x), time, np.float32)
            return self._denoiser({FEATURES: features, X: x, TIME: times})[0]

        return self._sampler(network, noise), memory
