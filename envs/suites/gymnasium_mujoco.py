"""Termination and rewards of Gymnasium's MuJoCo environments, by task name (`env:<id>`).

Source: `Farama-Foundation/Gymnasium:gymnasium/envs/mujoco`. Velocities in the observations of
Hopper and the pendulums are clipped to 10, so a limit above 10 cannot be checked in them.
"""

from typing import Any

from envs.outcomes import Outcomes, finite, never
from envs.suites import locomotion


def pendulum_falls(s: Any, a: Any, s2: Any) -> Any:
    """True where InvertedPendulum's pole leans by more than 0.2 rad, or a number is not finite."""
    return ~(finite(s2) & (abs(s2[..., 1]) <= 0.2))


def stands(s: Any, a: Any, s2: Any) -> Any:
    """Return the reward of InvertedPendulum-v5: 1, and 0 where the pole falls."""
    return ~pendulum_falls(s, a, s2) * 1.0


def one(s: Any, a: Any, s2: Any) -> Any:
    """Return the reward of InvertedPendulum-v4: 1, also where the pole falls."""
    return never(s, a, s2) + 1.0


def double_pendulum_falls(s: Any, a: Any, s2: Any) -> Any:
    """True where the tip of the second pole is at most 1 m high (InvertedDoublePendulum).

    Observations 1 to 4 are the sines of the two joint angles, then their cosines. MuJoCo computes
    the tip's height one integrator stage before the positions, so a step at the limit may differ.
    """
    sin_1, sin_2, cos_1, cos_2 = (s2[..., i] for i in range(1, 5))
    return 0.6 * (cos_1 + cos_1 * cos_2 - sin_1 * sin_2) <= 1


def humanoid_falls(s: Any, a: Any, s2: Any) -> Any:
    """True where the torso is not between 1 and 2 m high."""
    return ~((s2[..., 0] > 1) & (s2[..., 0] < 2))


OUTCOMES = {
    "env:InvertedPendulum-v4": Outcomes({"task": pendulum_falls}, one),
    "env:InvertedPendulum-v5": Outcomes({"task": pendulum_falls}, stands),
}
for _version in ("v4", "v5"):
    OUTCOMES |= {
        f"env:InvertedDoublePendulum-{_version}": Outcomes({"task": double_pendulum_falls}),
        f"env:Humanoid-{_version}": Outcomes({"task": humanoid_falls}),
        f"env:Swimmer-{_version}": Outcomes({"task": never}),
        f"env:HalfCheetah-{_version}": locomotion.OUTCOMES["HalfCheetah-v4"],
        f"env:Hopper-{_version}": locomotion.OUTCOMES["Hopper-v4"],
        f"env:Walker2d-{_version}": locomotion.OUTCOMES["Walker2d-v4"],
        f"env:Ant-{_version}": locomotion.OUTCOMES["Ant-v2"],
    }
