"""Compare our NeoRL-2 simulators with NeoRL-2's data: steps, complete episodes, rewards, ends.

    python -m benchmarks.neorl2_simulators [tasks=[DMSD,Simglucose]] [speed=true]

Every published episode is replayed from its seed, which is its number in the file, and its actions.
Writes benchmarks/results/neorl2-simulators.{md,json}. Remarks on tasks come from
neorl2-simulators.notes.md in the same folder. `speed` adds steps per second.
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


class Recording(NamedTuple):
    """E episodes of a file; columns are [E, T, ...], padded after each episode's end."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    next_observations: np.ndarray
    lengths: np.ndarray  # [E]


def read_recording(path: Path, episodes: int | None = None) -> Recording:
    """Return the episodes of a NeoRL-2 file, or its first `episodes`."""
    with np.load(path, allow_pickle=False) as file:
        names = ("obs", "action", "reward", "done", "truncated", "next_obs")
        columns = [file[name] for name in names]
    ends = np.flatnonzero((columns[3] > 0) | (columns[4] > 0))[:episodes] + 1
    lengths = np.diff(ends, prepend=0)
    inside = np.arange(lengths.max()) < lengths[:, None]
    padded = []
    for column in columns:
        padded.append(np.zeros((*inside.shape, *column.shape[1:]), np.float32))
        padded[-1][inside] = column[: ends[-1]]
    padded[3:5] = [flag > 0 for flag in padded[3:5]]
    return Recording(*padded, lengths)


class Errors(NamedTuple):
    """Absolute differences between a replay and its recording; NaN after an episode's end."""

    starts: np.ndarray  # [E, O]
    observations: np.ndarray  # [E, T, O]
    rewards: np.ndarray  # [E, T]
    ends: np.ndarray  # [E] bool: flags agree at every step


# sets environments `indices` [B] to observations [B, O]; called with env, observations, indices
Force = Callable[[Any, np.ndarray, np.ndarray], None]


def replay(
    env: VectorEnv, seeds: Sequence[int], data: Recording, force: Force | None = None
) -> Errors:
    """Replay the recorded actions in `env`, with one environment per episode.

    force: sets the environment to the recorded observation after each step, so errors are those of
    single steps. State that is not observed keeps its simulated value.
    """
    size = data.observations.shape
    errors = np.full(size, np.nan, np.float32), np.full(size[:2], np.nan)
    ends = np.ones(size[0], bool)
    starts = abs(env.reset(seeds) - data.observations[:, 0])
    for t in range(size[1]):
        running = np.flatnonzero((data.lengths > t) & ends)
        step = env.step(data.actions[running, t], running)
        errors[0][running, t] = abs(step.observations - data.next_observations[running, t])
        errors[1][running, t] = abs(step.rewards - data.rewards[running, t])
        ends[running] = step.terminated == data.terminated[running, t]
        ends[running] &= step.truncated == data.truncated[running, t]
        if force:
            force(env, data.next_observations[running, t], running)
    return Errors(starts, *errors, ends)


# Functions that return the environment and the seeds of the recorded episodes. They read constants
# that were drawn without a seed from the data.


def seeds_by_number(env: VectorEnv, data: Recording) -> tuple[VectorEnv, Sequence[int]]:
    return env, range(len(data.lengths))


def first_targets(env: VectorEnv, data: Recording) -> tuple[VectorEnv, Sequence[int]]:
    """Return an environment with the recorded first targets; upstream drew them unseeded."""

    class Replayed(Pipeline):
        def first_target(self, seed: int) -> float:
            return float(data.observations[seed, 0, 1])

    return seeds_by_number(Replayed(env.num_envs), data)


def first_winds(env: VectorEnv, data: Recording) -> tuple[VectorEnv, Sequence[int]]:
    """Return an environment with wind phases fitted to the data; upstream drew them unseeded."""
    indices = np.arange(-9999, 9999)
    along = np.arange(data.observations.shape[1])

    def wind(index: np.ndarray) -> np.ndarray:
        return 10 * np.tanh(np.sin(0.02 * index) + np.sin(0.01 * np.pi * index))

    def fit(seed: int) -> int:
        recorded = data.observations[seed, : data.lengths[seed], 6]
        candidates = indices[abs(wind(indices) - recorded[0]) < 1e-4]
        misfit = abs(wind(candidates[:, None] + along[: len(recorded)]) - recorded).max(1)
        return int(candidates[misfit.argmin()])

    class Replayed(RocketRecovery):
        def first_wind(self, seed: int) -> int:
            return fit(seed)

    return seeds_by_number(Replayed(env.num_envs), data)


