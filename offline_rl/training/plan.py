"""Everything that is checked before anything is written: the keys' meaning, then the data's."""

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
    origin,
    prepared,
    table_of,
)
from offline_rl.algorithms.common.schedule import ONLINE, Interact, Learn, Piece
from offline_rl.data import Dataset, load
from offline_rl.data.doubts import columns_of, doubts
from offline_rl.data.formats.common import NoArraysToChoose
from offline_rl.data.meaning import in_range_of, spec_of, stated
from offline_rl.data.transform import center_of, range_of_returns
from offline_rl.evaluation.rollout import starts
from offline_rl.online.with_base import Base, BaseFault, WithBase, base_of, labeled, with_base
from offline_rl.replay.columns import TOLD
from offline_rl.training.finetune import Start
from offline_rl.training.options import TrainOptions
from offline_rl.training.resolve import Resolved, resolve, tuned_for
from offline_rl.training.run_folder import SeedFolder
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError, close_quietly
from offline_rl.utils.files import read_object
from policies import Spec, channels
from policies.channels import BASE_ACTION
from policies.heads.head import kinds

IN_MEMORY = "in memory"  # what stands for a Dataset where a file's name would
# options that say how a file is read
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
# those that may differ when a run is resumed: where things lie, how they are computed
FREE = (
    *("data_dir", "seeds", "out", "tracker", "device", "compile", "precision", "stream"),
    *("keep_data", "stretch", "eval_envs"),
)
# options that may be others when a run goes on: what is read is known by its checksum
CHANGING = (
    *("dataset", "expert_dataset", "base", "start.run"),
    *("eval_every", "eval_episodes", "checkpoint_every"),
)


@dataclass(frozen=True)
class Plan(Resolved):
    """Everything that is checked before anything is written."""

    dataset: Dataset | None
    expert: Dataset | None  # what expert_dataset names
    spec: Spec
    schedule: list[Piece]
    start: Start | None  # where it goes on from, if not from nothing
    stackable: bool  # its seeds train side by side
    starts: np.ndarray  # the seeds of an evaluation's episodes
    base: Base | None = None  # the frozen policy that it corrects
    actions: Spec | None = None  # of its environment; an action range only where it states one
    limit: str | None = None  # why only one environment may be open; None: as many as are wanted

    def world(self, count: int, threads: int = 1, *, fewer: bool = False) -> envs.VectorEnv:
        """So many environments of its task, as the learner sees them; `fewer`: or what can be."""
        one = single(self.options)
        try:
            env = envs.make_vector(self.task, count, num_threads=threads, fewer=fewer, single=one)
        except envs.Broken as error:
            raise UserError(str(error)) from error
        return env if self.base is None else WithBase(env, self.base)


@dataclass(frozen=True)
class Member:
    """One seed of one run: what trains in one place of the stack."""

    folder: SeedFolder
    cfg: Any
    description: dict[str, Any]  # what makes two runs the same run


def prepare(keys: Mapping[str, Any], start: Start | None = None) -> Plan:
    """Options, then data; nothing is written. start: where the run goes on from."""
    with ExitStack() as opened:
        return _prepare(keys, start, opened)


