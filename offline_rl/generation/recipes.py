"""`offline-rl generate`: data sets like those of D4RL, recorded with SAC in an environment.

A recipe (configs/recipe/<name>.yaml) trains one SAC agent in one environment and stores every
transition. The medium policy is the policy at the first evaluation that has a mean return of at
least `medium_return` after at least `medium_after` steps. The expert is the policy at the best
evaluation. Training stops when the requested sets can be generated, and resumes if other sets are
requested later. The kinds of sets are those of D4RL (Fu et al., arXiv:2004.07219):

    random          uniform actions
    medium          actions sampled from the medium policy
    expert          actions sampled from the expert
    medium-expert   medium, then expert
    medium-replay   all transitions up to the medium policy, in order, including the random warm-up
    full-replay     all transitions of the training run

For a task with sparse rewards, the agent is trained with a dense reward. The policies are then
recorded in `environment`, the sparse task. The agent's transitions get the rewards of that task.
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
from offline_rl.evaluation.bundles import current_policy
from offline_rl.generation.behavior import Behavior, generate_behavior
from offline_rl.generation.ogbench import Collection, generate_collection, load_sets
from offline_rl.generation.options import GenerateOptions
from offline_rl.generation.scripted import Script, check_images, environment_of, make_scripted_sets
from offline_rl.generation.store import Act, is_stored, record, store
from offline_rl.runs.folder import SeedFolder, run_folder
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
from policies.golden import seal
from policies.networks.defaults import torch_defaults

QUALITIES = ("random", "medium-replay", "medium", "expert", "medium-expert", "full-replay")
COLLECTION_ONLY = ("type", "episodes", "val_episodes", "processes")  # options
WITHOUT_EXPERT = ("random", "medium-replay", "medium")  # need no training after the medium policy


@dataclass(frozen=True, kw_only=True)
class Agent:
    """Training of the SAC agent of a recipe."""

    task: str  # task in whose environment the agent trains, for example gym/hopper-medium
    num_env_steps: int  # environment steps of the complete training run
    seed: int = 0
    utd: float = 1.0  # updates per environment step
    precision: Literal["fp32", "bf16"] = "bf16"  # matmul precision, on which the sets depend
    compile: bool = True
    eval_every: int = 5_000  # environment steps
    eval_episodes: int = 10


@dataclass(frozen=True, kw_only=True)
class Recipe(Agent):
    """An agent and the sets that are generated with it."""

    family: str  # the sets are named <family>-<quality>
    medium_return: float  # minimum mean return of the medium policy in an evaluation
    medium_after: int  # minimum environment steps before the medium policy
    rows: int = 1_000_000  # transitions in each of the sets random, medium and expert
    environment: str | None = None  # task in which the sets are recorded; default: `task`


@torch_defaults()
def generate(*, show: bool = True, **keys: Any) -> str:
    """Generate the sets of a recipe and return their folder. keys: fields of GenerateOptions.

    Raises UserError.
    """
    options = build(GenerateOptions, keys)
    out, qualities = options.out, options.qualities
    plan, recipe = load_recipe(options.recipe), Path(options.recipe).stem
    if isinstance(plan, Behavior):
        return generate_behavior(plan, recipe, out, keys, show)
    if qualities == []:
        raise UserError("qualities=[] selects no set. Remove it to generate the default sets.")
    choices = QUALITIES if isinstance(plan, Recipe) else plan.sets
    for quality in qualities or ():
        if quality not in choices:
            raise UserError(unknown("quality", quality, choices))
    if isinstance(plan, Collection):
        return generate_collection(plan, recipe, options, show)
    for key in COLLECTION_ONLY:
        if key in keys:
            raise UserError(f"{key}= is only for recipe=ogbench. Remove it.")
    if options.task is not None:
        qualities = [set_of(plan, recipe, options)]
    if options.format == "lerobot" and not isinstance(plan, Script):
        raise UserError(
            f"format=lerobot is only for demonstrations, but {recipe} trains an agent. Remove "
            "format=."
        )
    if options.video and options.format != "lerobot":
        raise UserError("video=true needs format=lerobot. Add it, or remove video=.")
    if options.rows is not None:
        if not isinstance(plan, Script):
            raise UserError(
                f"rows= is only for demonstrations, but {recipe} trains an agent. Remove it."
            )
        plan = replace(plan, rows=options.rows, rows_of={})
    if options.video and isinstance(plan, Script):
        check_images(plan, qualities or list(plan.sets))
    suite = plan.suite if isinstance(plan, Script) else "gym"
    folder = Path(out) if out else data_folder() / suite
    make_folder(folder)
    if isinstance(plan, Script):
        selected, learned = qualities or list(plan.sets), None
        if plan.agent is not None:
            agent = build(Agent, plan.agent)
            run = train_agent(agent, recipe, options.runs, show)
            learned = policies.load(run.path / "expert.bundle"), learning_curve(run)
        lerobot = options.format == "lerobot"
        complete = options.rows is not None or lerobot  # else exactly `rows` rows of the recipe
        make_scripted_sets(
            plan,
            recipe,
            folder,
            selected,
            show,
            learned,
            lerobot=lerobot,
            video=options.video,
            whole_episodes=complete,
        )
        if learned is not None:
            draw_learning_curve(run, recipe, folder / f"{recipe}.png")
        return str(folder)
    selected = qualities or list(QUALITIES[:-1])
    for quality in selected:  # raise for sets of another recipe now, not after hours of training
        name = f"{plan.family}-{quality}"
        is_stored(folder / f"{name}.hdf5", recipe_card(plan, recipe, name), show=False)
    to_end = any(quality not in WITHOUT_EXPERT for quality in selected)
    run = train_agent(plan, recipe, options.runs, show, to_end=to_end)
    sets: dict[str, Dataset] = {}
    for quality in selected:
        data, name = make_set(plan, quality, run, sets), f"{plan.family}-{quality}"
        metadata = {"recipe": recipe, "algorithm": "SAC", "quality": quality}
        card = training_card(plan, recipe, name, run, to_end=quality not in WITHOUT_EXPERT)
        store(data, folder / f"{name}.hdf5", metadata, card, plan.environment or plan.task, show)
    draw_learning_curve(run, plan.family, folder / f"{plan.family}.png")
    return str(folder)


def set_of(plan: Recipe | Script, recipe: str, options: GenerateOptions) -> str:
    """Return the name of the set of `task=`. Raises UserError."""
    if not isinstance(plan, Script):
        raise UserError(f"task= does not apply to recipe={recipe}. Select sets with qualities=.")
    if options.qualities is not None:
        raise UserError("task= and qualities= both select sets. Remove one of them.")
    tasks = {f"{plan.suite}/{name}": name for name in plan.sets}
    if options.task not in tasks:
        raise UserError(unknown("task", str(options.task), tasks))
    return tasks[options.task]


def load_recipe(name: str) -> Recipe | Script | Collection | Behavior:
    """Load configs/recipe/<name>.yaml, or a YAML file. Raises UserError.

    With a `controller` it is a Script, with a `collector` a Collection, with `networks` a Behavior.
    """
    files = {path.stem: path for path in (share("configs") / "recipe").glob("*.yaml")}
    path = Path(name) if name.endswith((".yaml", ".yml")) else files.get(name)
    if path is None:
        raise UserError(unknown("recipe", name, files))
    values = read_yaml(path)
    kind: type = Recipe
    if "controller" in values:
        kind = Script
    elif "collector" in values:
        kind = Collection
    elif "networks" in values:
        kind = Behavior
    plan: Any = build(kind, values, f"{path}: ")
    if isinstance(plan, Collection):
        load_sets(plan, f"{path}: ")
        return plan
    try:
        for task in environments(plan, f"{path}: "):
            envs.task(task)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    if plan.rows < 1:
        raise UserError(f"{path}: rows={plan.rows} must be at least 1")
    return plan


def environments(plan: Recipe | Script | Behavior, where: str) -> list[str]:
    """Return the tasks in which a recipe trains and records. Raises UserError for a wrong type."""
    if isinstance(plan, Behavior):
        return [plan.task]
    if isinstance(plan, Recipe):
        return [plan.task, *([plan.environment] if plan.environment is not None else [])]
    for name, value in plan.sets.items():
        coerce(value, float, f"{where}sets.{name}")
    for name, rows in plan.rows_of.items():
        if name not in plan.sets or coerce(rows, int, f"{where}rows_of.{name}") < 1:
            raise UserError(
                f"{where}rows_of.{name}={rows} is wrong. Use the name of a set, and at least 1 row."
            )
    for name, task in plan.environments.items():
        coerce(task, str, f"{where}environments.{name}")
    tasks = [environment_of(plan, name) for name in plan.sets]
    return tasks + ([build(Agent, plan.agent, f"{where}agent.").task] if plan.agent else [])


class StopTraining(KeyboardInterrupt):
    """Exception that stops training as Ctrl-C does. A repeated call resumes from the checkpoint."""


def train_agent(
    plan: Agent, name: str, runs: str, show: bool, *, to_end: bool = True
) -> SeedFolder:
    """Train the agent and return its folder, with the expert, the medium policy and the buffer.

    to_end: train to the end, otherwise to the medium policy.
    """
    run = f"recipe-{name}"
    folder = SeedFolder(run_folder(runs, plan.task, "sac", run), plan.seed)
    medium = folder.path / "medium.json"

    def watch(trainer: Trainer) -> None:
        """Save the policy after an evaluation if it is the medium policy or the best so far."""
        steps, mean = trainer.env_steps, float(trainer.last[0].returns.mean())
        best = folder.path / "expert.json"
        if (
            isinstance(plan, Recipe)
            and steps >= plan.medium_after
            and mean >= plan.medium_return
            and not medium.is_file()
        ):
            save_policy(trainer, "medium", mean)
        if not best.is_file() or mean > read_json(best)["return"]:
            save_policy(trainer, "expert", mean)
        if not to_end and medium.is_file():
            trainer.save()
            raise StopTraining

    def save_policy(trainer: Trainer, quality: str, mean: float) -> None:
        """Write the current policy, and then the JSON file that marks it as complete."""
        facts = {"env_steps": trainer.env_steps, "return": mean}
        policy = seal(current_policy(trainer.engine, 0, trainer.transform, facts))
        write_atomically(folder.path / f"{quality}.bundle", lambda part: bundle.write(part, policy))
        write_json(folder.path / f"{quality}.json", facts)

    if not to_end and medium.is_file():
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
            # not auto: the bytes of the sets must not depend on the length of the run
            compile="always" if plan.compile else "never",
            device="cpu",
            out=runs,
            name=run,
            watch=watch,
            show=show,
        )
    except StopTraining:
        return folder
    if isinstance(plan, Recipe) and not medium.is_file():
        raise UserError(
            f"recipe {name}: no evaluation reached a return of {plan.medium_return}. Lower "
            "medium_return, or train longer."
        )
    return folder


def make_set(plan: Recipe, quality: str, run: SeedFolder, sets: dict[str, Dataset]) -> Dataset:
    """Return one set, and store it in `sets`, from which medium-expert reuses its parts."""
    if quality not in sets:
        if quality == "medium-expert":
            parts = [make_set(plan, part, run, sets) for part in ("medium", "expert")]
            sets[quality] = join_datasets(parts)
        elif quality.endswith("-replay"):
            steps = read_json(run.path / "medium.json")["env_steps"]
            sets[quality] = load_replay(plan, run, steps if quality == "medium-replay" else None)
        else:
            random = quality == "random"
            policy = None if random else policies.load(run.path / f"{quality}.bundle")
            first = seeds.episode_seed("rolled-out sets", QUALITIES.index(quality))
            actor = partial(noisy_actor, policy)
            sets[quality] = record(plan.environment or plan.task, plan.rows, first, actor)
    return sets[quality]


def load_replay(plan: Recipe, run: SeedFolder, steps: int | None) -> Dataset:
    """Return the agent's first `steps` transitions, with the rewards of `plan.environment`."""
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
            raise UserError(
                f"The rewards of {plan.environment} cannot be computed from its observations. "
                "Leave out the replay sets: qualities=[random,medium,expert,medium-expert]."
            ) from None
        columns["truncated"] |= columns["terminated"]  # the sparse task ends only at a time limit
        columns["terminated"] = np.zeros_like(columns["terminated"])
    return Dataset.from_arrays(**columns)


