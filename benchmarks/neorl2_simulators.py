"""NeoRL-2's simulators against NeoRL-2's data: one step, whole episodes, rewards, ends.

    python -m benchmarks.neorl2_simulators [tasks=[DMSD,Simglucose]] [speed=true]

Every published episode is replayed from its number in the file, which was its seed, and its
actions. Writes benchmarks/results/neorl2-simulators.{md,json}; what is to be said of a task is read
from neorl2-simulators.notes.md beside them. `speed` adds steps per second.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import envs
from benchmarks.figures import Names, check_names, run_command
from envs.suites.neorl2 import Pipeline, RocketRecovery, SafetyHalfCheetah, rocket_recovery
from envs.tasks import NATIVE
from envs.vector import VectorEnv
from offline_rl.data.load import data_folder
from offline_rl.utils.files import write_json, write_text
from offline_rl.utils.options import build, parse_options

RESULTS = Path("benchmarks/results")
NOTES = Path(__file__).parent / "results" / "neorl2-simulators.notes.md"


class Recorded(NamedTuple):
    """E episodes of a file, the columns [E, T, ...] of length T, filled up behind their ends."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    next_observations: np.ndarray
    lengths: np.ndarray  # [E]


def recorded(path: Path, episodes: int | None = None) -> Recorded:
    """NeoRL-2's file, or its first `episodes`."""
    with np.load(path, allow_pickle=False) as file:
        names = ("obs", "action", "reward", "done", "truncated", "next_obs")
        columns = [file[name] for name in names]
    ends = np.flatnonzero((columns[3] > 0) | (columns[4] > 0))[:episodes] + 1
    lengths = np.diff(ends, prepend=0)
    inside = np.arange(lengths.max()) < lengths[:, None]
    filled = []
    for column in columns:
        filled.append(np.zeros((*inside.shape, *column.shape[1:]), np.float32))
        filled[-1][inside] = column[: ends[-1]]
    filled[3:5] = [flag > 0 for flag in filled[3:5]]
    return Recorded(*filled, lengths)


class Errors(NamedTuple):
    """Absolute differences of a replay from its recording, NaN where there was no step."""

    starts: np.ndarray  # [E, O]
    observations: np.ndarray  # [E, T, O]
    rewards: np.ndarray  # [E, T]
    ends: np.ndarray  # [E] bool: the same flags at every step


Force = Callable[[Any, np.ndarray, np.ndarray], None]  # env, its observations [B, O], indices [B]


def replay(
    env: VectorEnv, seeds: Sequence[int], data: Recorded, force: Force | None = None
) -> Errors:
    """The recorded actions in `env`, one environment for each episode.

    force: puts the environment back on the recorded observation after each step, so that the
    errors are of one step; what an observation does not tell runs along.
    """
    size = data.observations.shape
    errors = np.full(size, np.nan, np.float32), np.full(size[:2], np.nan)
    ends = np.ones(size[0], bool)
    starts = abs(env.reset(seeds) - data.observations[:, 0])
    for now in range(size[1]):
        on = np.flatnonzero((data.lengths > now) & ends)
        step = env.step(data.actions[on, now], on)
        errors[0][on, now] = abs(step.observations - data.next_observations[on, now])
        errors[1][on, now] = abs(step.rewards - data.rewards[on, now])
        ends[on] = step.terminated == data.terminated[on, now]
        ends[on] &= step.truncated == data.truncated[on, now]
        if force:
            force(env, data.next_observations[on, now], on)
    return Errors(starts, *errors, ends)


# What a file does not say by its episodes' numbers: found in its observations.


def numbered(env: VectorEnv, data: Recorded) -> tuple[VectorEnv, Sequence[int]]:
    return env, range(len(data.lengths))


def first_targets(env: VectorEnv, data: Recorded) -> tuple[VectorEnv, Sequence[int]]:
    """Pipeline's first targets were drawn without a seed."""

    class Replayed(Pipeline):
        def first_target(self, seed: int) -> float:
            return float(data.observations[seed, 0, 1])

    return numbered(Replayed(env.num_envs), data)


def first_winds(env: VectorEnv, data: Recorded) -> tuple[VectorEnv, Sequence[int]]:
    """RocketRecovery's place in the wind's time series was: the one that fits the episode."""
    indices = np.arange(-9999, 9999)
    along = np.arange(data.observations.shape[1])

    def wind(index: np.ndarray) -> np.ndarray:
        return 10 * np.tanh(np.sin(0.02 * index) + np.sin(0.01 * np.pi * index))

    def fit(seed: int) -> int:
        felt = data.observations[seed, : data.lengths[seed], 6]
        near = indices[abs(wind(indices) - felt[0]) < 1e-4]
        misfit = abs(wind(near[:, None] + along[: len(felt)]) - felt).max(1)
        return int(near[misfit.argmin()])

    class Replayed(RocketRecovery):
        def first_wind(self, seed: int) -> int:
            return fit(seed)

    return numbered(Replayed(env.num_envs), data)