def _prepare(keys: Mapping[str, Any], start: Start | None, opened: ExitStack) -> Plan:
    """See `prepare`. opened: closes the environment."""
    given = {k: v for k, v in keys.items() if isinstance(v, Dataset)}
    for key in ("dataset", "expert_dataset"):
        if hasattr(keys.get(key), "shape") or isinstance(keys.get(key), Mapping):
            raise UserError(
                f"{key}= is a file's name or a Dataset: offline_rl.Dataset.from_arrays("
                "observations, actions, rewards, terminals) makes one of arrays"
            )
    chosen = resolve({**keys, **dict.fromkeys(given, IN_MEMORY)})
    options, algorithm, settings = chosen.options, chosen.algorithm, chosen.settings
    if algorithm.distils and start is None:
        raise UserError(
            f"{options.algorithm} is taught by another policy: offline-rl distill run=<folder>, of "
            f"{algorithm.distils}"
        )
    if algorithm.continues and start is None:
        raise UserError(
            f"{options.algorithm} goes on from another policy: offline-rl finetune "
            f"algorithm={options.algorithm} run=<folder>, of {algorithm.continues}"
        )
    try:
        env = tried_out(chosen.task, options) if chosen.task.env_id else None
        if env is not None:
            opened.callback(close_quietly, env)
        if isinstance(env, LoopVectorEnv):
            env.attempt()
    except ValueError as error:  # a package that is missing, actions that are no vector
        raise UserError(str(error)) from None
    begun = starts(chosen.task, options.eval_episodes, "eval_episodes")
    hardware.device(options.device)
    base = frozen(options, algorithm, env)
    if options.action_range == "data" and env is not None:
        raise UserError(
            f"action_range=data: {options.task} takes actions of its whole range, for which the "
            "data's would be mistaken; give action_range=[low,high], or task=none"
        )
    dataset = expert = None
    how = chosen.interaction
    if reads_data(chosen):
        if not brings_data(chosen):
            wanted = {
                "num_updates": options.num_updates,
                "online.offline_fraction": how.online.offline_fraction,
            }
            alone = " ".join(f"{name}=0" for name, value in wanted.items() if value)
            raise UserError(
                f"task {options.task} brings no data; give it with dataset=<path or id>"
                + (f", or {alone} to learn online alone" if options.num_env_steps else "")
            )
        dataset = converted(dataset_of(chosen, given.get("dataset"), env), env, options)
        settings = completed(chosen, dataset)
        how = replace(how, cfg=algorithm.complete(how.cfg, dataset))
        if "mc_returns" in algorithm.needs and options.num_env_steps:
            now = {cfg.discount for cfg in settings.values()}
            if now != {how.cfg.discount}:
                raise UserError(
                    f"online.discount={how.cfg.discount:g}: {options.algorithm} keeps its data's "
                    f"returns, which are of algorithm.discount={min(now):g}; give both one value"
                )
        if "next_actions" in algorithm.needs and how.online.n_step > 1:
            raise UserError(
                f"online.n_step={how.online.n_step}: {options.algorithm} learns from the action "
                "that follows a step, and there would be several steps between; leave it at 1"
            )
        if base is not None:
            specification(chosen.task, env, dataset)  # refuses data of another task
            dataset = beside(dataset, base, next(iter(settings.values())).scale)
        if options.expert_dataset is not None:
            expert = data_of(given.get("expert_dataset", options.expert_dataset), options, env)
            expert = converted(expert, env, options)
            if env is None and dataset.spec is not None:
                name = dataset.path or dataset.name
                expert = in_range_of(expert, dataset.spec, name, option=None)
    spec = specification(chosen.task, env, dataset, expert, corrects=base is not None)
    opened.close()
    if spec.lone is None and algorithm.vector_only:
        able = [name for name in algorithm_names() if not algorithm_class(name).vector_only]
        remedy = f"Use {', '.join(able) or 'another algorithm'}"
        joined = (chosen.task.env_id or "env:").startswith("env:") and not given
        if joined and spec.vectors == spec.channels:
            names = ",".join(channel.name for channel in spec.channels)
            remedy = f"Set observation_keys=[{names}] to join them, or use {', '.join(able)}"
        elif options.observation_keys:
            remedy = f"Leave pictures out of observation_keys=, or use {', '.join(able)}"
        raise UserError(
            f"{options.algorithm} needs one observation vector, but the observations are "
            f"{seen(spec)}. {remedy}"
        )
    learner = small_enough(algorithm, spec, next(iter(settings.values())), how, options.device)
    if (head := type(learner.modules[learner.policy])) not in kinds().values():
        raise UserError(
            f"{options.algorithm} acts by {head.__name__}, of which no bundle can be made: what "
            f"acts is one of policies.heads, {', '.join(kinds())}; all else may be your own module"
        )
    if options.pretrain_updates is not None and not learner.phases:
        raise UserError(
            f"pretrain_updates={options.pretrain_updates}: {options.algorithm} has no preliminary "
            "phase with these settings; leave it out"
        )
    if learner.phases and not options.num_updates and start is None:
        raise UserError(
            f"{options.algorithm} goes on in an environment from what it learned from data: give "
            "num_updates= too, or fine-tune a run of it"
        )
    steps, pretrain = options.num_env_steps, options.pretrain_updates
    schedule = learner.schedule(options.num_updates, steps, pretrain)
    for piece in schedule:
        period = learner.at(piece.phase).period
        if isinstance(piece, Learn) and piece.updates % period:
            key = "num_updates" if piece.phase == "update" else piece.phase
            key = "pretrain_updates" if key == piece.phase and pretrain is not None else key
            raise UserError(
                f"{key}={piece.updates}: {options.algorithm} repeats every {period}; "
                f"give a multiple of {period}"
            )
    limit = limit_of(env, options, how.cfg)
    check_policy_learns(learner, schedule)
    device = hardware.device(options.device).type
    known = vars(chosen) | {"settings": settings, "interaction": how, "schedule": schedule}
    known |= {"stackable": learner.stacks(device) and limit is None, "starts": begun}
    known |= {"actions": None if env is None else stated(env), "limit": limit}
    return Plan(**known, dataset=dataset, expert=expert, spec=spec, start=start, base=base)


