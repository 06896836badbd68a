"""f-DVL: XQL with other f-divergences, some of them without an exponential value loss.

In the dual of RL regularized by an f-divergence, V solves
    min_V (1 - lam) E[V(s)] + lam E[f*(Q(s, a) - V(s))]
over the data, where f* is f's convex conjugate on densities w >= 0. The reverse KL divergence gives
XQL's Gumbel loss. The loss of chi-square grows quadratically, that of total variation linearly.

Paper:   Sikchi, Zheng, Zhang, Niekum, ICLR 2024, arXiv:2302.08560.
Differs: The released chi-square loss (hari-sikchi/DVL:offline/critic.py) rises again for Q < V - 4
         and so pulls V down to outliers; conjugate=released selects it. For locomotion, the README
         of hari-sikchi/DVL sets its weight lam to 1. Nothing else then pulls V down. Here lam is
         0.8, the other value in that README. No table of weights is published in code.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from offline_rl.algorithms import xql
from offline_rl.algorithms.common.config import Expectile
from offline_rl.algorithms.common.in_sample import gumbel_loss
from offline_rl.utils.options import Count, Positive, frozen

Divergence = Literal["chi_square", "total_variation", "reverse_kl"]
Conjugate = Literal["one_sided", "two_sided", "released"]


@frozen
class Config(xql.Config):
    """Defaults: hari-sikchi/DVL:offline, its README and train_offline.py, but for `lam`."""

    divergence: Divergence = "chi_square"  # the f-divergence
    conjugate: Conjugate = "one_sided"  # one_sided: f = 0 for w < 1; released: their loss
    lam: Expectile = 0.8  # near 1, V follows the best action; not used by reverse_kl
    temperature: Positive = 1.0  # divides Q - V; one_sided total_variation: only scales the loss
    batch_size: Count = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        unread = ("lam", "conjugate") if self.divergence == "reverse_kl" else ("max_clip",)
        self.refuse_unread("divergence", *unread)


class FDVL(xql.XQL):
    Config: type = Config

    def value_loss(self, u: Tensor) -> Tensor:
        """Return lam f*(z) - (1 - lam) z, z = u / temperature; reverse KL: e^z - 1 - z, as XQL."""
        cfg, z = self.cfg, u / self.cfg.temperature
        if cfg.divergence == "reverse_kl":
            return gumbel_loss(u, cfg.temperature, cfg.max_clip).mean()
        function = chi_square if cfg.divergence == "chi_square" else total_variation
        return (cfg.lam * function(z, cfg.conjugate) - (1 - cfg.lam) * z).mean()


def chi_square(y: Tensor, conjugate: Conjugate) -> Tensor:
    """Return the chi-square conjugate max_{w >= 0} w y - f(w), elementwise.

    two_sided: f = (w - 1)^2. The maximum is y + y^2 / 4 at w = 1 + y / 2, or -1 at w = 0.
    one_sided: f = max(w - 1, 0)^2. It equals two_sided for y > 0, and is 0 at w = 0 otherwise.
    Then only values of Q above V raise V. For lam -> 1, V is the value of the best action. With
    two_sided, V is larger than that value by 2.
    released: max(y + y^2 / 4, 0). This is not a conjugate: it falls as y rises to -4.
    """
    full = y + y.square() / 4
    if conjugate == "two_sided":
        return torch.where(y > -2, full, -1.0)
    return torch.where(y > 0, full, 0.0) if conjugate == "one_sided" else full.clamp(min=0)


def total_variation(y: Tensor, conjugate: Conjugate) -> Tensor:
    """Return the total-variation conjugate max_{w >= 0} w y - f(w), elementwise.

    The conjugate is infinite for y > 1/2. This function returns y there.

    two_sided: f = |w - 1| / 2. The maximum is y at w = 1, or -1/2 at w = 0.
    one_sided: f = max(w - 1, 0) / 2. The maximum is y at w = 1, or 0 at w = 0. V is a quantile of
    Q: a share (1 - lam) / lam of the values lies above V.
    released: equal to one_sided.
    """
    return y.clamp(min=-0.5 if conjugate == "two_sided" else 0.0)
