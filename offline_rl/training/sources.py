"""Data sources of a run: the dataset, online experience, rollouts and rows made by models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from offline_rl.algorithms.common.base import Algorithm
from offline_rl.algorithms.common.models.facts import Facts
from offline_rl.algorithms.common.safety.guardian import fit_guardian
from offline_rl.algorithms.common.schedule import ONLINE, Collect, Fill, Learn
from offline_rl.data import Dataset
from offline_rl.data.containers.video import VideoFrames
from offline_rl.data.transform import Transform
from offline_rl.replay.batch import Source, Sources
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.replay.chunks import Chunks, Histories
from offline_rl.replay.columns import shapes
from offline_rl.replay.mixtures import WithExpert
from offline_rl.replay.paging import PagedBuffer
from offline_rl.replay.ring import Ring
from offline_rl.replay.rollouts import Rollouts
from offline_rl.replay.streaming import Rotation, Stream
from offline_rl.training.prepare import Prepared
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.random import Random, SlicedRandom
from policies import channels
from policies.normalizer import Normalizer

T = TypeVar("T", ReplayBuffer, Ring)


def sources_of(
    prepared: Prepared, transform: Transform, seeds: Sequence[int], device: torch.device
) -> Sources:
    """Return the sources of a run by name: its dataset, and buffers for what it collects."""
    learner, data, expert = prepared.learner, prepared.data, prepared.expert
    sources = dict[str, Source]()

    def source(data: Dataset) -> Source:
        if must_stream(prepared, data, device):
            if has_videos(data):
                return paged_source(prepared, transform.apply(data), seeds, device)
            if not learner.can_stream(prepared.run.method.cfg):
                return rotating_source(learner, data, transform, device)
            return stream_source(learner, data, transform, seeds, device)
        of_expert = None if expert is None else transform.apply(expert)
        return offline_source(learner, transform.apply(data), of_expert, device=device)

    if data is not None:
        sources["offline"] = source(data)
        imitates = {piece.phase for piece in prepared.schedule} & {*learner.imitation_phases}
        if imitates and learner.unusable_rows(data):
            sources["every_row"] = source(with_every_row(data))
    collects = [piece for piece in prepared.schedule if isinstance(piece, Collect)]
    steps = prepared.run.budget.num_env_steps
    if collects:
        steps = sum(piece.size for piece in collects if piece.adds)
        sources["rollouts"] = rollouts(learner, seeds, device)
    if steps:
        composed = prepared.composed
        rows = steps if composed is None else steps // composed.steps_per_decision
        sources["online"] = experience(ReplayBuffer, learner, rows, seeds, device)
    filled = {piece.target for piece in prepared.schedule if isinstance(piece, Fill)}
    for name, capacity in learner.rings().items():
        if name in filled:
            sources[name] = experience(Ring, learner, capacity, seeds, device)
    allocate_images(prepared, sources)
    return sources


def facts_of(prepared: Prepared, transform: Transform) -> Facts:
    """Return ends, reward and observation range, in the units of training. Raises UserError."""
    run, data = prepared.run, prepared.data
    outcomes, rule, cfg = run.task.outcomes, run.method.cfg.ends, run.method.cfg
    ends = {} if outcomes is None else dict(outcomes.ends)
    if outcomes is not None and (known := outcomes.end_rule(rule)) in ends:
        ends[rule] = ends[known]
    where = "It is known for built-in tasks, and for those of envs.register(…, outcomes=…)"
    if rule != "never" and rule not in ends:
        raise UserError(
            f"algorithm.ends={rule}: it is not known when episodes of task={run.task.name} "
            f"end. {where}. Use algorithm.ends=never if no episode terminates."
        )
    if cfg.rewards == "task" and (outcomes is None or outcomes.reward is None):
        raise UserError(
            f"algorithm.rewards=task: the reward of task={run.task.name} does not follow "
            f"from observations and actions, or is not known. {where}. Use algorithm.rewards=model."
        )
    normalizer = transform.normalizer
    assert isinstance(normalizer, Normalizer)
    low = high = np.zeros(0)
    guardian = None
    if cfg.guardian != "none" and data is not None:
        rows, quantile = cfg.guardian_rows, cfg.guardian_quantile
        guardian = fit_guardian(data, cfg.guardian, rows, quantile)
    if data is not None:
        rows = normalizer(data.observations)  # states that end an episode are part of the range
        low, high = rows.min(0), rows.max(0)
    return Facts(
        center=normalizer.mean.tolist(),
        width=normalizer.scale.tolist(),
        reward_scale=transform.reward_scale,
        reward_shift=transform.reward_shift,
        low=low.tolist(),
        high=high.tolist(),
        ends=ends,
        reward=None if outcomes is None else outcomes.reward,
        guardian=guardian,
        ood_penalty=cfg.ood_penalty * transform.reward_scale,
    )


def rollouts(learner: Algorithm, seeds: Sequence[int], device: torch.device) -> Rollouts:
    """Return empty rollouts for every seed, with space for one on-policy iteration."""
    online: Any = learner.for_phase(ONLINE)
    cfg, (columns, carried) = online.cfg, online.columns()
    size = cfg.decisions // cfg.environments, cfg.environments
    options: Any = {"steps": cfg.tuned, "carried": carried, "device": device}
    return Rollouts(len(seeds), size, columns, **options)


def experience(
    kind: type[T], learner: Algorithm, rows: int, seeds: Sequence[int], device: torch.device
) -> T:
    """Return an empty buffer or ring with space for `rows` rows of every seed."""
    spec = learner.spec
    return kind(
        spec.observation_shapes,
        spec.action_dim,
        rows,
        streams=len(seeds),
        columns=shapes(learner.extra_columns, spec.action_dim),
        device=device,
    )


def offline_source(
    learner: Algorithm,
    data: Dataset,
    expert: Dataset | None = None,
    *,
    device: torch.device | str = "cpu",
) -> ReplayBuffer | WithExpert:
    """Return the source of offline batches. data, expert: already transformed."""
    data = rows_for(learner, data)
    columns = learner.make_columns(data)
    buffer = ReplayBuffer.from_dataset(data, columns=columns, device=device)
    if expert is None:
        return buffer
    return WithExpert(buffer, ReplayBuffer.from_dataset(expert, device=device))


def rows_for(learner: Algorithm, data: Dataset) -> Dataset:
    """Return the data, with every row usable if the algorithm reads no next observations."""
    return with_every_row(data) if not learner.unusable_rows(data) else data


def with_every_row(data: Dataset) -> Dataset:
    """Return the data with every row usable, for imitation.

    A missing next observation is replaced by the observation of the same row. Imitation does not
    read it.
    """
    if data.usable.all():
        return data
    rows = np.arange(data.num_rows)
    return replace(data, next_index=np.where(data.usable, data.next_index, rows))


def must_stream(prepared: Prepared, data: Dataset, device: torch.device) -> bool:
    """Return True if the data must be streamed from its file.

    Videos that were not decoded with the file are streamed, unless `stream` is never, or the
    algorithm cannot stream and the images fit. Raises UserError if the data must be streamed, but
    the algorithm cannot stream.
    """
    run, needed = prepared.run, ReplayBuffer.bytes_for(data)
    free, stream = hardware.free_memory(device), run.compute.stream
    fits = needed < 0.8 * free
    reasons = {
        "uses expert_dataset": prepared.expert is not None,
        "learns online": bool(run.budget.num_env_steps),
        "fits a dynamics model": prepared.learner.dynamics_model is not None,
    }
    preferred = has_videos(data) and not any(reasons.values())
    if stream == "never" or (stream == "auto" and fits and not preferred):
        if not fits:
            rows = int(data.num_rows * 0.8 * free / needed)
            raise UserError(
                f"stream=never: {data.num_rows:,} rows need {needed / 2**30:.1f} GiB on {device}, "
                f"which has {free / 2**30:.1f} GiB free. About {rows:,} rows would fit. Use "
                "stream=auto or fewer episodes=."
            )
        return False
    for reason, holds in reasons.items():
        if holds:
            raise UserError(
                f"{run.method.name} {reason}, which does not work with streaming. The data "
                f"needs {needed / 2**30:.1f} GiB on {device}, and {free / 2**30:.1f} GiB are free. "
                "Use fewer episodes=, or stream=auto if the data fits."
            )
    return True


def has_videos(data: Dataset) -> bool:
    """Return True if images of the data are in videos and are decoded when they are used."""
    return any(isinstance(x, VideoFrames) for x in channels.parts(data.observations))


def paged_source(
    prepared: Prepared, data: Dataset, seeds: Sequence[int], device: torch.device
) -> PagedBuffer:
    """Return a source that decodes the images of videos. data: already transformed."""
    learner, size = prepared.learner, hardware.world_size()
    random: Callable[[Tensor, Tensor], Random] = Random
    if size > 1:  # this process trains on a slice of each batch
        random = partial(SlicedRandom, rank=hardware.rank(), world_size=size)
    data = rows_for(learner, data)
    phases = {piece.phase for piece in prepared.schedule}
    return PagedBuffer(
        data,
        seeds,
        learner.cfg.batch_size // size,
        columns=learner.make_columns(data),
        reads_next=not phases <= {*learner.imitation_phases},
        period=learner.period,
        device=device,
        make_random=random,
    )


def allocate_images(prepared: Prepared, sources: Mapping[str, Source]) -> None:
    """Allocate space in the sources that decode images of videos.

    Raises UserError if the algorithm does not sample directly from one of them.
    """
    learner = prepared.learner
    paged = [source for source in sources.values() if isinstance(source, PagedBuffer)]
    phases = {piece.phase for piece in prepared.schedule if isinstance(piece, Learn)}
    views = [learner.for_phase(phase).source(phase, sources) for phase in phases if paged]
    for view in views:
        base = view.buffer if isinstance(view, Chunks | Histories) else view
        if not isinstance(base, PagedBuffer):
            raise UserError(
                f"{prepared.run.method.name} combines the data with other rows, which does not "
                "work while images of videos are decoded during training. Use stream=never."
            )
    for source in paged:
        source.allocate([v for v in views if source in (v, getattr(v, "buffer", None))])


def stream_source(
    learner: Algorithm,
    data: Dataset,
    transform: Transform,
    seeds: Sequence[int],
    device: torch.device,
) -> Stream:
    """Return a source that reads batches from the data file."""
    raw = rows_for(learner, transform.apply_without_observations(data))
    return Stream(
        raw,
        seeds,
        learner.cfg.batch_size,
        normalize=transform.normalizer,
        columns=learner.make_columns(raw),
        period=learner.period,
        device=device,
    )


def rotating_source(
    learner: Algorithm, data: Dataset, transform: Transform, device: torch.device
) -> Rotation:
    """Return a source with one part of the data on the device at a time."""

    def prepare(part: Dataset) -> tuple[Dataset, dict[str, np.ndarray]]:
        part = rows_for(learner, transform.apply(part))
        return part, learner.make_columns(part)

    return Rotation(data, prepare=prepare, device=device)