def tried_out(task: Task, options: TrainOptions) -> envs.VectorEnv:
    """Return environments of the task; two of a user's, to try if both may be open."""
    count = 1 if task.env_id in NATIVE or options.eval_envs == 1 else 2
    return envs.make_vector(task, count, fewer=True, single=single(options))


def single(options: TrainOptions) -> str | None:
    """Return the setting that allows one instance of the environment only; None if there is none.

    Without online steps only evaluations open environments, as many as `eval_envs` says.
    """
    return "eval_envs=1" if options.eval_envs == 1 and options.num_env_steps else None


def limit_of(env: envs.VectorEnv | None, options: TrainOptions, cfg: Any) -> str | None:
    """Return why a run that learns online has one environment; None if it may have several.

    Raises UserError if it needs several.
    """
    if env is None or env.limit is None or not options.num_env_steps:
        return None
    if (count := getattr(cfg, "environments", 1)) > 1:
        raise UserError(
            f"{env.limit}, and {options.algorithm} collects in {count} at once. Use "
            "algorithm.environments=1"
        )
    return env.limit


def check_policy_learns(learner: Algorithm, schedule: Sequence[Piece]) -> None:
    """Raise UserError if the policy, or a network that it follows, would learn nothing."""
    phases = {piece.phase for piece in schedule}
    if "update" in phases and (left_out := [x for x in learner.needed_phases if x not in phases]):
        raise UserError(
            f"{type(learner).__name__} relies on {left_out[0]}, which has 0 updates here. Raise "
            "pretrain_updates, or leave it out for the algorithm's own number"
        )
    for phase in dict.fromkeys(piece.phase for piece in schedule):
        alone, key = learner.at(phase).policy_begins(phase)
        total = phase_updates(learner, schedule, phase)
        if 0 < total <= alone:
            given = "num_env_steps" if phase == ONLINE else "num_updates"
            kind = "offline" if phase == "update" else phase
            raise UserError(
                f"The policy would not change: all {total:,} {kind} updates fall within {key} "
                f"({alone:,} updates). Raise {given} or lower {key}"
            )


def phase_updates(learner: Algorithm, schedule: Sequence[Piece], phase: str) -> int:
    """Number of updates of `phase` in the whole schedule."""
    now, total = learner.at(phase), 0
    for piece in schedule:
        if piece.phase == phase and isinstance(piece, Learn):
            total += piece.updates
        if piece.phase == phase and isinstance(piece, Interact):
            online = now.interaction.online
            total += online.due(piece.env_steps, learner.cfg.batch_size, now.period)
    return total


def brings_data(chosen: Resolved) -> bool:
    """Whether a data set is named, or the task has one."""
    return chosen.options.dataset is not None or chosen.task.card is not None


def reads_data(chosen: Resolved) -> bool:
    """Whether a data set is learned from, or what is seen is normalized by one."""
    o, offline_fraction = chosen.options, chosen.interaction.online.offline_fraction
    normalizes = chosen.algorithm.corrects and brings_data(chosen)
    return bool(o.num_updates or (o.num_env_steps and (offline_fraction or normalizes)))


def dataset_of(
    chosen: Resolved, given: Dataset | None = None, env: envs.VectorEnv | None = None
) -> Dataset:
    """`given`, else what is named, else the task's; of it the episodes that are asked for."""
    o = chosen.options
    dataset = data_of(given if given is not None else o.dataset or chosen.task, o, env)
    return dataset if o.episodes is None else first_episodes(dataset, o.episodes)


