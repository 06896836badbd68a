"""What was exported (`policies.export`), by onnxruntime; torch is not loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np

from policies.bundle import Bundle, BundleError
from policies.heads.schedules import draws, sample
from policies.normalizer import center_and_extent
from policies.runtimes.network import Network, Seen

POLICY, ENCODER = (
    "policy",
    "encoder",
)  # graphs: of a decision, or of a sampler's round and what it sees
OBSERVATIONS, NOISE, CHUNK = "observations", "noise", "chunk"  # what goes in and out of a decision
FEATURES, X, TIME, ANSWER = "features", "x", "time", "answer"  # and of a round


def lacks(bundle: Bundle) -> str | None:
    """Why onnxruntime cannot run it; None where it can."""
    if POLICY not in bundle.graphs:
        return (
            "needs its network as a graph: offline-rl export run=… where torch is installed; what "
            "remembers its episode, as a decision transformer, runs by torch alone"
        )
    if find_spec("onnxruntime") is None:
        return 'needs onnxruntime: pip install "offline-rl-suite[export]", or onnxruntime alone'
    return None


def make(bundle: Bundle) -> Network:
    return SamplerNetwork(bundle) if ENCODER in bundle.graphs else OnnxNetwork(bundle)


class Graph:
    """On one thread of the CPU, which it does not keep busy while it waits."""

    def __init__(self, graph: bytes) -> None:
        """Raises BundleError."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3  # errors; it warns of nodes that it does not fold
        with told():
            self._session = onnxruntime.InferenceSession(graph, options, ["CPUExecutionProvider"])
        self.inputs = {each.name: each.shape for each in self._session.get_inputs()}

    def __call__(self, given: Mapping[str, np.ndarray]) -> np.ndarray:
        """Its one output. Raises BundleError."""
        with told():
            found: np.ndarray = self._session.run(None, given)[0]
        return found


@contextmanager
def told() -> Iterator[None]:
    """Raises BundleError for what onnxruntime raises: classes without a base of their own."""
    try:
        yield
    except Exception as error:
        raise BundleError(f"its graph cannot be run: {' '.join(str(error).split())}") from None


def fed(observations: Seen) -> dict[str, np.ndarray]:
    """A graph's inputs: one vector by itself, several channels by their names."""
    if isinstance(observations, Mapping):
        return {f"{OBSERVATIONS}/{name}": value for name, value in observations.items()}
    return {OBSERVATIONS: observations}


class OnnxNetwork:
    """A graph of one decision; see `Network`."""

    name, remembers, needs_rewards = "onnx", False, False

    def __init__(self, bundle: Bundle) -> None:
        self._graph = Graph(bundle.graphs[POLICY])
        self.noise_shape = tuple(self._graph.inputs.get(NOISE, ())[1:])

    def plan(self, observations: Seen, noise: np.ndarray) -> np.ndarray:
        return self._graph(fed(observations) | ({NOISE: noise} if self.noise_shape else {}))

    def reset(self, batch: int) -> Any:
        raise NotImplementedError

    def step(self, observations: Seen, rewards: np.ndarray, memory: Any) -> Any:
        raise NotImplementedError


class SamplerNetwork(OnnxNetwork):
    """A graph of what it sees and one of a round; the rounds are numpy's. See `DiffusionActor`."""

    def __init__(self, bundle: Bundle) -> None:
        given = bundle.arguments
        self._encoder, self._round = Graph(bundle.graphs[ENCODER]), Graph(bundle.graphs[POLICY])
        self._table, self._present = given["table"], given["n_obs_steps"] - 1
        ends = zip(given["action_low"], given["action_high"], strict=True)
        ranges = np.array([center_and_extent(*each) for each in ends], np.float32)
        self._center, self._extent = ranges.T
        self.noise_shape = (draws(self._table), given["horizon"], given["actions"])

    def plan(self, observations: Seen, noise: np.ndarray) -> np.ndarray:
        features = self._encoder(fed(observations))

        def network(x: np.ndarray, time: float) -> np.ndarray:
            times = np.full(len(x), time, np.float32)
            return self._round({FEATURES: features, X: x, TIME: times})

        chunk = sample(self._table, network, noise).clip(-1, 1)[:, self._present :]
        found: np.ndarray = (chunk * self._extent + self._center).clip(-1, 1)
        return found
