"""The eight tasks of Bullet-Safety-Gym in DSRL (arXiv:2306.09303), with the original simulator.

Run: cost 1 beyond |y| = 2 m or above the agent's speed limit. Circle: cost 1 beyond |x| = 6 m. The
package pins gymnasium 0.28, so it is no extra of this package. It runs with newer versions, if it
is installed without its dependencies: see INSTALL.
Differs: the package ignores seeds and draws from NumPy's global generator. Here, a seed determines
the episode.
"""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
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


class Reproducible(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper in which an episode depends on its seed and its actions only.

    The initial state is drawn from the seed. The simulation is built anew for each episode, because
    PyBullet's solver keeps forces of the previous episode when it restores a state.
    """

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        env: Any = self.env
        before = np.random.get_state()  # noqa: NPY002
        word = None if seed is None else seed % 2**32
        np.random.seed(word)  # noqa: NPY002
        try:
            with real_streams():
                env.close()
                env.bc = env._setup_client_and_physics()
                env.bullet_client_id = env.bc._client
                env.stored_state_id = -1
                env._setup_simulation()
            np.random.seed(word)  # noqa: NPY002  # the initial state is that of the package
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


@contextmanager
def real_streams() -> Iterator[None]:
    """Use the process's standard streams.

    The package redirects them, which fails for those of notebooks and of pytest.
    """
    with redirect_stdout(sys.__stdout__), redirect_stderr(sys.__stderr__):
        yield


def make(task: str) -> gymnasium.Env:
    """Return one environment, without a time limit. Raises ValueError without the packages."""
    with real_streams():
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
    return rescale_actions(Reproducible(env))


ENVS: dict[str, Any] = {
    f"bullet/{task}": partial(Bullet, task=task, max_episode_steps=steps)
    for task, steps in TASKS.items()
}
