"""Options of `offline-rl train`, `finetune` and `distill`, in groups.

On the command line all keys are flat. Each option has a role: that of its group, or the one in its
annotation. The role states whether a different value makes a different run. To add an option, add
a field here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_type_hints

from offline_rl.utils.options import (
    ActionRange,
    Amount,
    Checked,
    Count,
    FileFormat,
    NonNegative,
    Positive,
    type_metadata,
)

Role = Literal["identity", "changeable", "local"]
IDENTITY: Role = "identity"  # stored; a different value makes a different run
CHANGEABLE: Role = "changeable"  # stored; may differ when the run is resumed
LOCAL: Role = "local"  # not stored: locations and hardware


class Alias(NamedTuple):
    """Annotation that makes an option a second key for the option `of`."""

    of: str


@dataclass(frozen=True, kw_only=True)
class MethodOptions(Checked):
    """Options that name the algorithm, the task with its cost limit, and the seeds."""

    role: ClassVar[Role] = IDENTITY
    algorithm: str  # a name such as iql, a Python file with your algorithm, or module:Class
    task: str  # a name from `offline-rl data list`, env:<Gymnasium id>, or none (no evaluation)
    target_cost: Annotated[NonNegative | None, Alias("algorithm.target_cost")] = (
        None  # limit on the undiscounted cost of an episode; default: the task's middle limit
    )
    seeds: Annotated[int | list[int], LOCAL] = (
        1  # a count (3: seeds 0, 1, 2) or a list; all seeds train in parallel
    )


@dataclass(frozen=True, kw_only=True)
class DataOptions(Checked):
    """Options that name the data of a run, and set how its files are read.

    Files are compared by their checksums.
    """

    role: ClassVar[Role] = IDENTITY
    dataset: Annotated[str | None, CHANGEABLE] = (
        None  # a file, a dataset's name, minari:<id> or lerobot:<repo>; default: the task's data
    )
    expert_dataset: Annotated[str | None, CHANGEABLE] = (
        None  # expert demonstrations, in addition to dataset (recoil)
    )
    base: Annotated[str | None, CHANGEABLE] = (
        None  # frozen base policy: a bundle (dsrl, resfit) or module:function (resfit)
    )
    dynamics: Annotated[str | None, CHANGEABLE] = (
        None  # run folder of a model-based method whose dynamics model is loaded, not fitted again
    )
    action_scale: Positive | None = None  # divide the actions of the data by this number
    action_range: ActionRange | None = (
        None  # range that is mapped to [-1, 1]: [low, high], or data: the data's minimum, maximum
    )
    observation_keys: list[str] | None = (
        None  # arrays of the data file, or keys of env:…, that form the observation, in this order
    )
    subset: str | None = None  # a named split of the data file, such as train
    format: FileFormat | None = None  # layout of the data file; default: recognized by its content
    infos: bool = False  # also read other per-step arrays of the file, such as infos/retry
    episodes: Count | None = None  # use only this many episodes, from the start; default: all
    max_episode_steps: Count | None = (
        None  # time limit of env:…, and of episodes in a file without time-outs
    )
    success_timing: Literal["post", "pre"] | None = (
        None  # OGBench: judge success after (post, the default) or before the step (pre)
    )
    d4rl_compatible: bool = False  # use exactly the transitions of D4RL's qlearning_dataset
    terminate_on_end: bool = False  # D4RL's option of this name; needs d4rl_compatible=true
    data_dir: Annotated[str | None, LOCAL] = (
        None  # folder of datasets; default: OFFLINE_RL_DATA, else a cache folder
    )


@dataclass(frozen=True, kw_only=True)
class BudgetOptions(Checked):
    """Options that set how long a run trains."""

    role: ClassVar[Role] = IDENTITY
    num_updates: Amount = (
        1_000_000  # gradient updates on the dataset; default for sac, td3 and rlpd: 0
    )
    stretch: Annotated[bool, LOCAL] = (
        False  # extend a finished run whose learning rate is 0: the rate rises again
    )
    pretrain_updates: Amount | None = (
        None  # gradient updates of each preliminary phase; default: the algorithm's
    )
    num_env_steps: Amount = 0  # environment steps of online training, per seed
    utd: Annotated[Positive | None, Alias("online.utd")] = (
        None  # gradient updates per environment step (update-to-data); default: the algorithm's
    )
    overlap: bool = False  # step the environment in parallel with the updates of the previous step
    batch_size: Annotated[Count | None, Alias("algorithm.batch_size")] = (
        None  # transitions per update; default: the algorithm's, mostly 256
    )


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions(Checked):
    """Options that set when a run is evaluated and saved."""

    role: ClassVar[Role] = CHANGEABLE
    eval_every: Count = 10_000  # updates (online: environment steps) between evaluations
    eval_episodes: Count | Literal["all"] = (
        10  # episodes per evaluation and seed; all: each initial state once, from a fixed list
    )
    eval_envs: Annotated[Count | None, LOCAL] = (
        None  # limit on open evaluation environments, for simulators that allow few; default: none
    )
    eval_stl: str | None = (
        None  # formula of signal temporal logic, whose robustness evaluations report; default: none
    )
    checkpoint_every: Count = 10_000  # updates (online: environment steps) between checkpoints
    selection: Annotated[bool, IDENTITY] = (
        False  # evaluate on episodes for the selection of hyper-parameters, which `search` uses
    )


@dataclass(frozen=True, kw_only=True)
class ComputeOptions(Checked):
    """Options that set the hardware, and how it is used."""

    role: ClassVar[Role] = LOCAL
    device: str = "auto"  # auto, cpu, cuda, or one GPU, such as cuda:1
    precision: Literal["auto", "fp32", "tf32", "bf16"] = (
        "auto"  # matmul precision; auto: bf16 if no score was lost, else tf32 on GPUs, else fp32
    )
    compile: Literal["auto", "always", "never"] = (
        "auto"  # compile the updates; auto: if the estimated saving exceeds the compile time
    )
    stream: Literal["auto", "always", "never"] = (
        "auto"  # read batches from the files; auto: data above device memory, videos above 1 GiB
    )
    actors: Amount = 0  # processes that collect complete episodes online; 0: in this process
    env_timeout_s: Positive | None = (
        None  # with actors: seconds without progress until an environment is restarted; default: 60
    )
    actor_address: str | None = (
        None  # with actors: <host>:<port> of the learner; default: a free port of 127.0.0.1
    )
    token_file: str | None = (
        None  # file with the secret of learner and actors; needed unless the host is loopback
    )


@dataclass(frozen=True, kw_only=True)
class OutputOptions(Checked):
    """Options that set where a run writes, and what."""

    role: ClassVar[Role] = LOCAL
    out: str = "runs"  # folder of all runs
    name: Annotated[str, IDENTITY] = (
        "default"  # name of the run, in <out>/<task>/<algorithm>/<name>/seed_<n>
    )
    keep_data: bool = False  # save each seed's online experience as a dataset, experience.hdf5
    tracker: Literal["tensorboard", "wandb", "none"] = "tensorboard"  # logger of learning curves


@dataclass(frozen=True, kw_only=True)
class TrainOptions(
    MethodOptions, DataOptions, BudgetOptions, EvaluationOptions, ComputeOptions, OutputOptions
):
    """Options of `offline-rl train`. Hyper-parameters are `algorithm.<field>`."""


@dataclass(frozen=True, kw_only=True)
class WandbOptions:
    """Options of a run at Weights & Biases (`tracker=wandb`): `wandb.<field>`."""

    project: str = "offline_rl"  # W&B project
    entity: str | None = None  # W&B account or team; default: yours
    group: str | None = None  # W&B group of the run's seeds; default: <task>/<algorithm>/<name>
    tags: list[str] = field(default_factory=list)  # W&B tags of each seed
    mode: Literal["online", "offline", "disabled"] | None = (
        None  # W&B mode; default: the environment variable WANDB_MODE, else online
    )


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(Checked):
    """Options of `offline-rl finetune`, in addition to those of `train`."""

    run: str | None = None  # run folder (contains seed_0) of `train` or `finetune` to continue from
    base: str | None = None  # instead of run: a frozen base policy, a bundle or module:function
    num_env_steps: Count  # environment steps of online training, per seed
    algorithm: str | None = None  # default: the run's algorithm; with base=: resfit
    task: str | None = None  # task to continue on; default: the run's task
    utd: Positive | None = (
        None  # gradient updates per environment step (update-to-data); default: the algorithm's
    )
    name: str | None = None  # name of the new run; default: from-<algorithm>


@dataclass(frozen=True, kw_only=True)
class DistillOptions(Checked):
    """Options of `offline-rl distill`, in addition to those of `train`."""

    run: str  # run folder (contains seed_0) of the teacher
    num_updates: Count  # gradient updates of the student
    algorithm: str = "consistency"  # algorithm of the student
    name: str | None = None  # name of the new run; default: from-<algorithm>


def annotated_options(group: type) -> Iterator[tuple[str, list[Any]]]:
    """Yield each option of a group with the roles and aliases in its annotation."""
    hints = get_type_hints(group, include_extras=True)
    for each in fields(group):
        yield each.name, list(type_metadata(hints[each.name]))


@cache
def roles() -> Mapping[str, Role]:
    """Return the role of every option of `train`; aliases have none."""
    role_of_option = dict[str, Role]()
    groups: tuple[Any, ...] = TrainOptions.__bases__
    for group in groups:
        for name, notes in annotated_options(group):
            if not any(isinstance(note, Alias) for note in notes):
                annotated = [note for note in notes if note in (IDENTITY, CHANGEABLE, LOCAL)]
                role_of_option[name] = annotated[0] if annotated else group.role
    return role_of_option


@cache
def aliases() -> Mapping[str, str]:
    """Return {alias: option} for the options that have a second key, such as `batch_size`."""
    pairs = ((name, note) for name, notes in annotated_options(TrainOptions) for note in notes)
    return {name: note.of for name, note in pairs if isinstance(note, Alias)}


def part_of(options: TrainOptions, group: type) -> Any:
    """Return the options of one group, such as `BudgetOptions`."""
    return group(**{f.name: getattr(options, f.name) for f in fields(group)})


def stored_options(*groups: Any) -> dict[str, Any]:
    """Return the values of options that a run stores: all except local ones and aliases."""
    stored = {name for name, role in roles().items() if role != LOCAL}
    return {k: v for group in groups for k, v in vars(group).items() if k in stored}
