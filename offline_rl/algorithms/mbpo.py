"""MBPO: soft actor-critic trained on short rollouts of a dynamics model, from scratch.

After a warm-up with random actions, the dynamics model is fitted again to all experience before
every `rollout_every` environment steps. The policy then acts in the model for a few steps from
states of the experience. Each environment step is followed by many updates, mostly on predicted
transitions.

Paper:   Janner, Fu, Zhang, Levine, NeurIPS 2019, arXiv:1906.08253, algorithm 2.
Differs: from jannerm/mbpo. Members are trained on bootstrap samples whose batches are drawn anew;
         there each epoch is a permutation. A fit has at most `dynamics_epochs` epochs; there it has
         no limit. Initial weights of the model there are cut off at two standard deviations. All
         losses there are taken at the old parameters; here the actor is updated with the new
         critics. The log density there has 1e-6 inside its logarithm; here it is exact.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import Algorithm, Mode, State
from offline_rl.algorithms.common.config import BUILT, Rate
from offline_rl.algorithms.common.models.rollouts import CHUNK, MODEL, ModelBased, ModelConfig
from offline_rl.algorithms.common.schedule import ONLINE, Interact, Piece
from offline_rl.replay.batch import Batch, Source, Sources
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Amount, Count, Number, Positive, Range, frozen
from policies.heads.gaussian import TanhGaussianActor

EPOCH = 1_000  # environment steps after which the length of rollouts may change
STEPS = "rollouts_"  # phase of the rollouts of n steps: rollouts_<n>


@frozen
class Config(ModelConfig):
    """Defaults: the authors' (examples/config/walker2d/0.py)."""

    horizon: Annotated[int, Range(1), BUILT] = 1  # steps of a rollout, after the warm-up
    last_horizon: Count | None = None  # steps of a rollout, after its growth; null: horizon
    growth_start: Amount = 20_000  # environment steps after the warm-up; then rollouts grow
    growth_end: Count = 150_000  # environment steps after the warm-up; growth ends there
    starts: Annotated[int, Range(1), BUILT] = 100_000  # rollouts after each fit of the model
    rollout_every: Count = 250  # environment steps between two fits of the model
    retain: Count = 4  # the newest rollouts are kept, of this many fits
    entropy_scale: Number = 0.5  # target entropy is -entropy_scale * |A|
    holdout_max: Annotated[int, Range(1), BUILT] = 5_000  # most holdout rows, with holdout=rows
    patience: Count = 6  # epochs without improvement after which fitting stops
    actor_lr: Rate = 3e-4
    alpha_lr: Rate = 3e-4
    alpha_max: Positive | None = None  # upper bound of the temperature; null: none
    actor_anneals: Annotated[bool, BUILT] = False  # actor's learning rate falls to 0 (cosine)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.horizon <= self.longest:
            raise ValueError(
                f"last_horizon={self.last_horizon} is below horizon={self.horizon}: rollouts "
                "cannot become shorter. Raise last_horizon."
            )
        if not self.growth_start < self.growth_end:
            raise ValueError(
                f"growth_end={self.growth_end} is not above growth_start={self.growth_start}. "
                "Raise growth_end."
            )
        if self.clamp_states or self.holdout == "episodes":
            raise ValueError(
                "clamp_states=true and holdout=episodes need a dataset, and there is none. Remove "
                "them."
            )

    @property
    def longest(self) -> int:
        """Steps of the longest rollouts."""
        return self.last_horizon or self.horizon

    def horizon_at(self, env_steps: int) -> int:
        """Return the steps of a rollout after this number of environment steps after warm-up."""
        grown = env_steps // EPOCH * EPOCH - self.growth_start
        share = grown / (self.growth_end - self.growth_start)
        return self.horizon + int(min(max(share, 0), 1) * (self.longest - self.horizon))

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {"last_horizon": 3}


@frozen
class Online(schedule.RandomStart):
    """Defaults: the authors'."""

    warmup_steps: Amount = 5_000
    utd: Positive = 20.0
    offline_fraction: Literal[0] = 0  # not used: batches have real and predicted transitions
    n_step: Literal[1] = 1  # not used: predicted transitions have one step


class MBPO(ModelBased):
    Config: type = Config
    Online: type = Online
    mode = Mode(learns=("environment",))
    follows_card = False  # starts without data
    dynamics_model = None  # its model is fitted to its own experience
    offline_networks: ClassVar = ("dynamics", "best_dynamics", "record")  # fitted in other phases

    def actor(self) -> nn.Module:
        return self.build(TanhGaussianActor)

    def schedule(self, num_updates: int, num_env_steps: int, pretrain: int | None) -> list[Piece]:
        if num_updates or pretrain is not None:
            raise UserError(
                "MBPO trains from scratch in an environment. Set num_env_steps=, and remove "
                "num_updates= and pretrain_updates=; mopo trains on a dataset."
            )
        cfg, every = self.cfg, self.cfg.rollout_every
        start = max(self.interaction.online.warmup_steps, cfg.batch_size)  # updates start here
        if not int(cfg.holdout_share * start):
            raise UserError(
                f"A share of {cfg.holdout_share:g} of the {start} rows of the first fit is no "
                "holdout data. Raise online.warmup_steps or algorithm.holdout_share."
            )
        if num_env_steps <= start:
            raise UserError(
                f"num_env_steps={num_env_steps} does not exceed the {start} steps before the first "
                "fit of the model (online.warmup_steps or batch_size), so nothing would be "
                "learned. Raise num_env_steps, or lower online.warmup_steps."
            )
        work: list[Piece] = [Interact(ONLINE, start, evaluate=False)]
        for done in range(start, num_env_steps, every):
            work += self.fitting_pieces(self.epoch_updates(done))
            work += self.fill_pieces(f"{STEPS}{cfg.horizon_at(done - start)}", self.chunk)
            work.append(Interact(ONLINE, min(every, num_env_steps - done), evaluate=False))
        return work

    @property
    def chunk(self) -> int:
        """Number of rollouts computed at a time, which bounds memory."""
        return CHUNK

    def epoch_updates(self, env_steps: int) -> int:
        """Return the updates of one pass over the experience of `env_steps` steps."""
        cfg = self.cfg
        rows = env_steps - min(int(cfg.holdout_share * env_steps), cfg.holdout_max)
        return cfg.epoch_updates or math.ceil(rows / cfg.batch_size)

    def for_phase(self, phase: str) -> Algorithm:
        if not phase.startswith(STEPS):
            return super().for_phase(phase)
        algorithm = copy.copy(super().for_phase(ONLINE))
        algorithm.cfg = replace(algorithm.cfg, horizon=int(phase.removeprefix(STEPS)))
        return algorithm

    def rings(self) -> dict[str, int]:
        return {MODEL: self.cfg.starts * self.cfg.longest * self.cfg.retain}

    def source(self, phase: str, sources: Sources) -> Source:
        if "online" in sources:  # experience in place of data
            sources = {**sources, "offline": sources["online"]}
        return super().source(phase, sources)

    def fill(self, state: State, batch: Batch) -> dict[str, Tensor]:
        """Return rollouts, and the number of newest rows that the ring keeps."""
        rows, cfg = super().fill(state, batch), self.cfg
        keep = torch.full_like(state.done, cfg.starts * cfg.horizon * cfg.retain)
        return rows | {"keep": keep}
