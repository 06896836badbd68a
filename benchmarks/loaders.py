"""Compare the transitions that we read from D4RL's files with those of D4RL's code, bit for bit.

    python -m benchmarks.loaders

The files are synthetic. They have the layouts of D4RL's collection scripts
(Farama-Foundation/D4RL:scripts/generation) and random contents, so all numbers are distinct.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from offline_rl.data import Dataset
from offline_rl.data.read import read
from offline_rl.utils.text import table

Arrays = dict[str, np.ndarray]
NEXT = "next_observations"


def steps(lengths: list[int], obs: int, act: int) -> tuple[Arrays, np.ndarray]:
    """Return consecutive episodes without any flag set, and the indices of their last rows."""
    rng, rows = np.random.default_rng(0), sum(lengths)
    arrays = {
        "observations": rng.normal(size=(rows, obs)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (rows, act)).astype(np.float32),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "terminals": np.zeros(rows, bool),
        "timeouts": np.zeros(rows, bool),
        "infos/qpos": rng.normal(size=(rows, 4)),
    }
    return arrays, np.cumsum(lengths) - 1


def gym_v2(lengths: list[int]) -> Arrays:
    """Return episodes with falls and time-outs after 1,000 steps; the last one is truncated."""
    arrays, last = steps(lengths, 11, 3)
    for row, length in zip(last[:-1], lengths, strict=False):
        arrays["timeouts" if length == 1000 else "terminals"][row] = True
    following = np.roll(arrays["observations"], -1, 0)
    following[last] = np.random.default_rng(1).normal(size=(len(last), 11))
    log_probs = np.zeros(len(following), np.float32)
    return arrays | {NEXT: following, "infos/action_log_probs": log_probs}


def gym_v0() -> Arrays:
    """Return episodes without time-out flags; the reader counts steps."""
    arrays, last = steps([40, 1000, 300, 70], 17, 6)
    arrays["terminals"][last[[0, 2]]] = True
    del arrays["timeouts"], arrays["infos/qpos"]
    return arrays


def antmaze() -> Arrays:
    """Return walks that continue after terminals; time-outs after 1,001 rows, one at a goal."""
    arrays, last = steps([1001, 1001, 1001, 200], 29, 8)
    at_goal = [*range(700, 712), *range(1990, 2002)]
    arrays["rewards"][:], arrays["timeouts"][last[:-1]] = 0, True
    arrays["rewards"][at_goal], arrays["terminals"][at_goal] = 1, True
    return arrays | {"infos/goal": np.zeros((len(arrays["rewards"]), 2))}


def maze2d() -> Arrays:
    """Return walks without terminals; each walk to a goal ends in a time-out."""
    arrays, last = steps([150, 90, 210], 4, 2)
    arrays["timeouts"][last] = True
    return arrays | {"infos/goal": np.zeros((len(arrays["rewards"]), 2))}


def adroit(falls: bool) -> Arrays:
    """Return demonstrations that end in time-outs, or (pen) in a fall; rewards are [N, 1]."""
    arrays, last = steps([80, 101, 64, 120], 45, 24)
    arrays["timeouts"][last] = True
    if falls:
        arrays["timeouts"][last[1]], arrays["terminals"][last[1]] = False, True
    return arrays | {key: arrays[key][:, None] for key in ("rewards", "terminals")}


def kitchen() -> Arrays:
    """Return demonstrations that end in terminals, solved (4 rewards) or not; no time-outs."""
    arrays, last = steps([180, 220, 200], 60, 9)
    arrays["rewards"][:] = np.arange(len(arrays["rewards"])) % 4
    arrays["rewards"][last], arrays["terminals"][last] = (4, 3, 4), True
    del arrays["timeouts"], arrays["infos/qpos"]
    return arrays | {"infos": np.zeros(len(arrays["rewards"]))}


@dataclass(frozen=True)
class Suite:
    """A kind of file, and how our default reading differs from D4RL's."""

    make: Callable[[], Arrays]
    ours: str  # the difference, for the page
    max_episode_steps: int | None = None


