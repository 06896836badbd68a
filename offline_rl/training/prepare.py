"""Preparation of runs that train together.

The stages read the data, merge the specs, complete the settings from the data, and build the
learner. A run that cannot be trained is refused here. `train` compares it with earlier runs in its
folder afterward, still before it writes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

import envs
from envs import Task
from envs.adapters import LoopVectorEnv
from envs.tasks import NATIVE
from offline_rl.algorithms.common.base import Algorithm
from offline_rl.algorithms.common.safety.guardian import guarded
from offline_rl.algorithms.common.schedule import ONLINE, Piece
from offline_rl.data import Dataset, load
from offline_rl.data.formats.common import NoArraysToChoose, ReadOptions
from offline_rl.data.specs import map_to_range, merge_specs, spec_of, stated_spec
from offline_rl.data.transform import center_of, mean_and_std, range_of_returns
from offline_rl.data.validation import columns_of, find_warnings
from offline_rl.evaluation.rollout import evaluation_seeds
from offline_rl.online.composed import (
    Base,
    BaseFault,
    Composed,
    base_of,
    label_dataset,
    steerable_base,
)
from offline_rl.runs import refusals
from offline_rl.runs.models import StoredModel, load_models
from offline_rl.runs.refusals import refuse
from offline_rl.runs.run import IN_MEMORY, Run
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError, close_quietly
from policies import Spec
from policies.channels import BASE_ACTION
from policies.heads.best_of_n import BestOfN

Reader = Callable[[str | Task, Run], Dataset]


@dataclass(frozen=True)
class Prepared:
    """Runs that train in one program, with their data, specification and learner."""

    runs: list[Run]  # with completed hyper-parameters and checksums
    dataset: Dataset | None  # as read from the file
    data: Dataset | None  # the part to train on; with the base's actions, if there is a base
    expert: Dataset | None  # the data of expert_dataset=
    spec: Spec
    learner: Algorithm  # of the first run
    schedule: list[Piece]
    eval_seeds: np.ndarray  # seeds of the evaluation episodes
    composed: Composed | None = None  # frozen base policy, and how the learner acts on it
    base: Base | None = None  # frozen base policy that is part of the learner's networks
    actions: Spec | None = None  # the environment's spec; without action range if it states none
    models: Mapping[int, StoredModel] = field(default_factory=dict)  # of dynamics=, by seed
    limit: str | None = None  # why an online run can open only one environment; None: no limit

    @property
    def run(self) -> Run:
        """The first run. The others differ only in their seed and in stackable numbers."""
        return self.runs[0]

    @cached_property
    def trains_in_parallel(self) -> bool:
        """True if the seeds train faster together than one after another."""
        device = hardware.select_device(self.run.compute.device).type
        shares_batches = hardware.world_size() > 1  # with the other processes of torchrun
        is_alone = self.limit is None and not self.run.compute.actors and not shares_batches
        return is_alone and self.learner.prefers_stacked_seeds(device)

    def make_envs(self, count: int, threads: int = 1, *, fewer: bool = False) -> envs.VectorEnv:
        """Return `count` environments. The base policy, if any, is a part of them.

        fewer: if the environment does not allow `count` instances, return as many as it allows.
        """
        why = one_env_option(self.run)
        try:
            env = envs.make_vector(
                self.run.task, count, num_threads=threads, fewer=fewer, single=why
            )
        except envs.Broken as error:
            raise UserError(str(error)) from error
        return env if self.composed is None else self.composed.wrap(env)


def prepare(runs: Sequence[Run], read: Reader | None = None) -> Prepared:
    """Prepare runs that train in one program. Raises UserError.

    read: function that reads a dataset; by default `read_data`.
    """
    read, run = read or read_data, runs[0]
    for each in runs:
        refuse(refusals.wrong_start(each))
    with ExitStack() as opened:
        env = open_trial_envs(run, opened)
        episodes, selection = run.evaluation.eval_episodes, run.evaluation.selection
        eval_seeds = evaluation_seeds(run.task, episodes, "eval_episodes", selection=selection)
        hardware.select_device(run.compute.device)
        composed = compose(run, env)
        stated, env_spec = (None, None) if env is None else (stated_spec(env), spec_of(env))
        limit = env.limit if env is not None and run.budget.num_env_steps else None

        # read the data
        observes_parts = env.observes_dict if isinstance(env, LoopVectorEnv) else env is None
        dataset = expert = None
        if run.reads_data:
            dataset = read_for(run, run.data.dataset or run.task, read, observes_parts, stated)
            dataset = first_episodes(dataset, run.data.episodes)
            if run.data.expert_dataset is not None:
                source = run.data.expert_dataset
                expert = read_for(run, source, read, observes_parts, stated, "expert_dataset")
                if env is None and dataset.spec is not None:
                    name = dataset.path or dataset.name
                    expert = map_to_range(expert, dataset.spec, name, option=None)

        # merge the specs
        spec = merge_specs(run.task, env_spec, dataset, expert)
        if composed is not None:
            spec = composed.spec(spec)
            if dataset is not None:
                dataset = add_base_actions(dataset, composed.base, run.method.cfg.scale)
        base = None
        if run.method.cls.mode.takes_base and run.data.base is not None:
            base = steerable_base(run.data.base, spec)

    refuse(refusals.wrong_outcomes(run, spec))

    # complete the settings
    if dataset is None and (kind := getattr(run.method.cfg, "guardian", "none")) != "none":
        raise UserError(
            f"algorithm.guardian={kind} is fitted to data, and this run reads none. Set "
            "dataset=<card or file> or guardian=none."
        )
    data, completed = dataset, list(runs)
    if dataset is not None:
        fitted = [fit(each, spec, dataset) for each in runs]
        data, completed = fitted[0][0], [run for _, run in fitted]
    sums = checksums(dataset, expert, base if composed is None else composed.base)
    completed = [replace(each, checksums={**each.checksums, **sums}) for each in completed]
    models, model_sums = load_models(completed)
    completed = [with_model_checksum(each, model_sums) for each in completed]

    # build the learner
    run = completed[0]
    learner = run.learner(spec, None if base is None else base.bundle)
    check_batch_size(run, spec)
    refuse(refusals.wrong_observations(run, learner, spec))
    head = build_head(learner)
    check_samples(completed, learner, head, len(eval_seeds))
    schedule = schedule_of(run, learner)
    if data is not None:
        refuse(refusals.wrong_chunks(learner, head, data))
    refuse(refusals.wrong_learner(run, learner, head, schedule, limit))
    return Prepared(
        runs=completed,
        dataset=dataset,
        data=data,
        expert=expert,
        spec=spec,
        learner=learner,
        schedule=schedule,
        eval_seeds=eval_seeds,
        composed=composed,
        base=base,
        actions=stated,
        models=models,
        limit=limit,
    )


def open_trial_envs(run: Run, opened: ExitStack) -> envs.VectorEnv | None:
    """Return environments of the task, to check it before training; None without environment.

    For an environment that is not built in, two are opened, to test whether that is possible.
    """
    task = run.task
    if not task.env_id:
        return None
    count = 1 if task.env_id in NATIVE or run.evaluation.eval_envs == 1 else 2
    try:
        env = envs.make_vector(task, count, fewer=True, single=one_env_option(run))
        opened.callback(close_quietly, env)
        if isinstance(env, LoopVectorEnv):
            env.check_first_steps()
    except ValueError as error:  # a missing package, or actions that are not a vector
        raise UserError(str(error)) from None
    return env


def compose(run: Run, env: Any) -> Composed | None:
    """Load the frozen base policy of a run; None if it has none. Raises UserError."""
    composition = run.method.cls.composition(run.method.cfg)
    if composition is None:
        return None
    composed = Composed(base_of(str(run.data.base), env), composition)
    refuse(refusals.wrong_steps(run, composed.steps_per_decision))
    return composed


def one_env_option(run: Run) -> str | None:
    """Return the option that limits the run to one open environment; None if there is no limit.

    Without online steps there is no such limit: only evaluations open environments, and they open
    `eval_envs` of them.
    """
    single = run.evaluation.eval_envs == 1 and run.budget.num_env_steps
    return "eval_envs=1" if single else None


def read_data(source: str | Task, run: Run, without: Sequence[str] = ()) -> Dataset:
    """Return the dataset that `source` names, read with the run's options except `without`."""
    names = [f.name for f in fields(ReadOptions) if hasattr(run.data, f.name)]
    options = {name: getattr(run.data, name) for name in names if name not in without}
    options = {name: value for name, value in options.items() if value is not None}
    options["stream"] = run.compute.stream
    if run.task.success_timing is not None:
        options["reward_task"] = run.task.env_id
    return load(source, run.data.data_dir, **options)


