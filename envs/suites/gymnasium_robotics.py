"""D4RL's Adroit hands and kitchen, and Fetch, on gymnasium-robotics (extra `robotics`).

The hands and the kitchen of gymnasium-robotics differ from D4RL and are changed here to match it.
Hands (`Farama-Foundation/D4RL:d4rl/hand_manipulation_suite`): in gymnasium-robotics 1.4, the
rewards of three tasks have the wrong sign for the distance to the object, time limits are longer,
and dropping the pen does not end the episode. Kitchen (`d4rl/kitchen`): gymnasium-robotics uses
different noise and leaves the goal out of the observation.
Binary hands, used by RLPD (arXiv:2302.02948) and others, follow d5rlbenchmark/d5rl:benchmark/
domains/adroit: reward 0 at the goal, else -1, without termination. The return is therefore minus
the number of steps away from the goal.
"""

from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from envs.adapters import LoopVectorEnv
from envs.outcomes import Outcomes, library, never
from envs.vector import VectorEnv


@cache
def load_library() -> Any:
    """Import gymnasium_robotics and register its environments.

    Raises ValueError if the extra is missing.
    """
    try:
        import gymnasium_robotics
        import mujoco
        from gymnasium_robotics.utils import mujoco_utils
    except ModuleNotFoundError as error:
        remedy = "Install gymnasium-robotics, or this package's extra [robotics]."
        raise ValueError(f"This task needs gymnasium-robotics ({error}). {remedy}") from error
    gymnasium.register_envs(gymnasium_robotics)
    # gymnasium_robotics tests `number in (enum, …)`, which is always false with MuJoCo 4's enums
    joints = {name: int(joint) for name, joint in mujoco.mjtJoint.__members__.items()}
    mujoco_utils.mujoco = SimpleNamespace(**{**vars(mujoco), "mjtJoint": SimpleNamespace(**joints)})
    return gymnasium_robotics


def latest_hand_id(name: str) -> str:
    """Return the id of a hand task's newest registered version.

    The newest version is v1 up to gymnasium-robotics 1.4.2, and v2 afterward.
    """
    load_library()
    return max(i for i in gymnasium.registry if i.startswith(f"AdroitHand{name.capitalize()}-"))


class Hand(gymnasium.Wrapper):
    """Hand task door, hammer, relocate or pen, with D4RL's dense reward or the binary one."""

    # site or body whose distance from the palm is a cost
    OBJECT = {"door": "S_handle", "hammer": "Object", "relocate": "Object"}

    def __init__(self, name: str, *, binary: bool) -> None:
        env_id = latest_hand_id(name)
        super().__init__(gymnasium.make(env_id, render_mode="rgb_array").unwrapped)
        self.name, self.binary, self.inverted = name, binary, env_id.endswith("-v1")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, dense, _, _, info = self.env.step(action)
        success = bool(info["success"])
        if self.binary:
            return observation, float(success) - 1, False, False, {"success": success}
        reward = float(dense)
        if self.inverted and self.name in self.OBJECT:
            reward -= 0.2 * self.palm_distance()
        dropped = self.name == "pen" and self.position("Object")[2] < 0.075
        return observation, reward, dropped, False, {"success": success}

    def palm_distance(self) -> float:
        """Return the distance from the palm to the object, m. A tenth of it is each step's cost."""
        target = self.position(self.OBJECT[self.name])
        return float(np.linalg.norm(self.position("S_grasp") - target))

    def position(self, name: str) -> np.ndarray:
        """Return the position of a site (S_…) or body, m."""
        data = self.unwrapped.data  # type: ignore[attr-defined]
        return data.site(name).xpos if name.startswith("S_") else data.body(name).xpos


def pen_rewards(observations: np.ndarray) -> np.ndarray:
    """Return the binary pen's rewards [N] float32 for states [N, 45]: 0 at the goal, else -1.

    The pen is at the goal within 0.075 m of the target position, with a cosine between the pen's
    and the target's axis above 0.95.
    """
    return pen_reward(observations, None, observations).astype(np.float32)


def pen_reward(s: Any, a: Any, s2: Any) -> Any:
    """Return the binary pen's reward of transitions; see `pen_rewards`."""
    pen, target, offset = s2[..., 33:36], s2[..., 36:39], s2[..., 39:42]
    distance = library(s2).sqrt((offset * offset).sum(-1))
    return 1.0 * ((distance < 0.075) & ((pen * target).sum(-1) > 0.95)) - 1


def pen_drops(s: Any, a: Any, s2: Any) -> Any:
    """True where the pen is lower than 0.075 m."""
    return s2[..., 26] < 0.075


