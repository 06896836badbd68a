"""Policies of MLPs in numpy: actors, denoising policies, and selections by critics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import numpy as np

from policies.bundle import Bundle
from policies.episodes import COSTS, EXECUTED
from policies.heads.safety.limits import discounted_limit
from policies.heads.schedules import FLOW_TIME
from policies.networks.polynomial import Library
from policies.runtimes.network import Inputs, Memory, Sampler

ACTORS = ("DeterministicActor", "GaussianActor", "TanhGaussianActor", "ChunkActor", "OneStepActor")
COMPOSED = ("EditedActor", "PerturbedActor", "SteeredActor", "BestOfN", "SwitchingActor")
RECURRENT = ("HistoryActor", "SequenceActor")
DISCRETIZED = ("AutoregressiveActor", "CoarseToFineActor")
KINDS = (*ACTORS, "SparseActor", "DiffusionActor", *COMPOSED, *DISCRETIZED, *RECURRENT)
DENOISERS = ("mlp", "plain", "ln_resnet")  # networks of a DiffusionActor
Weights = Mapping[str, np.ndarray]


def normal_cdf(x: np.ndarray) -> np.ndarray:
    """Return Phi(x), computed with the error function."""
    erf = np.array([math.erf(v) for v in (x / math.sqrt(2)).ravel().tolist()], np.float32)
    return 0.5 * (1 + erf.reshape(x.shape))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """Return x * Phi(x) with the approximation of Phi by tanh."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x)). The form with tanh does not overflow."""
    return 0.5 * (1 + np.tanh(0.5 * x))


def silu(x: np.ndarray) -> np.ndarray:
    """Return x * sigmoid(x)."""
    return x * sigmoid(x)


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "gelu": lambda x: x * normal_cdf(x),
    "gelu_tanh": gelu_tanh,
    "silu": silu,
    "tanh": np.tanh,
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
}


def find_problem(bundle: Bundle) -> str | None:
    """Return why numpy cannot run `bundle`. None if it can."""
    return find_head_problem(bundle.kind, bundle.arguments)


def find_head_problem(kind: str, arguments: Mapping[str, Any]) -> str | None:
    """Return why numpy cannot run a head of this class and these arguments. None if it can."""
    if kind not in KINDS:
        return f"runs {', '.join(KINDS)}, not {kind}"
    if kind in ("BestOfN", "HistoryActor"):
        return find_head_problem(arguments["policy"], arguments["policy_arguments"])
    if kind == "SteeredActor":
        return find_head_problem(arguments["sampler"], arguments["sampler_arguments"])
    if kind == "EditedActor":
        return find_head_problem("DiffusionActor", arguments["flow_arguments"])
    if kind != "DiffusionActor":
        return None
    if arguments["network"] not in DENOISERS:
        return f"runs denoising networks {' and '.join(DENOISERS)}, not {arguments['network']}"
    has_encoder, has_end = (
        isinstance(arguments["observations"], dict),
        arguments["until"] is not None,
    )
    if has_encoder or has_end:
        return "runs no image encoders and no consistency models"
    return None


def make(bundle: Bundle) -> NumpyNetwork:
    return make_head(bundle.kind, bundle.arguments, bundle.weights)


def make_head(kind: str, arguments: Mapping[str, Any], weights: Weights) -> NumpyNetwork:
    """Return a head of this class, arguments and parameters."""
    kinds: dict[str, Callable[..., NumpyNetwork]] = {
        "AutoregressiveActor": AutoregressiveActor,
        "CoarseToFineActor": CoarseToFineActor,
        "BestOfN": BestOfN,
        "DiffusionActor": DenoisingActor,
        "EditedActor": EditedActor,
        "HistoryActor": HistoryActor,
        "PerturbedActor": PerturbedActor,
        "SequenceActor": SequenceActor,
        "SparseActor": SparseActor,
        "SteeredActor": SteeredActor,
        "SwitchingActor": SwitchingActor,
    }
    if kind in kinds:
        return kinds[kind](arguments, weights)
    return Actor(kind, arguments, weights)


