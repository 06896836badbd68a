"""Policy bundles of trained seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from offline_rl.algorithms.common.base import Algorithm
from offline_rl.data.transform import Transform
from offline_rl.engine.engine import Engine
from policies import Bundle
from policies.normalizer import Normalizer
from policies.spec import Spec


def current_policy(
    engine: Engine, s: int, transform: Transform, provenance: Mapping[str, Any]
) -> Bundle:
    """Return the bundle of the s-th seed's current policy."""
    params = engine.algorithm.acting_params(engine.state["params"])
    weights = {k: v[s].detach().cpu().numpy().copy() for k, v in params.items()}
    return bundled(engine.algorithm, weights, transform, provenance)


def bundled(
    algorithm: Algorithm,
    weights: Mapping[str, np.ndarray],
    transform: Transform,
    provenance: Mapping[str, Any],
) -> Bundle:
    """Return the policy bundle of one seed. weights: of the acting head."""
    head = algorithm.acting_head()
    spec = replace(
        algorithm.spec,
        n_obs_steps=head.n_obs_steps,
        chunk_size=head.chunk_size,
        n_action_steps=head.n_action_steps,
        temporal_ensemble_coeff=head.temporal_ensemble_coeff,
    )
    kind, arguments = type(head).__name__, head.arguments
    facts = head.describe(weights, *input_and_output_names(spec, transform))
    return Bundle(
        spec,
        kind,
        arguments,
        dict(weights),
        transform.parts,
        dict(provenance) | facts,
        composition=algorithm.composition(algorithm.cfg),
    )


def input_and_output_names(spec: Spec, transform: Transform) -> tuple[list[str], list[str]]:
    """Return the names of the network's vector inputs and of the actions.

    A normalized input has the name `z(name)`.
    """
    inputs = [
        name
        for channel in spec.vectors
        for name in channel.names or (f"{channel.name}_{k + 1}" for k in range(channel.size))
    ]
    normalizer = transform.normalizer
    if not (isinstance(normalizer, Normalizer) and normalizer.is_identity):
        inputs = [f"z({name})" for name in inputs]
    actions = spec.action_names or [f"action_{k + 1}" for k in range(spec.action_dim)]
    return inputs, list(actions)
