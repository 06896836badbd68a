"""Options of `offline-rl train`, `finetune` and `distill`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from offline_rl.utils.options import ActionRange, Amount, Checked, Count, FileFormat, Positive


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Checked):
    """Options of `offline-rl train`. Hyper-parameters are `algorithm.<field>`."""

    algorithm: str  # a name such as iql, a Python file with your algorithm, or module:Class
    task: str  # a name from `offline-rl data list`, env:<Gymnasium id>, or none (no evaluation)
    dataset: str | None = (
        None  # a file, a dataset's name, minari:<id> or lerobot:<repo>; default: the task's data
    )
    expert_dataset: str | None = None  # expert demonstrations, in addition to dataset (recoil)
    base: str | None = None  # frozen base policy of resfit: a bundle or module:function
    action_scale: Positive | None = None  # divide the actions of the data by this number
    action_range: ActionRange | None = (
        None  # range that is mapped to [-1, 1]: [low, high], or data: the data's minimum, maximum
    )
    observation_keys: list[str] | None = (
        None  # arrays of the data file, or keys of env:…, that form the observation, in this order
    )
    subset: str | None = None  # a named split of the data file, such as train
    format: FileFormat | None = None  # layout of the data file; default: recognized by its content
    episodes: Count | None = None  # use only this many episodes, from the start; default: all
    max_episode_steps: Count | None = (
        None  # time limit of env:…, and of episodes in a file without time-outs
    )
    d4rl_compatible: bool = False  # use exactly the transitions of D4RL's qlearning_dataset
    terminate_on_end: bool = False  # D4RL's option of this name; needs d4rl_compatible=true
    data_dir: str | None = None  # folder of datasets; default: OFFLINE_RL_DATA, else a cache folder
    seeds: int | list[int] = 1  # a count (3: seeds 0, 1, 2) or a list; all seeds train in parallel
    num_updates: Amount = (
        1_000_000  # gradient updates on the dataset; default for sac, td3 and rlpd: 0
    )
    stretch: bool = False  # extend a finished run whose learning rate is 0: the rate rises again
    pretrain_updates: Amount | None = (
        None  # gradient updates of each preliminary phase; default: the algorithm's
    )
    num_env_steps: Amount = 0  # environment steps of online training, per seed
    utd: Positive | None = (
        None  # gradient updates per environment step (update-to-data); default: the algorithm's
    )
    overlap: bool = False  # step the environment in parallel with the updates of the previous step
    keep_data: bool = False  # save each seed's online experience as a dataset, experience.hdf5
    batch_size: Count | None = None  # transitions per update; default: the algorithm's, mostly 256
    eval_every: Count = 10_000  # updates (online: environment steps) between evaluations
    eval_episodes: Count | Literal["all"] = (
        10  # episodes per evaluation and seed; all: each initial state once, from a fixed list
    )
    eval_envs: Count | None = (
        None  # limit on open evaluation environments, for simulators that allow few; default: none
    )
    checkpoint_every: Count = 10_000  # updates (online: environment steps) between checkpoints
    device: str = "auto"  # auto, cpu, cuda, or one GPU, such as cuda:1
    precision: Literal["auto", "fp32", "tf32", "bf16"] = (
        "auto"  # matmul precision; auto: bf16 if benchmarks showed no loss of score, else fp32
    )
    compile: Literal["auto", "always", "never"] = (
        "auto"  # compile the updates; auto: if the estimated saving exceeds the compile time
    )
    stream: Literal["auto", "always", "never"] = (
        "auto"  # read batches from the data file; auto: if the data does not fit into device memory
    )
    out: str = "runs"  # folder of all runs
    name: str = "default"  # name of the run, in <out>/<task>/<algorithm>/<name>/seed_<n>
    tracker: Literal["tensorboard", "wandb", "none"] = "tensorboard"  # logger of learning curves


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