TIME_OUTS = "time-out rows are transitions, with their true next observation"
TERMINAL = (
    "in a terminal row, the next observation (unused) is the episode's last one, not the next "
    "episode's first"
)
SUITES = {
    "gym v2, a policy's rollouts": Suite(lambda: gym_v2([1000, 350, 1000, 1000, 77]), TIME_OUTS),
    "gym v2, replay": Suite(lambda: gym_v2([20, 31, 1000, 45, 280, 3]), TIME_OUTS),
    "gym v0, no time-outs": Suite(
        gym_v0, f"{TERMINAL}; after a terminal, steps are counted from 0, not from 1", 1000
    ),
    "antmaze": Suite(antmaze, f"{TERMINAL}; a time-out row at the goal terminates"),
    "maze2d": Suite(maze2d, "nothing"),
    "adroit human, cloned": Suite(lambda: adroit(False), "nothing"),
    "adroit pen, expert": Suite(lambda: adroit(True), TERMINAL),
    "kitchen": Suite(
        kitchen, "only demonstrations that solved all tasks terminate; others are truncated", 280
    ),
}


def qlearning_dataset(
    arrays: Arrays, max_episode_steps: int | None = None, *, terminate_on_end: bool = False
) -> Arrays:
    """Return transitions by D4RL's rule, row by row (Farama-Foundation/D4RL:d4rl/__init__.py)."""
    rows: dict[str, list[Any]] = {key: [] for key in ("s", "a", "r", "n", "d")}
    step = 0
    for i in range(len(arrays["rewards"]) - 1):
        if "timeouts" in arrays:
            final = bool(arrays["timeouts"][i])
        else:
            final = max_episode_steps is not None and step == max_episode_steps - 1
        if final and not terminate_on_end:
            step = 0
            continue
        if arrays["terminals"][i] or final:
            step = 0
        rows["s"].append(arrays["observations"][i])
        rows["a"].append(arrays["actions"][i])
        rows["r"].append(np.squeeze(arrays["rewards"][i]))
        rows["n"].append(arrays["observations"][i + 1])
        rows["d"].append(bool(arrays["terminals"][i]))
        step += 1
    return {key: np.array(value) for key, value in rows.items()}


def equal(data: Dataset, expected: Arrays) -> bool:
    """Return True if the usable transitions of `data` are bitwise equal to `expected`, in order."""
    used = data.take(np.flatnonzero(data.usable))
    ours = (used.observations[: used.num_rows], used.actions, used.rewards)
    ours += (used.next_observations, used.terminated)
    return all(np.array_equal(a, b) for a, b in zip(ours, expected.values(), strict=True))


def save(path: Path, arrays: Arrays) -> Path:
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file.create_dataset(key, data=array)
    return path


def main() -> None:
    body = []
    with tempfile.TemporaryDirectory() as folder:
        for name, suite in SUITES.items():
            arrays, limit = suite.make(), suite.max_episode_steps
            path = save(Path(folder) / "file.hdf5", arrays)
            expected = qlearning_dataset(arrays, limit)
            expected_end = qlearning_dataset(arrays, limit, terminate_on_end=True)
            default = read(path, max_episode_steps=limit)
            compatible = read(path, max_episode_steps=limit, d4rl_compatible=True)
            compatible_end = read(
                path, max_episode_steps=limit, d4rl_compatible=True, terminate_on_end=True
            )
            cells = [name, f"{len(arrays['rewards']):,}", f"{len(expected['r']):,}"]
            cells += ["yes" if equal(compatible, expected) else "NO"]
            cells += ["yes" if equal(compatible_end, expected_end) else "NO"]
            cells += [
                f"{default.usable.sum():,}",
                "yes" if equal(default, expected) else "no",
                suite.ours,
            ]
            body.append(cells)
    header = ["suite", "rows", "D4RL's transitions", "`d4rl_compatible` equal"]
    header += ["`terminate_on_end` equal", "ours by default", "equal", "what differs by default"]
    page = "# Transitions read from D4RL's files, by our code and by D4RL's\n\n"
    page += "`python -m benchmarks.loaders`\n\n"
    page += table(header, body, markdown=True) + "\n\n" + __doc__.split("\n\n", 2)[2]
    page += "`equal`: observations, actions, rewards, next observations and terminals are bitwise\n"
    page += "equal.\n"
    Path("benchmarks/results/loaders.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
