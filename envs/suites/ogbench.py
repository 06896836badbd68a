"""OGBench's single-task environments (extra `ogbench`), and the goals that define their rewards.

    ogbench/cube-double-singletask-task2-v0     task 2 of five; without a number, the default task
    ogbench/scene-sparse-singletask-task2-v0    reward -1 until every part is solved, then 0

An environment terminates at success. `success_timing` states which state is judged: `post`, the
state after the step, as all versions before 1.2 did (in teleport mazes, those judged it after a
teleport); `pre`, the state before it, the library's default since 1.2.

Park et al., arXiv:2410.20092; seohongpark/ogbench.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import gymnasium
import numpy as np

from envs.adapters import LoopVectorEnv, make_registered, rescale_actions
from envs.vector import VectorEnv

Timing = Literal["post", "pre"]
TIMINGS: dict[str, str] = {  # description of each value, for reports
    "post": "the environment judges success after the step, and the data before it, as in ogbench "
    "before 1.2, with which the results of FQL and QC were obtained",
    "pre": "environment and data judge success before the step",
}
TIME_LIMITS = {  # environment -> steps of an episode; humanoidmaze-teleport cannot be built
    **{f"pointmaze-{size}": 1000 for size in ("medium", "large", "giant", "teleport")},
    **{f"antmaze-{size}": 1000 for size in ("medium", "large", "giant", "teleport")},
    **{f"humanoidmaze-{size}": 2000 for size in ("medium", "large")},
    "humanoidmaze-giant": 4000,
    **{f"antsoccer-{size}": 1000 for size in ("arena", "medium")},
    "cube-single": 200,
    "cube-double": 500,
    "cube-triple": 1000,
    "cube-quadruple": 1000,
    "cube-octuple": 1500,
    "scene": 750,
    "puzzle-3x3": 500,
    "puzzle-4x4": 500,
    "puzzle-4x5": 1000,
    "puzzle-4x6": 1000,
}
DEFAULT_TASKS = {"antsoccer": 4, "cube": 2, "scene": 2, "puzzle-3x3": 4, "puzzle-4x4": 4}
DEFAULT_TASKS |= {"puzzle-4x5": 2, "puzzle-4x6": 2}  # all mazes: 1
TASKS = ("", *(f"-task{number}" for number in range(1, 6)))
FIRST_OBJECT, CUBE_LENGTH = 14, 7  # columns of qpos before the first cube, and of each cube
REACHED_M = 0.04  # distance at which a cube, a drawer or a window counts as at its goal
BALL_XY, AGENT_XY = (15, 16), (0, 1)  # columns of qpos


def default_task(environment: str) -> int:
    """Return the number of the environment's default task, for an id without a number."""
    return next((n for name, n in DEFAULT_TASKS.items() if environment.startswith(name)), 1)


def make_single_task(
    num_envs: int,
    *,
    env_id: str,
    max_episode_steps: int,
    success_timing: Timing = "post",
    num_threads: int = 1,
) -> VectorEnv:
    """Return environments of a single task. Raises ValueError if ogbench is not installed.

    num_threads: ignored, because teleporters draw from NumPy's global generator, which threads
    share.
    """
    make = partial(_make, env_id, success_timing)
    import_library(env_id)
    return LoopVectorEnv(make, num_envs, max_episode_steps, name=f"ogbench/{env_id}")


def import_library(env_id: str) -> Any:
    """Return the module ogbench. Raises ValueError with the extra to install if it is missing."""
    try:
        return importlib.import_module("ogbench")
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{env_id} needs ogbench ({error}). Install this package's extra [ogbench]."
        ) from error


def _make(env_id: str, success_timing: Timing) -> gymnasium.Env:
    """Return one environment from the library's constructor.

    The constructor takes the name of a dataset, and ignores its type, such as `play`.
    """
    name = env_id.replace("-sparse-", "-")
    dataset = name.replace("-singletask", "-play-singletask")
    env = import_library(env_id).make_env_and_datasets(
        dataset, env_only=True, success_timing=success_timing
    )
    if name != env_id:
        env = gymnasium.wrappers.TransformReward(env, to_sparse)
    return rescale_actions(OwnGenerator(env), env_id)


def to_sparse(reward: Any) -> Any:
    """Return -1 for every reward except 0, as Q-chunking's option `sparse` does."""
    return -1.0 * (np.asarray(reward) != 0)


