"""Checks that can refuse a run before it starts, in stages.

    wrong_keys      two keys contradict each other
    wrong_options   the options of a run contradict or need each other; nothing has been read
    wrong_start     the run lacks its data, or the run or policy to start from
    wrong_outcomes  the task's termination or reward function cannot be used
    wrong_data      the data does not contain what the algorithm needs
    wrong_chunks    chunks of actions do not fit into the episodes of the data
    wrong_learner   the algorithm cannot learn with this specification and schedule

Each stage yields error messages. `refuse` raises the first one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from envs import Task
from envs.tasks import NATIVE
from offline_rl.algorithms.common.base import Algorithm
from offline_rl.algorithms.common.config import stackable_fields
from offline_rl.algorithms.common.registry import algorithm_class, algorithm_names
from offline_rl.algorithms.common.safety.costs import LimitConfig
from offline_rl.algorithms.common.schedule import ONLINE, Fill, Interact, Learn, OnPolicy, Piece
from offline_rl.data import Dataset
from offline_rl.data.specs import describe_shape
from offline_rl.replay.columns import with_sources
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from policies.heads.head import load_kinds
from policies.spec import Spec
from policies.stl.formula import FormulaError, parse

if TYPE_CHECKING:
    from offline_rl.runs.options import TrainOptions

ROWS = 3  # rows with which functions of the user are tried
CHUNK = 100_000  # maximum number of rows checked at once, to limit memory
TRACKERS = ("wandb", "tensorboard")  # trackers that need a package of this name


def refuse(messages: Iterator[str]) -> None:
    """Raise UserError with the first of the messages, if there is one."""
    for message in messages:
        raise UserError(message)


def wrong_keys(
    keys: Mapping[str, Any],
    aliases: Mapping[str, str],
    options: TrainOptions,
    online: Mapping[str, Any],
    wandb: Mapping[str, Any],
) -> Iterator[str]:
    """Yield an error message for keys that contradict each other or have no effect.

    aliases: second keys of options. online, wandb: the keys of these groups, without prefix.
    """
    for alias, option in aliases.items():
        if alias in keys and option in keys and keys[alias] != keys[option]:
            yield (
                f"{alias}={keys[alias]} and {option}={keys[option]}: both keys set the same "
                "option. Use one of them."
            )
    if wandb and options.tracker != "wandb":
        yield f"wandb.{next(iter(wandb))}= needs tracker=wandb"
    if options.utd is not None and not options.num_env_steps:
        yield "utd= has no effect without num_env_steps="
    if online and not options.num_env_steps:
        yield f"online.{next(iter(online))}= has no effect without num_env_steps="


def no_limit_taken(options: TrainOptions, algorithm: type[Algorithm]) -> Iterator[str]:
    """Yield an error message for a cost limit if the algorithm takes none."""
    if options.target_cost is None or issubclass(algorithm.Config, LimitConfig):
        return
    configs = {name: algorithm_class(name).Config for name in algorithm_names()}
    able = [name for name, config in configs.items() if issubclass(config, LimitConfig)]
    yield (
        f"target_cost={options.target_cost:g}: {options.algorithm} takes no cost limit. Remove it, "
        f"or use one of {', '.join(able)}."
    )


def reads_costs(algorithm: type[Algorithm]) -> bool:
    """Return True if the algorithm learns from the costs of the data."""
    columns = with_sources(algorithm.extra_columns)
    return "costs" in columns or issubclass(algorithm.Config, LimitConfig)


def not_stackable(algorithm: type[Algorithm], names: Sequence[str]) -> Iterator[str]:
    """Yield an error message for each of `names` that must be equal for stacked seeds."""
    for name in names:
        if name not in stackable_fields(algorithm.Config):
            yield f"algorithm.{name} cannot differ between stacked seeds. Use one value."
    if "discount" in names and "mc_returns" in algorithm.extra_columns:
        yield (
            "algorithm.discount cannot be a list here: the returns of the dataset depend on it. "
            "Start one run for each value."
        )


def no_effect_on_model(
    algorithm: type[Algorithm], names: Sequence[str], options: TrainOptions
) -> Iterator[str]:
    """Yield an error message for a list of values that would fit the same model several times.

    names: hyper-parameters with a list of values.
    """
    model = algorithm.dynamics_model
    if model is None or not model.numbers or options.num_updates or options.num_env_steps:
        return
    for name in names:
        if name not in model.numbers:
            yield (
                f"algorithm.{name} is a list, but num_updates=0 fits only the dynamics model, "
                "which does not depend on it. Give one value, or raise num_updates."
            )


def wrong_options(run: Any) -> Iterator[str]:
    """Yield an error message for options that contradict or need each other. run: a Run."""
    method, cls = run.method.name, run.method.cls
    budget, output, compile = run.budget, run.output, run.compute.compile
    updates, steps = budget.num_updates, budget.num_env_steps
    on_policy, needs_expert = issubclass(cls.Online, OnPolicy), "expert" in cls.extra_columns
    cfg, task = run.method.cfg, run.task.name
    if isinstance(cfg, LimitConfig) and cfg.target_cost is None:
        yield (
            f"{method} needs a cost limit, and task {task} has none. Set target_cost=<limit on the "
            "undiscounted cost of an episode>."
        )
    if getattr(cfg, "episode_steps", 0) is None:
        yield (
            f"target_cost= is the limit of an episode, and task {task} has no time limit. Set "
            "algorithm.episode_steps=<steps of an episode>."
        )
    if run.evaluation.eval_stl is not None:
        yield from wrong_formula(run.evaluation.eval_stl, run.task)
    yield from wrong_actors(run)
    n_step = run.method.interaction.online.n_step
    if steps and n_step > 1 and reads_costs(cls):
        yield (
            f"online.n_step={n_step}: {method} needs n_step=1, because its cost critic has a "
            "discount of its own. Remove it."
        )
    if steps and n_step > 1 and getattr(cfg, "bisimulation", 0):
        yield (
            f"online.n_step={n_step}: algorithm.bisimulation needs n_step=1, because its model "
            "predicts the next step. Remove one of them."
        )
    if not output.name.strip("."):
        yield f"name={output.name!r} cannot be the name of a folder. Use another name=."
    if not output.out.strip():
        yield "out= is empty. Use out=. for the working folder."
    if not updates and not steps and cls.starts_online():
        yield (
            f"{method} has nothing to do. Set num_env_steps=… to train online, or num_updates=… to "
            "train on a dataset."
        )
    if run.data.dynamics is not None and cls.dynamics_model is None:
        yield (
            f"dynamics= is used by {model_based_names()}, which fit a dynamics model to data; "
            f"{method} does not. Remove it."
        )
    if run.fits_model_only and run.data.dynamics is not None:
        yield "nothing to do: with dynamics=, no model is fitted. Raise num_updates."
    if not updates and not steps and not run.fits_model_only:
        yield "nothing to do: num_updates and num_env_steps are both 0. Raise one."
    if compile == "always" and (missing := hardware.missing_compiler()):
        yield f"compile=always: {missing}"
    if output.tracker in TRACKERS and find_spec(output.tracker) is None:
        yield f"tracker={output.tracker} needs a package: pip install {output.tracker}"
    if steps and not cls.mode.online:
        yield f"{method} does not learn online. Remove num_env_steps."
    if steps and run.task.name == "none":
        yield "num_env_steps needs an environment, and task=none has none. Set task=."
    if budget.overlap and on_policy:
        yield (
            f"overlap=true does not work with {method}, which is on-policy: it collects and learns "
            "in turns. Remove it."
        )
    if budget.overlap and not steps:
        yield "overlap=true has no effect without num_env_steps="
    if output.keep_data and on_policy:
        yield (
            f"keep_data=true does not work with {method}, which does not store its online "
            "experience. Remove it."
        )
    if output.keep_data and not steps:
        yield "keep_data=true saves online experience. Set num_env_steps=."
    if output.keep_data and not run.method.cfg.reward_scale:
        yield (
            "keep_data=true does not work with reward_scale=0, from which the original rewards "
            "cannot be recovered. Remove one of them."
        )
    if run.data.expert_dataset is not None and not needs_expert:
        yield f"{method} does not use expert_dataset. Remove it."
    if run.data.expert_dataset is None and needs_expert:
        yield (
            f"{method} needs expert demonstrations. Set expert_dataset=<path or id>, in addition "
            "to the data of the task or of dataset=."
        )
    if (world_size := hardware.world_size()) > 1:
        yield from wrong_ranks(run, world_size)
    if run.data.base is not None and cls.mode.start != "base" and not cls.mode.takes_base:
        modes = {name: algorithm_class(name).mode for name in algorithm_names()}
        names = [k for k, mode in modes.items() if mode.start == "base" or mode.takes_base]
        yield f"base= is used by {' and '.join(names)}; {method} has no base policy. Remove it."


def wrong_ranks(run: Any, world_size: int) -> Iterator[str]:
    """Yield an error message if a run cannot share its batches. run: a Run.

    world_size: number of processes of torchrun.
    """
    method, cls, batch_size = run.method.name, run.method.cls, run.method.cfg.batch_size
    if not cls.data_parallel:
        names = [name for name in algorithm_names() if algorithm_class(name).data_parallel]
        yield (
            f"{method} trains in a single process, and torchrun has started {world_size}. Remove "
            f"torchrun, or use one of {', '.join(names)}."
        )
    if run.start is not None:
        yield "finetune and distill run in a single process. Remove torchrun."
    if batch_size % world_size:
        yield (
            f"batch_size={batch_size} is not a multiple of the {world_size} processes of torchrun. "
            f"Use a multiple of {world_size}."
        )


def wrong_actors(run: Any) -> Iterator[str]:
    """Yield an error message for options of actor processes that cannot work. run: a Run."""
    compute, budget, method = run.compute, run.budget, run.method
    for name in ("env_timeout_s", "actor_address", "token_file"):
        if getattr(compute, name) is not None and not compute.actors:
            yield f"{name}= has no effect without actors=. Set actors=, or remove it."
    if not compute.actors:
        return
    actors = f"actors={compute.actors}"
    if not budget.num_env_steps:
        yield f"{actors} has no effect without num_env_steps=. Remove it."
    if issubclass(method.cls.Online, OnPolicy):
        yield f"{actors} does not work with {method.name}, which is on-policy. Remove it."
    if budget.overlap:
        yield f"overlap=true has no effect with {actors}, which always overlap. Remove it."
    if run.data.base is not None or method.cls.mode.start == "base":
        yield f"{actors} does not work with base=, which actors do not have. Remove it."
    if method.cls.exploring_head is not Algorithm.exploring_head:
        yield (
            f"{actors} does not work with {method.name}, which explores with networks that actors "
            "do not have. Remove it."
        )
    env_id = str(run.task.env_id)
    if run.task.env_id and env_id not in NATIVE and not env_id.startswith(("env:", "d4rl:")):
        yield (
            f"{actors} cannot create task={run.task.name}, which is registered in this process "
            "only. Use task=env:<file>.py:<class>."
        )
    from offline_rl.online.actors.wire import is_loopback, parse_address  # only with actors=

    if compute.actor_address is None:
        return
    host, _ = parse_address(compute.actor_address)
    if not is_loopback(host) and compute.token_file is None:
        yield (
            f"actor_address={compute.actor_address} can be reached from other machines. Set "
            "token_file=<file with a secret>, or use 127.0.0.1."
        )


def wrong_formula(formula: str, task: Task) -> Iterator[str]:
    """Yield an error message for a formula of the evaluations that cannot be computed."""
    if not task.env_id:
        yield f"eval_stl= needs an environment, and task {task.name} has none. Remove it."
    try:
        parse(formula)
    except FormulaError as error:
        yield f"eval_{error}."


def model_based_names(reusable: Any = None) -> str:
    """Return the names of the algorithms that fit a dynamics model, for messages.

    reusable: only those whose model has the same networks.
    """
    models = {name: algorithm_class(name).dynamics_model for name in algorithm_names()}
    fitted = {name: model for name, model in models.items() if model is not None}
    names = [k for k, v in fitted.items() if reusable is None or v.networks == reusable.networks]
    *first, last = names or ["the same algorithm"]  # for a user's own algorithm
    return f"{', '.join(first)} and {last}" if first else last


def wrong_start(run: Any) -> Iterator[str]:
    """Yield an error message if the run lacks data, or the run or policy to start from.

    run: a Run.

    Runs of a suite are checked when they start, because they start from earlier runs.
    """
    method, mode, budget = run.method.name, run.method.cls.mode, run.budget
    method_cfg = run.method.cfg
    if mode.start == "teacher" and run.start is None:
        yield f"{method} needs a teacher. Use offline-rl distill run=<folder> with {mode.runs}."
    if mode.start == "run" and run.start is None:
        yield (
            f"{method} fine-tunes a trained policy. Use offline-rl finetune algorithm={method} "
            f"run=<folder> with {mode.runs}."
        )
    if mode.start == "base" and run.data.base is None:
        yield (
            f"{method} needs a frozen base policy. Set base=<bundle>, or base=module:function for "
            "your own code."
        )
    if mode.start == "base" and mode.how == "noise":
        if run.data.dataset is not None or run.method.interaction.online.offline_fraction:
            yield (
                f"{method} chooses the noise of its base policy, and the noise of recorded actions "
                "is unknown, so it cannot learn from data. Remove dataset=, and set "
                "online.offline_fraction=0."
            )
        if run.output.keep_data:
            yield (
                f"keep_data=true does not work with {method}, whose actions are the noise of its "
                "base policy. Remove it."
            )
    if mode.takes_base and run.data.base is not None and method_cfg.normalize_observations:
        yield (
            f"normalize_observations={method_cfg.normalize_observations} does not work with base=: "
            f"{method} normalizes observations as its base does. Set "
            "algorithm.normalize_observations=false."
        )
    learns_online_only = run.task.env_id and budget.num_env_steps and not budget.num_updates
    if mode.start == "base" and not learns_online_only:
        yield (
            f"{method} learns only online. Set task=, num_env_steps= and num_updates=0, or use "
            "offline-rl finetune."
        )
    if run.data.action_range == "data" and run.task.env_id:
        yield (
            "action_range=data needs task=none: the range of the data may be smaller than that of "
            f"{run.task.name}. Set action_range=[low,high]."
        )
    if "data" not in mode.learns and issubclass(run.method.cls.Online, OnPolicy):
        if budget.num_updates:
            remedy = "Remove it" if budget.num_env_steps else "Set num_env_steps= instead"
            yield (
                f"num_updates={budget.num_updates} is not used: all training of {method} is on its "
                f"own rollouts. {remedy}."
            )
    elif run.reads_data and not run.has_dataset:
        reads = {"num_updates": budget.num_updates}
        reads["online.offline_fraction"] = run.method.interaction.online.offline_fraction
        zeros = " ".join(f"{name}=0" for name, value in reads.items() if value)
        can_omit = budget.num_env_steps and not issubclass(run.method.cls.Online, OnPolicy)
        remedy = f", or {zeros} to learn online only" if can_omit else ""
        yield f"task {run.task.name} has no dataset. Set dataset=<path or id>{remedy}"
    learns_alone = run.method.cls.uses_facts and not run.reads_data and run.start is None
    if run.data.dataset is not None and learns_alone:
        yield (
            f"{method} does not read dataset={run.data.dataset}: it learns only from its own "
            "experience. Remove dataset=."
        )


def wrong_data(run: Any, learner: Algorithm, data: Dataset) -> Iterator[str]:
    """Yield an error message if the data lacks something that the algorithm needs. run: a Run."""
    method, name, cfg = run.method.name, data.path or data.name, run.method.cfg
    interaction, columns = run.method.interaction, learner.extra_columns
    if reads_costs(type(learner)):
        yield from wrong_costs(name, method, data)
    if learner.unusable_rows(data) == data.num_rows or data.num_rows < 2:
        yield (
            f"{name} has {data.num_rows:,} rows, of which {data.usable.sum():,} have a next "
            "observation. That is too little to learn from. Use a larger dataset."
        )
    if not data.has_rewards and learner.uses_rewards(cfg):
        yield (
            f"{name} has no rewards, which {method} needs. Use data with rewards, or an algorithm "
            "that needs none, such as bc or recoil."
        )
    if learner.uses_facts and (count := unmarked_ends(run, data)):
        yield (
            f"{name}: {count:,} rows end an episode of {run.task.name}, but no row is terminated, "
            "so values would include rewards after these ends. Use data with terminations, or "
            "algorithm.ends=never if episodes continue there."
        )
    if cfg.center_rewards and run.budget.num_env_steps:
        yield (
            "center_rewards=true requires that no episode terminates, which is unknown for online "
            "experience. Remove center_rewards or num_env_steps."
        )
    online = run.budget.num_env_steps and "mc_returns" in columns
    if online and cfg.discount != interaction.cfg.discount:
        yield (
            f"online.discount={interaction.cfg.discount:g} differs from algorithm.discount="
            f"{cfg.discount:g}, with which {method} computed the returns of the dataset. Use the "
            "same value."
        )
    if "next_actions" in columns and interaction.online.n_step > 1:
        yield (
            f"online.n_step={interaction.online.n_step}: {method} needs n_step=1, because its "
            "targets use the action of the next step"
        )


def wrong_costs(name: str, method: str, data: Dataset) -> Iterator[str]:
    """Yield an error message if the costs of the data are missing or cannot be costs."""
    costs = data.extras.get("costs")
    if costs is None:
        yield (
            f"{name} has no costs, which {method} needs. Use data with a column `costs`, such as "
            "the data sets of DSRL."
        )
    elif costs.shape != (data.num_rows,):
        yield (
            f"{name}: costs has the shape {[*costs.shape]}. It needs one number per step, "
            f"[{data.num_rows}]."
        )
    elif (wrong := np.flatnonzero(~((costs >= 0) & (costs < np.inf)))).size:
        yield (
            f"{name}: costs is {costs[wrong[0]]:g} in row {wrong[0]:,} ({wrong.size:,} such rows). "
            "A cost is a finite number of at least 0. Correct the data."
        )


def unmarked_ends(run: Any, data: Dataset) -> int:
    """Return the number of rows that end an episode by the task's rule; 0 if any is terminated.

    Also 0 if the run does not use the task's rule, or if it is not known. run: a Run.
    """
    outcomes = run.task.outcomes
    is_end = None if outcomes is None else outcomes.ends.get("task")
    if is_end is None or run.method.cfg.ends != "task" or data.terminated.any():
        return 0
    count, rows = 0, np.flatnonzero(data.usable)
    for start in range(0, len(rows), CHUNK):
        at = rows[start : start + CHUNK]
        arrays = data.observations[at], data.actions[at], data.observations[data.next_index[at]]
        count += int(is_end(*map(torch.as_tensor, arrays)).sum())
    return count


def wrong_outcomes(run: Any, spec: Spec) -> Iterator[str]:
    """Yield an error message for a function of the task's outcomes that cannot be used. run: a Run.

    The model is fitted long before the functions are called, so they are traced with zeros here.
    """
    outcomes = run.task.outcomes
    if outcomes is None or not run.method.cls.uses_facts or spec.single_vector is None:
        return
    cfg, used = run.method.cfg, dict[str, Any]()
    rule = outcomes.end_rule(cfg.ends)
    if rule in outcomes.ends:
        used[f"ends[{rule!r}]"] = outcomes.ends[rule]
    if cfg.rewards == "task" and outcomes.reward is not None:
        used["reward"] = outcomes.reward
    s, a = torch.zeros(ROWS, spec.observation_dim), torch.zeros(ROWS, spec.action_dim)
    for name, function in used.items():
        kind = "numbers" if name == "reward" else "booleans"
        if problem := wrong_function(function, s, a, is_mask=name != "reward"):
            yield (
                f"task={run.task.name}: outcomes.{name} {problem}. It must return a torch tensor "
                f"of {kind}, one for each row [B], of observations [B, {s.shape[1]}], actions "
                f"[B, {a.shape[1]}] and next observations, and must not branch on values."
            )


def wrong_function(function: Any, s: Tensor, a: Tensor, *, is_mask: bool) -> str:
    """Return what is wrong with a function of transitions; empty if nothing is."""
    try:
        result = function(s, a, s)
        make_fx(function)(s, a, s)
    except Exception as error:
        text = next(iter(str(error).splitlines()), "").rstrip(".")
        return f"raises {type(error).__name__} ({text})"
    if not isinstance(result, Tensor):
        return f"returns {type(result).__name__}"
    if result.shape != s.shape[:1]:
        return f"returns the shape {[*result.shape]} for {len(s)} rows"
    if is_mask != (result.dtype == torch.bool):
        return f"returns {str(result.dtype).removeprefix('torch.')}"
    return ""


def wrong_steps(run: Any, steps_per_decision: int) -> Iterator[str]:
    """Yield an error message if the last decision would be incomplete. run: a Run."""
    if (steps := run.budget.num_env_steps) % steps_per_decision:
        yield (
            f"num_env_steps={steps} is not a multiple of {steps_per_decision}, the steps that a "
            f"decision of base={run.data.base} lasts. Use a multiple of {steps_per_decision}."
        )


def wrong_observations(run: Any, learner: Algorithm, spec: Spec) -> Iterator[str]:
    """Yield an error message if the algorithm cannot observe the channels of `spec`. run: a Run."""
    if spec.single_vector is not None or not learner.vector_only:
        return
    able = [name for name in algorithm_names() if not algorithm_class(name).vector_only]
    remedy = f"Use {', '.join(able) or 'another algorithm'}"
    can_join = (run.task.env_id or "env:").startswith("env:") and not run.in_memory
    if can_join and spec.vectors == spec.channels:
        names = ",".join(channel.name for channel in spec.channels)
        remedy = f"Set observation_keys=[{names}] to join them, or use {', '.join(able)}"
    elif run.data.observation_keys:
        remedy = f"Remove images from observation_keys=, or use {', '.join(able)}"
    yield (
        f"{run.method.name} needs one observation vector, but the observations are "
        f"{describe_shape(spec)}. {remedy}."
    )


def wrong_chunks(learner: Algorithm, head: Any, data: Dataset) -> Iterator[str]:
    """Yield an error message if every episode is shorter than a chunk or an observation history.

    head: the acting head.
    """
    longest = int(data.episode_lengths().max())
    if head.n_obs_steps > longest:
        yield (
            f"{data.path or data.name}: the longest episode has {longest} steps, an observation "
            f"history has {head.n_obs_steps}. Lower algorithm.n_obs_steps."
        )
    if head.chunk_size > longest:
        yield (
            f"{data.path or data.name}: the longest episode has {longest} steps, a chunk has "
            f"{head.chunk_size}. {shorter_chunk(learner)}"
        )


def shorter_chunk(learner: Algorithm) -> str:
    """Return the sentence that says how to shorten the chunks of an algorithm."""
    return "Lower algorithm.horizon." if hasattr(learner.cfg, "horizon") else "Shorten chunks."


def wrong_learner(
    run: Any, learner: Algorithm, head: Any, schedule: Sequence[Piece], limit: str | None
) -> Iterator[str]:
    """Yield an error message if the algorithm cannot learn by this schedule.

    run: a Run. head: the acting head. limit: the reason why only one environment can be open, or
    None.
    """
    method, budget, scheduled = run.method.name, run.budget, {piece.phase for piece in schedule}
    steps = run.task.max_episode_steps
    if steps is not None and head.n_obs_steps > steps:
        yield (
            f"an episode of {run.task.name} has {steps} steps, an observation history has "
            f"{head.n_obs_steps}. Lower algorithm.n_obs_steps."
        )
    if steps is not None and head.chunk_size > steps:
        yield (
            f"an episode of {run.task.name} has {steps} steps, a chunk has {head.chunk_size}. "
            f"{shorter_chunk(learner)}"
        )
    if type(head) not in load_kinds().values():
        yield (
            f"the policy of {method} is a {type(head).__name__}, which cannot be saved as a "
            f"bundle. Use a class of policies.heads: {', '.join(load_kinds())}. Other networks may "
            "be of any class."
        )
    if budget.pretrain_updates is not None and not learner.phases:
        yield (
            f"pretrain_updates={budget.pretrain_updates}: {method} has no preliminary phase with "
            "these settings. Remove it."
        )
    is_online = "data" in learner.mode.learns and budget.num_env_steps
    if learner.phases and is_online and not budget.num_updates and run.start is None:
        yield (
            f"{method} must train on a dataset before it trains online. Set num_updates=, or "
            "fine-tune one of its runs."
        )
    for piece in schedule:
        period = learner.for_phase(piece.phase).period
        if isinstance(piece, Learn) and piece.updates % period:
            preliminary = "pretrain_updates" if budget.pretrain_updates is not None else piece.phase
            key = "num_updates" if piece.phase == "update" else preliminary
            yield (
                f"{key}={piece.updates} is not a multiple of {period} ({method} repeats every "
                f"{period} updates). Use a multiple of {period}."
            )
    count = getattr(run.method.interaction.cfg, "environments", 1)
    if limit is not None and count > 1:
        yield (
            f"{limit}, and {method} collects in {count} environments at the same time. Use "
            "algorithm.environments=1."
        )
    if run.data.dynamics is not None and learner.dynamics_model is not None:
        scheduled |= {*learner.dynamics_model.phases}  # completed by the run that fitted the model
    missing = [phase for phase in learner.needed_phases if phase not in scheduled]
    if "update" in scheduled and missing:
        yield (
            f"{type(learner).__name__} relies on the phase {missing[0]}, which has 0 updates here. "
            "Raise pretrain_updates, or remove it to use the algorithm's default."
        )
    filled = {piece.target for piece in schedule if isinstance(piece, Fill)}
    empty = (
        [name for name in learner.rings() if name not in filled] if "update" in scheduled else []
    )
    if empty:
        yield (
            f"the ring {empty[0]!r} of {method} would stay empty: its schedule has no Fill(…, "
            f"target={empty[0]!r}). Return one from `schedule`, before the updates that sample it."
        )
    for phase in dict.fromkeys(piece.phase for piece in schedule):
        frozen, key = learner.for_phase(phase).updates_before_policy(phase)
        updates = phase_updates(learner, schedule, phase)
        if 0 < updates <= frozen:
            length = "num_env_steps" if phase == ONLINE else "num_updates"
            kind = "offline" if phase == "update" else phase
            yield (
                f"The policy would not change: all {updates:,} {kind} updates fall within {key} "
                f"({frozen:,} updates). Raise {length} or lower {key}."
            )


def phase_updates(learner: Algorithm, schedule: Sequence[Piece], phase: str) -> int:
    """Return the number of updates of `phase` in the complete schedule."""
    algorithm, pieces = learner.for_phase(phase), [p for p in schedule if p.phase == phase]
    steps = sum(piece.env_steps for piece in pieces if isinstance(piece, Interact))
    online = algorithm.interaction.online
    due = online.updates_due(steps, learner.cfg.batch_size, algorithm.period)
    return due + sum(piece.updates for piece in pieces if isinstance(piece, Learn))