def converted(data: Dataset, env: envs.VectorEnv | None, options: TrainOptions) -> Dataset:
    """Return `data` with its actions in [-1, 1] of the range of `env`. Raises UserError."""
    if env is None:
        return data
    given = (k for k in ("action_scale", "action_range") if getattr(options, k) is not None)
    return in_range_of(data, stated(env), f"task {options.task}", option=next(given, None))


def completed(chosen: Resolved, dataset: Dataset) -> dict[str, Any]:
    """The settings with what the data say. Raises UserError where data do not allow them."""
    options, algorithm, settings = chosen.options, chosen.algorithm, chosen.settings
    if "costs" in algorithm.needs and "costs" not in dataset.extras:
        raise UserError(
            f"{dataset.path or dataset.name} has no costs, which {options.algorithm} learns "
            "from: give data with a column `costs`, as DSRL's"
        )
    unusable = algorithm.unusable_rows(dataset)
    if unusable == dataset.num_rows or dataset.num_rows < 2:
        raise UserError(
            f"{dataset.path or dataset.name} has {dataset.num_rows:,} rows, of which "
            f"{dataset.usable.sum():,} have a next observation: there is nothing to learn from"
        )
    if not dataset.has_rewards and any(map(algorithm.uses_rewards, settings.values())):
        raise UserError(
            f"{dataset.path or dataset.name} has no rewards, which {options.algorithm} learns "
            "from: give data that has them, or an algorithm that needs none, as bc or recoil"
        )
    settings = {name: algorithm.complete(cfg, dataset) for name, cfg in settings.items()}
    if any(cfg.normalize_returns for cfg in settings.values()):
        range_of_returns(dataset)  # refuses what has none
    if any(cfg.center_rewards for cfg in settings.values()):
        if options.num_env_steps:
            raise UserError(
                "center_rewards=true is sound where nothing terminates, which nobody knows of "
                "what num_env_steps= will bring; leave one of them out"
            )
        center_of(dataset)  # refuses where episodes terminate
    return settings


def small_enough(
    algorithm: type[Algorithm], spec: Spec, cfg: Any, how: Interaction, device: str
) -> Algorithm:
    """The learner. Raises UserError where its networks or a batch are more than memory holds."""
    total = hardware.memory(hardware.device(device))
    numbers = spec.action_dim + 2 * sum(prod(channel.shape) for channel in spec.vectors)
    if cfg.batch_size * numbers * 4 > total:
        raise UserError(
            f"batch_size={cfg.batch_size}: one batch is larger than memory, {total / 2**30:.0f} GiB"
        )
    try:
        return algorithm(spec, cfg, interaction=how)
    except RuntimeError as error:
        if not hardware.out_of_memory(error):
            raise
        sizes = {f.name: getattr(cfg, f.name) for f in fields(cfg)}
        largest = max(sizes, key=lambda name: most(sizes[name]))
        raise UserError(
            f"algorithm.{largest}={sizes[largest]}: networks of that size are larger than memory"
        ) from error


def most(value: Any) -> int:
    """The greatest whole number in it."""
    parts = value if isinstance(value, tuple) else (value,)
    return max((part for part in parts if isinstance(part, int)), default=0)


def frozen(
    options: TrainOptions, algorithm: type[Algorithm], env: envs.VectorEnv | None
) -> Base | None:
    """The policy that is corrected, where there is one. Raises UserError."""
    if not algorithm.corrects:
        if options.base is not None:
            raise UserError(f"base= is read by resfit; {options.algorithm} corrects no policy")
        return None
    if options.base is None:
        raise UserError(
            f"{options.algorithm} corrects a policy that stays as it is: give it with "
            "base=<bundle>, or base=module:function for one of your own"
        )
    if env is None or not options.num_env_steps or options.num_updates:
        raise UserError(
            f"{options.algorithm} learns in an environment alone: give task= and num_env_steps=, "
            "and num_updates=0; or offline-rl finetune"
        )
    return base_of(options.base, env)