class Kitchen(gymnasium.Env):
    """Kitchen with four tasks. Completing a task gives reward 1, once per task.

    Observation [60]: joints (9), objects (21), goal (30). As in D4RL, the noise is a tenth of the
    sensors' noise, and the reward is computed from the noisy observation.
    """

    NEAR = 0.3

    def __init__(self, tasks: tuple[str, ...]) -> None:
        load_library()
        from gymnasium_robotics.envs.franka_kitchen import kitchen_env

        self._env = kitchen_env.KitchenEnv(
            list(tasks), robot_noise_ratio=0.1, object_noise_ratio=0.1, render_mode="rgb_array"
        )
        self._indices = {task: kitchen_env.OBS_ELEMENT_INDICES[task] for task in tasks}
        self._goal = np.zeros(30)
        for task, indices in self._indices.items():
            self._goal[indices] = kitchen_env.OBS_ELEMENT_GOALS[task]
        self.render_mode = "rgb_array"
        self.observation_space = Box(-np.inf, np.inf, (60,), np.float64)
        self.action_space = Box(-1, 1, (9,), np.float32)
        self._remaining = set(tasks)

    def _observe(self, observation: np.ndarray) -> np.ndarray:
        """Convert the library's observation to D4RL's.

        The library observes joints (9), joint speeds (9), objects (21) and object speeds (20).
        """
        return np.concatenate([observation[:9], observation[18:39], self._goal])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._remaining = set(self._indices)
        return self._observe(self._env.reset(seed=seed)[0]["observation"]), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        library_observation, *_ = self._env.step(action)
        observation = self._observe(library_observation["observation"])
        done = {t for t in self._remaining if self.distance(observation, t) < self.NEAR}
        self._remaining -= done
        success = not self._remaining
        return observation, float(len(done)), success, False, {"success": success}

    def distance(self, observation: np.ndarray, task: str) -> float:
        """Return the distance of one task's object from its goal."""
        indices = self._indices[task]
        return float(np.linalg.norm(observation[indices] - self._goal[indices]))

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
    """Fetch task reach, push or pick-and-place.

    Reward 0 within 0.05 m of the goal, else -1; 50 steps.
    Observation: the one of gymnasium-robotics (10 numbers in reach, else 25), then the goal (3).
    Action [4]: the gripper's displacement in units of 0.05 m, and its opening.
    """

    max_episode_steps = 50

    def __init__(self, num_envs: int, *, name: str, num_threads: int = 1) -> None:
        load_library()
        prefix = "Fetch" + "".join(part.capitalize() for part in name.split("-"))
        env_id = max(i for i in gymnasium.registry if i.startswith(f"{prefix}-"))

        def make() -> gymnasium.Env:
            env = gymnasium.make(env_id, render_mode="rgb_array").unwrapped
            size = env.observation_space["observation"].shape[0] + 3  # type: ignore[index]
            space = Box(-np.inf, np.inf, (size,), np.float64)
            return gymnasium.wrappers.TransformObservation(env, flatten_goal, space)

        super().__init__(make, num_envs, self.max_episode_steps, num_threads=num_threads)
        self.name = name


def flatten_goal(observation: dict[str, np.ndarray]) -> np.ndarray:
    """Return observation and desired goal; the achieved goal is part of the observation."""
    return np.concatenate([observation["observation"], observation["desired_goal"]])


# time limits of the hand tasks and of their long versions, steps
LIMITS = {"hammer": (200, 600), "relocate": (200, 500), "door": (200, 300), "pen": (100, 200)}
COMPLETE = ("microwave", "kettle", "light switch", "slide cabinet")
MIXED = ("microwave", "kettle", "bottom burner", "light switch")


def _envs() -> dict[str, Callable[..., VectorEnv]]:
    """Return the hands and kitchens by name.

    Names: `Hand-<name>`, `Hand-<name>-long`, `Hand-<name>-binary`, `Kitchen-<complete|mixed>`.
    """
    table: dict[str, Callable[..., VectorEnv]] = {}
    for name, (usual, long) in LIMITS.items():
        for ending, limit in (("", usual), ("-long", long), ("-binary", usual)):
            hand = partial(Hand, name, binary=ending == "-binary")
            table[f"Hand-{name}{ending}"] = partial(_vector, make=hand, max_episode_steps=limit)
    for name, tasks in (("complete", COMPLETE), ("mixed", MIXED)):
        kitchen = partial(Kitchen, tasks)
        table[f"Kitchen-{name}"] = partial(_vector, make=kitchen, max_episode_steps=280)
    return table


ENVS = _envs()
ENVS |= {f"fetch/{name}": partial(Fetch, name=name) for name in ("reach", "push", "pick-and-place")}
SPARSE = {"Hand-pen-binary": pen_rewards}  # rewards as functions of the next observations
OUTCOMES = {name: Outcomes({"task": never}) for name in ENVS if name.startswith("Hand-")}
OUTCOMES["Hand-pen-binary"] = Outcomes({"task": never}, pen_reward)
OUTCOMES |= {name: Outcomes({"task": pen_drops}) for name in ("Hand-pen", "Hand-pen-long")}
