"""Untrained policy for the desk arm. It moves the arm near its ready pose."""

from pathlib import Path

import numpy as np
import torch

from envs.suites.arm import Reach
from policies import Bundle, Channel, Normalizer, Spec
from policies.bundle import write
from policies.golden import seal
from policies.heads.deterministic import DeterministicActor


def write_desk_bundle(path: Path) -> Path:
    env = Reach(1)
    channel = Channel(
        "observation",
        env.observation_shape,
        units=env.observation_units,
        names=env.observation_names,
    )
    spec = Spec(
        (channel,),
        len(env.action_names),
        action_low=tuple(env.action_low.tolist()),
        action_high=tuple(env.action_high.tolist()),
        rate_hz=env.rate_hz,
        action_names=env.action_names,
        action_units=env.action_units,
    )
    torch.manual_seed(0)
    actor = DeterministicActor(spec.observation_dim, spec.action_dim, [32])
    weights = {name: 0.05 * value.numpy() for name, value in actor.state_dict().items()}
    ready = env.model.key("ready").qpos[: spec.action_dim]
    weights["trunk.biases.1"] = np.arctanh(env.action(ready)).astype(np.float32)
    same = Normalizer.identity(spec.observation_shape)
    write(path, seal(Bundle(spec, "DeterministicActor", actor.arguments, weights, same)))
    return path
