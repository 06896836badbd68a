"""Violations of a planted fault with and without a backup policy, on the simulated arm.

    python -m benchmarks.stl.backup [episodes=200] [out=runs/stl]

The deployed policy is trained by imitation of the scripted expert of arm/reach. The planted fault
swings the waist to one side for 15 to 30 steps, in half of the episodes. The formula bounds the
waist. The backup policy is linear, and brings the arm back to its ready pose. Every condition has
the same starts, targets and faults. Writes backup.json and backup.md to benchmarks/results/safe.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import envs
import offline_rl
import policies
from envs.experts.arm import ArmExpert
from envs.suites.arm import Reach, load_robot
from offline_rl.data.specs import spec_of
from offline_rl.evaluation.evaluate import play
from offline_rl.evaluation.rollout import Episodes
from offline_rl.reporting.statistics import wilson
from offline_rl.utils.files import make_folder, write_text
from offline_rl.utils.hardware import describe_machine
from offline_rl.utils.options import Checked, Count, build, parse_options
from offline_rl.utils.seeds import EVALUATION_SEED
from offline_rl.utils.text import table, wrap_text
from policies import Bundle, Normalizer
from policies.bundle import write
from policies.channels import Observations
from policies.episodes import RunningEpisodes
from policies.golden import seal
from policies.policy import BundlePolicy
from policies.stl.backup import BackupPolicy, Predict, Switch
from policies.stl.formula import parse
from policies.stl.signals import SignalReader

TASK, RESULTS = "arm/reach", Path("benchmarks/results/safe")
STL = "always(-1.3 <= waist.q <= 1.3)"  # targets need waist angles of at most 1 rad
DEMONSTRATIONS, UPDATES, DEMONSTRATION_SEED = 600, 12_000, 5_000
FAULT_SHARE, FAULT_START, FAULT_STEPS = 0.5, (5, 40), (15, 30)  # of episodes; steps
WINDOW, HORIZON = 5, 10  # recent and predicted observations
EXPLORED, EXPLORED_STEPS, HELD_STEPS = 100, 60, 6  # episodes, steps, steps with equal actions
MARGINS = ((0.0, 0.1), (0.15, 0.25), (0.3, 0.4))  # (margin, release), rad


@dataclass(frozen=True)
class Options(Checked):
    """Options of the experiment."""

    episodes: Count = 200  # per condition
    out: str = "runs/stl"  # folder of the trained policy, which is reused


class FaultyPolicy(BundlePolicy):
    """A policy with a planted fault: at times, the waist moves to one side at full speed."""

    def new_episodes(self) -> FaultyEpisodes:
        return FaultyEpisodes(**self.episode_options())


class FaultyEpisodes(RunningEpisodes):
    """Episodes with the planted fault, which is a function of the episode's seed."""

    def reset(self, seeds: np.ndarray, rows: np.ndarray | None = None) -> None:
        assert rows is None
        super().reset(seeds, rows)
        faults = [draw_fault(int(seed)) for seed in seeds]
        self.start, self.stop, self.side = np.array(faults, np.int64).reshape(-1, 3).T
        self.count = 0

    def step(self, observations: Observations, rows: np.ndarray | None = None) -> np.ndarray:
        actions = super().step(observations, rows).copy()
        faulty = (self.start <= self.count) & (self.count < self.stop)
        actions[faulty, 0] = self.side[faulty]
        self.count += 1
        return actions


def draw_fault(seed: int) -> tuple[int, int, int]:
    """Return first step, end and side of an episode's fault; an empty range without a fault."""
    rng = np.random.default_rng([seed, 17])
    start, length = int(rng.integers(*FAULT_START)), int(rng.integers(*FAULT_STEPS))
    side = int(rng.choice([-1, 1]))
    return start, start + length * bool(rng.random() < FAULT_SHARE), side


def train_policy(folder: Path) -> Path:
    """Return the bundle of a policy that imitates the expert. It is trained if it is missing."""
    if not (found := sorted(folder.rglob("policy.bundle"))):
        keys: dict[str, Any] = {"algorithm": "bc", "algorithm.lr": 1e-3, "task": TASK}
        keys |= {"num_updates": UPDATES, "eval_every": UPDATES, "checkpoint_every": UPDATES}
        keys |= {"compile": "never", "eval_episodes": 1}
        offline_rl.train(**keys, dataset=record_expert(), seeds=[0], out=str(folder), name="reach")
        found = sorted(folder.rglob("policy.bundle"))
    return found[0]