def kept(env: VectorEnv, data: Recorded) -> tuple[VectorEnv, Sequence[int]]:
    """SafetyHalfCheetah's files leave out the episodes with a violation: seeds by their starts."""
    candidates = range(100)
    starts = SafetyHalfCheetah(len(candidates)).reset(candidates)
    misfit = abs(starts - data.observations[:, :1]).max(2)
    return env, misfit.argmin(1).tolist()


# Environments put on recorded observations.


def force_pipeline(env: Any, observations: np.ndarray, indices: np.ndarray) -> None:
    env._observation[indices] = observations


def force_dmsd(env: Any, observations: np.ndarray, indices: np.ndarray) -> None:
    env._state[indices] = observations[:, :4].reshape(-1, 2, 2)


def force_runner(env: Any, observations: np.ndarray, indices: np.ndarray) -> None:
    """A velocity at its clip is not told."""
    positions, velocities = env.model.nq, slice(env.model.nq, env.model.nq + env.model.nv)
    for index, observation in zip(indices, observations, strict=True):
        data, speed = env._data[index], observation[velocities]
        data.qpos[:] = observation[:positions]
        data.qvel[:] = np.where(abs(speed) < env.max_speed, speed, data.qvel)
    env._read(indices)


def force_rocket(env: Any, observations: np.ndarray, indices: np.ndarray) -> None:
    world = rocket_recovery
    x_unit, y_unit = world.WIDTH / 2, world.HEIGHT / 2
    for index, row in zip(indices, observations.astype(float), strict=True):
        lander = env._worlds[index][1]
        lander.position = (row[0] + 1) * x_unit, row[1] * y_unit + world.GROUND + world.LEG_DOWN
        lander.angle = row[4]
        lander.linearVelocity = row[2] / world.DT / x_unit, row[3] / world.DT / y_unit
        lander.angularVelocity = row[5] / world.DT / 20
    env._observation[indices] = observations


@dataclass(frozen=True)
class Simulator:
    groups: dict[str, list[int]]  # dimensions of the observation
    find: Callable[[VectorEnv, Recorded], tuple[VectorEnv, Sequence[int]]] = numbered
    force: Force | None = None  # None: the observation tells too little of the state


def dims(*parts: int | tuple[int, int]) -> list[int]:
    """Single dimensions and ranges (first, past the last)."""
    return [i for p in parts for i in (range(*p) if isinstance(p, tuple) else [p])]


SIMULATORS = {
    "Pipeline": Simulator(
        {"flows": dims(0, (2, 27)), "target": dims(1), "actions": dims((27, 52))},
        first_targets,
        force_pipeline,
    ),
    "Simglucose": Simulator({"glucose": dims(0), "patient": dims((1, 31))}),
    "RocketRecovery": Simulator(
        {
            "position": dims((0, 2)),
            "velocity": dims((2, 4)),
            "angle": dims(4),
            "angular velocity": dims(5),
            "wind": dims(6),
        },
        first_winds,
        force_rocket,
    ),
    "RandomFrictionHopper": Simulator(
        {"positions": dims((0, 6)), "velocities": dims((6, 12)), "friction": dims(12)},
        numbered,
        force_runner,
    ),
    "DMSD": Simulator(
        {"positions": dims(0, 1), "velocities": dims(2, 3), "targets": dims(4, 5)},
        numbered,
        force_dmsd,
    ),
    "SafetyHalfCheetah": Simulator(
        {"positions": dims((0, 9)), "velocities": dims((9, 18))},
        kept,
        force_runner,
    ),
}


def compare(task: str, path: Path, episodes: int | None = None) -> dict[str, Any]:
    """A file against its simulator; the numbers of both tables."""
    simulator, data = SIMULATORS[task], recorded(path, episodes)
    env, seeds = simulator.find(NATIVE[f"neorl2/{task}"](len(data.lengths)), data)
    whole = replay(env, seeds, data)
    one = replay(env, seeds, data, simulator.force) if simulator.force else None
    env.close()
    worst = np.nanmax(whole.observations, (1, 2))
    inside = (np.nan_to_num(whole.observations, nan=np.inf) <= 1e-3).all(2)  # False behind the end
    result: dict[str, Any] = {
        "task": task,
        "file": path.name,
        "episodes": len(data.lengths),
        "rows": int(data.lengths.sum()),
        "start_max": number(whole.starts.max()),
        "ends_alike": int(whole.ends.sum()),
        "ends_alike_one_step": int(one.ends.sum()) if one else None,
        "within_0.001_steps_median": number(np.median(inside.cumprod(1).sum(1))),
        "length_median": number(np.median(data.lengths)),
        "episodes_within_0.001": int((worst <= 1e-3).sum()),
        "reward_max": number(np.nanmax(whole.rewards)),
        "reward_one_step_max": number(np.nanmax(one.rewards)) if one else None,
        "groups": {},
    }
    for name, columns in simulator.groups.items():
        maxima = np.nanmax(whole.observations[..., columns], (1, 2))
        result["groups"][name] = {
            "one_step_max": number(np.nanmax(one.observations[..., columns])) if one else None,
            "one_step_rms": number(rms(one.observations[..., columns])) if one else None,
            "episode_max": number(maxima.max()),
            "episode_max_median": number(np.median(maxima)),
        }
    return result


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.nanmean(values.astype(np.float64) ** 2)))


