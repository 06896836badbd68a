"""Open a bundle and verify its golden output.

The golden output is the policy's recorded output for a recorded input. Every runtime must reproduce
it before the policy may act.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from policies.bundle import BASE, Bundle, BundleError, Golden
from policies.composed import ComposedPolicy, base_mismatch
from policies.episodes import COSTS, EXECUTED, REWARDS
from policies.policy import BundlePolicy
from policies.runtimes.network import make_network

ROWS = 4  # batch size of the golden output
CANDIDATES = 64  # inputs from which the golden input of a policy that selects samples is chosen
TOLERANCE = 1e-4  # allowed absolute difference between runtimes and processors
FAULTS = (
    *(ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError),
    *(AssertionError, NotImplementedError),
)


def open_bundle(
    bundle: Bundle, runtime: str, arguments: Mapping[str, Any], *, units: bool
) -> BundlePolicy:
    """Verify the golden output of `bundle` and return its policy. Raises BundleError.

    arguments: new values for constructor arguments of the head.
    """
    changed = with_arguments(bundle, arguments)
    policy, _ = verify_golden(bundle, runtime)
    composed = None if bundle.base is None else compose(policy, runtime)
    if composed is not None and bundle.golden is not None and bundle.golden.composed is not None:
        what = "the policy together with its base"
        check_difference(what, predict_first(composed), bundle.golden.composed)
    if arguments:
        if policy.network.name == "onnx":
            raise BundleError(
                f"an exported {bundle.kind} has fixed arguments. To change "
                f"{', '.join(arguments)}, load it with runtime='torch'"
            )
        policy, _ = run_golden(changed, runtime)
    if composed is not None:
        return ComposedPolicy(policy, composed.base, units=units)
    policy.units = units
    return policy


def with_arguments(bundle: Bundle, arguments: Mapping[str, Any]) -> Bundle:
    """Return `bundle` with new values for constructor arguments of its head. Raises BundleError."""
    for name in arguments.keys() - bundle.arguments.keys():
        instead = ", or train a policy for this limit" if name == "target_cost" else ""
        raise BundleError(f"a {bundle.kind} has no argument {name}. Remove {name}={instead}")
    limit = arguments.get("target_cost", 0.0)
    if not isinstance(limit, int | float) or not limit >= 0:  # also refuses NaN
        raise BundleError(f"target_cost={limit!r} is not a number of at least 0")
    return replace(bundle, arguments={**bundle.arguments, **arguments})


def compose(policy: BundlePolicy, runtime: str) -> ComposedPolicy:
    """Return `policy` together with the base policy in its bundle. Raises BundleError."""
    assert policy.bundle.base is not None
    try:
        base = open_bundle(policy.bundle.base, runtime, {}, units=False)
    except BundleError as error:
        raise BundleError(f"{BASE}: {error}") from None
    if (problem := base_mismatch(policy, base)) is not None:
        raise BundleError(f"the base policy does not fit the policy trained on it: {problem}")
    return ComposedPolicy(policy, base)


def predict_first(policy: ComposedPolicy) -> np.ndarray:
    """Return the first chunks for the base's recorded observations, [B, chunk_size, A]."""
    assert isinstance(policy.base, BundlePolicy)
    golden = policy.base.bundle.golden
    assert golden is not None
    names = [channel.name for channel in policy.spec.channels]
    return policy.act({name: golden.observations[name][:, -1] for name in names})[0]


def seal(bundle: Bundle) -> Bundle:
    """Return `bundle` and its base with golden outputs. Existing golden outputs stay unchanged.

    A missing golden output is computed, in torch if torch is installed. Raises BundleError if the
    parts of the bundle do not fit together.
    """
    base = None if bundle.base is None else seal(bundle.base)
    golden = bundle.golden or run_golden(bundle, "auto")[1]
    bundle = replace(bundle, base=base, golden=golden)
    if base is None or golden.composed is not None:
        return bundle
    composed = predict_first(compose(run_golden(bundle, "auto")[0], "auto"))
    return replace(bundle, golden=replace(golden, composed=composed))


