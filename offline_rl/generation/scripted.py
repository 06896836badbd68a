"""Datasets of scripted experts: mazes, pushing, Fetch, cube, a tabletop arm.

A script (configs/recipe/<name>.yaml with a `controller`) names its sets and a number for each:
the noise of the walkers' actions, the skill of the other experts. A set `x` of suite `s` is
recorded in the environment of the task `s/x`, whose card finds the file; `environments` names
others. Only the ant has to learn something before: to walk (`agent`, see recipes.Agent).
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import envs
from envs import experts
from envs.experts.walkers import AntWalk
from offline_rl.generation.store import Act, record, store, store_lerobot, there
from offline_rl.utils import seeds
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import unknown
from policies import Policy, channels

CONTROLLERS: dict[str, Any] = {}  # the EXPERTS of every file in envs/experts
for _file in pkgutil.iter_modules(experts.__path__, f"{experts.__name__}."):
    CONTROLLERS |= getattr(import_module(_file.name), "EXPERTS", {})


@dataclass(frozen=True, kw_only=True)
class Script:
    """A controller and the sets it makes."""

    controller: str  # of CONTROLLERS
    suite: str
    sets: dict  # name -> noise or skill
    environments: dict = field(default_factory=dict)  # name -> where it is recorded
    agent: dict | None = None  # whose best policy the ant walks by
    rows: int = 100_000  # of each
    rows_of: dict = field(default_factory=dict)  # name -> rows, where it has fewer

    def __post_init__(self) -> None:
        if self.controller not in CONTROLLERS:
            raise ValueError(unknown("controller", self.controller, CONTROLLERS))


def script(
    plan: Script,
    name: str,
    folder: Path,
    wanted: list[str],
    show: bool,
    learned: tuple[Policy, Any] | None = None,
    *,
    lerobot: bool = False,
    video: bool = False,
    whole_episodes: bool = False,
) -> None:
    """Makes the sets in `folder`. Raises UserError for a bad recipe.

    learned: the agent's policy and its learning curve.  lerobot: each a folder in LeRobot's layout;
    video: with its pictures as videos.  whole_episodes: see `record`.
    """
    kind = CONTROLLERS[plan.controller]
    if kind is AntWalk:
        if learned is None:
            raise UserError(f"recipe {name}: the ant has to learn to walk: give it an agent")
        policy = learned[0]
        kind = partial(kind, lambda observations: policy.act(observations)[0][:, 0])
    for k, (each, knob) in enumerate(plan.sets.items()):
        if each not in wanted:
            continue
        task, actor = f"{plan.suite}/{each}", actors(kind, float(knob))
        environment = environment_of(plan, each)
        rows = int(plan.rows_of.get(each, plan.rows))
        made_by = {"recipe": name, "algorithm": plan.controller, "quality": f"{knob}"}
        card: dict[str, Any] = {"set": each, "recipe": {"name": name, **asdict(plan)}}
        card |= {"whole_episodes": True} if whole_episodes else {}
        if learned is not None:
            card["learning_curve"] = learned[1]
        path = folder / (each if lerobot else f"{each}.hdf5")
        if there(path, card, show):
            continue
        first = seeds.place("scripted sets", k)
        data = record(environment, rows, first, actor, whole_episodes=whole_episodes)
        if lerobot:
            store_lerobot(data, path, f"{plan.suite}: {each}", show, video=video)
        else:
            store(data, path, made_by, card, task, show)


def environment_of(plan: Script, name: str) -> str:
    """Return the task that a set is recorded in."""
    return str(plan.environments.get(name, f"{plan.suite}/{name}"))


def check_pictures(plan: Script, wanted: list[str]) -> None:
    """Raise UserError if a wanted set has no pictures that could become a video."""
    without = [name for name in wanted if not has_pictures(environment_of(plan, name))]
    if not without:
        return
    able = [name for name in plan.sets if has_pictures(environment_of(plan, name))]
    remedy = f"give qualities=[{','.join(able)}], or leave video out" if able else "leave it out"
    raise UserError(f"video=true: no pictures are observed in {', '.join(without)}; {remedy}.")


def has_pictures(task: str) -> bool:
    """True if pictures are observed in a task's environment."""
    env = envs.make_vector(task, 1)
    shapes = channels.parts(env.observation_shape)
    env.close()
    return any(map(channels.is_picture, shapes))


def actors(kind: Any, knob: float) -> Callable[[envs.VectorEnv, int], Act]:
    """A new controller for each batch of episodes, its random numbers those of the first one."""
    return lambda env, seed: kind(env, knob, seed)
