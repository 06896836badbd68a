"""What `offline-rl train` takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from offline_rl.utils.options import ActionRange, Amount, Checked, Count, FileFormat, Positive


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Checked):
    """What `offline-rl train` takes. Hyper-parameters are `algorithm.<field>`."""

    algorithm: str  # a method's name, such as iql; a file of your own, mine.py; or module:Class
    task: str  # see `offline-rl data list`; or env:<Gymnasium id>; or none, for no evaluation
    dataset: str | None = None  # a file or card instead of the task's; minari:<id>, lerobot:<repo>
    expert_dataset: str | None = None  # an expert's data beside the other, for recoil
    base: str | None = None  # a frozen policy that resfit corrects: a bundle, or module:function
    action_scale: Positive | None = None  # the data's actions are divided by it
    action_range: ActionRange | None = None  # or: what -1 and 1 stand for; data: its own range
    observation_keys: list[str] | None = None  # what is seen of a file's arrays, or of env:…
    subset: str | None = None  # a split that the file names, such as train
    format: FileFormat | None = None  # layout of the data file; default: recognized by its content
    episodes: Count | None = None  # of the data, the first so many; default: all
    max_episode_steps: Count | None = None  # ends episodes of a file without time-outs, or of env:…
    d4rl_compatible: bool = False  # exactly the transitions of D4RL's qlearning_dataset
    terminate_on_end: bool = False  # the same with D4RL's option of that name
    data_dir: str | None = None  # default: OFFLINE_RL_DATA, else the user's cache folder
    seeds: int | list[int] = 1  # a count (0, 1, …) or a list; they train side by side
    num_updates: Amount = 1_000_000  # of the main phase, offline; of sac, td3 and rlpd: 0
    stretch: bool = False  # a higher num_updates goes on, though a rate's schedule ended with it
    pretrain_updates: Amount | None = None  # of each preliminary phase, where an algorithm has one
    num_env_steps: Amount = 0  # environment steps to learn from online
    utd: Positive | None = None  # updates for each environment step; default: the method's
    overlap: bool = False  # the next environment step is taken beside the updates of the last
    keep_data: bool = False  # leaves what was seen online as a data set, experience.hdf5 of a seed
    batch_size: Count | None = None  # default: the algorithm's own, mostly 256
    eval_every: Count = 10_000  # updates (online: environment steps) between evaluations
    eval_episodes: Count | Literal["all"] = 10  # for each seed; all: each start, of tasks with few
    eval_envs: Count | None = (
        None  # open at once in evaluation; 1 if only one environment can exist
    )
    checkpoint_every: Count = 10_000  # updates (online: environment steps)
    device: str = "auto"  # auto, cpu, cuda, cuda:1
    precision: Literal["auto", "fp32", "tf32", "bf16"] = "auto"  # of matrix products
    compile: Literal["auto", "always", "never"] = "auto"  # the updates
    stream: Literal["auto", "always", "never"] = "auto"  # data stays on the host, in its file
    out: str = "runs"  # the folder of all runs
    name: str = "default"  # of this run: <out>/<task>/<algorithm>/<name>/seed_<n>
    tracker: Literal["tensorboard", "wandb", "none"] = "tensorboard"  # where curves go


@dataclass(frozen=True, kw_only=True)
class WandbOptions:
    """What `wandb.<field>` says of a run at Weights & Biases, with tracker=wandb."""

    project: str = "offline_rl"  # where runs are filed
    entity: str | None = None  # the account or team; default: yours
    group: str | None = None  # what a run's seeds stand under; default: <task>/<algorithm>/<name>
    tags: list[str] = field(default_factory=list)  # of each seed's run
    mode: Literal["online", "offline", "disabled"] | None = None  # default: WANDB_MODE, or online


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(Checked):
    """What `offline-rl finetune` takes beside the keys of `train`."""

    run: str | None = None  # the folder above the seeds of a run of `train` or `finetune`
    base: str | None = None  # or: a frozen policy to correct, a bundle or module:function
    num_env_steps: Count  # of each seed
    algorithm: str | None = None  # default: the run's; of a base resfit
    task: str | None = None  # default: the run's
    utd: Positive | None = None  # updates for each environment step; default: the method's
    name: str | None = None  # of the new run; default: from-<algorithm>


@dataclass(frozen=True, kw_only=True)
class DistillOptions(Checked):
    """What `offline-rl distill` takes beside the keys of `train`."""

    run: str  # the folder above the seeds of a run: the teacher
    num_updates: Count  # of the student
    algorithm: str = "consistency"  # how the student learns
    name: str | None = None  # of the new run; default: from-<algorithm>