def beside(data: Dataset, base: Base, scale: float) -> Dataset:
    """`data` with what the base would have done, and a note where that is too far away."""
    try:
        made = labeled(data, base)
    except BaseFault as error:
        raise UserError(f"{data.path or data.name}: {error}: data of another task?") from error
    proposed = made.observations[BASE_ACTION][: made.num_rows]
    share = float((np.abs(made.actions - proposed) > scale).any(1).mean())
    if not share:
        return made
    note = f"{share:.0%} of its actions are further than scale={scale:g} from the base's"
    return replace(made, notes=(*made.notes, note))


def data_of(
    source: str | Task | Dataset, options: TrainOptions, env: envs.VectorEnv | None = None
) -> Dataset:
    """Load the data set that `source` names as `options` say, or return `source` itself.

    `observation_keys` may choose among the parts of the task's environment alone. Then data with
    one vector is used as it is, and a note says so.
    env: the task's, if it is open.
    """
    how = {name: getattr(options, name) for name in READING}
    how = {name: value for name, value in how.items() if value is not None}
    if source == IN_MEMORY:  # what the config of such a run says
        raise UserError(
            "the run learned from data that was in memory: give it again from Python, as dataset="
        )
    own_task = options.task.startswith("env:")
    has_parts = env.observes_parts if isinstance(env, LoopVectorEnv) else env is None
    keys = options.observation_keys if own_task and has_parts else None
    if isinstance(source, Dataset):
        elsewhere = {"max_episode_steps"} if own_task else set()
        elsewhere |= {"observation_keys"} if keys else set()
        if told := [name for name, value in how.items() if value and name not in elsewhere]:
            raise UserError(f"{told[0]}= says how a file is read; this data is in memory already")
        notes = dict.fromkeys([*source.notes, *doubts(columns_of(source), {}, None, source.notes)])
        data = replace(source, path=None, sha256=source.checksum(), notes=tuple(notes))
    else:
        try:
            return load(source, options.data_dir, **how)
        except NoArraysToChoose:
            if not keys:
                raise
        del how["observation_keys"]
        data = load(source, options.data_dir, **how)
    if not keys or isinstance(data.observations, Mapping):
        return data
    note = f"observations are taken as the environment's {', '.join(keys)}, in this order"
    return replace(data, notes=(*data.notes, note))


def first_episodes(data: Dataset, count: int) -> Dataset:
    """`data` cut after so many. Raises UserError where it has fewer."""
    if count > data.num_episodes:
        raise UserError(
            f"episodes={count}: {data.path or data.name} has {data.num_episodes:,} episodes; "
            "episodes=null takes all"
        )
    return data.select(range(count))


def specification(
    task: Task,
    env: envs.VectorEnv | None,
    dataset: Dataset | None,
    expert: Dataset | None = None,
    *,
    corrects: bool = False,
) -> Spec:
    """The policy's spec: what data and environment say of themselves, the environment first.

    corrects: a base's action is observed besides; in the data it is already.

    Raises UserError where they contradict each other.
    """
    told = list[tuple[str, Spec]]()
    for data in (dataset, expert):
        if data is not None:
            told.append((f"{data.path or data.name}", described(data)))
    if env is not None:
        here = spec_of(env)
        told.append((f"task {task.name}", with_base(here) if corrects else here))
    first, spec = told[0]
    if spec.lone is not None and len(spec.observation_shape) != 1:
        raise UserError(
            f"{first} has observations {seen(spec)} and {spec.action_dim} actions: what is learned "
            "from are vectors of at least one number, or named channels; choose arrays with "
            "observation_keys=, or flatten them"
        )
    for name, own in told[1:]:
        if (spec.seen, spec.action_dim) != (own.seen, own.action_dim):
            raise UserError(
                f"{first} has observations {seen(spec)} and {spec.action_dim} actions, {name} has "
                f"{seen(own)} and {own.action_dim}: "
                f"{apart(spec, own, name, task)}{left_out(dataset, expert)}"
            )
        if not spec.same_rate(own):
            raise UserError(
                f"{first} has {spec.rate_hz:g} actions a second, {name} has {own.rate_hz:g}: a "
                "policy learned from the one is not at home in the other; give data of that rate, "
                "or task=none to train only"
            )
        if (problem := spec.contradiction(own)) is not None:
            field, mine, theirs = problem
            raise UserError(
                f"{first} has {field} {list(mine)}, {name} has {list(theirs)}: bring the data into "
                "the same units and order, or use task=none to train only"
            )
        spec = own.over(spec)
    return spec


