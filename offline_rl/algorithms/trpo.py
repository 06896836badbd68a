"""Trust region policy optimization (TRPO): one natural-gradient step per iteration.

An iteration collects steps of the current policy, fits a critic to their Monte Carlo returns, and
updates the policy along the natural gradient, by a fixed KL divergence. A line search halves the
step until the loss decreases.

Paper:   Schulman et al., ICML 2015, arXiv:1502.05477. Advantages: arXiv:1506.02438.
Differs: The method is `hnpg` without data, as in YifeiZhou02/HNPG:trpo.py with HYBRID=False. The
         critic is Q, and V is its mean over sampled actions; the paper's critic is V. The line
         search does not check the KL divergence after the step.
"""

from __future__ import annotations

from typing import ClassVar

from offline_rl.algorithms import hnpg
from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.base import Mode
from offline_rl.utils.options import frozen


@frozen
class Config(hnpg.Config):
    """Defaults: those of HNPG."""


class TRPO(hnpg.HNPG):
    Config: type = Config
    Online: type = schedule.OnPolicy
    mode = Mode(learns=("environment",))
    extra_columns: ClassVar[tuple[str, ...]] = ()
    hybrid = False
