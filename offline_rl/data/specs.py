"""Specs of environments and data: merging them, and conversion of actions between their ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from envs import Task, VectorEnv
from offline_rl.data.dataset import Dataset
from offline_rl.data.read import REACHED
from offline_rl.utils.errors import UserError
from policies import Channel, Spec, channels
from policies.spec import VECTOR, Conversion


def spec_of(env: VectorEnv) -> Spec:
    """Return the spec of an environment. If it states no action range, the range is [-1, 1]."""
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


def stated_spec(env: VectorEnv) -> Spec:
    """Return the spec of an environment. If it states no action range, the range is empty."""
    spec = spec_of(env)
    return spec if env.action_low is not None else replace(spec, action_low=(), action_high=())


def action_conversion(policy: Spec, env: VectorEnv, what: str) -> Conversion | None:
    """Return the map from the policy's actions to actions of `env`; None if none is needed.

    what: name of the policy in error messages. Raises UserError if the ranges cannot be converted.
    """
    target = stated_spec(env)
    try:
        return policy.conversion(target)
    except ValueError:
        raise UserError(
            f"{what}: The policy's action range is {policy.action_range}; this task's is "
            f"{target.action_range}. Use a task with range {policy.action_range}, or retrain for "
            f"{target.action_range}"
        ) from None


def note_on_normalized_actions(spec: Spec | None, target: Spec, task: str) -> str | None:
    """Return a note if `spec` has normalized actions and `target` states a range, else None."""
    if (spec is not None and not spec.is_normalized) or target.is_normalized:
        return None
    return f"actions are normalized: -1 and 1 stand for the range of {task}, {target.action_range}"


def map_to_range(data: Dataset, target: Spec, task: str, *, option: str | None) -> Dataset:
    """Convert the actions of `data` to the action range of `target`, and add a note.

    target: spec of an environment, from `stated_spec`, or of other data.  task: name of `target`.
    option: `action_scale` or `action_range` if this option states the range of the data, else None.
    If data and target both state a range, their units are compared. If the data states no range, or
    [-1, 1], its actions are normalized: they are interpreted as fractions of the target's range,
    with a note. Raises UserError that names both ranges if they cannot be converted.
    """
    spec, where = data.spec, data.path or data.name
    if spec is None or spec.is_normalized:
        note = None if option else note_on_normalized_actions(spec, target, task)
        return data if note is None else replace(data, notes=(*data.notes, note))
    if spec.action_dim != target.action_dim or (option and target.is_normalized):
        return data  # different dimensions are refused later, when the specs are compared
    uses_extremes = REACHED in data.notes
    if uses_extremes and not target.action_low:
        raise UserError(
            f"{where}: the actions span {spec.action_range}, and the action range of {task} is not "
            "known in these units. Give it with action_range=[low,high], or use task=none"
        )
    try:
        convert = spec.conversion(target, data.actions)
    except ValueError as error:
        raise UserError(
            f"{where}: {error} ({task}). Set action_range=[low,high] to the values in your data "
            "that match the task's lowest and highest action, or convert the data to the task's "
            "units"
        ) from None
    if convert is None:
        return data
    if option is not None:
        ranges = [f"{s.action_range}" for s in (spec, target)]
        data_option, task_option = (f"action_range={r.replace(' ', '')}" for r in ranges)
        if option == "action_scale":
            data_option = f"action_scale={spec.action_high[0]:g}"
        raise UserError(
            f"{data_option} sets the range {ranges[0]}; the range of {task} is {ranges[1]}. If the "
            f"data is in the task's units, use {task_option}. Otherwise run `offline-rl data "
            f"convert {where} <new file> {data_option}` first"
        )
    notes = [note for note in data.notes if note != REACHED]
    notes.append(f"actions of {spec.action_range} are converted to {target.action_range} of {task}")
    spec = replace(spec, action_low=target.action_low, action_high=target.action_high)
    return replace(data, actions=convert(data.actions), spec=spec, notes=tuple(notes))


def merge_specs(
    task: Task, env_spec: Spec | None, dataset: Dataset | None, expert: Dataset | None = None
) -> Spec:
    """Return the policy's spec, merged from data and environment. The environment has priority.

    Raises UserError if data and environment contradict each other.
    """
    specs = list[tuple[str, Spec]]()
    for data in (dataset, expert):
        if data is not None:
            specs.append((f"{data.path or data.name}", data_spec(data)))
    if env_spec is not None:
        specs.append((f"task {task.name}", env_spec))
    first, spec = specs[0]
    if spec.single_vector is not None and len(spec.observation_shape) != 1:
        raise UserError(
            f"{first} has observations {describe_shape(spec)} and {spec.action_dim} actions, but "
            "observations must be vectors of at least one number, or named channels. Choose arrays "
            "with observation_keys=, or flatten them."
        )
    for name, other in specs[1:]:
        if (spec.observation_shapes, spec.action_dim) != (
            other.observation_shapes,
            other.action_dim,
        ):
            raise UserError(
                f"{first} has observations {describe_shape(spec)} and {spec.action_dim} actions, "
                f"{name} has {describe_shape(other)} and {other.action_dim}: "
                f"{mismatch_remedy(spec, other, name, task)}{unobserved_arrays(dataset, expert)}"
            )
        if not spec.has_same_rate(other):
            raise UserError(
                f"{first} has {spec.rate_hz:g} actions a second, {name} has {other.rate_hz:g}. A "
                "policy trained at one rate does not work at the other. Use data with the same "
                "rate, or task=none to train without evaluation."
            )
        if (problem := spec.contradiction(other)) is not None:
            field, first_values, values = problem
            raise UserError(
                f"{first} has {field} {list(first_values)}, {name} has {list(values)}. Convert the "
                "data to the same units and order, or use task=none to train without evaluation."
            )
        spec = other.filled_from(spec)
    return spec


def unobserved_arrays(*datasets: Dataset | None) -> str:
    """Return a clause about the files' unused observation arrays; empty if there are none."""
    notes = [note for data in datasets if data is not None for note in data.notes]
    unused = [note for note in notes if note.startswith("not observed: ")]
    return f"; {unused[0]}, which observation_keys= would add" if unused else ""