def verify_golden(bundle: Bundle, runtime: str) -> tuple[BundlePolicy, Golden]:
    """Return the result of `run_golden`. Raises BundleError if the recorded output differs."""
    policy, result = run_golden(bundle, runtime)
    if (golden := bundle.golden) is not None:
        recorded = check_shape(golden.chunks, bundle, "the golden output")
        if len(recorded) != len(result.chunks):
            raise BundleError(
                f"the golden output has {len(recorded)} decisions instead of {len(result.chunks)}. "
                "Create the bundle again"
            )
        check_difference("the policy", result.chunks, recorded)
    return policy, result


def check_difference(what: str, actual: np.ndarray, recorded: np.ndarray) -> None:
    """Raise BundleError if the output of `what` differs from the recorded output."""
    same_shape = actual.shape == recorded.shape
    difference = np.abs(actual - recorded).max() if same_shape else np.inf
    if not difference <= TOLERANCE:
        raise BundleError(
            f"{what} does not reproduce its golden output: the difference is {difference:.2g}, "
            f"the limit is {TOLERANCE:g}. Copy the bundle again, or create a new one"
        )


def run_golden(bundle: Bundle, runtime: str) -> tuple[BundlePolicy, Golden]:
    """Run the policy on the golden input. Return the policy, and its input and output.

    Raises BundleError.
    """
    try:
        policy = BundlePolicy(bundle, make_network(bundle, runtime))
        golden = bundle.golden or make_golden_input(policy)
        chunks = predict_chunks(policy, golden.observations, golden.noise)
    except BundleError:
        raise
    except FAULTS as error:
        fault = " ".join(str(error).split())
        raise BundleError(
            f"{bundle.kind}: the weights or arguments do not fit this policy: {fault}"
        ) from None
    chunks = np.ascontiguousarray(
        check_shape(chunks, bundle, f"the output of {bundle.kind}"), np.float32
    )
    return policy, replace(golden, chunks=chunks)


def predict_chunks(
    policy: BundlePolicy, observations: Mapping[str, np.ndarray], noise: np.ndarray | None
) -> np.ndarray:
    """Return the chunks of the first decisions of B episodes, [T, B, chunk_size, A].

    T is 2 for a policy with a memory, otherwise 1. All decisions have the same input, reward 1 and
    cost 1, and are one step apart.
    """
    count = len(next(iter(observations.values())))
    numbers = np.zeros((count, 0), np.float32) if noise is None else noise
    chunk, memory = policy.decide(observations, policy.network.initial_memory(count), numbers)
    chunks = [chunk]
    if policy.has_memory:
        ones = {x: np.ones(count, np.float32) for x in (REWARDS, COSTS, EXECUTED) if x in memory}
        chunks.append(policy.decide(observations, {**memory, **ones}, numbers)[0])
    return np.stack(chunks)


def check_shape(chunks: np.ndarray, bundle: Bundle, source: str) -> np.ndarray:
    """Return `chunks` if they have the shape in the specification. Raises BundleError otherwise.

    source: name of the chunks in the error message.
    """
    expected = (ROWS, bundle.spec.chunk_size, bundle.spec.action_dim)
    if chunks.shape[1:] != expected:
        raise BundleError(
            f"{source} has shape {list(chunks.shape[2:])}, but the specification requires "
            f"{list(expected[1:])}. Create the bundle again, with the specification of its policy"
        )
    return chunks


def make_golden_input(policy: BundlePolicy) -> Golden:
    """Generate typical observations and noise from a fixed seed. `chunks` is a placeholder."""
    spec, rng = policy.spec, np.random.Generator(np.random.PCG64(0))
    selects = policy.network.module is not None and policy.network.module.num_samples > 1
    rows = CANDIDATES if selects else ROWS
    observations = dict[str, np.ndarray]()
    for channel in spec.channels:
        shape = (rows, spec.n_obs_steps, *channel.shape)
        if channel.kind == "image":
            observations[channel.name] = rng.integers(0, 256, shape, np.uint8)
        else:
            values = rng.standard_normal(shape, np.float32)
            observations[channel.name] = policy.bundle.normalizers[channel.name].inverse(values)
    noise = rng.standard_normal((rows, *(policy.noise_shape or (0,))), np.float32)
    if selects:
        # if two samples have almost the same value, rounding errors decide which one is selected
        order = policy.selection_margins(observations, noise).argsort()[-ROWS:]
        observations, noise = {k: v[order] for k, v in observations.items()}, noise[order]
    memory = policy.network.initial_memory(ROWS)
    return Golden(observations, noise if policy.noise_shape else None, np.zeros(()), memory)
