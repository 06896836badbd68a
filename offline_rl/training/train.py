"""`offline-rl train`, `finetune` and `distill`: train runs, evaluate them, write their results.

All runs of a command are checked before the first one starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from envs import Task
from offline_rl.algorithms.common.registry import run_label
from offline_rl.data import Dataset
from offline_rl.engine.choices import choose_precision
from offline_rl.runs.folder import Done, named_task, run_folder, seed_numbers
from offline_rl.runs.options import DistillOptions, FinetuneOptions, TrainOptions
from offline_rl.runs.run import Run, distinguish, refuse_other, runs_of, stack
from offline_rl.runs.start import distill_keys, finetune_keys
from offline_rl.training.assemble import train_group
from offline_rl.training.continuation import check_start
from offline_rl.training.headline import headline, range_note
from offline_rl.training.prepare import Prepared, prepare, read_data
from offline_rl.training.result import Result
from offline_rl.training.sources import must_stream
from offline_rl.training.trackers import log_in
from offline_rl.training.trainer import Trainer
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import lock_folder, remove_temporaries
from offline_rl.utils.options import options_signature
from offline_rl.version import __version__
from policies.networks.defaults import denormals_restored, torch_defaults

if TYPE_CHECKING:
    from offline_rl.engine.ranks import Ranks

Watch = Callable[[Trainer], None]


@torch_defaults()
@denormals_restored()
def train(*, show: bool = True, watch: Watch | None = None, **keys: Any) -> Result:
    """Train and evaluate the seeds of one or more runs.

    keys: the options of the command line; write `algorithm__beta` for `algorithm.beta`. A list for
    a numeric hyper-parameter makes one run for each value, named after it; all of them train in
    parallel.
    show: print progress. watch: called after each evaluation.

    A repeated call continues an interrupted run and does not change a finished run. A higher
    num_updates extends an interrupted or a finished run. Ctrl-C and SIGTERM save a checkpoint
    first. Raises UserError for mistakes in options, data or files.

    The processes of a torchrun command train one policy together, each on its slice of every batch.
    """
    with in_ranks() as ranks:
        return train_stack(prepare(runs_of(keys)), show, watch, ranks)


@torch_defaults()
@denormals_restored()
def finetune(
    *,
    show: bool = True,
    watch: Watch | None = None,
    run: str | Path | None = None,
    **keys: Any,
) -> Result:
    """Continue `run` online, or train on a frozen policy `base`.

    keys: the options of `train`; `num_env_steps` is required.
    """
    continued, start = finetune_keys(run, keys)
    return train_stack(prepare(runs_of(continued, start)), show, watch)


@torch_defaults()
@denormals_restored()
def distill(
    *, show: bool = True, watch: Watch | None = None, run: str | Path, **keys: Any
) -> Result:
    """Train a student with the policies of `run` as teachers.

    keys: the options of `train`; `num_updates` is required.
    """
    distilled, start = distill_keys(run, keys)
    return train_stack(prepare(runs_of(distilled, start)), show, watch)


train.__signature__ = options_signature(train, TrainOptions)  # type: ignore[attr-defined]
finetune.__signature__ = options_signature(finetune, FinetuneOptions, TrainOptions)  # type: ignore[attr-defined]
distill.__signature__ = options_signature(distill, DistillOptions, TrainOptions)  # type: ignore[attr-defined]


@torch_defaults()
@denormals_restored()
def launch(jobs: Sequence[Mapping[str, Any]], *, show: bool = True) -> list[Path]:
    """Train the runs of several jobs and return the folder of each group that trained together.

    jobs: options of `train`. All jobs are checked before the first one starts. Raises UserError.
    """
    with in_ranks() as ranks:
        stacks, read = stack(runs_of_jobs(jobs)), CachedReader()
        if len(stacks) == 1:
            return [train_stack(prepare(stacks[0], read), show, ranks=ranks).path]
        if ranks is not None:
            raise UserError(
                f"torchrun trains one setting, and the command has {len(stacks)}. Start a command "
                "for each."
            )
    for runs in stacks:
        with error_label(runs[0].label):
            extended_runs(prepare(runs, read))
    paths = list[Path]()
    for number, runs in enumerate(stacks, 1):
        if show:
            print(f"{number} of {len(stacks)}: {runs[0].label}", flush=True)
        paths.append(train_stack(prepare(runs, read), show).path)
    return paths


def in_ranks() -> AbstractContextManager[Ranks | None]:
    """Return the session of a torchrun command; without torchrun, a context of None."""
    if hardware.world_size() == 1:
        return nullcontext()
    from offline_rl.engine.ranks import session

    return session()


def runs_of_jobs(jobs: Sequence[Mapping[str, Any]]) -> list[Run]:
    """Return the runs of several jobs, each with a folder of its own. Raises UserError."""
    if len(jobs) == 1:
        return runs_of(jobs[0])
    runs = list[Run]()
    for job in jobs:
        with error_label(label_of(job)):
            runs += runs_of(job)
    return distinguish(runs)


def label_of(job: Mapping[str, Any]) -> str:
    """Return task, algorithm and name of a job that may be wrong, for messages."""
    values = {"algorithm": "", "task": "", "name": "default", **job}
    method = run_label(str(values["algorithm"]))
    return " ".join(run_folder("", named_task(values), method, str(values["name"])).parts)


@contextmanager
def error_label(label: str) -> Iterator[None]:
    """Put `label` in front of the message of a UserError in the block."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{label}: {error}") from None