def subtree(weights: Weights, prefix: str) -> Weights:
    """Return the parameters whose names start with `prefix`, without it."""
    return {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}


class Perceptron:
    """An MLP, or an ensemble of MLPs; see `policies.networks.mlp.MLP`."""

    def __init__(self, weights: Weights, activation: str, options: Mapping[str, Any] = {}) -> None:
        """Read the parameters.

        options: `norm_after_activation` and `norm_eps` of the MLP; by default the MLP's defaults.
        """
        layers = next(k for k in count() if f"weights.{k}" not in weights)
        self._layers = [(weights[f"weights.{k}"], weights[f"biases.{k}"]) for k in range(layers)]
        names = [(f"norms.{k}.weight", f"norms.{k}.bias") for k in range(layers - 1)]
        self._norms = [(weights[gain], weights[bias]) for gain, bias in names if gain in weights]
        self._activation = ACTIVATIONS[activation]
        self._norm_last = options.get("norm_after_activation", False)
        self._eps = options.get("norm_eps", 1e-5)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return [R, outputs] for x [R, inputs], or [E, R, outputs] of an ensemble."""
        last = len(self._layers) - 1
        for k, (weight, bias) in enumerate(self._layers):
            x = x @ weight + bias
            if k < last:
                x = self._activation(x) if self._norm_last else x
                x = normalize_layer(x, *self._norms[k], self._eps) if self._norms else x
                x = x if self._norm_last else self._activation(x)
        return x


class NumpyNetwork:
    """Base class of the heads in numpy; see `Network`."""

    name, module = "numpy", None
    noise_shape: tuple[int, ...] = ()

    def initial_memory(self, batch: int) -> Memory:
        return {}

    def decide(
        self, observations: Inputs, memory: Memory, noise: np.ndarray
    ) -> tuple[np.ndarray, Memory]:
        assert isinstance(observations, np.ndarray)
        return self.sample(observations, noise), memory

    def sample(self, observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return the chunks [B, chunk_size, A]; see `Network.decide`."""
        raise NotImplementedError


