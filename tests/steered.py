"""A small flow-like base policy whose actions are its initial noise, for tests of steering."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from policies import Bundle, Normalizer, Spec, bundle
from policies.golden import seal
from policies.heads.diffusion import DiffusionActor
from policies.heads.schedules import DenoisingStep

OBS, HORIZON, STEPS = 2, 4, 3  # of one action; two observations, so a chunk has three actions
ECHO = [DenoisingStep(0, 1, 0, 0, 1, 0, 0, 0)]  # x stays as it is
# x moves by a tenth of the network's output, then by fresh noise
NOISY = [DenoisingStep(0, 1, 0, 0, 1, 0.1, 0, 0.2), DenoisingStep(1, 1, 0, 0, 1, 0.1, 0, 0)]


def base_bundle(table: Any = ECHO, observations: int = OBS, **spec: Any) -> Bundle:
    """Return the bundle of a base policy with this sampler table."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_obs_steps": 2, "horizon": HORIZON, "n_action_steps": STEPS}
    options = {"hidden": [8], "time_size": 4}
    head = DiffusionActor(observations, 1, network="mlp", options=options, table=table, **sizes)
    weights = {name: value.numpy() for name, value in head.state_dict().items()}
    about = Spec((observations,), 1, n_obs_steps=2, chunk_size=STEPS, n_action_steps=STEPS, **spec)
    identity = Normalizer.identity((observations,))
    return seal(Bundle(about, "DiffusionActor", head.arguments, weights, identity))


def write_base(path: Path, table: Any = ECHO, **spec: Any) -> str:
    """Write the bundle of `base_bundle` and return its path."""
    bundle.write(path, base_bundle(table, **spec))
    return str(path)


def steering_bundle(base: Bundle | None, noise_scale: float = 1.5, **changes: Any) -> Bundle:
    """Return the bundle of an MLP that chooses the initial noise of `base`; no golden output."""
    draw = np.random.default_rng(1)
    weights = {
        "trunk.weights.0": draw.normal(size=(OBS, HORIZON)).astype(np.float32),
        "trunk.biases.0": draw.normal(size=HORIZON).astype(np.float32),
    }
    arguments = {"observations": OBS, "actions": HORIZON, "hidden": []}
    parts: dict[str, Any] = {"composition": bundle.Composition("noise", noise_scale), "base": base}
    normalizer, spec = Normalizer.identity((OBS,)), Spec((OBS,), HORIZON)
    return Bundle(spec, "DeterministicActor", arguments, weights, normalizer, **(parts | changes))
