"""Checks of a run before anything is written: first its options, then its data and networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from math import prod
from typing import Any

import numpy as np
import torch

import envs
from envs import Task
from envs.adapters import LoopVectorEnv
from envs.tasks import NATIVE
from offline_rl.algorithms.common.base import Algorithm, Interaction
from offline_rl.algorithms.common.registry import (
    algorithm_class,
    algorithm_names,
    card_preprocessing,
    source_file,
    table_of,
)
from offline_rl.algorithms.common.schedule import ONLINE, Interact, Learn, Piece
from offline_rl.data import Dataset, load
from offline_rl.data.env_spec import map_to_range, spec_of, stated_spec
from offline_rl.data.formats.common import NoArraysToChoose
from offline_rl.data.transform import center_of, range_of_returns
from offline_rl.data.validation import columns_of, find_warnings
from offline_rl.evaluation.rollout import evaluation_seeds
from offline_rl.online.with_base import Base, BaseFault, WithBase, base_of, label_dataset, with_base
from offline_rl.replay.columns import STEP_INFOS
from offline_rl.training.finetune import Start
from offline_rl.training.options import TrainOptions
from offline_rl.training.resolve import Resolved, resolve, tuned_for
from offline_rl.training.run_folder import SeedFolder
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError, close_quietly
from offline_rl.utils.files import read_json_object
from policies import Spec, channels
from policies.channels import BASE_ACTION
from policies.heads.head import load_kinds

IN_MEMORY = "in memory"  # value of dataset= in the config if a Dataset object was passed
# options that determine how a file is read
READING = (
    "action_scale",
    "action_range",
    "observation_keys",
    "subset",
    "format",
    "d4rl_compatible",
    "terminate_on_end",
    "max_episode_steps",
)
# options that may differ when a run is resumed: locations and hardware, not stored in the config
FREE = (
    *("data_dir", "seeds", "out", "tracker", "device", "compile", "precision", "stream"),
    *("keep_data", "stretch", "eval_envs"),
)
# stored options that may differ when a run is resumed; of files only the checksums must be equal
CHANGING = (
    *("dataset", "expert_dataset", "base", "start.run"),
    *("eval_every", "eval_episodes", "checkpoint_every"),
)


@dataclass(frozen=True)
class Plan(Resolved):
    """Checked run: its options, data, spec and schedule."""

    dataset: Dataset | None
    expert: Dataset | None  # the data of expert_dataset=
    spec: Spec
    schedule: list[Piece]
    start: Start | None  # the run to continue from; None: train from scratch
    stackable: bool  # the seeds train in parallel
    starts: np.ndarray  # seeds of the evaluation episodes
    base: Base | None = None  # frozen base policy of a residual policy
    actions: Spec | None = None  # the environment's spec; has an action range only if it states one
    limit: str | None = None  # reason for the limit of one open environment; None: no limit

    def make_envs(self, count: int, threads: int = 1, *, fewer: bool = False) -> envs.VectorEnv:
        """Return `count` environments. Observations contain the action of the base policy, if any.

        fewer: if the environment does not allow `count` instances, return as many as it allows.
        """
        why = one_env_option(self.options)
        try:
            env = envs.make_vector(self.task, count, num_threads=threads, fewer=fewer, single=why)
        except envs.Broken as error:
            raise UserError(str(error)) from error
        return env if self.base is None else WithBase(env, self.base)


@dataclass(frozen=True)
class Member:
    """One seed of one run."""

    folder: SeedFolder
    cfg: Any
    description: dict[str, Any]  # config.json; two runs with equal descriptions are the same run


def prepare(keys: Mapping[str, Any], start: Start | None = None) -> Plan:
    """Check the options, then the data of a run. Writes nothing. start: the run to continue from.

    Raises UserError.
    """
    with ExitStack() as opened:
        return _prepare(keys, start, opened)


def _prepare(keys: Mapping[str, Any], start: Start | None, opened: ExitStack) -> Plan:
    """Implement `prepare`. opened: closes the environment."""
    datasets = {k: v for k, v in keys.items() if isinstance(v, Dataset)}
    for key in ("dataset", "expert_dataset"):
        if hasattr(keys.get(key), "shape") or isinstance(keys.get(key), Mapping):
            raise UserError(
                f"{key}= takes a file name or a Dataset, not arrays. Use offline_rl.Dataset."
                "from_arrays(observations, actions, rewards, terminals)."
            )
    resolved = resolve({**keys, **dict.fromkeys(datasets, IN_MEMORY)})
    options, algorithm, settings = resolved.options, resolved.algorithm, resolved.settings
    if algorithm.distills_from and start is None:
        raise UserError(
            f"{options.algorithm} needs a teacher. Use offline-rl distill run=<folder> with "
            f"{algorithm.distills_from}."
        )
    if algorithm.finetunes_from and start is None:
        raise UserError(
            f"{options.algorithm} fine-tunes a trained policy. Use offline-rl finetune "
            f"algorithm={options.algorithm} run=<folder> with {algorithm.finetunes_from}."
        )
    try:
        env = open_trial_envs(resolved.task, options) if resolved.task.env_id else None
        if env is not None:
            opened.callback(close_quietly, env)
        if isinstance(env, LoopVectorEnv):
            env.check_first_steps()
    except ValueError as error:  # a missing package, or actions that are not a vector
        raise UserError(str(error)) from None
    eval_seeds = evaluation_seeds(resolved.task, options.eval_episodes, "eval_episodes")
    hardware.select_device(options.device)
    base = load_base(options, algorithm, env)
    if options.action_range == "data" and env is not None:
        raise UserError(
            f"action_range=data needs task=none: the range of the data may be smaller than that of "
            f"{options.task}. Set action_range=[low,high]."
        )
    dataset = expert = None
    interaction = resolved.interaction
    if reads_data(resolved):
        if not has_dataset(resolved):
            reads = {
                "num_updates": options.num_updates,
                "online.offline_fraction": interaction.online.offline_fraction,
            }
            no_data = " ".join(f"{name}=0" for name, value in reads.items() if value)
            raise UserError(
                f"task {options.task} has no dataset. Set dataset=<path or id>"
                + (f", or {no_data} to learn online only" if options.num_env_steps else "")
            )
        dataset = load_dataset(resolved, datasets.get("dataset"), env)
        dataset = convert_actions(dataset, env, options)
        settings = complete_settings(resolved, dataset)
        interaction = replace(interaction, cfg=algorithm.complete_config(interaction.cfg, dataset))
        if "mc_returns" in algorithm.extra_columns and options.num_env_steps:
            offline_discounts = {cfg.discount for cfg in settings.values()}
            if offline_discounts != {interaction.cfg.discount}:
                raise UserError(
                    f"online.discount={interaction.cfg.discount:g} differs from "
                    f"algorithm.discount={min(offline_discounts):g}, with which "
                    f"{options.algorithm} computed the returns of the dataset. Use the same value."
                )
        if "next_actions" in algorithm.extra_columns and interaction.online.n_step > 1:
            raise UserError(
                f"online.n_step={interaction.online.n_step}: {options.algorithm} needs n_step=1, "
                "because its targets use the action of the next step"
            )
        if base is not None:
            merge_specs(resolved.task, env, dataset)  # raises for data of another task
            dataset = add_base_actions(dataset, base, next(iter(settings.values())).scale)
        if options.expert_dataset is not None:
            source = datasets.get("expert_dataset", options.expert_dataset)
            expert = convert_actions(data_of(source, options, env), env, options)
            if env is None and dataset.spec is not None:
                name = dataset.path or dataset.name
                expert = map_to_range(expert, dataset.spec, name, option=None)
    spec = merge_specs(resolved.task, env, dataset, expert, has_base=base is not None)
    opened.close()
    if spec.single_vector is None and algorithm.vector_only:
        able = [name for name in algorithm_names() if not algorithm_class(name).vector_only]
        remedy = f"Use {', '.join(able) or 'another algorithm'}"
        can_join = (resolved.task.env_id or "env:").startswith("env:") and not datasets
        if can_join and spec.vectors == spec.channels:
            names = ",".join(channel.name for channel in spec.channels)
            remedy = f"Set observation_keys=[{names}] to join them, or use {', '.join(able)}"
        elif options.observation_keys:
            remedy = f"Remove images from observation_keys=, or use {', '.join(able)}"
        raise UserError(
            f"{options.algorithm} needs one observation vector, but the observations are "
            f"{describe_shape(spec)}. {remedy}."
        )
    learner = build_learner(
        algorithm, spec, next(iter(settings.values())), interaction, options.device
    )
    if (head := type(learner.modules[learner.policy])) not in load_kinds().values():
        raise UserError(
            f"the policy of {options.algorithm} is a {head.__name__}, which cannot be saved as a "
            f"bundle. Use a class of policies.heads: {', '.join(load_kinds())}. Other networks may "
            "be of any class."
        )
    if options.pretrain_updates is not None and not learner.phases:
        raise UserError(
            f"pretrain_updates={options.pretrain_updates}: {options.algorithm} has no preliminary "
            "phase with these settings. Remove it."
        )
    if learner.phases and not options.num_updates and start is None:
        raise UserError(
            f"{options.algorithm} must train on a dataset before it trains online. Set "
            "num_updates=, or fine-tune one of its runs."
        )
    steps, pretrain = options.num_env_steps, options.pretrain_updates
    schedule = learner.schedule(options.num_updates, steps, pretrain)
    for piece in schedule:
        period = learner.for_phase(piece.phase).period
        if isinstance(piece, Learn) and piece.updates % period:
            key = "num_updates" if piece.phase == "update" else piece.phase
            key = "pretrain_updates" if key == piece.phase and pretrain is not None else key
            raise UserError(
                f"{key}={piece.updates} is not a multiple of {period} ({options.algorithm} repeats "
                f"every {period} updates). Use a multiple of {period}."
            )
    limit = limit_of(env, options, interaction.cfg)
    check_policy_learns(learner, schedule)
    device = hardware.select_device(options.device).type
    parts = vars(resolved) | {
        "settings": settings,
        "interaction": interaction,
        "schedule": schedule,
    }
    stackable = learner.prefers_stacked_seeds(device) and limit is None
    parts |= {"stackable": stackable, "starts": eval_seeds}
    parts |= {"actions": None if env is None else stated_spec(env), "limit": limit}
    return Plan(**parts, dataset=dataset, expert=expert, spec=spec, start=start, base=base)


def open_trial_envs(task: Task, options: TrainOptions) -> envs.VectorEnv:
    """Return environments of the task, to check it before training.

    For an environment that is not built in, two are opened, to test whether that is possible.
    """
    count = 1 if task.env_id in NATIVE or options.eval_envs == 1 else 2
    return envs.make_vector(task, count, fewer=True, single=one_env_option(options))


def one_env_option(options: TrainOptions) -> str | None:
    """Return the option that limits the run to one open environment; None if there is no limit.

    Without online steps there is no such limit: only evaluations open environments, and they open
    `eval_envs` of them.
    """
    return "eval_envs=1" if options.eval_envs == 1 and options.num_env_steps else None


def limit_of(env: envs.VectorEnv | None, options: TrainOptions, cfg: Any) -> str | None:
    """Return why an online run can open only one environment; None if it can open several.

    Raises UserError if the algorithm needs several.
    """
    if env is None or env.limit is None or not options.num_env_steps:
        return None
    if (count := getattr(cfg, "environments", 1)) > 1:
        raise UserError(
            f"{env.limit}, and {options.algorithm} collects in {count} environments at the same "
            "time. Use algorithm.environments=1."
        )
    return env.limit


def check_policy_learns(learner: Algorithm, schedule: Sequence[Piece]) -> None:
    """Raise UserError if the policy, or a network that its training needs, would learn nothing."""
    phases = {piece.phase for piece in schedule}
    if "update" in phases and (missing := [x for x in learner.needed_phases if x not in phases]):
        raise UserError(
            f"{type(learner).__name__} relies on the phase {missing[0]}, which has 0 updates here. "
            "Raise pretrain_updates, or remove it to use the algorithm's default."
        )
    for phase in dict.fromkeys(piece.phase for piece in schedule):
        alone, key = learner.for_phase(phase).updates_before_policy(phase)
        total = phase_updates(learner, schedule, phase)
        if 0 < total <= alone:
            length = "num_env_steps" if phase == ONLINE else "num_updates"
            kind = "offline" if phase == "update" else phase
            raise UserError(
                f"The policy would not change: all {total:,} {kind} updates fall within {key} "
                f"({alone:,} updates). Raise {length} or lower {key}."
            )


def phase_updates(learner: Algorithm, schedule: Sequence[Piece], phase: str) -> int:
    """Return the number of updates of `phase` in the complete schedule."""
    of_phase, total = learner.for_phase(phase), 0
    for piece in schedule:
        if piece.phase == phase and isinstance(piece, Learn):
            total += piece.updates
        if piece.phase == phase and isinstance(piece, Interact):
            online = of_phase.interaction.online
            total += online.updates_due(piece.env_steps, learner.cfg.batch_size, of_phase.period)
    return total


def has_dataset(resolved: Resolved) -> bool:
    """Return True if `dataset=` is set or the task has a dataset."""
    return resolved.options.dataset is not None or resolved.task.card is not None


def reads_data(resolved: Resolved) -> bool:
    """Return True if the run needs a dataset, to learn from it or to normalize observations."""
    o, offline_fraction = resolved.options, resolved.interaction.online.offline_fraction
    normalizes = resolved.algorithm.is_residual and has_dataset(resolved)
    return bool(o.num_updates or (o.num_env_steps and (offline_fraction or normalizes)))


def load_dataset(
    resolved: Resolved, in_memory: Dataset | None = None, env: envs.VectorEnv | None = None
) -> Dataset:
    """Return the first `episodes=` episodes of the run's data; all if `episodes` is not set.

    The data is `in_memory`, else `dataset=`, else the task's. Raises UserError.
    """
    o = resolved.options
    dataset = data_of(in_memory if in_memory is not None else o.dataset or resolved.task, o, env)
    return dataset if o.episodes is None else first_episodes(dataset, o.episodes)


def convert_actions(data: Dataset, env: envs.VectorEnv | None, options: TrainOptions) -> Dataset:
    """Return `data` with actions scaled so that [-1, 1] is the range of `env`. Raises UserError."""
    if env is None:
        return data
    passed = (k for k in ("action_scale", "action_range") if getattr(options, k) is not None)
    return map_to_range(data, stated_spec(env), f"task {options.task}", option=next(passed, None))


def complete_settings(resolved: Resolved, dataset: Dataset) -> dict[str, Any]:
    """Return the settings of each run, with the values that depend on the data filled in.

    Raises UserError if these settings do not work with the data.
    """
    options, algorithm, settings = resolved.options, resolved.algorithm, resolved.settings
    if "costs" in algorithm.extra_columns and "costs" not in dataset.extras:
        raise UserError(
            f"{dataset.path or dataset.name} has no costs, which {options.algorithm} needs. Use "
            "data with a column `costs`, such as DSRL's."
        )
    unusable = algorithm.unusable_rows(dataset)
    if unusable == dataset.num_rows or dataset.num_rows < 2:
        raise UserError(
            f"{dataset.path or dataset.name} has {dataset.num_rows:,} rows, of which "
            f"{dataset.usable.sum():,} have a next observation. That is too little to learn from. "
            "Use a larger dataset."
        )
    if not dataset.has_rewards and any(map(algorithm.uses_rewards, settings.values())):
        raise UserError(
            f"{dataset.path or dataset.name} has no rewards, which {options.algorithm} needs. Use "
            "data with rewards, or an algorithm that needs none, such as bc or recoil."
        )
    settings = {name: algorithm.complete_config(cfg, dataset) for name, cfg in settings.items()}
    if any(cfg.normalize_returns for cfg in settings.values()):
        range_of_returns(dataset)  # raises if all returns are equal
    if any(cfg.center_rewards for cfg in settings.values()):
        if options.num_env_steps:
            raise UserError(
                "center_rewards=true requires that no episode terminates, which is unknown for "
                "online experience. Remove center_rewards or num_env_steps."
            )
        center_of(dataset)  # raises if episodes terminate
    return settings


def build_learner(
    algorithm: type[Algorithm], spec: Spec, cfg: Any, interaction: Interaction, device: str
) -> Algorithm:
    """Return the algorithm with its networks.

    Raises UserError if the networks or one batch are larger than memory.
    """
    total = hardware.total_memory(hardware.select_device(device))
    numbers = spec.action_dim + 2 * sum(prod(channel.shape) for channel in spec.vectors)
    if cfg.batch_size * numbers * 4 > total:
        raise UserError(
            f"batch_size={cfg.batch_size}: one batch is larger than memory ({total / 2**30:.0f} "
            "GiB). Lower it."
        )
    try:
        return algorithm(spec, cfg, interaction=interaction)
    except RuntimeError as error:
        if not hardware.is_out_of_memory(error):
            raise
        sizes = {f.name: getattr(cfg, f.name) for f in fields(cfg)}
        largest = max(sizes, key=lambda name: largest_integer(sizes[name]))
        raise UserError(
            f"algorithm.{largest}={sizes[largest]}: networks of this size are larger than memory. "
            "Lower it."
        ) from error


def largest_integer(value: Any) -> int:
    """Return the largest integer in a value or tuple; 0 if there is none."""
    parts = value if isinstance(value, tuple) else (value,)
    return max((part for part in parts if isinstance(part, int)), default=0)


def load_base(
    options: TrainOptions, algorithm: type[Algorithm], env: envs.VectorEnv | None
) -> Base | None:
    """Return the frozen base policy of a residual algorithm; None for other algorithms.

    Raises UserError.
    """
    if not algorithm.is_residual:
        if options.base is not None:
            raise UserError(
                f"base= is used by resfit; {options.algorithm} has no base policy. Remove it."
            )
        return None
    if options.base is None:
        raise UserError(
            f"{options.algorithm} needs a frozen base policy. Set base=<bundle>, or "
            "base=module:function for your own code."
        )
    if env is None or not options.num_env_steps or options.num_updates:
        raise UserError(
            f"{options.algorithm} learns only online. Set task=, num_env_steps= and num_updates=0, "
            "or use offline-rl finetune."
        )
    return base_of(options.base, env)


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


def data_of(
    source: str | Task | Dataset, options: TrainOptions, env: envs.VectorEnv | None = None
) -> Dataset:
    """Return the dataset that `source` is or names.

    If `observation_keys` selects parts of the environment's observations and the data has one
    observation vector, the vector is used unchanged and a note says so. env: the task's
    environment, if it is open. Raises UserError.
    """
    read_options = {name: getattr(options, name) for name in READING}
    read_options = {name: value for name, value in read_options.items() if value is not None}
    if source == IN_MEMORY:
        raise UserError(
            "the run was trained on a Dataset in memory. Pass the same Dataset from Python as "
            "dataset=."
        )
    is_env_id = options.task.startswith("env:")
    has_parts = env.observes_dict if isinstance(env, LoopVectorEnv) else env is None
    keys = options.observation_keys if is_env_id and has_parts else None
    if isinstance(source, Dataset):
        for_env = {"max_episode_steps"} if is_env_id else set()  # they apply to the environment
        for_env |= {"observation_keys"} if keys else set()
        if unused := [
            name for name, value in read_options.items() if value and name not in for_env
        ]:
            raise UserError(
                f"{unused[0]}= has no effect on data in memory: it controls how a file is read. "
                "Remove it."
            )
        notes = dict.fromkeys(
            [*source.notes, *find_warnings(columns_of(source), {}, None, source.notes)]
        )
        data = replace(source, path=None, sha256=source.checksum(), notes=tuple(notes))
    else:
        try:
            return load(source, options.data_dir, **read_options)
        except NoArraysToChoose:
            if not keys:
                raise
        del read_options["observation_keys"]
        data = load(source, options.data_dir, **read_options)
    if not keys or isinstance(data.observations, Mapping):
        return data
    note = f"the observation vector is used as the environment's {', '.join(keys)}, in this order"
    return replace(data, notes=(*data.notes, note))


def first_episodes(data: Dataset, count: int) -> Dataset:
    """Return the first `count` episodes of `data`. Raises UserError if it has fewer."""
    if count > data.num_episodes:
        raise UserError(
            f"episodes={count}: {data.path or data.name} has {data.num_episodes:,} episodes. "
            "Lower it, or use episodes=null for all."
        )
    return data.select(range(count))


def merge_specs(
    task: Task,
    env: envs.VectorEnv | None,
    dataset: Dataset | None,
    expert: Dataset | None = None,
    *,
    has_base: bool = False,
) -> Spec:
    """Return the policy's spec, merged from data and environment. The environment has priority.

    has_base: add the base policy's action to the environment's observations; the data already has
    it. Raises UserError if data and environment contradict each other.
    """
    specs = list[tuple[str, Spec]]()
    for data in (dataset, expert):
        if data is not None:
            specs.append((f"{data.path or data.name}", data_spec(data)))
    if env is not None:
        env_spec = spec_of(env)
        specs.append((f"task {task.name}", with_base(env_spec) if has_base else env_spec))
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


def resolved_config(plan: Resolved, name: str) -> dict[str, Any]:
    """Return the part of the config.json of run `name` that follows from its keys alone."""
    options = {k: v for k, v in asdict(plan.options).items() if k not in FREE}
    config: dict[str, Any] = {"name": name, "hyper": asdict(plan.settings[name])}
    if code := source_file(plan.options.algorithm):
        config["code_sha256"] = code["sha256"]
    if plan.options.num_env_steps:
        config["online"] = asdict(plan.interaction.online)
        cfg = plan.settings[name]
        online_cfg = asdict(plan.interaction.of(cfg).cfg)
        config["online"] |= {k: v for k, v in online_cfg.items() if v != getattr(cfg, k)}
    return options | config


def description(plan: Plan, name: str, seed: int) -> dict[str, Any]:
    """Return the config.json of a seed of run `name`. Equal configs mean the same run."""
    config: dict[str, Any] = resolved_config(plan, name)
    config["data"] = plan.dataset.sha256 if plan.dataset is not None else None
    if plan.start is not None:
        config["start"] = plan.start.to_json(seed)
    if plan.base is not None:
        config["base_sha256"] = plan.base.sha256
    if plan.expert is not None:
        config["expert_data"] = plan.expert.sha256
    return config


def is_extension(plan: Plan, member: Member) -> bool:
    """Return True if the seed's folder contains this run with fewer updates, so it can be extended.

    Raises UserError if the extended run would differ from one uninterrupted run.
    """
    folder, num_updates = member.folder, plan.options.num_updates
    if not folder.config.is_file() or plan.options.num_env_steps or plan.start is not None:
        return False
    old_updates = read_json_object(folder.config).get("num_updates", num_updates)
    if not isinstance(old_updates, int) or not 0 < old_updates < num_updates:
        return False
    seeds = {int(p.name[5:]) for p in folder.path.parent.glob("seed_*") if p.name[5:].isdigit()}
    if missing := sorted(seeds - {*plan.seeds}):
        raise UserError(
            f"{folder.path.parent} has the seeds {sorted(seeds)}, which must be extended together. "
            f"Add {missing} to seeds=, or use another name=…"
        )
    old, new = (
        plan.algorithm(plan.spec, member.cfg, n).optimizers() for n in (old_updates, num_updates)
    )
    half = torch.tensor(old_updates // 2)
    for name, adam in old.items():
        new_schedule = new[name].schedule
        differs = adam.schedule and new_schedule and adam.schedule(half) != new_schedule(half)
        if differs and not plan.options.stretch:
            raise UserError(
                f"{folder.path} was started with num_updates={old_updates}, at which the learning "
                f"rate of {name} is 0. With num_updates={num_updates} it would rise again. Set "
                "stretch=true to continue anyway, or use another name=…"
            )
    return True


def headline(plan: Plan) -> str:
    """Return the lines printed before training: algorithm, task, seeds, data, settings, notes."""
    o, data = plan.options, plan.dataset
    rows = "no data" if data is None else f"{data.num_rows:,} rows of {data.path or data.name}"
    if plan.expert is not None:
        rows += f", {plan.expert.num_rows:,} rows of the expert"
    card = card_preprocessing(o.algorithm, tuned_for(o))
    table = f"; from the dataset card {', '.join(f'{k}={v:g}' for k, v in card.items())}"
    table = table if card else ""
    table += f"; {settings_source(o.algorithm, plan.pattern)}"
    where = "" if plan.task.env_id else "\nno environment: training without evaluation"
    where += too_few_steps_note(plan) + warmup_note(plan)
    count = len(plan.settings)
    several = f" for each of {count} settings" if count > 1 else ""
    notes = "".join(f"\n{note}" for note in data.notes) if data is not None else ""
    for each in (data, plan.expert):
        notes += rows_left_out(plan, each) if each is not None else ""
    if plan.base is not None and plan.base.bundle is None:
        notes += (
            f"\nbase={plan.base.name} is code and cannot be stored in a bundle. The bundle will "
            "contain the residual policy only: pass base= also to evaluate and play"
        )
    return f"{o.algorithm} on {o.task}, seeds {plan.seeds}{several}: {rows}{table}{where}{notes}"


def settings_source(algorithm: str, pattern: str | None) -> str:
    """Return a text about the origin of the settings: a row of the per-task table or defaults."""
    owner = table_of(algorithm)
    file = f"configs/algorithm/{owner}.yaml"
    if owner is None:
        return "default settings"
    if pattern is None:
        return f"default settings ({file} has no row for this task)"
    return f"settings of row {pattern} of {file}"


def rows_left_out(plan: Plan, data: Dataset) -> str:
    """Return a note with the number of rows without a next observation; empty if there are none."""
    count = plan.algorithm.unusable_rows(data)
    if not count:
        return ""
    scheduled = {piece.phase for piece in plan.schedule}
    used = [name for name in plan.algorithm.imitation_phases if name in scheduled]
    except_in = f" except in {' and '.join(used)}" if used else ""
    return (
        f"\n{data.path or data.name}: {count:,} of {data.num_rows:,} rows have no next observation "
        f"and are left out{except_in}"
    )


def too_few_steps_note(plan: Plan) -> str:
    """Return a note if `num_env_steps` is too low for any update; empty otherwise."""
    steps, online, batch = plan.options.num_env_steps, plan.interaction.online, plan.cfg.batch_size
    if not any(isinstance(piece, Interact) for piece in plan.schedule):
        return ""
    learner = plan.algorithm(plan.spec, plan.cfg, interaction=plan.interaction)
    period = learner.for_phase(ONLINE).period
    episode = plan.task.max_episode_steps or 0
    if steps < episode and any(
        name != "expert" and name not in STEP_INFOS for name in plan.algorithm.extra_columns
    ):
        return (
            f"\nnum_env_steps={steps} may end before learning starts: {plan.options.algorithm} "
            f"learns from complete episodes of up to {episode:,} steps. Raise num_env_steps"
        )
    if online.updates_due(steps, batch, period):
        return ""
    by_batch = online.warmup_steps < batch
    key, value = ("batch_size", batch) if by_batch else ("online.warmup_steps", online.warmup_steps)
    after = f", then {online.utd:g} updates per step, {period} at a time" if steps > value else ""
    return (
        f"\nnum_env_steps={steps} ends before learning starts ({key}={value}{after}). Raise "
        f"num_env_steps or lower {key}"
    )


def warmup_note(plan: Plan) -> str:
    """Return a note if training ends within the learning-rate warm-up; empty otherwise."""
    warmup: int = getattr(plan.cfg, "num_warmup_updates", 0)
    if not 0 < plan.options.num_updates < warmup:
        return ""
    return (
        f"\nnum_updates={plan.options.num_updates} ends within the learning-rate warm-up "
        f"(algorithm.num_warmup_updates={warmup}): little will be learned"
    )


def stacked(cfgs: Sequence[Any]) -> dict[str, list[float]]:
    """Return the fields in which `cfgs` differ, with each config's value."""
    columns = {f.name: [getattr(cfg, f.name) for cfg in cfgs] for f in fields(cfgs[0])}
    return {name: values for name, values in columns.items() if any(v != values[0] for v in values)}