class Actor(NumpyNetwork):
    """An MLP head. The last step maps its output to actions in [-1, 1], by tanh or clipping."""

    def __init__(self, kind: str, arguments: Mapping[str, Any], weights: Weights) -> None:
        trunk = subtree(weights, "trunk.")
        self._trunk = Perceptron(trunk, arguments.get("activation", "relu"))
        self._squash = choose_squashing(kind, arguments)
        self._horizon = arguments.get("horizon", 1)
        if kind == "OneStepActor":
            self.noise_shape = (self._horizon, arguments["actions"])

    def sample(self, observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        parts = [observations, noise] if self.noise_shape else [observations]
        x = self._trunk(np.concatenate([part.reshape(len(part), -1) for part in parts], -1))
        return self._squash(x).reshape(len(x), self._horizon, -1)


class SparseActor(NumpyNetwork):
    """Polynomials of the observation; see `policies.heads.deterministic.SparseActor`."""

    def __init__(self, arguments: Mapping[str, Any], weights: Weights) -> None:
        options = {name: arguments[name] for name in ("degree", "interactions", "constant")}
        library = Library(arguments["observations"], products=False, **options)
        self._factors, self._coefficients = library.factors, weights["coefficients"]
        self._squash = np.tanh if arguments["tanh"] else lambda x: x.clip(-1, 1)

    def sample(self, observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        x = np.pad(observations.reshape(len(observations), -1), ((0, 0), (0, 1)), constant_values=1)
        terms = math.prod(x[:, column] for column in self._factors)
        actions: np.ndarray = self._squash(terms @ self._coefficients)
        return actions[:, None]


class DenoisingActor(NumpyNetwork):
    """A denoising policy with an MLP; see `policies.heads.diffusion.DiffusionActor`."""

    def __init__(self, arguments: Mapping[str, Any], weights: Weights) -> None:
        kinds: dict[str, Any] = {"mlp": DenoisingMLP, "plain": PlainMLP}
        kinds |= {"ln_resnet": LayerNormResNet}
        self._sampler = Sampler(arguments)
        self.noise_shape = self._sampler.noise_shape
        network = subtree(weights, "network.")
        self._network = kinds[arguments["network"]](arguments["options"], network)

    def sample(self, observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        features = observations.reshape(len(observations), -1)

        def network(x: np.ndarray, time: float) -> np.ndarray:
            return self._network(x.reshape(len(x), -1), time, features).reshape(x.shape)

        return self._sampler(network, noise)


class DenoisingMLP:
    """See `policies.networks.denoisers.DenoisingMLP`."""

    def __init__(self, options: Mapping[str, Any], weights: Weights) -> None:
        self._embed_time = Perceptron(subtree(weights, "embed_time.perceptron."), "mish")
        self._time_size = options.get("time_size", 32)
        self._trunk = Perceptron(subtree(weights, "trunk."), options.get("activation", "mish"))

    def __call__(self, x: np.ndarray, time: float, features: np.ndarray) -> np.ndarray:
        """Return the network's output for x [R, T * A] and features [R, F]."""
        embedding = self._embed_time(sinusoids(time, self._time_size)[None])
        return self._trunk(np.concatenate([x, np.repeat(embedding, len(x), 0), features], -1))


class PlainMLP:
    """See `policies.networks.denoisers.PlainMLP`."""

    def __init__(self, options: Mapping[str, Any], weights: Weights) -> None:
        self._trunk = Perceptron(subtree(weights, "trunk."), options.get("activation", "gelu_tanh"))

    def __call__(self, x: np.ndarray, time: float, features: np.ndarray) -> np.ndarray:
        """See `DenoisingMLP`."""
        times = np.full((len(x), 1), time / FLOW_TIME, np.float32)
        return self._trunk(np.concatenate([features, x, times], -1))


class LayerNormResNet:
    """See `policies.networks.denoisers.LayerNormResNet`."""

    def __init__(self, options: Mapping[str, Any], weights: Weights) -> None:
        activation, self._frequencies = options.get("activation", "mish"), weights["frequencies"]
        self._activation = ACTIVATIONS[activation]
        self._embed_time, self._first, self._last = (
            Perceptron(subtree(weights, f"{part}."), activation)
            for part in ("embed_time", "first", "last")
        )
        blocks = [subtree(weights, f"blocks.{k}.") for k in range(options.get("blocks", 3))]
        self._norms = [(block["norm.weight"], block["norm.bias"]) for block in blocks]
        self._perceptrons = [Perceptron(subtree(x, "perceptron."), activation) for x in blocks]

    def __call__(self, x: np.ndarray, time: float, features: np.ndarray) -> np.ndarray:
        """See `DenoisingMLP`."""
        waves = np.float32(2 * math.pi) * np.float32(time) * self._frequencies  # [1, size / 2]
        embedding = self._embed_time(np.concatenate([np.cos(waves), np.sin(waves)], -1))
        inputs = [x, features, np.repeat(embedding, len(x), 0)]
        hidden = self._first(np.concatenate(inputs, -1))
        for norm, perceptron in zip(self._norms, self._perceptrons, strict=True):
            hidden = hidden + perceptron(normalize_layer(hidden, *norm, 1e-6))
        return self._last(self._activation(hidden))


class SteeredActor(NumpyNetwork):
    """A sampler at the noise that a policy chooses; see `policies.heads.residual.SteeredActor`."""

    def __init__(self, arguments: Mapping[str, Any], weights: Weights) -> None:
        self._policy, self._sampler = (
            make_head(arguments[name], arguments[f"{name}_arguments"], subtree(weights, f"{name}."))
            for name in ("policy", "sampler")
        )
        self._noise_scale = arguments["noise_scale"]

    def sample(self, observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        start = self._noise_scale * self._policy.sample(observations, noise)
        return self._sampler.sample(observations, start.reshape(-1, *self._sampler.noise_shape))


class EditedActor(NumpyNetwork):
    """A flow policy whose chunks are edited; see `policies.heads.residual.EditedActor`."""

    def __init__(self, arguments: Mapping[str, Any], weights: Weights) -> None:
        self._flow = DenoisingActor(arguments["flow_arguments"], subtree(weights, "flow."))
        edit, trunk = arguments["edit_arguments"], subtree(weights, "edit.trunk.")
        self._edit, self._bounds = Perceptron(trunk, edit["activation"]), edit["log_std_range"]
        self._edit_scale = arguments["edit_scale"]
        self.noise_shape = (2, *self._flow.noise_shape[1:])

    def sample(self, observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        chunks, rows = self._flow.sample(observations, noise[:, :1]), len(noise)
        inputs = [observations.reshape(rows, -1), chunks.reshape(rows, -1)]
        mean, log_std = np.split(self._edit(np.concatenate(inputs, -1)), 2, -1)
        edits = mean + np.exp(log_std.clip(*self._bounds)) * noise[:, 1].reshape(rows, -1)
        edited: np.ndarray = chunks + self._edit_scale * np.tanh(edits).reshape(chunks.shape)
        return edited.clip(-1, 1)


class HistoryActor(NumpyNetwork):
    """A head on an encoded history; see `policies.heads.sequences.history.HistoryActor`."""

    def __init__(self, arguments: Mapping[str, Any], weights: Weights) -> None:
        kind, options = arguments["policy"], arguments["policy_arguments"]
        self._policy = make_head(kind, options, subtree(weights, "policy."))
        self.noise_shape = self._policy.noise_shape
        encoder = arguments["encoder_arguments"]
        self._is_gru, self._features = encoder["kind"] == "gru", encoder["features"]
        part = "encoder.cell.linear." if self._is_gru else "encoder.trunk."
        self._network = Perceptron(subtree(weights, part), "relu")
        norm = subtree(weights, "encoder.cell.norm." if self._is_gru else "encoder.norm.")
        self._gain, self._shift = norm["weight"], norm["bias"]

    def decide(
        self, observations: Inputs, memory: Memory, noise: np.ndarray
    ) -> tuple[np.ndarray, Memory]:
        assert isinstance(observations, np.ndarray)
        return self._policy.decide(self.encode(observations)[:, None], memory, noise)

    def encode(self, observations: np.ndarray) -> np.ndarray:
        """Return the features [B, F] of histories [B, n_obs_steps, O]."""
        if not self._is_gru:
            features = self._network(observations.reshape(len(observations), -1))
            return np.tanh(normalize_layer(features, self._gain, self._shift, 1e-5))
        state = np.zeros((len(observations), self._features), np.float32)
        for x in np.moveaxis(observations, 1, 0):  # see `GRUCell`
            parts = self._network(np.concatenate([x, state], -1))
            parts = normalize_layer(parts, self._gain, self._shift, 1e-5)
            reset, candidate, update = np.split(parts, 3, -1)
            reset, update = sigmoid(reset), sigmoid(update - 1)
            state = update * np.tanh(reset * candidate) + (1 - update) * state
        return state


AGGREGATES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "min": lambda q: q.min(0),
    "mean": lambda q: q.mean(0),
    "least_max": lambda q: -q.max(0),
}


class BestOfN(NumpyNetwork):
    """One of N samples, selected by critics; see `policies.heads.best_of_n.BestOfN`."""

    def __init__(self, arguments: Mapping[str, Any], weights: Weights) -> None:
        kind, options = arguments["policy"], arguments["policy_arguments"]
        self._policy = make_head(kind, options, subtree(weights, "policy."))
        critic = arguments["critic_arguments"]
        self._critic = Perceptron(subtree(weights, "critic.net."), critic["activation"], critic)
        self._count, self._temperature = arguments["num_samples"], arguments["temperature"]
        self._aggregate = AGGREGATES[arguments["aggregate"]]
        options = options.get("flow_arguments", options)
        self._n_action_steps = options.get("n_action_steps", options.get("horizon", 1))
        shape = self._policy.noise_shape
        self.noise_shape = (self._count, *((math.prod(shape) + 1,) if self._temperature else shape))

    def sample(self, observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        selection_noise = noise[..., -1]  # [B, N]; used with a temperature
        noise = noise[..., :-1] if self._temperature else noise
        s = np.repeat(observations, self._count, 0)
        chunks = self._policy.sample(s, noise.reshape(len(s), *self._policy.noise_shape))
        executed = chunks[:, : self._n_action_steps].reshape(len(s), -1)
        q = self._critic(np.concatenate([s.reshape(len(s), -1), executed], -1))  # [E, B * N, 1]
        values = self._aggregate(q[..., 0]).reshape(-1, self._count)  # [B, N]
        if self._temperature:
            uniform = normal_cdf(selection_noise).clip(1e-7, 1 - 1e-7)
            values = values / self._temperature - np.log(-np.log(uniform))  # Gumbel noise
        best = values.argmax(1) + self._count * np.arange(len(values))
        return chunks[best]


class PerturbedActor(NumpyNetwork):
    """A decoded action plus a residual; see `policies.heads.residual.PerturbedActor`."""

    def __init__(self, arguments: Mapping[str, Any], weights: Weights) -> None:
        options = arguments["policy_arguments"]
        self._decoder = Perceptron(subtree(weights, "vae.decoder."), "relu")
        self._residual = Perceptron(subtree(weights, "policy.trunk."), options["activation"])
        self._scale = weights["policy.scale"]
        self.noise_shape = (2 * options["actions"],)

    def sample(self, observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        s = observations[:, -1]
        base = np.tanh(self._decoder(np.concatenate([s, noise.clip(-0.5, 0.5)], -1)))
        residual = self._scale * np.tanh(self._residual(np.concatenate([s, base], -1)))
        actions: np.ndarray = (base + residual).clip(-1, 1)
        return actions[:, None]


class SwitchingActor(NumpyNetwork):
    """Several policies and a switch; see `policies.heads.safety.switching.SwitchingActor`."""

    def __init__(self, arguments: Mapping[str, Any], weights: Weights) -> None:
        policy = arguments["policy_arguments"]
        self._policy = Actor("DeterministicActor", policy, subtree(weights, "policy."))
        self._critic, self._cost_critic = (
            Perceptron(subtree(weights, f"{name}.net."), options["activation"], options)
            for name in ("critic", "cost_critic")
            for options in [arguments[f"{name}_arguments"]]
        )
        self._num_heads, self._target_cost = arguments["num_heads"], arguments["target_cost"]
        self._steps, self._discount = arguments["episode_steps"], arguments["cost_discount"]

    def initial_memory(self, batch: int) -> Memory:
        zeros = np.zeros(batch, np.float32)
        steps = np.full(batch, -1, np.int64)
        return {"spent": zeros, "steps": steps, COSTS: zeros, EXECUTED: zeros}

    def decide(
        self, observations: Inputs, memory: Memory, noise: np.ndarray
    ) -> tuple[np.ndarray, Memory]:
        assert isinstance(observations, np.ndarray)
        spent, rows = memory["spent"] + memory[COSTS], len(noise)
        steps = memory["steps"] + memory[EXECUTED].clip(1).astype(np.int64)
        left = np.maximum(self._steps - steps, 1).astype(np.float32)
        budget = np.maximum(self._target_cost - spent, 0)
        limit = discounted_limit(budget, left, self._discount)  # [B]
        actions = self._policy.sample(observations, noise).reshape(rows, self._num_heads, -1)
        s = np.repeat(observations[:, -1:], self._num_heads, 1)
        inputs = np.concatenate([s, actions], -1).reshape(rows * self._num_heads, -1)
        q, cost = (
            combine(critic(inputs)[..., 0], axis=0).reshape(rows, -1)  # [B, H]
            for critic, combine in ((self._critic, np.min), (self._cost_critic, np.max))
        )
        is_admissible = cost < limit[:, None]
        best = np.where(is_admissible, q, -np.inf).argmax(1)
        index = np.where(is_admissible.any(1), best, cost.argmin(1))
        chunk = actions[np.arange(rows), index][:, None]
        return chunk, {**memory, "spent": spent, "steps": steps}


class SequenceActor(NumpyNetwork):
    """A GRU that emits a sequence of actions; see `policies.heads.sequences.planner`."""

    def __init__(self, arguments: Mapping[str, Any], weights: Weights) -> None:
        self._start, self._gru_input, self._gru_state, self._mean = (
            Perceptron(subtree(weights, f"{name}."), arguments["activation"])
            for name in ("start", "gru_input", "gru_state", "mean")
        )
        self._sizes = arguments["horizon"], arguments["actions"]

    def initial_memory(self, batch: int) -> Memory:
        plan = np.zeros((batch, *self._sizes), np.float32)
        return {"plan": plan, EXECUTED: np.zeros(batch, np.float32)}

    def decide(
        self, observations: Inputs, memory: Memory, noise: np.ndarray
    ) -> tuple[np.ndarray, Memory]:
        assert isinstance(observations, np.ndarray)
        steps = self._sizes[0]
        index = memory[EXECUTED].astype(int).clip(1, steps) - 1
        previous = memory["plan"][np.arange(len(index)), index]
        state, chunk = self._start(observations[:, -1]), list[np.ndarray]()
        for _ in range(steps):
            gates = self._gru_input(previous), self._gru_state(state)  # linear parts
            x, h = (np.split(part, 3, -1) for part in gates)
            reset, update = (sigmoid(x[k] + h[k]) for k in (0, 1))
            candidate = np.tanh(x[2] + reset * h[2])
            state = candidate + update * (state - candidate)
            previous = np.tanh(self._mean(state))
            chunk.append(previous)
        plan = np.stack(chunk, 1)
        return plan, {"plan": plan, EXECUTED: memory[EXECUTED]}


class AutoregressiveActor(NumpyNetwork):
    """Bins selected one after the other; see `policies.heads.discretized.autoregressive`."""

    def __init__(self, arguments: Mapping[str, Any], weights: Weights) -> None:
        self._activate = ACTIVATIONS[arguments["activation"]]
        self._trunk = Perceptron(subtree(weights, "trunk."), arguments["activation"])
        self._actions, self._levels = arguments["actions"], arguments["levels"]
        self._bins, self._alpha = arguments["bins"], np.float32(arguments["alpha"])
        self._by_decision = arguments["conditioning"] == "decision"
        weight, bias = weights["head.weights.0"], weights["head.biases.0"]
        self._weight = weight.reshape(*weight.shape[:2], -1, self._bins)  # [E, H, D, K]
        self._bias = bias.reshape(*bias.shape[:2], -1, self._bins)  # [E, 1, D, K]

    def sample(self, observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        s = observations[:, -1]
        low = np.full((len(s), self._actions), -1, np.float32)
        high, middles = -low, 0 * low
        for number in range(self._levels * self._actions):
            dimension = number % self._actions
            if self._by_decision or dimension == 0:
                middles = (low + high) / 2
            hidden = self._activate(self._trunk(np.concatenate([s, middles], -1)))  # [E, B, H]
            logits = hidden @ self._weight[:, :, number] + self._bias[:, :, number]  # [E, B, K]
            scaled = logits / self._alpha
            soft_max = np.logaddexp.reduce(scaled, -1, keepdims=True)
            index = (scaled - soft_max).min(0).argmax(-1)  # [B]
            start, end = zoom_in(low[:, dimension], high[:, dimension], index, self._bins)
            low[:, dimension], high[:, dimension] = start, end
        actions: np.ndarray = (low + high) / 2
        return actions[:, None]


class CoarseToFineActor(NumpyNetwork):
    """Bins selected level by level; see `policies.heads.discretized.coarse_to_fine`."""

    def __init__(self, arguments: Mapping[str, Any], weights: Weights) -> None:
        self._streams = [subtree(weights, f"{name}.") for name in ("value", "advantage")]
        self._encoders = [Perceptron(subtree(x, "encoder."), "tanh") for x in self._streams]
        self._trunks = [Perceptron(subtree(x, "trunk."), "silu") for x in self._streams]
        sizes = ("actions", "levels", "bins", "atoms")
        self._actions, self._levels, self._bins, self._atoms = (arguments[x] for x in sizes)
        bounds = arguments["v_min"], arguments["v_max"]
        self._support = np.linspace(*bounds, self._atoms, dtype=np.float32)

    def sample(self, observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
        s = observations[:, -1]
        norms = [(x["norm.weight"], x["norm.bias"]) for x in self._streams]
        parts = zip(self._encoders, norms, strict=True)
        encoded = [np.tanh(normalize_layer(encode(s), *norm, 1e-5)) for encode, norm in parts]
        low = np.full((len(s), self._actions), -1, np.float32)
        high = -low
        for level in np.eye(self._levels, dtype=np.float32):
            position = [(low + high) / 2, np.repeat(level[None], len(s), 0)]
            value, advantage = (
                trunk(np.concatenate([x, *position], -1)).reshape(
                    len(s), self._actions, -1, self._atoms
                )
                for trunk, x in zip(self._trunks, encoded, strict=True)
            )
            logits = value + advantage - advantage.mean(2, keepdims=True)
            probs = np.exp(logits - logits.max(-1, keepdims=True))
            q = (probs / probs.sum(-1, keepdims=True)) @ self._support  # [B, A, K]
            low, high = zoom_in(low, high, q.argmax(-1), self._bins)
        actions: np.ndarray = (low + high) / 2
        return actions[:, None]


def zoom_in(
    low: np.ndarray, high: np.ndarray, index: np.ndarray, bins: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the interval of a bin; see `policies.heads.discretized.bins.zoom_in`."""
    width = (high - low) / np.float32(bins)
    start = (low + width * index.astype(np.float32)).clip(-1, 1)
    return start, (start + width).clip(-1, 1)


def sinusoids(time: float, size: int) -> np.ndarray:
    """Return sinusoidal embeddings [size]; see `policies.networks.time.sinusoids`."""
    index = np.arange(size // 2, dtype=np.float32)
    waves = np.float32(time) * np.exp(index * np.float32(-math.log(10_000) / (size // 2 - 1)))
    return np.concatenate([np.sin(waves), np.cos(waves)])


def normalize_layer(x: np.ndarray, gain: np.ndarray, shift: np.ndarray, eps: float) -> np.ndarray:
    """Apply layer normalization, as `policies.networks.mlp.LayerNorm` does."""
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt(np.square(centered).mean(-1, keepdims=True) + eps) * gain + shift


def choose_squashing(kind: str, arguments: Mapping[str, Any]) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function from MLP output to actions, as in the method `act` of the head."""
    if kind == "TanhGaussianActor":
        return lambda x: np.tanh(x[:, : arguments["actions"]])
    unsquashed = kind == "GaussianActor" and not arguments.get("tanh_mean", True)
    if unsquashed or kind == "OneStepActor":
        return lambda x: x.clip(-1, 1)
    return np.tanh