def noisy_actor(policy: Any, env: envs.VectorEnv, first_seed: int) -> Act:
    """Return an actor that samples actions from a policy, or uniform actions without a policy.

    The noise of an episode depends only on the episode's seed.
    """
    rngs = [np.random.default_rng(first_seed + k) for k in range(env.num_envs)]
    shape = (env.max_episode_steps, env.action_dim)
    rows = [r.uniform(-1, 1, shape) if policy is None else r.standard_normal(shape) for r in rngs]
    noise, steps = np.stack(rows).astype(np.float32), np.zeros(env.num_envs, np.int64)

    def act(observations: np.ndarray, indices: np.ndarray) -> np.ndarray:
        values = noise[indices, steps[indices]]
        steps[indices] += 1
        if policy is None:
            return values
        return sample_actions(policy, observations, torch.from_numpy(values))

    return act


def sample_actions(policy: Any, observations: np.ndarray, normal: torch.Tensor) -> np.ndarray:
    """Return actions of a SAC policy for standard normal noise `normal`, [B, A]."""
    batch = torch.from_numpy(policy.normalizer(observations))
    with torch.inference_mode():
        mean, log_std = policy.module(batch)
        return (mean + log_std.exp() * normal).tanh().numpy()


def join_datasets(parts: list[Dataset]) -> Dataset:
    """Concatenate data sets. All but the last lose their last episode, which may be cut."""
    columns: dict[str, list[np.ndarray]] = {}
    for k, part in enumerate(parts):
        data = part
        if k < len(parts) - 1 and part.num_episodes > 1:
            data = part.select(range(part.num_episodes - 1))
        for name in ("actions", "rewards", "terminated", "truncated", "next_observations"):
            columns.setdefault(name, []).append(getattr(data, name))
        columns.setdefault("observations", []).append(data.observations[: data.num_rows])
    arrays: dict[str, Any] = {k: np.concatenate(v) for k, v in columns.items()}
    return Dataset.from_arrays(**arrays)