def record_expert() -> offline_rl.Dataset:
    """Return demonstrations of the scripted expert."""
    env = Reach(DEMONSTRATIONS)
    expert, running = ArmExpert(env), np.arange(DEMONSTRATIONS)
    observations = env.reset([DEMONSTRATION_SEED + k for k in running], running)
    episodes: list[list[tuple[Any, ...]]] = [[] for _ in running]
    while len(running):
        actions = expert(observations, running).clip(-1, 1)
        step = env.step(actions, running)
        rows = (observations, actions, step.rewards, step.terminated, step.truncated)
        for k, row in zip(running, zip(*rows, step.observations, strict=True), strict=True):
            episodes[k].append(row)
        goes_on = ~(step.terminated | step.truncated)
        observations, running = step.observations[goes_on], running[goes_on]
    env.close()
    names = ("observations", "actions", "rewards", "terminated", "truncated", "next_observations")
    columns = map(np.array, zip(*(row for episode in episodes for row in episode), strict=True))
    return offline_rl.Dataset.from_arrays(**dict(zip(names, columns, strict=True)))


def write_backup(path: Path) -> Path:
    """Write the bundle of the backup: each joint target is the ready pose, whatever is observed."""
    env = Reach(1)
    ready = env.action(env.model.key("ready").qpos[: len(env.action_names)])
    weights = {
        "trunk.weights.0": np.zeros((13, len(ready)), np.float32),
        "trunk.biases.0": np.arctanh(ready).astype(np.float32),
    }
    arguments = {"observations": 13, "actions": len(ready), "hidden": []}
    identity = Normalizer.identity((13,))
    write(path, seal(Bundle(spec_of(env), "DeterministicActor", arguments, weights, identity)))
    return path


def fit_model() -> tuple[Predict, float]:
    """Return a dynamics model, and the standard deviation of its error of the waist, rad.

    The next observation is fitted by least squares to the observation, the action, and the change
    of the joint targets within the speed limit. The actions are random and equal for some steps.
    """
    env, rng, running = (
        Reach(EXPLORED),
        np.random.default_rng(DEMONSTRATION_SEED),
        np.arange(EXPLORED),
    )
    observations = env.reset([DEMONSTRATION_SEED + int(k) for k in running], running)
    pairs = []
    for step in range(EXPLORED_STEPS):
        if step % HELD_STEPS == 0:
            held = rng.uniform(-1, 1, (EXPLORED, len(env.action_names)))
        result = env.step(held[running], running)
        inputs = model_inputs(env, observations, held[running])
        pairs.append((inputs, result.observations - observations))
        goes_on = ~(result.terminated | result.truncated)
        observations, running = result.observations[goes_on], running[goes_on]
    inputs, changes = (np.concatenate(column) for column in zip(*pairs, strict=True))
    weights = np.linalg.lstsq(inputs, changes, rcond=None)[0]

    def predict(observations: Observations, actions: np.ndarray) -> Observations:
        return observations + model_inputs(env, observations, actions) @ weights

    return predict, float((changes - inputs @ weights)[:, 0].std())


