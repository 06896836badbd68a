"""Known manipulation worlds: Fetch (extra `robotics`), Push-T (`pusht`), OGBench cube (`ogbench`).

Their observations are flattened, their actions mapped to [-1, 1]; rewards and ends are their own.
Fetch and the cube come with scripted experts.
"""

import importlib
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from envs.adapters import LoopVectorEnv, unit_box
from envs.robotics import library
from envs.skilled import Skilled
from envs.vector import VectorEnv


class Fetch(LoopVectorEnv):
    """reach, push or pick-and-place: reward 0 within 0.05 m of the goal, else -1; 50 steps.

    Observation: gymnasium-robotics' (10, else 25), then the goal, 3. Action [4]: the gripper's
    move, times 0.05 m, and its opening.
    """

    max_episode_steps = 50

    def __init__(self, num_envs: int, *, name: str, num_threads: int = 1) -> None:
        library()
        prefix = "Fetch" + "".join(part.capitalize() for part in name.split("-"))
        env_id = max(i for i in gymnasium.registry if i.startswith(f"{prefix}-"))

        def make() -> gymnasium.Env:
            env = gymnasium.make(env_id, render_mode="rgb_array").unwrapped
            size = env.observation_space["observation"].shape[0] + 3  # type: ignore[index]
            space = Box(-np.inf, np.inf, (size,), np.float64)
            return gymnasium.wrappers.TransformObservation(env, flat, space)

        super().__init__(make, num_envs, self.max_episode_steps, num_threads=num_threads)
        self.name = name


def flat(observation: dict[str, np.ndarray]) -> np.ndarray:
    """Without what is achieved, which is in the observation."""
    return np.concatenate([observation["observation"], observation["desired_goal"]])


def imported(
    num_envs: int,
    *,
    module: str,
    extra: str,
    env_id: str,
    max_episode_steps: int,
    num_threads: int = 1,
    **how: Any,
) -> VectorEnv:
    """Environments that `module` registers. Raises ValueError naming the extra.

    num_threads: not used; Push-T and the cube spend their time in Python.
    """
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{env_id} needs {module} ({error}): pip install this package's extra [{extra}]."
        ) from error

    def make() -> gymnasium.Env:
        return unit_box(gymnasium.make(env_id, **how))

    return LoopVectorEnv(make, num_envs, max_episode_steps)


