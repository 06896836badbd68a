"""MBPO: online soft actor-critic that is mostly trained on short rollouts of a dynamics model.

After a warm-up with random actions, the dynamics model is fitted to all experience. The policy then
acts in the model for a few steps, from states of the experience. Both are repeated after every
`rollout_every` environment steps. Many updates follow each environment step, mostly on predicted
transitions.

Paper:   Janner, Fu, Zhang, Levine, NeurIPS 2019, arXiv:1906.08253, algorithm 2.
Differs: from jannerm/mbpo. Each batch is sampled with replacement from the member's bootstrap
         sample; there, each epoch is a permutation of it. A fit has at most `dynamics_epochs`
         epochs; there, the number is not limited. There, the initial weights of the model are
         truncated at two standard deviations. The actor's loss uses the updated critics; there, all
         losses use the parameters from before the update. The log density of the policy is exact;
         there, 1e-6 is added inside the logarithm.
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

EPOCH = 1_000  # environment steps between changes of the rollout length
ROLLOUTS = "rollouts_"  # prefix of a phase: rollouts_<n> computes rollouts of n steps


@frozen
class Config(ModelConfig):
    """Defaults: the authors' (examples/config/walker2d/0.py)."""

    horizon: Annotated[int, Range(1), BUILT] = 1  # initial number of steps of a rollout
    last_horizon: Count | None = None  # final number of steps of a rollout; null: horizon
    growth_start: Amount = 20_000  # environment steps after the warm-up when rollouts start to grow
    growth_end: Count = 150_000  # environment steps after the warm-up when rollouts stop growing
    starts: Annotated[int, Range(1), BUILT] = 100_000  # rollouts after each fit of the model
    rollout_every: Count = 250  # environment steps between two fits of the model
    retain: Count = 4  # number of newest fits whose rollouts are kept
    entropy_scale: Number = 0.5  # target entropy is -entropy_scale * |A|
    holdout_max: Annotated[int, Range(1), BUILT] = 5_000  # limit on holdout rows, with holdout=rows
    patience: Count = 6  # epochs without improvement after which fitting stops
    actor_lr: Rate = 3e-4
    alpha_lr: Rate = 3e-4
    alpha_max: Positive | None = None  # upper bound of the temperature; null: none
    actor_anneals: Annotated[bool, BUILT] = False  # anneal the actor's learning rate to 0 (cosine)

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
                "clamp_states=true and holdout=episodes need a dataset, but MBPO trains without "
                "one. Remove them."
            )

    @property
    def longest(self) -> int:
        """Steps of the longest rollouts."""
        return self.last_horizon or self.horizon

    def horizon_at(self, env_steps: int) -> int:
        """Return the steps of a rollout, `env_steps` environment steps after the warm-up."""
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
    dynamics_model = None  # no `dynamics=`: the model is fitted to the run's own experience
    offline_networks: ClassVar = ("dynamics", "best_dynamics", "record")  # not trained online

    def actor(self) -> nn.Module:
        return self.build(TanhGaussianActor)

    def schedule(self, num_updates: int, num_env_steps: int, pretrain: int | None) -> list[Piece]:
        if num_updates or pretrain is not None:
            raise UserError(
                "MBPO trains from scratch in an environment. Set num_env_steps=, and remove "
                "num_updates= and pretrain_updates=; mopo trains on a dataset."
            )
        cfg, every = self.cfg, self.cfg.rollout_every
        start = max(self.interaction.online.warmup_steps, cfg.batch_size)  # steps before updates
        if not int(cfg.holdout_share * start):
            raise UserError(
                f"algorithm.holdout_share={cfg.holdout_share:g} of the {start} rows of the first "
                "fit is less than one holdout row. Raise online.warmup_steps or "
                "algorithm.holdout_share."
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
            work += self.fill_pieces(f"{ROLLOUTS}{cfg.horizon_at(done - start)}", self.chunk)
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
        if not phase.startswith(ROLLOUTS):
            return super().for_phase(phase)
        algorithm = copy.copy(super().for_phase(ONLINE))
        algorithm.cfg = replace(algorithm.cfg, horizon=int(phase.removeprefix(ROLLOUTS)))
        return algorithm

    def rings(self) -> dict[str, int]:
        return {MODEL: self.cfg.starts * self.cfg.longest * self.cfg.retain}

    def source(self, phase: str, sources: Sources) -> Source:
        if "online" in sources:  # the experience replaces the data
            sources = {**sources, "offline": sources["online"]}
        return super().source(phase, sources)

    def fill(self, state: State, batch: Batch) -> dict[str, Tensor]:
        """Return rollouts, and `keep`: the number of newest rows that stay in the ring."""
        rows, cfg = super().fill(state, batch), self.cfg
        keep = torch.full_like(state.done, cfg.starts * cfg.horizon * cfg.retain)
        return rows | {"keep": keep}
