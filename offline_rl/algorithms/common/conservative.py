"""What conservative critics push down: actions that the data may not show, and their soft maximum.

Kumar, Zhou, Tucker, Levine, NeurIPS 2020, arXiv:2006.04779, with its equation numbers.
"""

from __future__ import annotations

from math import log
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from offline_rl.algorithms.common.base import State
from offline_rl.algorithms.common.config import BUILT
from offline_rl.replay.batch import Batch
from offline_rl.utils.options import NonNegative

Variant = Literal["H", "H-raw", "rho"]  # of CQL's penalty
Gap = Annotated[NonNegative | None, BUILT]


def proposals(state: State, batch: Batch, samples: int, variant: Variant) -> tuple[Tensor, Tensor]:
    """The actions whose value CQL pushes down, [M, B, A], and their log densities [M, B].

    For rho N of the policy's (M = N = samples), else also N uniform ones and N that the policy
    takes in the *next* state (M = 3N); all are meant for the present state.
    """
    here, log_here = state.policy.sample(batch.observations, state.random, samples)
    if variant == "rho":
        return here, log_here
    there, log_there = state.policy.sample(batch.next_observations, state.random, samples)
    uniform = 2 * state.random.uniform(here.shape) - 1
    log_uniform = torch.full_like(log_here, -here.shape[-1] * log(2))
    return torch.cat([uniform, here, there]), torch.cat([log_uniform, log_here, log_there])


def soft_maximum(q: Tensor, log_density: Tensor, variant: Variant, temperature: float) -> Tensor:
    """What CQL pushes down in a state; q: [E, M + 1, B], the data's action last; -> [E, B].

    log_density: [M, B], of the first M actions where they were drawn.  t: the temperature.
    H:     t log sum_k exp((Q(s, a_k) - log p(a_k)) / t): the log of the integral in CQL's eq. 4 by
           importance sampling, but for a constant log M (appendix F).
    H-raw: the same without densities, the data's action included (its code's `min_q_version=2`).
    rho:   E_mu[Q] with mu(a) in proportion to pi(a) exp(Q(s, a) / t), which solves the inner
           problem of eq. 3, max_mu E_mu[Q] - t KL(mu, pi), pi being the policy so far. By its own
           samples: sum_k w_k Q(s, a_k), a_k ~ pi, w = softmax_k(Q(s, a_k) / t). As mu is a maximum,
           no gradient goes through w (envelope theorem).
    """
    t, drawn = temperature, q[:, :-1]
    if variant == "rho":
        return ((drawn.detach() / t).softmax(1) * drawn).sum(1)
    logits = q if variant == "H-raw" else drawn - log_density
    return t * (logits / t).logsumexp(1)


def excess(penalty: Tensor, cfg: Any) -> Tensor:
    """What the critics pay, [E] -> [E]: the weighted penalty, less the gap where there is one.

    weight * (penalty - gap) as young-geng/CQL, where the multiplier starts at e; with
    `gap_after_weight` weight * penalty - gap as the authors' code, where it starts at 1.
    """
    weight, gap = cfg.weight, cfg.gap or 0.0
    return weight * penalty - (gap if cfg.gap_after_weight else weight * gap)
