"""Data sets of scripted experts: mazes, pushing, Fetch, cube, a tabletop arm, constrained tasks.

A script is a recipe (configs/recipe/<name>.yaml) with a `controller`. It lists sets, with a number
for each: the noise of the actions in mazes, the highest cost limit in constrained tasks, or the
skill of the other experts. The set `x` of suite `s` is recorded in the environment of the task
`s/x`, which also loads it. `environments` can name another task to record in. Some controllers use
a policy, which an agent learns first (`agent`, see recipes.Agent).
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
from offline_rl.generation.store import Act, is_stored, record, store, store_lerobot
from offline_rl.utils import seeds
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import unknown
from policies import Policy, channels

CONTROLLERS: dict[str, Any] = {}  # the EXPERTS of every file in envs/experts
for _file in pkgutil.iter_modules(experts.__path__, f"{experts.__name__}."):
    CONTROLLERS |= getattr(import_module(_file.name), "EXPERTS", {})


@dataclass(frozen=True, kw_only=True)
class Script:
    """A scripted controller and the sets that are recorded with it."""

    controller: str  # a key of CONTROLLERS
    suite: str
    sets: dict  # name of a set -> noise, skill or highest cost limit
    environments: dict = field(default_factory=dict)  # name of a set -> task to record it in
    agent: dict | None = None  # training of the policy that the controller uses
    rows: int = 100_000  # rows of each set
    rows_of: dict = field(default_factory=dict)  # name of a set -> its rows, if not `rows`

    def __post_init__(self) -> None:
        if self.controller not in CONTROLLERS:
            raise ValueError(unknown("controller", self.controller, CONTROLLERS))


def make_scripted_sets(
    plan: Script,
    name: str,
    folder: Path,
    selected: list[str],
    show: bool,
    learned: tuple[Policy, Any] | None = None,
    *,
    lerobot: bool = False,
    video: bool = False,
    whole_episodes: bool = False,
) -> None:
    """Record the sets `selected` and write them to `folder`. Raises UserError for a bad recipe.

    learned: the agent's policy and learning curve. lerobot: write each set as a folder in LeRobot's
    layout. video: write images as videos. whole_episodes: see `record`.
    """
    kind = CONTROLLERS[plan.controller]
    if getattr(kind, "learned", False):
        if learned is None:
            raise UserError(
                f"recipe {name}: the controller {plan.controller} uses a learned policy. Add an "
                "`agent` to the recipe."
            )
        policy = learned[0]
        kind = partial(kind, lambda observations: policy.act(observations)[0][:, 0])
    for k, (set_name, value) in enumerate(plan.sets.items()):
        if set_name not in selected:
            continue
        task, actor = f"{plan.suite}/{set_name}", actors(kind, float(value))
        environment = environment_of(plan, set_name)
        rows = int(plan.rows_of.get(set_name, plan.rows))
        metadata = {"recipe": name, "algorithm": plan.controller, "quality": f"{value}"}
        card: dict[str, Any] = {"set": set_name, "recipe": {"name": name, **asdict(plan)}}
        card |= {"whole_episodes": True} if whole_episodes else {}
        if learned is not None:
            card["learning_curve"] = learned[1]
        path = folder / (set_name if lerobot else f"{set_name}.hdf5")
        if is_stored(path, card, show):
            continue
        first = seeds.episode_seed("scripted sets", k)
        data = record(environment, rows, first, actor, whole_episodes=whole_episodes)
        if lerobot:
            store_lerobot(data, path, f"{plan.suite}: {set_name}", show, video=video)
        else:
            store(data, path, metadata, card, task, show)


def environment_of(plan: Script, name: str) -> str:
    """Return the task in which a set is recorded."""
    return str(plan.environments.get(name, f"{plan.suite}/{name}"))


def check_images(plan: Script, selected: list[str]) -> None:
    """Raise UserError if a selected set has no images to write as videos."""
    without = [name for name in selected if not has_images(environment_of(plan, name))]
    if not without:
        return
    suitable = [name for name in plan.sets if has_images(environment_of(plan, name))]
    remedy = f"Use qualities=[{','.join(suitable)}], or remove" if suitable else "Remove"
    raise UserError(f"video=true: there are no images in {', '.join(without)}. {remedy} video=.")


def has_images(task: str) -> bool:
    """Return True if observations of the task's environment contain images."""
    env = envs.make_vector(task, 1)
    shapes = channels.parts(env.observation_shape)
    env.close()
    return any(map(channels.is_image, shapes))


def actors(kind: Any, value: float) -> Callable[[envs.VectorEnv, int], Act]:
    """Return a function (environments, seed of the first episode) -> controller of the episodes."""
    return lambda env, seed: kind(env, value, seed)