def read_for(
    run: Run,
    source: str | Task,
    read: Reader,
    observes_parts: bool,
    stated: Spec | None,
    key: str = "dataset",
) -> Dataset:
    """Return the dataset of `key`, with actions scaled so that [-1, 1] is the task's range.

    If `observation_keys` selects parts of the environment's observations and the data has one
    observation vector, the vector is used unchanged and a note says so. observes_parts: True
    if the environment's observations have parts. stated: the environment's spec. Raises UserError.
    """
    options, is_env_id = run.data, run.task.name.startswith("env:")
    keys = options.observation_keys if is_env_id and observes_parts else None
    if key in run.in_memory:
        data = in_memory(run, run.in_memory[key], is_env_id, keys)
    elif source == IN_MEMORY:
        raise UserError(
            "the run was trained on a Dataset in memory. Pass the same Dataset from Python as "
            "dataset=."
        )
    else:
        try:
            data = read(source, run)
        except NoArraysToChoose:
            if not keys:
                raise
            data = read_data(source, run, without=["observation_keys"])
    if keys and not isinstance(data.observations, Mapping):
        note = (
            f"the observation vector is used as the environment's {', '.join(keys)}, in this order"
        )
        data = replace(data, notes=(*data.notes, note))
    if stated is None:
        return data
    passed = (k for k in ("action_scale", "action_range") if getattr(options, k) is not None)
    return map_to_range(data, stated, f"task {run.task.name}", option=next(passed, None))