def seeds_by_start(env: VectorEnv, data: Recording) -> tuple[VectorEnv, Sequence[int]]:
    """Return the seeds whose initial states are the recorded ones.

    Episodes cannot be numbered, because the file omits those with a violation.
    """
    candidates = range(100)
    starts = SafetyHalfCheetah(len(candidates)).reset(candidates)
    misfit = abs(starts - data.observations[:, :1]).max(2)
    return env, misfit.argmin(1).tolist()


# Functions that set environments to recorded observations.


def force_pipeline(env: Any, observations: np.ndarray, indices: np.ndarray) -> None:
    env._observation[indices] = observations


def force_dmsd(env: Any, observations: np.ndarray, indices: np.ndarray) -> None:
    env._state[indices] = observations[:, :4].reshape(-1, 2, 2)


def force_runner(env: Any, observations: np.ndarray, indices: np.ndarray) -> None:
    """Set positions and velocities. Velocities at the clip limit are unknown and are not set."""
    positions, velocities = env.model.nq, slice(env.model.nq, env.model.nq + env.model.nv)
    for index, observation in zip(indices, observations, strict=True):
        data, speed = env._data[index], observation[velocities]
        data.qpos[:] = observation[:positions]
        data.qvel[:] = np.where(abs(speed) < env.max_speed, speed, data.qvel)
    env._read(indices)


def force_rocket(env: Any, observations: np.ndarray, indices: np.ndarray) -> None:
    constants = rocket_recovery
    x_unit, y_unit = constants.WIDTH / 2, constants.HEIGHT / 2
    landed = constants.GROUND + constants.LEG_DOWN
    for index, row in zip(indices, observations.astype(float), strict=True):
        lander = env._worlds[index][1]
        lander.position = (row[0] + 1) * x_unit, row[1] * y_unit + landed
        lander.angle = row[4]
        lander.linearVelocity = row[2] / constants.DT / x_unit, row[3] / constants.DT / y_unit
        lander.angularVelocity = row[5] / constants.DT / 20
    env._observation[indices] = observations


@dataclass(frozen=True)
class Simulator:
    groups: dict[str, list[int]]  # observation dimensions by name
    find: Callable[[VectorEnv, Recording], tuple[VectorEnv, Sequence[int]]] = seeds_by_number
    force: Force | None = None  # None: the observation does not determine the state


def dims(*parts: int | tuple[int, int]) -> list[int]:
    """Return the list of single dimensions and ranges (start, stop)."""
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
        seeds_by_number,
        force_runner,
    ),
    "DMSD": Simulator(
        {"positions": dims(0, 1), "velocities": dims(2, 3), "targets": dims(4, 5)},
        seeds_by_number,
        force_dmsd,
    ),
    "SafetyHalfCheetah": Simulator(
        {"positions": dims((0, 9)), "velocities": dims((9, 18))},
        seeds_by_start,
        force_runner,
    ),
}


def compare(task: str, path: Path, episodes: int | None = None) -> dict[str, Any]:
    """Compare a file with its simulator; return the numbers of both tables."""
    simulator, data = SIMULATORS[task], read_recording(path, episodes)
    env, seeds = simulator.find(NATIVE[f"neorl2/{task}"](len(data.lengths)), data)
    full = replay(env, seeds, data)
    one = replay(env, seeds, data, simulator.force) if simulator.force else None
    env.close()
    worst = np.nanmax(full.observations, (1, 2))
    inside = (np.nan_to_num(full.observations, nan=np.inf) <= 1e-3).all(2)  # False after the end
    result: dict[str, Any] = {
        "task": task,
        "file": path.name,
        "episodes": len(data.lengths),
        "rows": int(data.lengths.sum()),
        "start_max": round_value(full.starts.max()),
        "ends_alike": int(full.ends.sum()),
        "ends_alike_one_step": int(one.ends.sum()) if one else None,
        "within_0.001_steps_median": round_value(np.median(inside.cumprod(1).sum(1))),
        "length_median": round_value(np.median(data.lengths)),
        "episodes_within_0.001": int((worst <= 1e-3).sum()),
        "reward_max": round_value(np.nanmax(full.rewards)),
        "reward_one_step_max": round_value(np.nanmax(one.rewards)) if one else None,
        "groups": {},
    }
    for name, columns in simulator.groups.items():
        maxima = np.nanmax(full.observations[..., columns], (1, 2))
        result["groups"][name] = {
            "one_step_max": round_value(np.nanmax(one.observations[..., columns])) if one else None,
            "one_step_rms": round_value(rms(one.observations[..., columns])) if one else None,
            "episode_max": round_value(maxima.max()),
            "episode_max_median": round_value(np.median(maxima)),
        }
    return result


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.nanmean(values.astype(np.float64) ** 2)))