class CachedReader:
    """A reader that keeps the last two datasets, so that a sweep reads its data once."""

    def __init__(self) -> None:
        self.datasets = list[tuple[Any, Dataset]]()  # with their keys; room for data and expert

    def __call__(self, source: str | Task, run: Run) -> Dataset:
        key = source, run.data, run.compute.stream
        for cached_key, data in self.datasets:
            if cached_key == key:
                return data
        data = read_data(source, run)
        self.datasets = [*self.datasets[-1:], (key, data)]
        return data


def train_stack(
    prepared: Prepared,
    show: bool = True,
    watch: Watch | None = None,
    ranks: Ranks | None = None,
) -> Result:
    """Train the prepared runs, in groups of seeds that have a checkpoint in common.

    ranks: processes that share the batches. Rank 0 reads and writes the folders of the runs.
    """
    run, runs = prepared.run, prepared.runs
    if ranks is not None:
        ranks.agree(facts_to_agree_on(prepared))
        if ranks.rank > 0:
            return follow(prepared, ranks)
    paths = list(dict.fromkeys(each.path for each in runs))
    path = paths[0] if len(paths) == 1 else paths[0].parent
    say = print if show else (lambda *_: None)
    if run.start is not None:
        check_start(prepared, run.start)
    with ExitStack() as locks:
        for folder in paths:
            locks.enter_context(lock_folder(folder))
        extended = extended_runs(prepared)
        finished = [each for each in runs if each.folder.finished]
        pending = [each for each in runs if each in extended or each not in finished]
        if pending and run.output.tracker == "wandb":
            log_in(run.wandb)
        if run.start is not None and run.task.name != run.start.task:
            say(f"{run.start.run} was trained on {run.start.task} and continues on {run.task.name}")
        if not pending:
            say(f"{path}: already finished; nothing to do")
        else:
            say(headline(prepared))
            if (note := range_note(prepared)) is not None:
                say(note)
        for each in pending:
            remove_temporaries(each.folder.path)
        say_once = cache(say)
        groups = groups_of(prepared, pending, finished, say)
        if ranks is not None:
            ranks.share([[runs.index(each) for each in group] for group in groups])
        for group in groups:
            train_group(prepared, group, show, watch, say_once, ranks)
    results = [each.folder.outcome() for each in runs]
    if ranks is not None:
        ranks.share([str(path), results])
    return Result(path, results, [each.name for each in runs])


def follow(prepared: Prepared, ranks: Ranks) -> Result:
    """Train the groups of `train_stack` on a rank other than 0, which writes nothing."""
    for group in ranks.share(None):
        runs = [prepared.runs[k] for k in group]
        train_group(prepared, runs, False, None, lambda _: None, ranks)
    path, results = ranks.share(None)
    return Result(Path(path), results, [each.name for each in prepared.runs])


def facts_to_agree_on(prepared: Prepared) -> dict[str, Any]:
    """Return what must be equal on all ranks: versions, device, and the runs with their data."""
    compute, evaluation = prepared.run.compute, prepared.run.evaluation
    device = hardware.select_device(compute.device)
    facts: dict[str, Any] = {
        "offline_rl": __version__,
        "commit": hardware.current_commit(),
        "torch": torch.__version__,
        "device": device.type,
        "precision": choose_precision(compute.precision, prepared.run.method.name, device),
        "compile": compute.compile,
        "has_compiler": hardware.missing_compiler() is None,
        "seeds": [run.seed for run in prepared.runs],
    }
    if prepared.data is not None and must_stream(prepared, prepared.data, device):
        facts["stream"] = "always"
    facts |= {name: getattr(evaluation, name) for name in ("eval_every", "checkpoint_every")}
    for run in prepared.runs:
        facts |= run.identity()
    return facts


