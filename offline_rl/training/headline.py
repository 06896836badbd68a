"""The lines printed before training: algorithm, task, data, settings and notes."""

from __future__ import annotations

from offline_rl.algorithms.common.registry import card_preprocessing, table_of
from offline_rl.algorithms.common.schedule import ONLINE, Interact
from offline_rl.data import Dataset
from offline_rl.data.specs import note_on_normalized_actions
from offline_rl.replay.columns import reported
from offline_rl.runs.refusals import reads_costs
from offline_rl.runs.run import tuned_for
from offline_rl.training.continuation import load_transform_and_spec
from offline_rl.training.prepare import Prepared


def headline(prepared: Prepared) -> str:
    """Return algorithm, task, seeds, data, origin of the settings, and notes."""
    run, data, expert = prepared.run, prepared.dataset, prepared.expert
    rows = "no data" if data is None else f"{data.num_rows:,} rows of {data.path or data.name}"
    if expert is not None:
        rows += f", {expert.num_rows:,} rows of the expert"
    card = card_preprocessing(run.method.name, tuned_for(run.task.name, run.data.dataset))
    settings = f"; from the dataset card {', '.join(f'{k}={v:g}' for k, v in card.items())}"
    settings = settings if card else ""
    settings += f"; {settings_source(run.method.name, run.method.table_row)}"
    count = len({each.path for each in prepared.runs})
    per_setting = f" for each of {count} settings" if count > 1 else ""
    notes = "" if run.task.env_id else "\nno environment: training without evaluation"
    if run.fits_model_only:
        notes = "\nnum_updates=0: only the dynamics model is fitted"
    elif run.data.dynamics is not None:
        notes += f"\nthe dynamics model is loaded from {run.data.dynamics}"
    notes += too_few_steps_note(prepared) + warmup_note(prepared) + context_note(prepared)
    notes += "".join(f"\n{note}" for note in data.notes) if data is not None else ""
    notes += kept_note(prepared) + cost_notes(prepared)
    for dataset in (data, expert):
        notes += rows_left_out(prepared, dataset) if dataset is not None else ""
    composed = prepared.composed
    if composed is not None and composed.base.bundle is None:
        notes += (
            f"\nbase={composed.base.name} is code and cannot be stored in a bundle. The bundle "
            "will contain the residual policy only: pass base= also to evaluate and play"
        )
    seeds = list(dict.fromkeys(each.seed for each in prepared.runs))
    subject = f"{run.method.name} on {run.task.name}, seeds {seeds}{per_setting}"
    return f"{subject}: {rows}{settings}{notes}"


def settings_source(algorithm: str, pattern: str | None) -> str:
    """Return the origin of the settings in words: a row of the per-task table, or the defaults."""
    owner = table_of(algorithm)
    file = f"configs/algorithm/{owner}.yaml"
    if owner is None:
        return "default settings"
    if pattern is None:
        return f"default settings ({file} has no row for this task)"
    return f"settings of row {pattern} of {file}"


def kept_note(prepared: Prepared) -> str:
    """Return a note with the size of the data to train on; empty if it is the data of the run."""
    data, part = prepared.dataset, prepared.data
    if data is None or part is None or part.num_rows == data.num_rows:
        return ""
    if part.num_rows > data.num_rows:
        added = part.num_episodes - data.num_episodes
        return f"\nthe policy is trained on {data.num_episodes:,} episodes and {added:,} added ones"
    return (
        f"\nthe policy is trained on {part.num_episodes:,} of {data.num_episodes:,} episodes "
        f"({part.num_rows:,} of {data.num_rows:,} rows)"
    )


def cost_notes(prepared: Prepared) -> str:
    """Return notes on the cost limit and on costs from which little can be learned."""
    run, data = prepared.run, prepared.dataset
    limit, notes = getattr(run.method.cfg, "target_cost", None), list[str]()
    if limit is not None:
        limits = ", ".join(f"{each:g}" for each in run.task.cost_limits)
        published = f" (the task's limits: {limits})" if limits else ""
        notes.append(f"cost limit: {limit:g} per episode{published}")
    if data is not None and reads_costs(run.method.cls):
        costs = data.extras["costs"]
        if not costs.any():
            notes.append(
                "no step of the data has a cost: the policy is that of the unconstrained method"
            )
        elif costs.all():
            notes.append("every step of the data has a cost: safe behavior cannot be learned")
        if limit is not None and (lowest := data.episode_costs().min()) > limit:
            notes.append(
                f"no episode of the data is within the cost limit (lowest cost: {lowest:g}): the "
                "policy may exceed it"
            )
    return "".join(f"\n{note}" for note in notes)


