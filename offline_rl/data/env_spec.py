"""The `Spec` of an environment, and the conversion of actions to its action range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from envs import VectorEnv
from offline_rl.data.dataset import Dataset
from offline_rl.data.read import REACHED
from offline_rl.utils.errors import UserError
from policies import Channel, Spec
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