def data_spec(data: Dataset) -> Spec:
    """Return the spec of a dataset. Raises UserError if an observation or action is empty."""
    obs, act = channels.shapes(data.observations), data.actions.shape[1]
    if not act or not all(shape and min(shape) for shape in channels.parts(obs)):
        raise UserError(
            f"{data.path or data.name} has observations {channels.map_channels(list, obs)} and "
            f"{act} actions, but both must be vectors of at least one number. Choose arrays with "
            "observation_keys=, or flatten them."
        )
    return data.spec or Spec(obs, act)


def mismatch_remedy(one: Spec, other: Spec, name: str, task: Task) -> str:
    """Return the remedy if the spec `other`, called `name`, has other observations than `one`."""
    for channel in (
        other.channels if one.single_vector is None and other.single_vector is None else ()
    ):
        match = next((c for c in one.channels if c.name == channel.name), None)
        if match is None:
            names = ", ".join(c.name for c in one.channels)
            return f"the data has {names}, but not {channel.name}. Choose or rename its arrays"
        if channel.kind == "image" and match.shape != channel.shape:
            height, width, colors = channel.shape
            return f"resize {channel.name} of the data to {height} x {width} x {colors}"
    vector, parts = (one, other) if one.single_vector is not None else (other, one)
    vectors_alone = parts.single_vector is None and parts.vectors == parts.channels
    if vector.single_vector is not None and vectors_alone and one.action_dim == other.action_dim:
        keys = [channel.name for channel in parts.channels]
        if sum(prod(channel.shape) for channel in parts.channels) == prod(
            vector.single_vector.shape
        ):
            listed = " and ".join(keys)
            if parts is not other:
                return f"store {listed} of the data as one array, observations"
            if name == f"task {task.name}" and (task.env_id or "").startswith("env:"):
                return (
                    f"set observation_keys=[{','.join(keys)}] if the data's vector holds {listed} "
                    "in this order"
                )
            stored = " and ".join(f"observations/{key}" for key in keys)
            return f"store the data's observations as {stored}"
    return "is the data of another task? Use that task, or task=none to train without evaluation"


def describe_shape(spec: Spec) -> str:
    """Return the observation shape of `spec` as text."""
    if spec.single_vector is not None:
        return str(list(spec.single_vector.shape))
    return ", ".join(f"{channel.name} {list(channel.shape)}" for channel in spec.channels)