def number(value: float) -> float:
    """Two digits: the third is the machine's."""
    return float(f"{value:.2g}") if value < 1 else round(float(value), 2)


def steps_per_second(task: str, num_envs: int, seconds: float = 5) -> float:
    """Random actions; episodes that end begin anew."""
    env, rng = NATIVE[f"neorl2/{task}"](num_envs), np.random.default_rng(0)
    env.reset(range(num_envs))
    actions = rng.uniform(-1, 1, (64, num_envs, env.action_dim)).astype(np.float32)
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        step = env.step(actions[count % 64])
        over = np.flatnonzero(step.terminated | step.truncated)
        if len(over):
            env.reset(over.tolist(), over)
        count += 1
    return count * num_envs / (time.perf_counter() - start)


def shown(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def markdown(results: list[dict[str, Any]], versions: dict[str, str], command: str) -> str:
    lines = ["# NeoRL-2's simulators against its data", "", f"`{command}`", ""]
    lines += [
        "Largest absolute differences, in units of the observation. *One step*: from each recorded "
        "observation. *Whole episodes*: from the reset with the episode's number, then the "
        "recorded actions; the largest over all episodes, and the median of the episodes' maxima. "
        "The files hold float32.",
        "",
        "| task | file | dimensions | one step, max | rms | whole episodes, max | median |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in results:
        for name, group in row["groups"].items():
            cells = [row["task"], row["file"], name, *(shown(x) for x in group.values())]
            lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "*Ends alike*: episodes whose flags (terminated, truncated) agree at every step. *Within "
        "0.001*: steps until a dimension differs by more, median; and whole episodes.",
        "",
        "| task | file | rows | reward, one step, max | reward, whole episodes, max | ends alike "
        "| within 0.001: steps | episodes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in results:
        total, one = row["episodes"], row["ends_alike_one_step"]
        ends = f"{row['ends_alike']} of {total}"
        if one is not None and one != row["ends_alike"]:
            ends += f" (one step: {one})"
        steps = f"{row['within_0.001_steps_median']:g} of {row['length_median']:g}"
        rewards = (shown(row["reward_one_step_max"]), shown(row["reward_max"]))
        cells = [row["task"], row["file"], f"{row['rows']:,}", *rewards, ends, steps]
        lines.append("| " + " | ".join([*cells, f"{row['episodes_within_0.001']}"]) + " |")
    head, *rest = NOTES.read_text().strip().split("\n\n")[1:]
    notes = dict(re.findall(r"^- (\w+): (.+)$", head, re.MULTILINE))
    tasks = dict.fromkeys(row["task"] for row in results if row["task"] in notes)
    lines += ["", *(f"- {task}: {notes[task]}" for task in tasks), ""]
    speeds = {row["task"]: row["steps_per_second"] for row in results if "steps_per_second" in row}
    if speeds:
        lines += ["| task | environments | steps/s |", "|---|---|---|"]
        for task, found in speeds.items():
            lines += [f"| {task} | {count} | {speed:,.0f} |" for count, speed in found.items()]
        lines += ["", f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}", ""]
    lines += ["\n\n".join(rest), ""]
    return "\n".join([*lines, ", ".join(f"{k} {v}" for k, v in versions.items()), ""])


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command takes."""

    tasks: Names = tuple(SIMULATORS)
    speed: bool = False  # steps per second too


def main(arguments: Sequence[str]) -> None:
    """Raises UserError."""
    options = build(Options, parse_options(arguments))
    results = []
    for task in check_names(options.tasks, "task", SIMULATORS):
        speeds = {}
        if options.speed:
            speeds["steps_per_second"] = {str(n): steps_per_second(task, n) for n in (1, 1000)}
        for file in envs.card(f"neorl2/{task}").files.values():
            path = Path(data_folder()) / file.path
            if not path.is_file():
                print(f"{task}: {file.name} is not there", file=sys.stderr)
                continue
            results.append(compare(task, path) | speeds)
            print(json.dumps(results[-1]), flush=True)
    installed = {found.name.lower(): found.version for found in metadata.distributions()}
    packages = ("mujoco", "box2d", "gymnasium", "numpy")
    versions = {package: installed[package] for package in packages if package in installed}
    command = " ".join(["python -m benchmarks.neorl2_simulators", *arguments])
    facts = {"command": command, "versions": versions, "results": results}
    text = markdown(results, versions, command)
    write_json(RESULTS / "neorl2-simulators.json", facts)
    write_text(RESULTS / "neorl2-simulators.md", text)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