def groups_of(
    prepared: Prepared, pending: Sequence[Run], finished: Sequence[Run], say: Callable[[str], None]
) -> list[list[Run]]:
    """Return the pending runs in groups that train together, in the order of their training."""
    started = [run for run in pending if run.folder.checkpoints() and run not in finished]
    new = [run for run in pending if run not in started and run not in finished]
    parallel = prepared.trains_in_parallel
    if parallel and killed_between_first_checkpoints(started, new):
        say(
            "The last process was killed before every seed had saved a checkpoint. All seeds "
            "restart at update 0."
        )
        started, new = [], [run for run in pending if run not in finished]
    extended = [run for run in pending if run in finished]
    groups = [group for group in (*resume_groups(extended), *resume_groups(started), new) if group]
    if not parallel and len(pending) > 1:
        slow = f"{prepared.run.method.name}: training seeds in parallel would not be faster"
        slow = slow if hardware.world_size() == 1 else "torchrun trains one seed at a time"
        if actors := prepared.run.compute.actors:
            slow = f"actors={actors} collect for one seed at a time"
        say(f"{prepared.limit or slow}. Seeds train one after another")
        return [[run] for group in groups for run in group]
    if pending and prepared.limit is not None:
        say(prepared.limit)
    return groups


def resume_groups(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the groups of seeds that can resume together because they share a checkpoint."""
    groups: list[tuple[set[Done], list[Run]]] = []
    for run in runs:
        checkpoints = set(run.folder.checkpoints())
        for k, (common, group) in enumerate(groups):
            if common & checkpoints:
                groups[k] = common & checkpoints, [*group, run]
                break
        else:
            groups.append((checkpoints, [run]))
    return [group for _, group in groups]


def killed_between_first_checkpoints(started: Sequence[Run], new: Sequence[Run]) -> bool:
    """Return True if a process was killed when only some seeds had saved their first checkpoint.

    Then each seed in `started` has exactly one checkpoint. At least one seed in `new` has a config
    file but no checkpoint. All of them must restart together.
    """
    only_first = bool(started) and all(len(run.folder.checkpoints()) == 1 for run in started)
    return only_first and any(run.folder.config.is_file() for run in new)


def extended_runs(prepared: Prepared) -> list[Run]:
    """Return the runs that are extended to more updates.

    Raises UserError if a folder contains a run with another configuration, or a damaged result.
    """
    extended = [run for run in prepared.runs if is_extension(prepared, run)]
    for run in prepared.runs:
        refuse_other(run.folder, run, extends=run in extended)
        if run.folder.finished:
            run.folder.outcome()  # raises if it is damaged
    return extended


def is_extension(prepared: Prepared, run: Run) -> bool:
    """Return True if the seed's folder contains this run with fewer updates, so it can be extended.

    Raises UserError if the extended run would differ from one uninterrupted run.
    """
    folder, num_updates = run.folder, run.budget.num_updates
    stored = folder.stored_config()
    if stored is None or run.budget.num_env_steps or run.start is not None:
        return False
    old_updates = stored.get("num_updates", num_updates)
    if not isinstance(old_updates, int) or not 0 < old_updates < num_updates:
        return False
    requested = {each.seed for each in prepared.runs if each.path == run.path}
    if missing := sorted({*seed_numbers(run.path)} - requested):
        raise UserError(
            f"{run.path} has the seeds {seed_numbers(run.path)}, which must be extended together. "
            f"Add {missing} to seeds=, or use another name=…"
        )
    cls, spec, cfg = run.method.cls, prepared.spec, run.method.cfg
    old_optimizers, new_optimizers = (
        cls(spec, cfg, updates).optimizers() for updates in (old_updates, num_updates)
    )
    half = torch.tensor(old_updates // 2)
    for field in cls.decay_ends:
        if float(getattr(cfg, field)) < 1 and not run.budget.stretch:
            raise UserError(
                f"{folder.path} was started with num_updates={old_updates}, over which "
                f"algorithm.{field} decays a weight. With num_updates={num_updates} the weight "
                "would rise again. Set stretch=true to continue anyway, or use another name=…"
            )
    for name, adam in old_optimizers.items():
        new_schedule = new_optimizers[name].schedule
        differs = adam.schedule and new_schedule and adam.schedule(half) != new_schedule(half)
        if differs and not run.budget.stretch:
            raise UserError(
                f"{folder.path} was started with num_updates={old_updates}, at which the learning "
                f"rate of {name} is 0. With num_updates={num_updates} it would rise again. Set "
                "stretch=true to continue anyway, or use another name=…"
            )
    return True
