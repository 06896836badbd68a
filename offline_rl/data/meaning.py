"""What an environment says of its numbers, as a policy's specification."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from envs import VectorEnv
from policies import Channel, Spec
from policies.spec import VECTOR


def spec_of(env: VectorEnv) -> Spec:
    """Shapes, names, units, rate; its actions are in [-1, 1] where it does not say otherwise."""
    ones = np.ones(env.action_dim)
    low = -ones if env.action_low is None else env.action_low
    high = ones if env.action_high is None else env.action_high
    shape: Any = env.observation_shape
    if not isinstance(shape, Mapping):
        names, units = tuple(env.observation_names), tuple(env.observation_units)
        shape = (Channel(VECTOR, tuple(shape), units=units, names=names),)
    return Spec(
        shape,
        env.action_dim,
        action_low=tuple(map(float, low)),
        action_high=tuple(map(float, high)),
        rate_hz=env.rate_hz,
        action_names=tuple(env.action_names),
        action_units=tuple(env.action_units),
        action_offset=env.action_offset,
    )