def left_out(*every: Dataset | None) -> str:
    """What their files hold besides, and how it is observed."""
    notes = [note for data in every if data is not None for note in data.notes]
    found = [note for note in notes if note.startswith("not observed: ")]
    return f"; {found[0]}, which observation_keys= would add" if found else ""


def described(data: Dataset) -> Spec:
    """What a data set's file says of its numbers. Raises UserError where there are none."""
    obs, act = channels.shapes(data.observations), data.actions.shape[1]
    if not act or not all(shape and min(shape) for shape in channels.parts(obs)):
        raise UserError(
            f"{data.path or data.name} has observations {channels.each(list, obs)} and {act} "
            "actions: what is learned from are vectors of at least one number; choose arrays with "
            "observation_keys=, or flatten them"
        )
    return data.spec or Spec(obs, act)


def apart(one: Spec, other: Spec, name: str, task: Task) -> str:
    """Return what to do if `other`, the observations of `name`, differ from those of `one`."""
    for channel in other.channels if one.lone is None and other.lone is None else ():
        own = next((c for c in one.channels if c.name == channel.name), None)
        if own is None:
            names = ", ".join(c.name for c in one.channels)
            return f"it lacks {channel.name}, and has {names}; choose or rename arrays of it"
        if channel.kind == "picture" and own.shape != channel.shape:
            height, width, colors = channel.shape
            return f"its {channel.name} is to be {height} x {width} of {colors} colors; resize it"
    vector, parts = (one, other) if one.lone is not None else (other, one)
    vectors_alone = parts.lone is None and parts.vectors == parts.channels
    if vector.lone is not None and vectors_alone and one.action_dim == other.action_dim:
        keys = [channel.name for channel in parts.channels]
        if sum(prod(channel.shape) for channel in parts.channels) == prod(vector.lone.shape):
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
    return "data of another task? Use its own task, or task=none to train only"


def seen(spec: Spec) -> str:
    """The shape of what is observed, in words."""
    if spec.lone is not None:
        return str(list(spec.lone.shape))
    return ", ".join(f"{channel.name} {list(channel.shape)}" for channel in spec.channels)


def decided(plan: Resolved, name: str) -> dict[str, Any]:
    """What the keys alone decide of the run `name`, as config.json has it."""
    options = {k: v for k, v in asdict(plan.options).items() if k not in FREE}
    made: dict[str, Any] = {"name": name, "hyper": asdict(plan.settings[name])}
    if own := origin(plan.options.algorithm):
        made["code_sha256"] = own["sha256"]
    if plan.options.num_env_steps:
        made["online"] = asdict(plan.interaction.online)
        own = plan.settings[name]
        then = asdict(plan.interaction.of(own).cfg)
        made["online"] |= {k: v for k, v in then.items() if v != getattr(own, k)}
    return options | made


def description(plan: Plan, name: str, seed: int) -> dict[str, Any]:
    """What makes two runs the same run, of a seed."""
    made: dict[str, Any] = decided(plan, name)
    made["data"] = plan.dataset.sha256 if plan.dataset is not None else None
    if plan.start is not None:
        made["start"] = plan.start.to_json(seed)
    if plan.base is not None:
        made["base_sha256"] = plan.base.sha256
    if plan.expert is not None:
        made["expert_data"] = plan.expert.sha256
    return made


