"""First run of docs/robot.md, from ten starts to ten targets, on one simulated clock.

    python -m benchmarks.robot first [bundle=policy.bundle] [episodes=10]

Without a bundle, the first two commands of the page are run in `out`. Starting poses and targets
are those of an evaluation in arm/reach. A run succeeds if two conditions hold. Within the task's 4
s, the tip is less than 2 cm from the target and no joint is faster than 0.2 rad/s. No reason stops
the robot within 10 s; the policy keeps running at the target.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import envs
import policies
from benchmarks.robot import task
from benchmarks.robot.stepped import RATE_HZ, Stepped
from benchmarks.robot.task import TASK, offline_rl, starts
from envs.suites.arm import CLOSE_M, STILL_RAD_S
from offline_rl.utils.hardware import describe_machine
from real_robot.control.loop import Request
from real_robot.control.session import MEMORY

RUN_S = 10.0
PAGE = Path(__file__).resolve().parents[2] / "docs" / "robot.md"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `first`."""

    bundle: str | None = None  # default: a bundle trained with the commands of the page
    episodes: int = 10  # number of targets
    out: str = "runs/robot/first"  # folder for the data and the trained policy


def page_words(command: str) -> list[str]:
    """Return the words of the first `offline-rl <command>` on the page, without `out=`."""
    line = next(
        line for line in PAGE.read_text().splitlines() if line.startswith(f"offline-rl {command} ")
    )
    return [w for w in line.replace("'", "").split()[1:] if not w.startswith("out=")]


def make_bundle(folder: Path) -> Path:
    """Run the page's commands for data and training in `folder`, unless the bundle exists."""
    data = folder / "data"
    bundle = folder / "arm_reach" / "bc" / "default" / "seed_0" / "policy.bundle"
    if not bundle.exists():
        offline_rl(*page_words("generate"), f"out={data}", f"runs={folder}")
        words = [w for w in page_words("train") if not w.startswith("dataset=")]
        offline_rl(*words, f"dataset={data / 'reach.hdf5'}", f"out={folder}")
    return bundle


def measure(options: Options) -> dict[str, Any]:
    path = Path(options.bundle) if options.bundle else make_bundle(Path(options.out))
    policy, max_steps = policies.load(path), envs.task(TASK).max_episode_steps or 0
    poses, targets = starts(options.episodes)
    episodes = []
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        for k, (pose, target) in enumerate(zip(poses, targets, strict=True)):
            bench = Stepped(Path(folder) / str(k), policy, k)
            episodes.append(play(bench, pose, target, max_steps / task.RATE_HZ))
    return {
        "succeeded": sum(each["success"] for each in episodes),
        "episodes": episodes,
        "machine": describe_machine(),
    }


def play(bench: Stepped, pose: np.ndarray, target: np.ndarray, seconds: float) -> dict[str, Any]:
    """Run the policy from `pose` to `target`. seconds: time limit for success."""
    bench.event("pose", q=pose)
    bench.event("place", body="target", at_m=target.tolist())
    bench.target = target
    bench.arm()
    bench.inputs.requests.append(Request(start=True))
    reached_s: float | None = None
    for tick in range(1, round(RUN_S * RATE_HZ) + 1):
        bench.tick()
        near = np.linalg.norm(bench.tip - target) < CLOSE_M
        still = np.abs(bench.line.physics.dq).max() < STILL_RAD_S
        if reached_s is None and near and still:
            reached_s = tick / RATE_HZ
        if bench.guard.machine.latched is not None:
            break
    latched = bench.guard.machine.latched
    return {
        "success": reached_s is not None and reached_s <= seconds and latched is None,
        "reached_s": reached_s,
        "stopped_by": None if latched is None else latched.name,
    }