def model_inputs(env: Reach, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Return the inputs of the dynamics model, [B, 24]."""
    joints = len(env.action_names)
    middle, half = (env.action_high + env.action_low) / 2, (env.action_high - env.action_low) / 2
    limit = np.array([row["velocity"] for row in load_robot()["joints"].values()]) / env.rate_hz
    change = (middle + half * actions - observations[:, :joints]).clip(-limit, limit)
    ones = np.ones((len(actions), 1))
    return np.concatenate([observations, actions, change, ones], axis=1)


def run_condition(policy: BundlePolicy, seeds: np.ndarray) -> tuple[Episodes, float]:
    """Return the episodes of a policy, and the share of steps in which the backup acted."""
    with closing(envs.make_vector(TASK, len(seeds), num_threads=2)) as env:
        played = play(policy, env, seeds, SignalReader(parse(STL), spec_of(env)))
    share = 0.0
    if played.backup_steps is not None:
        share = float(played.backup_steps.sum() / played.lengths.sum())
    return played, share


def main(arguments: Sequence[str]) -> None:
    options = build(Options, parse_options(arguments))
    folder = Path(options.out)
    make_folder(folder)
    deployed = policies.load(train_policy(folder))
    backup = policies.load(write_backup(folder / "backup.bundle"))
    faulty = FaultyPolicy(deployed.bundle, deployed.network)
    seeds = EVALUATION_SEED + np.arange(options.episodes)
    conditions: list[tuple[str, str, BundlePolicy]] = [
        ("none", "none", deployed),
        ("none", f"margin={MARGINS[-1][0]:g}", _guarded(deployed, backup, *MARGINS[-1])),
        ("planted", "none", faulty),
    ]
    for margin, release in MARGINS:
        conditions.append(
            ("planted", f"margin={margin:g}", _guarded(faulty, backup, margin, release))
        )
    predict, error = fit_model()
    predicting = Switch(STL, *MARGINS[0], WINDOW, HORIZON)
    guarded = BackupPolicy(faulty, backup, predicting, predict=predict)
    conditions.append(("planted", f"margin={MARGINS[0][0]:g}, horizon={HORIZON}", guarded))
    rows = []
    for fault, guard, policy in conditions:
        start_s = time.monotonic()
        played, share = run_condition(policy, seeds)
        assert played.success is not None
        assert played.satisfied is not None
        assert played.robustness is not None
        rows.append(
            {
                "fault": fault,
                "backup": guard,
                "episodes": len(seeds),
                "faults": count_faults(seeds, played.lengths) if fault == "planted" else 0,
                "violations": int((~played.satisfied).sum()),
                "lowest_robustness_rad": float(played.robustness.min()),
                "success": int(played.success.sum()),
                "backup_share": share,
                "seconds": round(time.monotonic() - start_s, 1),
            }
        )
        print(rows[-1], flush=True)
    content = {
        "stl": STL,
        "window": WINDOW,
        "model_error_rad": error,
        "machine": describe_machine(),
    }
    make_folder(RESULTS)
    write_text(RESULTS / "backup.json", json.dumps(content | {"rows": rows}, indent=2) + "\n")
    write_text(RESULTS / "backup.md", page(content, rows))


def count_faults(seeds: np.ndarray, lengths: np.ndarray) -> int:
    """Return the number of episodes that last until their fault begins."""
    faults = (draw_fault(int(seed)) for seed in seeds)
    pairs = zip(faults, lengths, strict=True)
    return sum(int(start < min(stop, length)) for (start, stop, _), length in pairs)


def _guarded(
    deployed: BundlePolicy, backup: BundlePolicy, margin: float, release: float
) -> BackupPolicy:
    return BackupPolicy(deployed, backup, Switch(STL, margin, release, WINDOW))


def page(content: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """Return the page with the table of results."""
    header = ["fault", "backup", "faults", "violations", "95 % interval", "lowest robustness, rad"]
    header += ["success", "steps with backup"]
    body = []
    for row in rows:
        count, total = row["violations"], row["episodes"]
        low, high = wilson(count, total)
        body.append(
            [
                row["fault"],
                row["backup"],
                str(row["faults"]),
                f"{count} of {total}",
                f"{100 * low:.1f} to {100 * high:.1f} %",
                f"{row['lowest_robustness_rad']:.3f}",
                f"{row['success']} of {total}",
                f"{100 * row['backup_share']:.1f} %",
            ]
        )
    releases = ", ".join(f"{release:g} for the margin {margin:g}" for margin, release in MARGINS)
    text = (
        f"The deployed policy is trained by imitation. A fault is planted with probability "
        f"{FAULT_SHARE:g} per episode: for {FAULT_STEPS[0]} to {FAULT_STEPS[1] - 1} steps, "
        "the waist moves to one side at full speed. The backup policy brings the arm to its ready "
        "pose. It acts while the exact robustness of the formula on the last "
        f"{content['window']} observations is below the margin, and until it reaches the release "
        f"({releases} rad). All rows have the same starts, targets and faults. "
        f"With horizon={HORIZON}, as many observations that the deployed policy would lead to are "
        "predicted by a learned linear model and follow the recent ones. The model's error of the "
        f"waist is {content['model_error_rad']:.4f} rad (standard deviation of one step). "
        "Column faults: episodes that last until their fault begins; others succeed earlier."
    )
    return f"""# Backup policy on the simulated arm

Command: `python -m benchmarks.stl.backup`. Task: `{TASK}`, formula `{content["stl"]}`.

{wrap_text(text, 100)}

{table(header, body, markdown=True)}

Versions and machine: `backup.json`.
"""


if __name__ == "__main__":
    main(sys.argv[1:])