def lengthened(plan: Plan, member: Member) -> bool:
    """Whether a run is there that has fewer updates than are wanted, and may go on to them.

    Raises UserError where that would not be one run any more.
    """
    folder, wanted = member.folder, plan.options.num_updates
    if not folder.config.is_file() or plan.options.num_env_steps or plan.start is not None:
        return False
    before = read_object(folder.config).get("num_updates", wanted)
    if not isinstance(before, int) or not 0 < before < wanted:
        return False
    found = {int(p.name[5:]) for p in folder.path.parent.glob("seed_*") if p.name[5:].isdigit()}
    if left := sorted(found - {*plan.seeds}):
        raise UserError(
            f"{folder.path.parent} has the seeds {sorted(found)}: raise num_updates of all of them "
            f"together, {left} as well, or give the new run another name=…"
        )
    old, new = (plan.algorithm(plan.spec, member.cfg, n).optimizers() for n in (before, wanted))
    half = torch.tensor(before // 2)
    for name, adam in old.items():
        later = new[name].schedule
        moved = adam.schedule and later and adam.schedule(half) != later(half)
        if moved and not plan.options.stretch:
            raise UserError(
                f"{folder.path} was begun with num_updates={before}, at whose end the learning "
                f"rate of {name} is 0; with {wanted} it rises again: stretch=true goes on so, or "
                "give the new run another name=…"
            )
    return True


def headline(plan: Plan) -> str:
    """What is about to happen, in a few lines."""
    o, data = plan.options, plan.dataset
    rows = "no data" if data is None else f"{data.num_rows:,} rows of {data.path or data.name}"
    if plan.expert is not None:
        rows += f", {plan.expert.num_rows:,} of the expert's"
    card = prepared(o.algorithm, tuned_for(o))
    table = f"; the card's {', '.join(f'{k}={v:g}' for k, v in card.items())}" if card else ""
    table += f"; {row_of(o.algorithm, plan.pattern)}"
    where = "" if plan.task.env_id else "\nno environment: training without evaluation"
    where += idle(plan) + still_rising(plan)
    count = len(plan.settings)
    several = f" for each of {count} settings" if count > 1 else ""
    notes = "".join(f"\n{note}" for note in data.notes) if data is not None else ""
    for each in (data, plan.expert):
        notes += rows_left_out(plan, each) if each is not None else ""
    if plan.base is not None and plan.base.bundle is None:
        notes += (
            f"\nbase={plan.base.name} is code, which no bundle holds: the policy's will be the "
            "correction alone, and evaluate and play are to be given base= as well"
        )
    return f"{o.algorithm} on {o.task}, seeds {plan.seeds}{several}: {rows}{table}{where}{notes}"


def row_of(algorithm: str, pattern: str | None) -> str:
    """Return where an algorithm's settings are from: the row of a per-task table, or none."""
    owner = table_of(algorithm)
    file = f"configs/algorithm/{owner}.yaml"
    if owner is None:
        return "default settings"
    if pattern is None:
        return f"default settings ({file} has no row for this task)"
    return f"settings of row {pattern} of {file}"


def rows_left_out(plan: Plan, data: Dataset) -> str:
    """Return a sentence with the number of rows that critics cannot use, if there are any."""
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


def idle(plan: Plan) -> str:
    """A sentence where an environment's steps are too few to learn from; else nothing."""
    steps, online, batch = plan.options.num_env_steps, plan.interaction.online, plan.cfg.batch_size
    if not any(isinstance(piece, Interact) for piece in plan.schedule):
        return ""
    learner = plan.algorithm(plan.spec, plan.cfg, interaction=plan.interaction)
    period = learner.at(ONLINE).period
    episode = plan.task.max_episode_steps or 0
    if steps < episode and any(
        name != "expert" and name not in TOLD for name in plan.algorithm.needs
    ):
        return (
            f"\nnum_env_steps={steps} may end before learning starts: {plan.options.algorithm} "
            f"learns from whole episodes of up to {episode:,} steps. Raise num_env_steps"
        )
    if online.due(steps, batch, period):
        return ""
    by_batch = online.warmup_steps < batch
    key, value = ("batch_size", batch) if by_batch else ("online.warmup_steps", online.warmup_steps)
    after = f", then {online.utd:g} updates a step, {period} at a time" if steps > value else ""
    return (
        f"\nnum_env_steps={steps} ends before learning starts ({key}={value}{after}). Raise "
        f"num_env_steps or lower {key}"
    )


def still_rising(plan: Plan) -> str:
    """A sentence if the learning rate never reaches its full value; else nothing."""
    rising: int = getattr(plan.cfg, "num_warmup_updates", 0)
    if not 0 < plan.options.num_updates < rising:
        return ""
    return (
        f"\nnum_updates={plan.options.num_updates}: little will be learned, since the learning "
        f"rate rises over the first algorithm.num_warmup_updates={rising} and does not reach its full "
        "value"
    )


def stacked(cfgs: Sequence[Any]) -> dict[str, list[float]]:
    """The fields in which `cfgs` differ, with each one's value."""
    columns = {f.name: [getattr(cfg, f.name) for cfg in cfgs] for f in fields(cfgs[0])}
    return {name: values for name, values in columns.items() if any(v != values[0] for v in values)}
