"""The eight tasks of Bullet-Safety-Gym in DSRL (arXiv:2306.09303), with the original simulator.

Run: cost 1 beyond |y| = 2 m or above the agent's speed limit. Circle: cost 1 beyond |x| = 6 m. The
package pins gymnasium 0.28, so it is no extra of this package. It runs with newer versions, if it
is installed without its dependencies: see INSTALL.
Differs: the package ignores seeds and draws from NumPy's global generator. Here, a seed determines
the episode.
"""

import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from envs.adapters import LoopVectorEnv, rescale_actions

INSTALL = "pip install --no-deps bullet-safety-gym==1.4.0 pybullet==3.2.7"
TASKS = {  # time limits, steps
    "AntCircle": 500,
    "AntRun": 200,
    "BallCircle": 200,
    "BallRun": 100,
    "CarCircle": 300,
    "CarRun": 200,
    "DroneCircle": 300,
    "DroneRun": 200,
}


class SeededResets(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper that draws the initial state of an episode from its seed."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is None:
            return self.env.reset()
        before = np.random.get_state()  # noqa: NPY002
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            return self.env.reset()
        finally:
            np.random.set_state(before)  # noqa: NPY002


class Bullet(LoopVectorEnv):
    """Environments of one task. info `cost`: the task's, 0 or 1 in each step.

    num_threads: not used, because these environments spend their time in Python.
    """

    cost_limits = (10.0, 20.0, 40.0)

    def __init__(
        self, num_envs: int, *, task: str, max_episode_steps: int, num_threads: int = 1
    ) -> None:
        super().__init__(partial(make, task), num_envs, max_episode_steps, name=f"bullet/{task}")


def make(task: str) -> gymnasium.Env:
    """Return one environment, without a time limit. Raises ValueError without the packages."""
    # The package redirects standard streams, which fails for those of notebooks and of pytest.
    with redirect_stdout(sys.__stdout__), redirect_stderr(sys.__stderr__):
        try:
            import bullet_safety_gym
        except ModuleNotFoundError as error:
            raise ValueError(
                f"bullet/{task} needs bullet_safety_gym ({error}). Install it with: {INSTALL}"
            ) from error
        gymnasium.register_envs(bullet_safety_gym)
        with warnings.catch_warnings():  # its spaces mix float32 and float64
            warnings.filterwarnings("ignore", message="overflow encountered in cast")
            env = gymnasium.make(f"Safety{task}-v0", disable_env_checker=True).unwrapped
    return rescale_actions(SeededResets(env))


ENVS: dict[str, Any] = {
    f"bullet/{task}": partial(Bullet, task=task, max_episode_steps=steps)
    for task, steps in TASKS.items()
}
