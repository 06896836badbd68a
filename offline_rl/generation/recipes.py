"""`offline-rl generate`: datasets of the D4RL kind, made by SAC in an environment.

A recipe (configs/recipe/<name>.yaml) trains one SAC agent in one environment and keeps every
transition. The medium policy is that of the first evaluation, not before `medium_after` steps, that
reaches `medium_return`; the expert is that of the best evaluation. Training stops where the wanted
sets have what they need, and goes on from there when others are wanted. The kinds are those of
D4RL (Fu et al., arXiv:2004.07219):

    random         uniform actions               medium, expert   the policy, its actions sampled
    medium-replay  every transition up to the medium policy, in order, the random start included
    full-replay    every transition of the run   medium-expert    medium, then expert

A sparse task is learned from its dense reward: `environment` is where the policies are then
recorded, and gives the rewards of the transitions that the learner kept.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

import envs
import policies
from envs.suites.gymnasium_robotics import SPARSE
from offline_rl.data import Dataset
from offline_rl.data.load import data_folder
from offline_rl.generation.options import GenerateOptions
from offline_rl.generation.scripted import Script, check_pictures, environment_of, script
from offline_rl.generation.store import Act, record, store, there
from offline_rl.training.run_folder import SeedFolder, run_folder
from offline_rl.training.train import train
from offline_rl.training.trainer import Trainer
from offline_rl.utils import seeds
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import (
    make_folder,
    read_json,
    read_yaml,
    write_atomically,
    write_json,
)
from offline_rl.utils.options import build, coerce, unknown
from offline_rl.utils.paths import share
from policies import bundle
from policies.networks.defaults import torch_defaults

QUALITIES = ("random", "medium-replay", "medium", "expert", "medium-expert", "full-replay")
BY_THE_MEDIUM = ("random", "medium-replay", "medium")  # need nothing that is learned later


@dataclass(frozen=True, kw_only=True)
class Agent:
    """One agent's life."""

    task: str  # whose environment, for example gym/hopper-medium
    num_env_steps: int  # of the whole run
    seed: int = 0
    utd: float = 1.0
    precision: Literal["fp32", "bf16"] = "bf16"  # of matrix products; bytes differ between the two
    compile: bool = True
    eval_every: int = 5_000  # environment steps
    eval_episodes: int = 10


@dataclass(frozen=True, kw_only=True)
class Recipe(Agent):
    """And what is kept of it."""

    family: str  # the sets are called <family>-<quality>
    medium_return: float  # mean return of an evaluation that makes a policy medium
    medium_after: int  # environment steps before which no policy counts as medium
    rows: int = 1_000_000  # of random, medium and expert
    environment: str | None = None  # where they are recorded; default: in the task's environment


@torch_defaults()
def generate(*, show: bool = True, **keys: Any) -> str:
    """Makes the sets of a recipe and returns the folder they are in. keys: GenerateOptions.

    Raises UserError for whatever the user can mend.
    """
    options = build(GenerateOptions, keys)
    out, qualities = options.out, options.qualities
    plan, recipe = load_recipe(options.recipe), Path(options.recipe).stem
    if qualities == []:
        raise UserError("qualities=[]: nothing to make; leave it out for all")
    known = plan.sets if isinstance(plan, Script) else QUALITIES
    for quality in qualities or ():
        if quality not in known:
            raise UserError(unknown("quality", quality, known))
    if options.format == "lerobot" and not isinstance(plan, Script):
        raise UserError(f"format=lerobot is for demonstrations, and {recipe} trains an agent")
    if options.video and options.format != "lerobot":
        raise UserError("video=true means something with format=lerobot only")
    if options.rows is not None:
        if not isinstance(plan, Script):
            raise UserError(f"rows= is for demonstrations, and {recipe} trains an agent")
        plan = replace(plan, rows=options.rows, rows_of={})
    if options.video and isinstance(plan, Script):
        check_pictures(plan, qualities or list(plan.sets))
    suite = plan.suite if isinstance(plan, Script) else "gym"
    folder = Path(out) if out else data_folder() / suite
    make_folder(folder)
    if isinstance(plan, Script):
        wanted, learned = qualities or list(plan.sets), None
        if plan.agent is not None:
            agent = build(Agent, plan.agent)
            run = learn(agent, recipe, options.runs, show)
            learned = policies.load(run.path / "expert.bundle"), learning_curve(run)
        how = {"lerobot": options.format == "lerobot", "video": options.video}
        whole = options.rows is not None or how["lerobot"]  # else as many rows as the card says
        script(plan, recipe, folder, wanted, show, learned, **how, whole_episodes=whole)
        if learned is not None:
            curve(run, recipe, folder / f"{recipe}.png")
        return str(folder)
    wanted = qualities or list(QUALITIES[:-1])
    for quality in wanted:  # refuses what another recipe made, before hours of learning
        name = f"{plan.family}-{quality}"
        there(folder / f"{name}.hdf5", planned(plan, recipe, name), show=False)
    whole = any(quality not in BY_THE_MEDIUM for quality in wanted)
    run = learn(plan, recipe, options.runs, show, whole=whole)
    made: dict[str, Dataset] = {}
    for quality in wanted:
        data, name = make_set(plan, quality, run, made), f"{plan.family}-{quality}"
        made_by = {"recipe": recipe, "algorithm": "SAC", "quality": quality}
        card = describe(plan, recipe, name, run, whole=quality not in BY_THE_MEDIUM)
        store(data, folder / f"{name}.hdf5", made_by, card, plan.environment or plan.task, show)
    curve(run, plan.family, folder / f"{plan.family}.png")
    return str(folder)