def rows_left_out(prepared: Prepared, data: Dataset) -> str:
    """Return a note with the number of rows without a next observation; empty if there are none."""
    count, name = prepared.learner.unusable_rows(data), data.path or data.name
    note = ""
    if prepared.learner.dynamics_model is not None and (ends := int(data.lacks_next.sum())):
        note = (
            f"\n{name}: {ends:,} terminated rows have no next observation, and the dynamics model "
            "is not fitted to them"
        )
    if not count:
        return note
    scheduled = {piece.phase for piece in prepared.schedule}
    used = [name for name in prepared.learner.imitation_phases if name in scheduled]
    except_in = f" except in {' and '.join(used)}" if used else ""
    return (
        f"\n{name}: {count:,} of {data.num_rows:,} rows have no next observation and are left out"
        f"{except_in}{note}"
    )


def too_few_steps_note(prepared: Prepared) -> str:
    """Return a note if `num_env_steps` is too low for any update; empty otherwise."""
    run, learner = prepared.run, prepared.learner
    steps, online = run.budget.num_env_steps, run.method.interaction.online
    if not any(isinstance(piece, Interact) for piece in prepared.schedule):
        return ""
    batch, period = run.method.cfg.batch_size, learner.for_phase(ONLINE).period
    episode = run.task.max_episode_steps or 0
    columns = {*learner.extra_columns} - {"expert"}
    if steps < episode and columns != reported(columns).keys():
        return (
            f"\nnum_env_steps={steps} may end before learning starts: {run.method.name} "
            f"learns from complete episodes of up to {episode:,} steps. Raise num_env_steps"
        )
    if online.updates_due(steps, batch, period):
        return ""
    by_batch = online.warmup_steps < batch
    key, value = ("batch_size", batch) if by_batch else ("online.warmup_steps", online.warmup_steps)
    pace = f", then {online.utd:g} updates per step, {period} at a time" if steps > value else ""
    return (
        f"\nnum_env_steps={steps} ends before learning starts ({key}={value}{pace}). Raise "
        f"num_env_steps or lower {key}"
    )


def warmup_note(prepared: Prepared) -> str:
    """Return a note if training ends within the learning-rate warm-up; empty otherwise."""
    warmup: int = getattr(prepared.run.method.cfg, "num_warmup_updates", 0)
    num_updates = prepared.run.budget.num_updates
    if not 0 < num_updates < warmup:
        return ""
    return (
        f"\nnum_updates={num_updates} ends within the learning-rate warm-up "
        f"(algorithm.num_warmup_updates={warmup}): little will be learned"
    )


def range_note(prepared: Prepared) -> str | None:
    """Return a note if the loaded policy's normalized actions apply to another range here."""
    spec, run, composed = None, prepared.run, prepared.composed
    if run.start is not None:
        spec = load_transform_and_spec(run.start, run.seed)[1]
    elif composed is not None and composed.base.bundle is not None:
        spec = composed.base.bundle.spec
    if spec is None or prepared.actions is None:
        return None
    return note_on_normalized_actions(spec, prepared.actions, f"task {run.task.name}")


def context_note(prepared: Prepared) -> str:
    """Return a note if the context of a sequence model exceeds all episodes; empty otherwise."""
    context: int = getattr(prepared.run.method.cfg, "context_length", 0)
    longest = 0 if prepared.dataset is None else int(prepared.dataset.episode_lengths().max())
    if not 0 < longest < context:
        return ""
    return (
        f"\nalgorithm.context_length={context} exceeds the longest episode of the data ({longest} "
        "steps): the rest of a context is padding, which takes time and memory. Lower it"
    )
