"""Data sources of a run: the dataset, online experience and rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from offline_rl.algorithms.common.base import Algorithm
from offline_rl.algorithms.common.schedule import Collect
from offline_rl.data import Dataset
from offline_rl.data.transform import Transform
from offline_rl.replay.batch import Sources
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.columns import columns, shapes
from offline_rl.replay.mixtures import WithExpert
from offline_rl.replay.rollouts import Rollouts
from offline_rl.replay.streaming import Stream
from offline_rl.training.plan import Plan
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError


def sources_of(
    plan: Plan,
    data: Dataset | None,
    transform: Transform,
    seeds: Sequence[int],
    device: torch.device,
) -> Sources:
    """Return the sources of a run: its dataset, if any, and buffers for online experience, if any.

    data: the dataset before the transform.
    """
    offline: ReplayBuffer | WithExpert | Stream | None = None
    every_row: ReplayBuffer | WithExpert | Stream | None = None

    def source(data: Dataset) -> ReplayBuffer | WithExpert | Stream:
        if must_stream(plan, data, device):
            return stream_source(plan, data, transform, seeds, device)
        learned, expert = transform.apply(data), plan.expert and transform.apply(plan.expert)
        return offline_source(plan.algorithm, plan.cfg, learned, expert, device=device)

    if data is not None:
        offline = source(data)
        imitates = {piece.phase for piece in plan.schedule} & {*plan.algorithm.imitation_phases}
        if imitates and plan.algorithm.unusable_rows(data):
            every_row = source(with_every_row(data))
    collects = [piece for piece in plan.schedule if isinstance(piece, Collect)]
    steps = plan.options.num_env_steps
    if collects:
        steps = sum(piece.size for piece in collects if piece.adds)
    online = experience(plan, steps, seeds, device) if steps else None
    decisions = rollouts(plan, seeds, device) if collects else None
    return Sources(offline, online, decisions, every_row)


def rollouts(plan: Plan, seeds: Sequence[int], device: torch.device) -> Rollouts:
    """Return empty rollouts for every seed, with space for one on-policy iteration."""
    cfg = plan.interaction.cfg
    learner: Any = plan.algorithm(plan.spec, cfg, interaction=plan.interaction)
    size = cfg.decisions // cfg.environments, cfg.environments
    columns, carried = learner.columns()
    options: Any = {"steps": cfg.tuned, "carried": carried, "device": device}
    return Rollouts(len(seeds), size, columns, **options)


def experience(plan: Plan, steps: int, seeds: Sequence[int], device: torch.device) -> ReplayBuffer:
    """Return an empty buffer with space for `steps` environment steps of every seed."""
    actions = plan.spec.action_dim
    return ReplayBuffer(
        plan.spec.observation_shapes,
        actions,
        steps,
        streams=len(seeds),
        columns=shapes(plan.algorithm.extra_columns, actions),
        device=device,
    )


def offline_source(
    algorithm: type[Algorithm],
    cfg: Any,
    data: Dataset,
    expert: Dataset | None = None,
    *,
    device: torch.device | str = "cpu",
) -> ReplayBuffer | WithExpert:
    """Return the source of offline batches. data, expert: already transformed."""
    data = rows_for(algorithm, data)
    extra = further_columns(algorithm, cfg, data)
    buffer = ReplayBuffer.from_dataset(data, columns=extra, device=device)
    if expert is None:
        return buffer
    return WithExpert(buffer, ReplayBuffer.from_dataset(expert, device=device))


def rows_for(algorithm: type[Algorithm], data: Dataset) -> Dataset:
    """Return the data, with every row usable if the algorithm reads no next observations."""
    return with_every_row(data) if not algorithm.unusable_rows(data) else data


def with_every_row(data: Dataset) -> Dataset:
    """Return the data with every row usable, for imitation.

    A missing next observation is replaced by the observation of the same row. Imitation does not
    read it.
    """
    if data.usable.all():
        return data
    rows = np.arange(data.num_rows)
    return replace(data, next_index=np.where(data.usable, data.next_index, rows))


def must_stream(plan: Plan, data: Dataset, device: torch.device) -> bool:
    """Return True if the data must be streamed from its file.

    Raises UserError if it must, but the algorithm cannot stream.
    """
    needed = ReplayBuffer.bytes_for(data)
    free, stream = hardware.free_memory(device), plan.options.stream
    fits = needed < 0.8 * free
    if stream == "never" or (stream == "auto" and fits):
        if not fits:
            rows = int(data.num_rows * 0.8 * free / needed)
            raise UserError(
                f"stream=never: {data.num_rows:,} rows need {needed / 2**30:.1f} GiB on {device}, "
                f"which has {free / 2**30:.1f} GiB free. About {rows:,} rows would fit. Use "
                "stream=auto or fewer episodes=."
            )
        return False
    for reason, holds in {
        "learns from sequences of several steps": not plan.algorithm.can_stream(plan.cfg),
        "uses expert_dataset": plan.expert is not None,
        "learns online": bool(plan.options.num_env_steps),
    }.items():
        if holds:
            raise UserError(
                f"{plan.options.algorithm} {reason}, which does not work with streaming. The data "
                f"needs {needed / 2**30:.1f} GiB on {device}, and {free / 2**30:.1f} GiB are free. "
                "Use fewer episodes=, or stream=auto if the data fits."
            )
    return True


def stream_source(
    plan: Plan, data: Dataset, transform: Transform, seeds: Sequence[int], device: torch.device
) -> Stream:
    """Return a source that reads batches from the data file."""
    raw = rows_for(plan.algorithm, transform.apply_without_observations(data))
    return Stream(
        raw,
        seeds,
        plan.cfg.batch_size,
        normalize=transform.normalizer,
        columns=further_columns(plan.algorithm, plan.cfg, raw),
        period=plan.algorithm(plan.spec, plan.cfg).period,
        device=device,
    )


def further_columns(algorithm: type[Algorithm], cfg: Any, data: Dataset) -> dict[str, np.ndarray]:
    """Return the batch columns that `algorithm` needs in addition to the standard five."""
    return columns(algorithm.extra_columns, data, partial(algorithm.mc_returns, cfg))