def in_memory(run: Run, data: Dataset, is_env_id: bool, keys: Any) -> Dataset:
    """Return a Dataset object as if it were read from a file, with warnings and a checksum."""
    for_env = {"max_episode_steps"} if is_env_id else set()  # they apply to the environment
    for_env |= {"observation_keys"} if keys else set()
    names = [f.name for f in fields(ReadOptions) if hasattr(run.data, f.name)]
    if unused := [k for k in names if getattr(run.data, k) and k not in for_env]:
        raise UserError(
            f"{unused[0]}= has no effect on data in memory: it controls how a file is read. "
            "Remove it."
        )
    warnings = find_warnings(columns_of(data), {}, None, data.notes)
    notes = tuple(dict.fromkeys([*data.notes, *warnings]))
    return replace(data, path=None, sha256=data.checksum(), notes=notes)


def first_episodes(data: Dataset, count: int | None) -> Dataset:
    """Return the first `count` episodes of `data`; all for None. Raises UserError for fewer."""
    if count is None:
        return data
    if count > data.num_episodes:
        raise UserError(
            f"episodes={count}: {data.path or data.name} has {data.num_episodes:,} episodes. "
            "Lower it, or use episodes=null for all."
        )
    return data.select(range(count))


def add_base_actions(data: Dataset, base: Base, scale: float) -> Dataset:
    """Return `data` with the base policy's actions as an observation channel.

    A note states the share of actions that a residual action within `scale` cannot reach. Raises
    UserError.
    """
    try:
        labeled_data = label_dataset(data, base)
    except BaseFault as error:
        raise UserError(
            f"{data.path or data.name}: {error}. Is the data of another task?"
        ) from error
    base_actions = labeled_data.observations[BASE_ACTION][: labeled_data.num_rows]
    share = float((np.abs(labeled_data.actions - base_actions) > scale).any(1).mean())
    if not share:
        return labeled_data
    note = f"{share:.0%} of the actions differ from the base policy's by more than scale={scale:g}"
    return replace(labeled_data, notes=(*labeled_data.notes, note))


def fit(run: Run, spec: Spec, dataset: Dataset) -> tuple[Dataset, Run]:
    """Return the data to train on, and the run with the hyper-parameters that follow from the data.

    Raises UserError if data and hyper-parameters do not fit together.
    """
    learner = run.learner(spec)
    refuse(refusals.wrong_data(run, learner, dataset))
    if not learner.uses_facts:  # a guardian of model rollouts leaves the data unchanged
        dataset = guarded(dataset, learner.cfg, has_costs="costs" in learner.extra_columns)
    data, cfg = learner.prepare(dataset)
    if run.budget.num_env_steps:
        learner.for_phase(ONLINE).prepare(dataset)  # raises for settings of online training
    if cfg.normalize_returns:
        range_of_returns(dataset)  # raises if all returns are equal
    if cfg.center_rewards:
        center_of(dataset)  # raises if episodes terminate
    if cfg.standardize_rewards:
        mean_and_std(dataset)  # raises if all rewards are equal
    return data, replace(run, method=run.method.with_config(cfg))


