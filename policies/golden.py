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
from policies.channels import BASE_ACTION
from policies.policy import BundlePolicy
from policies.residual import ResidualPolicy
from policies.runtimes.network import make_network

ROWS = 4  # batch size of the golden output
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
    for name in arguments.keys() - bundle.arguments.keys():
        raise BundleError(f"a {bundle.kind} has no argument {name}")
    policy, _ = verify_golden(bundle, runtime)
    if arguments:
        changed = replace(bundle, arguments={**bundle.arguments, **arguments})
        policy, _ = run_golden(changed, runtime)
    policy.units = units
    if bundle.base is None:
        return policy
    try:
        base = open_bundle(bundle.base, runtime, {}, units=False)
    except BundleError as error:
        raise BundleError(f"{BASE}: {error}") from None
    if (problem := base_mismatch(policy, base)) is not None:
        raise BundleError(f"the base policy does not fit the residual policy: {problem}")
    policy.units = False
    return ResidualPolicy(policy, base, units=units)


def base_mismatch(residual: BundlePolicy, base: BundlePolicy) -> str | None:
    """Return why `base` cannot be the base policy of `residual`. None if it can."""
    channels = tuple(channel for channel in residual.spec.channels if channel.name != BASE_ACTION)
    if len(channels) == len(residual.spec.channels):
        return f"the residual policy does not observe {BASE_ACTION}"
    if base.network.is_recurrent:
        return f"the base policy, a {base.bundle.kind}, keeps a memory of its episode"
    return base.spec.mismatch(replace(residual.spec, channels=channels))


def seal(bundle: Bundle) -> Bundle:
    """Return `bundle` and its base with golden outputs. Existing golden outputs stay unchanged.

    A missing golden output is computed, in torch if torch is installed. Raises BundleError if the
    parts of the bundle do not fit together.
    """
    base = None if bundle.base is None else seal(bundle.base)
    golden = bundle.golden or run_golden(bundle, "auto")[1]
    return replace(bundle, base=base, golden=golden)


def verify_golden(bundle: Bundle, runtime: str) -> tuple[BundlePolicy, Golden]:
    """Return the result of `run_golden`. Raises BundleError if the recorded output differs."""
    policy, result = run_golden(bundle, runtime)
    if (golden := bundle.golden) is not None:
        recorded = check_shape(golden.chunk, bundle, "the golden output")
        difference = np.abs(result.chunk - recorded).max()
        if not difference <= TOLERANCE:
            raise BundleError(
                "the policy does not reproduce its golden output: the difference is "
                f"{difference:.2g}, the limit is {TOLERANCE:g}. Copy the bundle again, or "
                "create a new one"
            )
    return policy, result


def run_golden(bundle: Bundle, runtime: str) -> tuple[BundlePolicy, Golden]:
    """Run the policy on the golden input. Return the policy, and its input and output.

    Raises BundleError.
    """
    try:
        policy = BundlePolicy(bundle, make_network(bundle, runtime))
        golden = bundle.golden or make_golden_input(policy)
        chunk = policy.predict_chunk(golden.observations, golden.noise)
    except BundleError:
        raise
    except FAULTS as error:
        fault = " ".join(str(error).split())
        raise BundleError(
            f"{bundle.kind}: the weights or arguments do not fit this policy: {fault}"
        ) from None
    chunk = np.ascontiguousarray(
        check_shape(chunk, bundle, f"the output of {bundle.kind}"), np.float32
    )
    return policy, replace(golden, chunk=chunk)


def check_shape(chunk: np.ndarray, bundle: Bundle, source: str) -> np.ndarray:
    """Return `chunk` if it has the shape in the specification. Raises BundleError otherwise.

    source: name of the chunk in the error message.
    """
    expected = (ROWS, bundle.spec.chunk_size, bundle.spec.action_dim)
    if chunk.shape != expected:
        raise BundleError(
            f"{source} has shape {list(chunk.shape[1:])}, but the specification requires "
            f"{list(expected[1:])}. Create the bundle again, with the specification of its policy"
        )
    return chunk


def make_golden_input(policy: BundlePolicy) -> Golden:
    """Generate typical observations and noise from a fixed seed. `chunk` is a placeholder."""
    spec, rng = policy.spec, np.random.Generator(np.random.PCG64(0))
    observations = dict[str, np.ndarray]()
    for channel in spec.channels:
        shape = (ROWS, spec.n_obs_steps, *channel.shape)
        if channel.kind == "image":
            observations[channel.name] = rng.integers(0, 256, shape, np.uint8)
        else:
            values = rng.standard_normal(shape, np.float32)
            observations[channel.name] = policy.bundle.normalizers[channel.name].inverse(values)
    size = (ROWS, *policy.noise_shape)
    noise = rng.standard_normal(size, np.float32) if policy.noise_shape else None
    return Golden(observations, noise, np.zeros(()))
