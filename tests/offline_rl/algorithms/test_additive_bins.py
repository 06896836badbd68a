"""The example of ARSQ's paper, without the earlier dimensions; with them, see `test_arsq`."""

from typing import Any

import numpy as np
import torch
from by_hand import advance, dependent_actions, start

from offline_rl.algorithms.arsq import ARSQ
from policies.spec import Spec


def test_bins_that_see_no_earlier_dimension_miss_the_best_action() -> None:
    """The values are the least-squares fit c + x [a_1 = +] + y [a_2 = +]. Its normal equations are

        c + 0.5 x + 0.3 y = 0.25,   0.5 c + 0.5 x + 0.1 y = 0.1,   0.3 c + 0.1 x + 0.3 y = 0.1,

    so that x = -0.08, y = 0.1 and c = 0.26: the greedy action is (-, +), whose reward is 0.
    """
    x, y, c = -0.08, 0.1, 0.26
    config: Any = {"hidden": (16,), "levels": 1, "bins": 2, "alpha": 0.1, "lr": 0.05}
    config |= {"conditioning": "level", "imitation_weight": 0.0}
    state = start(ARSQ, spec=Spec((1,), 2), **config)
    state, _ = advance(state, *[dependent_actions()] * 70)
    actions = torch.tensor([[0.5, 0.5], [0.5, -0.5], [-0.5, -0.5], [-0.5, 0.5]])
    advantages, is_selected = state.policy.evaluate(torch.zeros(4, 1), actions)  # [E, B, D, K]
    q = state.value(torch.zeros(4, 1))[..., 0] + (advantages * is_selected).sum((-1, -2))
    np.testing.assert_allclose(q.detach(), [[c + x + y, c + x, c, c + y]] * 2, atol=0.01)
    gaps = (advantages[..., 1] - advantages[..., 0]).detach()  # of + over -
    np.testing.assert_allclose(gaps, np.broadcast_to([x, y], gaps.shape), atol=0.01)
    assert state.policy.act(torch.zeros(1, 1)).tolist() == [[-0.5, 0.5]]
