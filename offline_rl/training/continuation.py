"""Continuation of another run: load its transform, checkpoints or dynamics model, if they fit.

A checkpoint of another algorithm may be loaded if its networks are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from offline_rl.algorithms.common.base import Algorithm
from offline_rl.algorithms.common.registry import rebuild_algorithm
from offline_rl.data.transform import Transform
from offline_rl.engine.engine import Engine
from offline_rl.runs.folder import learner_tensors
from offline_rl.runs.models import StoredModel
from offline_rl.runs.start import Start, network_settings
from offline_rl.training.prepare import Prepared
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import format_value
from offline_rl.utils.trees import to_json_values
from policies import Spec, channels
from policies.networks.mlp import MLP

OTHER_NETWORKS = (
    "Its networks are of another kind. Use a run of an algorithm with the same networks"
)


def check_start(prepared: Prepared, start: Start) -> None:
    """Raise UserError if the run to continue from does not fit the data or the task."""
    load_transform(start, [prepared.run.seed], prepared.spec, prepared.actions)


def load_transform(
    start: Start, seeds: Sequence[int], spec: Spec, actions: Spec | None = None
) -> Transform:
    """Return the transform of the run to continue from. Raises UserError if `spec` does not fit.

    actions: spec with the action range of the environment, if it states one. Default: `spec`.
    """
    transform, start_spec = load_transform_and_spec(start, seeds[0])
    if not fits(transform, spec):
        shapes = channels.map_channels(lambda part: list(part.mean.shape), transform.parts)
        raise UserError(
            f"{start.run} was trained on observations {shapes}, but the task has "
            f"{channels.map_channels(list, spec.observation_shapes)}. Use the task or data of the "
            "run."
        )
    learned, current = start_spec, actions or spec
    if (problem := learned.mismatch(spec)) is not None:
        raise UserError(
            f"{start.run} cannot continue with this data or task: {problem}. Use data and a task "
            "like those of the run."
        )
    try:
        is_same_range = learned.conversion(current) is None
    except ValueError:
        is_same_range = False
    if not is_same_range:
        raise UserError(
            f"{start.run} cannot continue with this data or task: the policy's action range is "
            f"{learned.action_range}; here it is {current.action_range}. Use a task with range "
            f"{learned.action_range}, or retrain for {current.action_range}."
        )
    return transform


def load_transform_and_spec(start: Start, seed: int) -> tuple[Transform, Spec]:
    """Return the transform and the policy's spec of a seed to continue from."""
    _, progress = start.folder(seed).load(start.checkpoints[seed][0])
    return Transform.from_json(progress["transform"]), Spec.from_json(progress["spec"])


def fits(transform: Transform, spec: Spec) -> bool:
    """Return True if the transform normalizes observations of the shape in `spec`."""
    shape = channels.map_channels(lambda part: part.mean.shape, transform.parts)
    return shape == (
        spec.observation_shapes if spec.single_vector else {c.name: c.shape for c in spec.vectors}
    )


def load_start(engine: Engine, start: Start) -> None:
    """Load every seed's checkpoint of the run to continue from.

    Raises UserError naming the difference if the networks do not fit.
    """
    for s, seed in enumerate(engine.seeds):
        path = start.folder(seed).checkpoints()[start.checkpoints[seed][0]]
        tensors, _ = start.folder(seed).load(start.checkpoints[seed][0])
        tensors = learner_tensors(tensors)
        try:
            state = engine.seed_state(s)
            if state.keys() != tensors.keys():
                tensors = engine.algorithm.initialize_from(state, tensors)
            engine.load_seed_state(s, tensors)
        except ValueError as error:
            settings, cfg = (
                network_settings(type(engine.algorithm.cfg), start.hyper),
                engine.algorithm.cfg,
            )
            differing = {k: v for k, v in settings.items() if to_json_values(getattr(cfg, k)) != v}
            keys = " ".join(f"algorithm.{k}={format_value(v)}" for k, v in differing.items())
            remedy = f"Set {keys}, as in that run" if keys else OTHER_NETWORKS
            raise UserError(f"cannot continue from {path}: {error}. {remedy}.") from None
    if (difference := network_difference(engine.algorithm, start)) is not None:
        raise UserError(f"cannot continue from run={start.run}: {difference}")


def load_dynamics(engine: Engine, models: Mapping[int, StoredModel]) -> None:
    """Load the dynamics model of each seed. Raises UserError if it does not fit."""
    for s, seed in enumerate(engine.seeds):
        engine.load_seed_state(s, models[seed].into(engine.seed_state(s)))


def network_difference(algorithm: Algorithm, start: Start) -> str | None:
    """Return a difference between networks whose tensor shapes are equal; None if there is none.

    For example, the activations may differ. Bounds of the standard deviation may differ and are not
    compared. Policies that predict action chunks are not compared either.
    """
    head = algorithm.acting_head()
    if head.n_obs_steps * head.chunk_size > 1 or head.noise_shape:
        return None
    learned = rebuild_algorithm(start.algorithm, start.hyper, algorithm.spec)
    for name, module in algorithm.modules.items():
        start_module = learned.modules.get(name)
        if start_module is None:
            continue
        new, old = module_description(module), module_description(start_module)
        for key in sorted(new.keys() | old.keys()):
            if new.get(key) != old.get(key):
                return f"its {name} has {key}={old.get(key)}, but here it is {new.get(key)}"
    return None


def module_description(module: nn.Module) -> dict[str, Any]:
    """Return the class name and arguments of a network, without its tensors."""
    arguments = {k: to_json_values(v) for k, v in getattr(module, "arguments", {}).items()}
    arguments.pop("log_std_range", None)
    for layers in module.modules():
        if isinstance(layers, MLP):
            arguments["activation"] = layers.activation
            arguments["norm_after_activation"] = layers.norm_after_activation
    return {"kind": type(module).__name__} | arguments
