"""What `offline-rl train` takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What `offline-rl train` takes. Hyper-parameters are `algorithm.<field>`."""

    algorithm: str  # a file in offline_rl/algorithms
    task: str  # see `offline-rl data list`; env:<Gymnasium id>; none
    dataset: str | None = None  # a file (recognised by content) or a card, instead of the task's
    expert_dataset: str | None = None  # an expert's data beside the other, for who imitates one
    action_scale: float | None = None  # the data's actions are divided by it
    action_range: list[float] | list[list[float]] | None = None  # or: what -1 and 1 stand for
    observation_keys: list[str] | None = None  # the file's arrays that make an observation
    subset: str | None = None  # a split that the file names
    d4rl_compatible: bool = False  # exactly the transitions of D4RL's qlearning_dataset
    terminate_on_end: bool = False  # the same with D4RL's option of that name
    data_dir: str | None = None  # default: OFFLINE_RL_DATA, else the user's cache folder
    seeds: int | list[int] = 1  # a count (0, 1, …) or a list; trained together
    num_updates: int = 1_000_000  # of the main phase, offline
    pretrain_updates: int | None = None  # of each preliminary phase, where an algorithm has one
    num_env_steps: int = 0  # environment steps to learn from online
    utd: float | None = None  # updates per environment step; default: the method's
    batch_size: int | None = None  # default: the algorithm's own, mostly 256
    eval_every: int = 10_000  # updates (online: environment steps) between evaluations
    eval_episodes: int = 10  # for each seed
    checkpoint_every: int = 10_000  # likewise
    device: str = "auto"  # auto, cpu, cuda, cuda:1
    precision: Literal["auto", "fp32", "tf32", "bf16"] = "auto"  # of matrix products
    compile: Literal["auto", "always", "never"] = "auto"
    stream: Literal["auto", "always", "never"] = "auto"  # data stays on the host, in its file
    out: str = "runs"
    name: str = "default"
    tracker: Literal["tensorboard", "wandb", "none"] = "tensorboard"