def recipe_card(plan: Recipe, recipe: str, name: str) -> dict[str, Any]:
    """Return the entries of a set's card that follow from its recipe."""
    return {"set": name, "recipe": {"name": recipe, **asdict(plan)}}


def training_card(
    plan: Recipe, recipe: str, name: str, run: SeedFolder, *, to_end: bool
) -> dict[str, Any]:
    """Return the entries of a set's card that describe how the set was generated.

    to_end: include the training after the medium policy.
    """
    used = ("medium", "expert") if to_end else ("medium",)
    policies = {quality: read_json(run.path / f"{quality}.json") for quality in used}
    last = math.inf if to_end else policies["medium"]["env_steps"]
    curve = [point for point in learning_curve(run) if point["env_steps"] <= last]
    return {**recipe_card(plan, recipe, name), "policies": policies, "learning_curve": curve}


def learning_curve(run: SeedFolder) -> list[dict[str, float]]:
    """Return the mean return of each of the agent's evaluations, for cards."""
    return [
        {"env_steps": row["env_steps"], "return": round(row["eval/return"], 1)}
        for row in run.rows("evaluations")
    ]


def draw_learning_curve(run: SeedFolder, title: str, path: Path) -> None:
    """Draw the agent's evaluations, with a mark at the medium policy, if any."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows, medium = run.rows("evaluations"), run.path / "medium.json"
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot([r["env_steps"] for r in rows], [r["eval/return"] for r in rows], lw=1.2)
    if medium.is_file():
        point = read_json(medium)
        axes.plot(point["env_steps"], point["return"], "o", color="tab:red", label="medium policy")
        axes.legend()
    axes.set(xlabel="environment steps", ylabel="mean return", title=f"{title}: SAC")
    axes.grid(alpha=0.3)
    write_atomically(path, lambda temporary: figure.savefig(temporary, format="png", dpi=120))
    plt.close(figure)
