"""Opening a bundle, and the golden answer by which it is known to be run rightly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from policies.bundle import BASE, Bundle, BundleError, Golden
from policies.channels import BASE_ACTION
from policies.policy import BundlePolicy
from policies.residual import ResidualPolicy
from policies.runtimes.network import network

ROWS = 4  # episodes in the golden answer
TOLERANCE = 1e-4  # of it: what runtimes and processors differ in
FAULTS = (
    *(ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError),
    *(AssertionError, NotImplementedError),
)


def opened(
    bundle: Bundle, runtime: str, arguments: Mapping[str, Any], *, units: bool
) -> BundlePolicy:
    """The policy, compared with its golden answer. Raises BundleError.

    arguments: used instead of those that the bundle holds.
    """
    for name in arguments.keys() - bundle.arguments.keys():
        raise BundleError(f"a {bundle.kind} has no {name}")
    policy, _ = compared(bundle, runtime)
    if arguments:
        changed = replace(bundle, arguments={**bundle.arguments, **arguments})
        policy, _ = answered(changed, runtime)
    policy.units = units
    if bundle.base is None:
        return policy
    try:
        base = opened(bundle.base, runtime, {}, units=False)
    except BundleError as error:
        raise BundleError(f"{BASE}: {error}") from None
    if (problem := unfit(policy, base)) is not None:
        raise BundleError(f"its base policy does not fit it: {problem}")
    policy.units = False
    return ResidualPolicy(policy, base, units=units)


def unfit(correction: BundlePolicy, base: BundlePolicy) -> str | None:
    """Why the one cannot correct the other; None where it can."""
    seen = tuple(channel for channel in correction.spec.channels if channel.name != BASE_ACTION)
    if len(seen) == len(correction.spec.channels):
        return f"it observes no {BASE_ACTION}"
    if base.network.remembers:
        return f"a {base.bundle.kind} keeps a memory of its episode"
    return base.spec.mismatch(replace(correction.spec, channels=seen))


def answer(bundle: Bundle) -> Golden:
    """The golden answer, by torch where it is installed. Raises BundleError."""
    return answered(replace(bundle, golden=None), "auto")[1]


def compared(bundle: Bundle, runtime: str) -> tuple[BundlePolicy, Golden]:
    """As `answered`. Raises BundleError where the bundle holds another answer."""
    policy, found = answered(bundle, runtime)
    if (golden := bundle.golden) is not None:
        apart = np.abs(found.chunk - fitting(golden.chunk, bundle, "its golden answer")).max()
        if not apart <= TOLERANCE:
            raise BundleError(
                f"the golden answer does not come out: what it answers is {apart:.2g} off, of "
                f"which {TOLERANCE:g} are allowed; copy it again, or export its run again"
            )
    return policy, found


def answered(bundle: Bundle, runtime: str) -> tuple[BundlePolicy, Golden]:
    """The policy, and its own answer to the golden question. Raises BundleError."""
    try:
        policy = BundlePolicy(bundle, network(bundle, runtime))
        golden = bundle.golden or asked(policy)
        chunk = policy.chunk(golden.observations, golden.noise)
    except BundleError:
        raise
    except FAULTS as error:
        fault = " ".join(str(error).split())
        raise BundleError(f"{bundle.kind}: the weights do not fit: {fault}") from None
    chunk = np.ascontiguousarray(fitting(chunk, bundle, bundle.kind), np.float32)
    return policy, replace(golden, chunk=chunk)


def fitting(chunk: np.ndarray, bundle: Bundle, whose: str) -> np.ndarray:
    """`chunk` where it is of the shape that the specification says. Raises BundleError."""
    expected = (ROWS, bundle.spec.chunk_size, bundle.spec.action_dim)
    if chunk.shape != expected:
        raise BundleError(
            f"{whose} answers {list(chunk.shape[1:])}, the specification says {list(expected[1:])}"
        )
    return chunk


def asked(policy: BundlePolicy) -> Golden:
    """Ordinary observations and noise, the same for the same bundle; not yet answered."""
    spec, draw = policy.spec, np.random.Generator(np.random.PCG64(0))
    observations = dict[str, np.ndarray]()
    for channel in spec.channels:
        shape = (ROWS, spec.n_obs_steps, *channel.shape)
        if channel.kind == "picture":
            observations[channel.name] = draw.integers(0, 256, shape, np.uint8)
        else:
            numbers = draw.standard_normal(shape, np.float32)
            observations[channel.name] = policy.bundle.normalizers[channel.name].inverse(numbers)
    size = (ROWS, *policy.noise_shape)
    noise = draw.standard_normal(size, np.float32) if policy.noise_shape else None
    return Golden(observations, noise, np.zeros(()))