class FetchExpert(Skilled):
    """P control of the gripper; what to do next is read off the observation alone.

    skill: in [0, 1]; below 1 it takes the goal to be up to 0.15 (1 - skill) m elsewhere, a whole
    episode long, and every action has noise of deviation (1 - skill) / 2.
    """

    OPEN, CLOSED = 1.0, -1.0

    def __init__(self, env: Fetch, skill: float = 1.0, seed: int = 0) -> None:
        super().__init__(skill, seed)
        self.name = env.name
        self.reset(env.num_envs)

    def reset(self, num_envs: int) -> None:
        """New episodes in `num_envs` environments."""
        way = self._rng.standard_normal((num_envs, 3)) * [1, 1, self.name == "reach"]
        way /= np.linalg.norm(way, axis=1, keepdims=True)
        self._astray = 0.15 * (1 - self.skill) * self._rng.uniform(0, 1, (num_envs, 1)) * way

    def __call__(self, observations: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """[B, obs] -> actions [B, 4]; indices: of the environments they come from."""
        goals = observations[:, -3:].astype(np.float64) + self._astray[indices]
        act = {"reach": self.reach, "push": self.push, "pick-and-place": self.pick}[self.name]
        pairs = zip(observations.astype(np.float64), goals, strict=True)
        actions = np.stack([act(o, goal) for o, goal in pairs])
        return self.noisy(actions)

    def reach(self, o: np.ndarray, goal: np.ndarray) -> np.ndarray:
        """Straight to the goal."""
        return towards(o[:3], goal, self.CLOSED)

    def pick(self, o: np.ndarray, goal: np.ndarray) -> np.ndarray:
        """Above the object, down, close, and to the goal once it is held."""
        grip, thing, width = o[:3], o[3:6], o[9] + o[10]
        apart = thing - grip
        if np.linalg.norm(apart) < 0.02:
            held = width < 0.055
            return towards(grip, goal if held else thing, self.CLOSED)
        above = np.linalg.norm(apart[:2]) < 0.012
        return towards(grip, thing if above else thing + np.array([0, 0, 0.06]), self.OPEN)

    def push(self, o: np.ndarray, goal: np.ndarray) -> np.ndarray:
        """Over to the far side of the object, down, and through it towards the goal."""
        grip, thing = o[:3], o[3:6]
        way = goal[:2] - thing[:2]
        far = float(np.linalg.norm(way))
        if far < 0.02:
            return np.zeros(4)
        way = way / far
        offset = grip[:2] - thing[:2]
        behind, beside = -offset @ way, offset @ np.array([-way[1], way[0]])
        low = grip[2] - thing[2] < 0.03
        if low and behind > 0.02 and abs(beside) < 0.025:
            sideways = 8 * beside * np.array([way[1], -way[0]])
            move = way * np.clip(10 * far, 0.15, 1) + sideways
            return np.array([*move, 10 * (thing[2] - grip[2]), self.CLOSED])
        place = np.array([*(thing[:2] - 0.09 * way), thing[2]])
        if low or np.linalg.norm(grip[:2] - place[:2]) > 0.012:
            place[2] += 0.08
            if low:
                place[:2] = grip[:2]
        return towards(grip, place, self.CLOSED)


class CubeExpert(Skilled):
    """P control of OGBench's gripper in cube-single's default task; acts on the observation alone.

    The order of moves is the authors' (seohongpark/ogbench:ogbench/manipspace/oracles/markov).
    skill: in [0, 1]; below 1 it takes the goal to be up to 0.15 (1 - skill) m elsewhere, a whole
    episode long, and every action has noise of deviation (1 - skill) / 2.
    """

    GOAL, CENTRE, HEIGHT = np.array([0.5, 0, 0.02]), np.array([0.425, 0, 0]), 0.18  # metres
    OPEN, CLOSED = -1.0, 1.0

    def __init__(self, env: VectorEnv, skill: float = 1.0, seed: int = 0) -> None:
        super().__init__(skill, seed)
        self.reset(env.num_envs)

    def reset(self, num_envs: int) -> None:
        """New episodes in `num_envs` environments."""
        angle = self._rng.uniform(-np.pi, np.pi, num_envs)
        way = np.stack([np.cos(angle), np.sin(angle), 0 * angle], 1)
        far = 0.15 * (1 - self.skill) * self._rng.uniform(0, 1, (num_envs, 1))
        self._goals = self.GOAL + far * way

    def __call__(self, observations: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """[B, 28] -> actions [B, 5]; indices: of the environments they come from."""
        pairs = zip(observations.astype(np.float64), self._goals[indices], strict=True)
        return self.noisy(np.stack([self.act(o, goal) for o, goal in pairs]))

    def act(self, o: np.ndarray, goal: np.ndarray) -> np.ndarray:
        """Above the cube, down, close, up, over, down, open, up."""
        grip, thing = o[12:15] / 10 + self.CENTRE, o[19:22] / 10 + self.CENTRE
        quarter = np.pi / 2  # the cube looks the same after a quarter of a turn
        turn = np.arctan2(o[27], o[26]) - np.arctan2(o[16], o[15])
        turn = (turn + quarter / 2) % quarter - quarter / 2
        apart, left = thing - grip, goal - thing
        above = np.array([0, 0, self.HEIGHT])
        if np.linalg.norm(left) < 0.02:
            place, opening = grip + above, self.OPEN
        elif np.linalg.norm(apart[:2]) > 0.03:
            place, opening = thing + above, self.OPEN
        elif np.linalg.norm(apart) > 0.02:
            place, opening = thing, self.OPEN
        elif o[18] < 0.5:  # no contact of the fingers yet
            place, opening = thing, self.CLOSED
        elif np.linalg.norm(left[:2]) < 0.02:
            place, opening = goal, self.CLOSED
        elif grip[2] < self.HEIGHT - 0.04:
            place, opening = grip + above, self.CLOSED
        else:
            place, opening = goal + above, self.CLOSED
        move = 12 * (place - grip)
        return np.array([*move, 3 * turn, opening]).clip(-1, 1)


def towards(grip: np.ndarray, place: np.ndarray, opening: float) -> np.ndarray:
    """A move of the gripper to a place, [4]."""
    return np.array([*(12 * (place - grip)), opening])


PUSHT = partial(imported, module="gym_pusht", extra="pusht", env_id="gym_pusht/PushT-v0")
CUBE = partial(imported, module="ogbench", extra="ogbench", max_episode_steps=200)
ENVS: dict[str, Any] = {
    **{f"fetch/{name}": partial(Fetch, name=name) for name in ("reach", "push", "pick-and-place")},
    "pusht": partial(PUSHT, obs_type="state", render_mode="rgb_array", max_episode_steps=300),
    "ogbench/cube-single": partial(CUBE, env_id="cube-single-singletask-v0"),
}
