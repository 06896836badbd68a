"""`offline-rl generate`: datasets of the D4RL kind, made by SAC in an environment.

A recipe (configs/recipe/<name>.yaml) trains SAC with one environment and keeps every transition. The
policy of the first evaluation at which `medium_return` is reached, not before `medium_after` steps, is
the medium one; the best one at the end is the expert. As in D4RL (Fu et al., arXiv:2004.07219):

    random          uniform actions                medium         the medium policy, sampled
    medium-replay   all transitions up to it       expert         the final policy, sampled
    medium-expert   medium, then expert            full-replay    all transitions of the run
"""

from __future__ import annotations