def load_recipe(name: str) -> Recipe | Script:
    """configs/recipe/<name>.yaml, or a file: of a `controller` or an agent. Raises UserError."""
    files = {path.stem: path for path in (share("configs") / "recipe").glob("*.yaml")}
    path = Path(name) if name.endswith((".yaml", ".yml")) else files.get(name)
    if path is None:
        raise UserError(unknown("recipe", name, files))
    values = read_yaml(path)
    kind: type[Recipe] | type[Script] = Script if "controller" in values else Recipe
    plan: Any = build(kind, values, f"{path}: ")
    try:
        for task in environments(plan, f"{path}: "):
            envs.task(task)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    if plan.rows < 1:
        raise UserError(f"{path}: rows={plan.rows}: must be at least 1")
    return plan


def environments(plan: Recipe | Script, where: str) -> list[str]:
    """The tasks that a recipe learns and records in. Raises UserError for a wrong type."""
    if isinstance(plan, Recipe):
        return [plan.task, *([plan.environment] if plan.environment is not None else [])]
    for each, knob in plan.sets.items():
        coerce(knob, float, f"{where}sets.{each}")
    for each, rows in plan.rows_of.items():
        if each not in plan.sets or coerce(rows, int, f"{where}rows_of.{each}") < 1:
            raise UserError(f"{where}rows_of.{each}={rows}: at least 1, of one of its sets")
    for each, task in plan.environments.items():
        coerce(task, str, f"{where}environments.{each}")
    tasks = [environment_of(plan, each) for each in plan.sets]
    return tasks + ([build(Agent, plan.agent, f"{where}agent.").task] if plan.agent else [])


class Enough(KeyboardInterrupt):
    """Ends the training as Ctrl-C does: the same call goes on from its checkpoint."""


def learn(plan: Agent, name: str, runs: str, show: bool, *, whole: bool = True) -> SeedFolder:
    """Trains the agent; leaves its best policy, the medium one and the buffer in its folder.

    whole: to the end; otherwise to the medium policy.
    """
    run = f"recipe-{name}"
    folder = SeedFolder(run_folder(runs, plan.task, "sac", run), plan.seed)
    medium = folder.path / "medium.json"

    def watch(trainer: Trainer) -> None:
        """After each evaluation: is this the medium policy, is it the best so far?"""
        steps, mean = trainer.env_steps, float(trainer.last[0].returns.mean())
        best = folder.path / "expert.json"
        if (
            isinstance(plan, Recipe)
            and steps >= plan.medium_after
            and mean >= plan.medium_return
            and not medium.is_file()
        ):
            keep(trainer, "medium", mean)
        if not best.is_file() or mean > read_json(best)["return"]:
            keep(trainer, "expert", mean)
        if not whole and medium.is_file():
            trainer.save()
            raise Enough

    def keep(trainer: Trainer, quality: str, mean: float) -> None:
        """Writes the present policy, then where it stands: that says both are there."""
        facts = {"env_steps": trainer.env_steps, "return": mean}
        policy = trainer.policy(0, facts)
        write_atomically(folder.path / f"{quality}.bundle", lambda part: bundle.write(part, policy))
        write_json(folder.path / f"{quality}.json", facts)

    if not whole and medium.is_file():
        return folder
    try:
        train(
            algorithm="sac",
            task=plan.task,
            seeds=[plan.seed],
            num_updates=0,
            num_env_steps=plan.num_env_steps,
            utd=plan.utd,
            eval_every=plan.eval_every,
            eval_episodes=plan.eval_episodes,
            checkpoint_every=20_000,
            precision=plan.precision,
            compile="always" if plan.compile else "never",  # however short: the same bytes
            device="cpu",
            out=runs,
            name=run,
            watch=watch,
            show=show,
        )
    except Enough:
        return folder
    if isinstance(plan, Recipe) and not medium.is_file():
        raise UserError(f"recipe {name}: no evaluation reached a return of {plan.medium_return}")
    return folder


def make_set(plan: Recipe, quality: str, run: SeedFolder, made: dict[str, Dataset]) -> Dataset:
    """One set; those that are parts of others are kept in `made`."""
    if quality not in made:
        if quality == "medium-expert":
            parts = [make_set(plan, part, run, made) for part in ("medium", "expert")]
            made[quality] = join(parts)
        elif quality.endswith("-replay"):
            steps = read_json(run.path / "medium.json")["env_steps"]
            made[quality] = replay(plan, run, steps if quality == "medium-replay" else None)
        else:
            random = quality == "random"
            policy = None if random else policies.load(run.path / f"{quality}.bundle")
            first = seeds.place("rolled-out sets", QUALITIES.index(quality))
            actor = partial(noisy, policy)
            made[quality] = record(plan.environment or plan.task, plan.rows, first, actor)
    return made[quality]