def checksums(
    dataset: Dataset | None, expert: Dataset | None, base: Base | None
) -> dict[str, str | None]:
    """Return the checksums of the data and of the base policy, for config.json."""
    sums: dict[str, str | None] = {"data": None if dataset is None else dataset.sha256}
    if base is not None:
        sums["base_sha256"] = base.sha256
    if expert is not None:
        sums["expert_data"] = expert.sha256
    return sums


def with_model_checksum(run: Run, sums: Mapping[int, str]) -> Run:
    """Return the run with the checksum of the dynamics model that it loads. sums: by seed."""
    if run.seed not in sums:
        return run
    model = {"dynamics_sha256": {str(run.seed): sums[run.seed]}}
    return replace(run, checksums={**run.checksums, **model})


def schedule_of(run: Run, learner: Algorithm) -> list[Piece]:
    """Return the phases of a run in order.

    If the dynamics model is loaded, the phases that fit it are left out, except for the last. If
    the run only fits the model, all other phases are left out.
    """
    budget, model = run.budget, learner.dynamics_model
    schedule = learner.schedule(budget.num_updates, budget.num_env_steps, budget.pretrain_updates)
    fits = [model is not None and piece.phase in model.phases for piece in schedule]
    if run.fits_model_only:
        return [piece for piece, fit in zip(schedule, fits, strict=True) if fit]
    if run.data.dynamics is None or True not in fits:
        return schedule
    first = fits.index(True)
    last = fits.index(False, first) - 1
    return schedule[:first] + schedule[last:]


def check_batch_size(run: Run, spec: Spec) -> None:
    """Raise UserError if one batch is larger than memory."""
    total = hardware.total_memory(hardware.select_device(run.compute.device))
    numbers = spec.action_dim + 2 * sum(prod(channel.shape) for channel in spec.vectors)
    if run.method.cfg.batch_size * numbers * 4 > total:
        raise UserError(
            f"batch_size={run.method.cfg.batch_size}: one batch is larger than memory "
            f"({total / 2**30:.0f} GiB). Lower it."
        )


def check_samples(runs: Sequence[Run], learner: Algorithm, head: Any, episodes: int) -> None:
    """Raise UserError if the sampled actions of an update or a decision do not fit into memory.

    The estimate is a lower bound: inputs and outputs of the largest layer for all samples.
    episodes: number of evaluation episodes.
    """
    run, cfg = runs[0], learner.cfg
    weights = [w for net in learner.modules.values() for w in net.parameters() if w.dim() > 1]
    layers = (w.shape[-2] + w.shape[-1] * prod(w.shape[:-2]) for w in weights)
    row_bytes = 4 * max(layers, default=0)
    uses = []
    if name := learner.samples_per_row:
        device = hardware.select_device(run.compute.device)
        uses.append((name, cfg.batch_size, f"batch_size={cfg.batch_size}", device))
    if isinstance(head, BestOfN):
        parallel = max(1, min(episodes, (run.evaluation.eval_envs or episodes) // len(runs)))
        what = f"{parallel} evaluation episodes at a time"
        uses.append(("num_samples", parallel, what, hardware.select_device("cpu")))
    for name, rows, what, device in uses:
        count, total = getattr(cfg, name), hardware.total_memory(device)
        needed = len(runs) * rows * count * row_bytes
        if needed > total:
            raise UserError(
                f"algorithm.{name}={count} with {what} needs at least {needed / 2**30:,.0f} GiB "
                f"for the samples of {len(runs)} seeds, but {device} has {total / 2**30:,.0f} GiB. "
                "Lower one of them."
            )


def build_head(learner: Algorithm) -> Any:
    """Return the acting head of the algorithm, with all its networks.

    Raises UserError if the networks are larger than memory.
    """
    try:
        return learner.acting_head()
    except RuntimeError as error:
        if not hardware.is_out_of_memory(error):
            raise
        sizes = {f.name: getattr(learner.cfg, f.name) for f in fields(learner.cfg)}
        largest = max(sizes, key=lambda name: largest_integer(sizes[name]))
        raise UserError(
            f"algorithm.{largest}={sizes[largest]}: networks of this size are larger than memory. "
            "Lower it."
        ) from error


def largest_integer(value: Any) -> int:
    """Return the largest integer in a value or tuple; 0 if there is none."""
    items = value if isinstance(value, tuple) else (value,)
    return max((item for item in items if isinstance(item, int)), default=0)
