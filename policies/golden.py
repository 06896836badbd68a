"""Opening a bundle, and the golden answer that every runtime must reproduce."""

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

ROWS = 4  # episodes in the golden answer
TOLERANCE = 1e-4  # allowed absolute difference between runtimes and processors
FAULTS = (
    *(ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError),
    *(AssertionError, NotImplementedError),
)


def open_bundle(
    bundle: Bundle, runtime: str, arguments: Mapping[str, Any], *, units: bool
) -> BundlePolicy:
    """Return the policy of `bundle` after verifying its golden answer. Raises BundleError.

    arguments: replace those of the same names in the bundle.
    """
    for name in arguments.keys() - bundle.arguments.keys():
        raise BundleError(f"a {bundle.kind} has no {name}")
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
        raise BundleError(f"its base policy does not fit it: {problem}")
    policy.units = False
    return ResidualPolicy(policy, base, units=units)


def base_mismatch(residual: BundlePolicy, base: BundlePolicy) -> str | None:
    """Return why `base` cannot be the base of the policy `residual`. None if it can."""
    channels = tuple(channel for channel in residual.spec.channels if channel.name != BASE_ACTION)
    if len(channels) == len(residual.spec.channels):
        return f"it does not observe {BASE_ACTION}"
    if base.network.remembers:
        return f"a {base.bundle.kind} keeps a memory of its episode"
    return base.spec.mismatch(replace(residual.spec, channels=channels))


def seal(bundle: Bundle) -> Bundle:
    """Return `bundle` with its golden answer, and its base with one, where they have none.

    The policy runs in torch if that is installed. Raises BundleError if its parts do not fit.
    """
    base = None if bundle.base is None else seal(bundle.base)
    golden = bundle.golden or run_golden(bundle, "auto")[1]
    return replace(bundle, base=base, golden=golden)


def verify_golden(bundle: Bundle, runtime: str) -> tuple[BundlePolicy, Golden]:
    """Return `run_golden(…)`. Raises BundleError if the bundle records a different answer."""
    policy, answer = run_golden(bundle, runtime)
    if (golden := bundle.golden) is not None:
        recorded = check_shape(golden.chunk, bundle, "the recorded policy")
        difference = np.abs(answer.chunk - recorded).max()
        if not difference <= TOLERANCE:
            raise BundleError(
                f"the policy does not reproduce its golden answer: it differs by {difference:.2g}, "
                f"at most {TOLERANCE:g} is allowed. Copy the bundle again, or make it again"
            )
    return policy, answer


def run_golden(bundle: Bundle, runtime: str) -> tuple[BundlePolicy, Golden]:
    """Return the policy and its answer to the golden input. Raises BundleError."""
    try:
        policy = BundlePolicy(bundle, make_network(bundle, runtime))
        golden = bundle.golden or make_golden_input(policy)
        chunk = policy.predict_chunk(golden.observations, golden.noise)
    except BundleError:
        raise
    except FAULTS as error:
        fault = " ".join(str(error).split())
        raise BundleError(f"{bundle.kind}: the weights do not fit: {fault}") from None
    chunk = np.ascontiguousarray(check_shape(chunk, bundle, bundle.kind), np.float32)
    return policy, replace(golden, chunk=chunk)


def check_shape(chunk: np.ndarray, bundle: Bundle, who: str) -> np.ndarray:
    """Return `chunk` if it has the shape of the specification. Raises BundleError otherwise."""
    expected = (ROWS, bundle.spec.chunk_size, bundle.spec.action_dim)
    if chunk.shape != expected:
        raise BundleError(
            f"{who} returns a chunk of shape {list(chunk.shape[1:])}, the specification says "
            f"{list(expected[1:])}"
        )
    return chunk


def make_golden_input(policy: BundlePolicy) -> Golden:
    """Return typical observations and noise, a function of the bundle; `chunk` is still empty."""
    spec, draw = policy.spec, np.random.Generator(np.random.PCG64(0))
    observations = dict[str, np.ndarray]()
    for channel in spec.channels:
        shape = (ROWS, spec.n_obs_steps, *channel.shape)
        if channel.kind == "image":
            observations[channel.name] = draw.integers(0, 256, shape, np.uint8)
        else:
            numbers = draw.standard_normal(shape, np.float32)
            observations[channel.name] = policy.bundle.normalizers[channel.name].inverse(numbers)
    size = (ROWS, *policy.noise_shape)
    noise = draw.standard_normal(size, np.float32) if policy.noise_shape else None
    return Golden(observations, noise, np.zeros(()))