def replay(plan: Recipe, run: SeedFolder, steps: int | None) -> Dataset:
    """The first `steps` transitions of the agent's life, as its `environment` pays them."""
    checkpoints = run.checkpoints()
    tensors, _ = run.load(max(checkpoints))
    names = ("observations", "actions", "rewards", "terminated", "truncated", "next_observations")
    columns: dict[str, Any] = {name: tensors[f"buffer/{name}"][:steps].numpy() for name in names}
    for flag in ("terminated", "truncated"):
        columns[flag] = columns[flag].astype(bool)
    if plan.environment is not None:
        try:
            columns["rewards"] = SPARSE[plan.environment](columns["next_observations"])
        except KeyError:
            remedy = "name the other sets: qualities=[random,medium,expert,medium-expert]"
            what = f"the rewards of {plan.environment} do not follow from its observations"
            raise UserError(f"{what}; {remedy}") from None
        columns["truncated"] |= columns["terminated"]  # nothing ends there but by its time
        columns["terminated"] = np.zeros_like(columns["terminated"])
    return Dataset.from_arrays(**columns)


def noisy(policy: Any, env: envs.VectorEnv, first_seed: int) -> Act:
    """Actions of a policy, sampled, or uniform ones for None; the noise is the episodes' own."""
    draws = [np.random.default_rng(first_seed + k) for k in range(env.num_envs)]
    shape = (env.max_episode_steps, env.action_dim)
    kinds = [d.uniform(-1, 1, shape) if policy is None else d.standard_normal(shape) for d in draws]
    noise, steps = np.stack(kinds).astype(np.float32), np.zeros(env.num_envs, np.int64)

    def act(observations: np.ndarray, indices: np.ndarray) -> np.ndarray:
        own = noise[indices, steps[indices]]
        steps[indices] += 1
        return own if policy is None else sampled(policy, observations, torch.from_numpy(own))

    return act


def sampled(policy: Any, observations: np.ndarray, normal: torch.Tensor) -> np.ndarray:
    """Actions of SAC's policy with given standard normal noise, [B, A]."""
    batch = torch.from_numpy(policy.normalizer(observations))
    with torch.inference_mode():
        mean, log_std = policy.module(batch)
        return (mean + log_std.exp() * normal).tanh().numpy()


def join(parts: list[Dataset]) -> Dataset:
    """One after the other, each cut after its last finished episode but for the last one."""
    columns: dict[str, list[np.ndarray]] = {}
    for k, part in enumerate(parts):
        whole = part
        if k < len(parts) - 1 and part.num_episodes > 1:
            whole = part.select(range(part.num_episodes - 1))
        for name in ("actions", "rewards", "terminated", "truncated", "next_observations"):
            columns.setdefault(name, []).append(getattr(whole, name))
        columns.setdefault("observations", []).append(whole.observations[: whole.num_rows])
    whole_columns: dict[str, Any] = {k: np.concatenate(v) for k, v in columns.items()}
    return Dataset.from_arrays(**whole_columns)


def planned(plan: Recipe, recipe: str, name: str) -> dict[str, Any]:
    """What a set's card says before anything is learned."""
    return {"set": name, "recipe": {"name": recipe, **asdict(plan)}}


def describe(
    plan: Recipe, recipe: str, name: str, run: SeedFolder, *, whole: bool
) -> dict[str, Any]:
    """How a set was made, for its card. whole: with what was learned after the medium policy."""
    used = ("medium", "expert") if whole else ("medium",)
    policies = {quality: read_json(run.path / f"{quality}.json") for quality in used}
    last = math.inf if whole else policies["medium"]["env_steps"]
    curve = [point for point in learning_curve(run) if point["env_steps"] <= last]
    return {**planned(plan, recipe, name), "policies": policies, "learning_curve": curve}


def learning_curve(run: SeedFolder) -> list[dict[str, float]]:
    """The agent's evaluations, for cards."""
    return [
        {"env_steps": row["env_steps"], "return": round(row["eval/return"], 1)}
        for row in run.rows("evaluations")
    ]


def curve(run: SeedFolder, title: str, path: Path) -> None:
    """A picture of the agent's evaluations, with the medium policy, if it has one, marked."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows, medium = run.rows("evaluations"), run.path / "medium.json"
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot([r["env_steps"] for r in rows], [r["eval/return"] for r in rows], lw=1.2)
    if medium.is_file():
        at = read_json(medium)
        axes.plot(at["env_steps"], at["return"], "o", color="tab:red", label="medium policy")
        axes.legend()
    axes.set(xlabel="environment steps", ylabel="mean return", title=f"{title}: SAC")
    axes.grid(alpha=0.3)
    write_atomically(path, lambda temporary: figure.savefig(temporary, format="png", dpi=120))
    plt.close(figure)
