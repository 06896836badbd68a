"""QC-FQL: flow Q-learning on action chunks, which its policy predicts and its critics evaluate.

All losses are those of FQL, with a chunk in place of an action. Chunks are executed open loop, so
the target is an n-step return without off-policy bias. Steps after the end of an episode are left
out of the imitation loss.

Paper:   Li, Zhou, Levine, NeurIPS 2025, arXiv:2507.07969.
Differs: from the authors' code (ColinQiyangLi/qc:agents/acfql.py, actor_type=distill-ddpg). Chunks
         that the end of an episode cuts short bootstrap from the last observation, so that the
         reward for success enters through all of them. The authors' critic loss leaves them out, so
         it enters through one of `horizon` chunks: partial=drop. Rewards after a step that
         terminates are left out of a chunk's sum; the authors add them. Online, new steps do not
         replace rows of the data; in the authors' code they do if the data has 2 million rows or
         more. The Q term is normalized in tasks without a setting in the paper.
"""

from __future__ import annotations

from typing import Annotated

from offline_rl.algorithms import fql
from offline_rl.algorithms.common import schedule
from offline_rl.algorithms.common.config import BUILT
from offline_rl.utils.options import Count, frozen


@frozen
class Config(fql.Config):
    """Defaults: the authors' code, with a normalized Q term."""

    horizon: Annotated[Count, BUILT] = 5  # actions of a chunk; all of them are executed


class QCFQL(fql.FQL):
    Config = Config
    Online = schedule.Chunked