class OwnGenerator(gymnasium.Wrapper[Any, np.ndarray, Any, np.ndarray]):
    """Wrapper that gives an environment a NumPy generator of its own, seeded by `reset`.

    The mazes draw initial positions and teleporters from NumPy's global generator. With this
    wrapper, a seed determines an episode, whatever other environments do.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._state = np.random.RandomState(0).get_state()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._state = np.random.RandomState(seed % 2**32).get_state()
            self.env.action_space.seed(seed)  # a reset takes random actions
        return self._with_own(lambda: self.env.reset(seed=seed, options=options))

    def step(self, action: np.ndarray) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return self._with_own(lambda: self.env.step(action))

    def _with_own(self, call: Callable[[], Any]) -> Any:
        before = np.random.get_state()  # noqa: NPY002
        np.random.set_state(self._state)  # noqa: NPY002
        try:
            return call()
        finally:
            self._state = np.random.get_state()  # noqa: NPY002
            np.random.set_state(before)  # noqa: NPY002


@dataclass(frozen=True)
class Goal:
    """The goal of a single task, in simulator states. A task has P parts to solve."""

    env_id: str
    observation_dim: int
    qpos_dim: int
    parts: tuple[tuple[tuple[int, ...], np.ndarray], ...]  # columns of qpos, and their goal values
    tolerance_m: float
    buttons: np.ndarray | None  # state of each button; None: the task has no buttons
    is_sparse: bool

    def label(
        self, qpos: np.ndarray, button_states: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the reward of each state, [N] float32, and whether the task is solved, [N] bool.

        The reward is minus the number of unsolved parts, as in ogbench:relabel_utils.py.
        qpos: [N, Q]. button_states: [N, buttons].
        """
        solved = [
            np.linalg.norm(qpos[:, columns] - goal, axis=-1) <= self.tolerance_m
            for columns, goal in self.parts
        ]
        if self.buttons is not None and button_states is not None:
            solved += list((button_states == self.buttons).T)
        count = np.sum(solved, axis=0)
        rewards = count - len(solved)
        rewards = to_sparse(rewards) if self.is_sparse else rewards
        return rewards.astype(np.float32), count == len(solved)


@functools.cache
def goal_of(task: str) -> Goal:
    """Return the goal of a single task, read from the library's environment after a reset.

    task: a name such as `ogbench/scene-singletask-task2-v0`. Raises ValueError if ogbench is
    missing.
    """
    env_id = task.removeprefix("ogbench/")
    env = _make(env_id, "post")
    env.reset(seed=0)
    inner: Any = env.unwrapped
    parts: list[tuple[tuple[int, ...], np.ndarray]] = []
    tolerance_m, buttons = REACHED_M, None
    if env_id.partition("-")[0] in ("pointmaze", "antmaze", "humanoidmaze", "antsoccer"):
        columns = BALL_XY if env_id.startswith("antsoccer") else AGENT_XY
        parts, tolerance_m = [(columns, np.array(inner.cur_goal_xy))], float(inner._goal_tol)
        qpos_dim = int(inner.model.nq)
    else:
        cubes = 0 if env_id.startswith("puzzle") else int(inner._num_cubes)
        for cube, position in zip(range(cubes), inner._data.mocap_pos, strict=False):
            first = FIRST_OBJECT + cube * CUBE_LENGTH
            parts.append(((first, first + 1, first + 2), np.array(position)))
        if env_id.startswith(("scene", "puzzle")):
            buttons = np.array(inner._target_button_states)
        if env_id.startswith("scene"):
            drawer = FIRST_OBJECT + cubes * CUBE_LENGTH + int(inner._num_buttons)
            parts.append(((drawer,), np.array([inner._target_drawer_pos])))
            parts.append(((drawer + 1,), np.array([inner._target_window_pos])))
        qpos_dim = int(inner._model.nq)
    shape = env.observation_space.shape
    env.close()
    return Goal(
        env_id=env_id,
        observation_dim=int(shape[0]) if shape else 0,
        qpos_dim=qpos_dim,
        parts=tuple(parts),
        tolerance_m=tolerance_m,
        buttons=buttons,
        is_sparse="-sparse-" in env_id,
    )


def _single_tasks() -> dict[str, Callable[..., VectorEnv]]:
    """Return the environments of all single tasks by their names."""
    made = dict[str, Callable[..., VectorEnv]]()
    for name, steps in TIME_LIMITS.items():
        has_parts = name.startswith(("cube", "scene", "puzzle")) and name != "cube-single"
        for variant in (name, f"{name}-sparse") if has_parts else (name,):
            for task in TASKS:
                env_id = f"{variant}-singletask{task}-v0"
                made[f"ogbench/{env_id}"] = partial(
                    make_single_task, env_id=env_id, max_episode_steps=steps, success_timing="post"
                )
    return made


ENVS: dict[str, Callable[..., VectorEnv]] = {
    # the library's default success_timing; the recipe `cube` records its datasets here
    "ogbench/cube-single": partial(
        make_registered,
        module="ogbench",
        extra="ogbench",
        env_id="cube-single-singletask-v0",
        max_episode_steps=200,
    ),
    **_single_tasks(),
}
