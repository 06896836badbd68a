"""Rewards of NeoRL-2's Fusion and Salespromotion, which have no simulator here.

Source: `polixir/NeoRL2:neorl2/envs/reward/{fusion,salespromotion}_reward.py`, arXiv:2503.19267. No
transition terminates an episode of these tasks.
"""

from typing import Any

from envs.outcomes import Outcomes, library, never

BONUS = 10  # reward per unit of the observed bonus of Salespromotion


def fusion_reward(s: Any, a: Any, s2: Any) -> Any:
    """Return minus the logarithm of the scaled error of three plasma parameters.

    Next observations 6 to 8 (normalized beta, safety factor, internal inductance) should reach the
    targets in observations 9 to 11. The error is the root mean square of the three.
    """
    square = 0
    for i, scale in enumerate((0.2, 0.5, 0.05)):
        error = (s2[..., 6 + i] - s[..., 9 + i]) / scale
        square = square + error * error
    return -0.5 * library(square).log(square / 3)


def sales_reward(s: Any, a: Any, s2: Any) -> Any:
    """Return the day's sales, minus its costs, plus the bonus."""
    return s2[..., 5] - s2[..., 4] + BONUS * s2[..., 7]


OUTCOMES = {
    "neorl2/Fusion": Outcomes({"task": never}, fusion_reward),
    "neorl2/Salespromotion": Outcomes({"task": never}, sales_reward),
}