def round_value(value: float) -> float:
    """Return the value with two digits; the third depends on the machine."""
    return float(f"{value:.2g}") if value < 1 else round(float(value), 2)


def steps_per_second(task: str, num_envs: int, seconds: float = 5) -> float:
    """Measure steps per second with random actions; finished episodes are reset."""
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


def format_value(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def markdown(results: list[dict[str, Any]], versions: dict[str, str], command: str) -> str:
    lines = ["# Our NeoRL-2 simulators compared with NeoRL-2's data", "", f"`{command}`", ""]
    lines += [
        "Largest absolute differences, in units of the observation. *One step*: every step starts "
        "from the recorded observation. *Complete episodes*: the environment is reset with the "
        "episode's number as seed and then takes the recorded actions; *max* is the maximum over "
        "all episodes, *median* the median of the episodes' maxima. The files store float32.",
        "",
        "| task | file | dimensions | one step, max | rms | complete episodes, max | median |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in results:
        for name, group in row["groups"].items():
            cells = [row["task"], row["file"], name, *(format_value(x) for x in group.values())]
            lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "*Equal ends*: episodes whose flags (terminated, truncated) agree at every step. *Within "
        "0.001: steps*: the median number of steps until a dimension differs by more than 0.001. "
        "*Episodes*: the number of episodes in which none differs by more.",
        "",
        "| task | file | rows | reward, one step, max | reward, complete episodes, max "
        "| equal ends | within 0.001: steps | episodes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in results:
        total, one = row["episodes"], row["ends_alike_one_step"]
        ends = f"{row['ends_alike']} of {total}"
        if one is not None and one != row["ends_alike"]:
            ends += f" (one step: {one})"
        steps = f"{row['within_0.001_steps_median']:g} of {row['length_median']:g}"
        rewards = (format_value(row["reward_one_step_max"]), format_value(row["reward_max"]))
        cells = [row["task"], row["file"], f"{row['rows']:,}", *rewards, ends, steps]
        lines.append("| " + " | ".join([*cells, f"{row['episodes_within_0.001']}"]) + " |")
    head, *rest = NOTES.read_text().strip().split("\n\n")[1:]
    notes = dict(re.findall(r"^- (\w+): (.+)$", head, re.MULTILINE))
    tasks = dict.fromkeys(row["task"] for row in results if row["task"] in notes)
    lines += ["", *(f"- {task}: {notes[task]}" for task in tasks), ""]
    speeds = {row["task"]: row["steps_per_second"] for row in results if "steps_per_second" in row}
    if speeds:
        lines += ["| task | environments | steps/s |", "|---|---|---|"]
        for task, rates in speeds.items():
            lines += [f"| {task} | {count} | {rate:,.0f} |" for count, rate in rates.items()]
        lines += ["", f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}", ""]
    lines += ["\n\n".join(rest), ""]
    return "\n".join([*lines, ", ".join(f"{k} {v}" for k, v in versions.items()), ""])


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the command."""

    tasks: Names = tuple(SIMULATORS)
    speed: bool = False  # also measure steps per second


def main(arguments: Sequence[str]) -> None:
    """Run the command. Raises UserError."""
    options = build(Options, parse_options(arguments))
    results = []
    for task in check_names(options.tasks, "task", SIMULATORS):
        speeds = {}
        if options.speed:
            speeds["steps_per_second"] = {str(n): steps_per_second(task, n) for n in (1, 1000)}
        for file in envs.card(f"neorl2/{task}").files.values():
            path = Path(data_folder()) / file.path
            if not path.is_file():
                print(f"{task}: {file.name} does not exist", file=sys.stderr)
                continue
            results.append(compare(task, path) | speeds)
            print(json.dumps(results[-1]), flush=True)
    installed = {each.name.lower(): each.version for each in metadata.distributions()}
    packages = ("mujoco", "box2d", "gymnasium", "numpy")
    versions = {package: installed[package] for package in packages if package in installed}
    command = " ".join(["python -m benchmarks.neorl2_simulators", *arguments])
    facts = {"command": command, "versions": versions, "results": results}
    text = markdown(results, versions, command)
    write_json(RESULTS / "neorl2-simulators.json", facts)
    write_text(RESULTS / "neorl2-simulators.md", text)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
