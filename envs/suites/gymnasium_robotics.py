"""D4RL's Adroit hands and kitchen on gymnasium-robotics (extra `robotics`), corrected to D4RL.

Hands (`Farama-Foundation/D4RL:d4rl/hand_manipulation_suite`): gymnasium-robotics 1.4 has the sign
of the way to the object inverted in three rewards, longer limits, and a pen that may be dropped.
Kitchen (`d4rl/kitchen`): there with other noise and without the goal in the observation.
The binary hands, of RLPD (arXiv:2302.02948) and others, as in d5rlbenchmark/d5rl:benchmark/domains/
adroit: reward 0 in the goal, else -1, and no end there, so that returns count the steps without it.
"""

from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from envs.adapters import LoopVectorEnv
from envs.vector import VectorEnv


@cache
def library() -> Any:
    """gymnasium_robotics, registered. Raises ValueError where the extra is missing."""
    try:
        import gymnasium_robotics
        import mujoco
        from gymnasium_robotics.utils import mujoco_utils
    except ModuleNotFoundError as error:
        remedy = "pip install gymnasium-robotics, or this package's extra [robotics]"
        raise ValueError(f"this task needs gymnasium-robotics ({error}): {remedy}.") from error
    gymnasium.register_envs(gymnasium_robotics)
    # it asks `number in (enum, …)`, which is always false with the enums of MuJoCo 4
    joints = {name: int(joint) for name, joint in mujoco.mjtJoint.__members__.items()}
    mujoco_utils.mujoco = SimpleNamespace(**{**vars(mujoco), "mjtJoint": SimpleNamespace(**joints)})
    return gymnasium_robotics


def hand_id(name: str) -> str:
    """The newest version registered: v1 up to gymnasium-robotics 1.4.2, then v2."""
    library()
    return max(i for i in gymnasium.registry if i.startswith(f"AdroitHand{name.capitalize()}-"))


class Hand(gymnasium.Wrapper):
    """door, hammer, relocate or pen with D4RL's dense reward, or the binary one."""

    OBJECT = {"door": "S_handle", "hammer": "Object", "relocate": "Object"}  # that the palm goes to

    def __init__(self, name: str, *, binary: bool) -> None:
        env_id = hand_id(name)
        super().__init__(gymnasium.make(env_id, render_mode="rgb_array").unwrapped)
        self.name, self.binary, self.inverted = name, binary, env_id.endswith("-v1")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, dense, _, _, info = self.env.step(action)
        success = bool(info["success"])
        if self.binary:
            return observation, float(success) - 1, False, False, {"success": success}
        reward = float(dense)
        if self.inverted and self.name in self.OBJECT:
            reward -= 0.2 * self.way()
        dropped = self.name == "pen" and self.place("Object")[2] < 0.075
        return observation, reward, dropped, False, {"success": success}

    def way(self) -> float:
        """From the palm to the object, m: each step costs a tenth of it."""
        return float(np.linalg.norm(self.place("S_grasp") - self.place(self.OBJECT[self.name])))

    def place(self, name: str) -> np.ndarray:
        """A site (S_…) or body, m."""
        data = self.unwrapped.data  # type: ignore[attr-defined]
        return data.site(name).xpos if name.startswith("S_") else data.body(name).xpos


def pen_rewards(observations: np.ndarray) -> np.ndarray:
    """What the binary pen pays for being in states [N, 45]: 0 in the goal, else -1. [N] float32.

    In the goal: within 0.075 m of the wanted place, the cosine of the two pens above 0.95.
    """
    pen, wanted, way = observations[:, 33:36], observations[:, 36:39], observations[:, 39:42]
    success = (np.linalg.norm(way, axis=1) < 0.075) & ((pen * wanted).sum(1) > 0.95)
    return success.astype(np.float32) - 1


class Kitchen(gymnasium.Env):
    """Four things to be done; +1 for each, once. Observation [60]: joints 9, objects 21, goal 30.

    D4RL's noise (a tenth of the sensors') and its reward, taken of the noisy observation.
    """

    NEAR = 0.3

    def __init__(self, tasks: tuple[str, ...]) -> None:
        library()
        from gymnasium_robotics.envs.franka_kitchen import kitchen_env

        self._env = kitchen_env.KitchenEnv(
            list(tasks), robot_noise_ratio=0.1, object_noise_ratio=0.1, render_mode="rgb_array"
        )
        self._places = {task: kitchen_env.OBS_ELEMENT_INDICES[task] for task in tasks}
        self._goal = np.zeros(30)
        for task, place in self._places.items():
            self._goal[place] = kitchen_env.OBS_ELEMENT_GOALS[task]
        self.render_mode = "rgb_array"
        self.observation_space = Box(-np.inf, np.inf, (60,), np.float64)
        self.action_space = Box(-1, 1, (9,), np.float32)
        self._left = set(tasks)

    def _observe(self, observation: np.ndarray) -> np.ndarray:
        """Theirs: joints 9, their speeds 9, objects 21, their speeds 20."""
        return np.concatenate([observation[:9], observation[18:39], self._goal])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = set(self._places)
        return self._observe(self._env.reset(seed=seed)[0]["observation"]), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        theirs, *_ = self._env.step(action)
        observation = self._observe(theirs["observation"])
        done = {t for t in self._left if self.distance(observation, t) < self.NEAR}
        self._left -= done
        return observation, float(len(done)), not self._left, False, {"success": not self._left}

    def distance(self, observation: np.ndarray, task: str) -> float:
        """Of one thing from its goal."""
        place = self._places[task]
        return float(np.linalg.norm(observation[place] - self._goal[place]))

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        self._env.close()


def _vector(
    num_envs: int,
    *,
    make: Callable[[], gymnasium.Env],
    max_episode_steps: int,
    num_threads: int = 1,
) -> VectorEnv:
    return LoopVectorEnv(make, num_envs, max_episode_steps, num_threads=num_threads)


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


LIMITS = {"hammer": (200, 600), "relocate": (200, 500), "door": (200, 300), "pen": (100, 200)}
COMPLETE = ("microwave", "kettle", "light switch", "slide cabinet")
MIXED = ("microwave", "kettle", "bottom burner", "light switch")


def _envs() -> dict[str, Callable[..., VectorEnv]]:
    """`Hand-<name>`, `Hand-<name>-long`, `Hand-<name>-binary`, `Kitchen-<complete|mixed>`."""
    made: dict[str, Callable[..., VectorEnv]] = {}
    for name, (usual, long) in LIMITS.items():
        for ending, limit in (("", usual), ("-long", long), ("-binary", usual)):
            own = partial(Hand, name, binary=ending == "-binary")
            made[f"Hand-{name}{ending}"] = partial(_vector, make=own, max_episode_steps=limit)
    for name, tasks in (("complete", COMPLETE), ("mixed", MIXED)):
        kitchen = partial(Kitchen, tasks)
        made[f"Kitchen-{name}"] = partial(_vector, make=kitchen, max_episode_steps=280)
    return made


ENVS = _envs()
ENVS |= {f"fetch/{name}": partial(Fetch, name=name) for name in ("reach", "push", "pick-and-place")}
SPARSE = {"Hand-pen-binary": pen_rewards}  # rewards that follow from the next observations alone
