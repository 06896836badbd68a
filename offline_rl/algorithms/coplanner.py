"""COPlanner: MBPO whose actions are planned, cautious in the model and curious in the environment.

Several actions of the policy are each continued for a few steps in the dynamics model. The action
of the best continuation is taken. In rollouts of the model, the uncertainty of its predictions
counts against a continuation; in the environment, it counts in favor. Evaluations and exports use
the policy alone.

Paper:   Wang et al., ICLR 2024, arXiv:2310.07220, algorithm 1.
Differs: from si0wang/COPlanner:MuJoCo-MBPO-COPlanner (and from jannerm/mbpo as `mbpo`). The
         temperature is learned; there it is 0.2. The warm-up has random actions; there the
         untrained policy acts. There, the first 3,000 steps have fewer updates, the bounds of the
         log variance are not trained, and the holdout has no maximum. `plan_discount` applies to
         rewards and uncertainties; the authors use one value for both. Predicted ends of episodes
         do not end a continuation, as there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch import Tensor

from offline_rl.algorithms import mbpo
from offline_rl.algorithms.common.base import Algorithm, Params, State
from offline_rl.algorithms.common.config import BUILT
from offline_rl.algorithms.common.models.rollouts import CHUNK
from offline_rl.algorithms.common.schedule import ONLINE
from offline_rl.utils.options import Count, NonNegative, Range, Share, frozen
from offline_rl.utils.random import Random
from policies.heads.head import Actor


@frozen
class Config(mbpo.Config):
    """Defaults: the paper's for MuJoCo, and the authors' code's (main_mbpo.py)."""

    plans: Annotated[int, Range(1), BUILT] = 5  # continuations from a state (K)
    ahead: Annotated[int, Range(1), BUILT] = 5  # steps of a continuation (H_p)
    caution: NonNegative = 2.0  # weight of the uncertainty, subtracted in rollouts of the model
    curiosity: Annotated[NonNegative, BUILT] = 1.0  # weight of the uncertainty when exploring
    plan_discount: Annotated[Share, BUILT] = 0.97  # per step of a continuation
    real_share: Annotated[Share, BUILT] = 0.5  # share of the environment's transitions in a batch
    retain: Count = 1  # the newest rollouts are kept, of this many fits

    @classmethod
    def small(cls) -> dict[str, Any]:
        return super().small() | {"plans": 2, "ahead": 2}


class COPlanner(mbpo.MBPO):
    Config = Config

    @property
    def chunk(self) -> int:
        return max(CHUNK // self.cfg.plans, 1)

    def choose_action(self, state: State, s: Tensor) -> Tensor:
        """Return planned actions [B, A] that avoid uncertain predictions."""
        elites = self.elite_members(state)
        networks = state.policy, state.dynamics, elites
        return planned_action(*networks, s, state.random, self.cfg, -self.cfg.caution)

    def exploring_head(self) -> Planner:
        return Planner(self.for_phase(ONLINE))

    def exploring_params(self, params: Mapping[str, Params]) -> Params:
        parts = ("policy", "dynamics", "record")
        return {f"{name}.{k}": v for name in parts for k, v in params[name].items()}


class Planner(Actor):
    """Policy that takes planned actions which seek uncertain predictions."""

    def __init__(self, algorithm: Algorithm) -> None:
        super().__init__()
        modules, self.cfg = algorithm.modules, algorithm.cfg
        self.policy, self.dynamics = modules["policy"], modules["dynamics"]
        self.record = modules["record"]

    def explore_action(self, observations: Tensor, random: Any) -> Tensor:
        """Return planned actions [B, A]."""
        elites = self.record().argsort()[: self.cfg.elites]
        networks = self.policy, self.dynamics, elites
        return planned_action(*networks, observations, random, self.cfg, self.cfg.curiosity)


def planned_action(
    policy: Any,
    dynamics: Any,
    elites: Tensor,
    s: Tensor,
    random: Random,
    cfg: Config,
    weight: float | Tensor,
) -> Tensor:
    """Return the first action [B, A] of the best of `plans` continuations from states [B, O].

    A continuation is valued by its rewards plus `weight` times its uncertainties, discounted. The
    uncertainty is the standard deviation over all members' samples, averaged over their outputs.
    """
    x = s.expand(cfg.plans, *s.shape).flatten(0, 1)  # [K * B, O]
    first = a = policy.explore_action(x, random)  # [K * B, A]
    row, value = torch.arange(len(x), device=x.device), torch.zeros_like(x[:, 0])
    for step in range(cfg.ahead):
        if step:
            a = policy.explore_action(x, random)
        mean, log_variance = dynamics(torch.cat([x, a], -1))
        samples = mean + (0.5 * log_variance).exp() * random.normal(mean.shape)  # [E, K * B, O + 1]
        uncertainty = samples.std(0, correction=0).mean(-1)
        change = samples[elites[random.integers(len(elites), (len(x),))], row]
        value = value + cfg.plan_discount**step * (change[:, -1] + weight * uncertainty)
        x = x + change[:, :-1]
    best = value.unflatten(0, (cfg.plans, -1)).argmax(0)  # [B]
    return first.unflatten(0, (cfg.plans, -1))[best, row[: len(s)]]
