"""Success of trained policies on arm/reach, in the environment and on simulated servos.

    python -m benchmarks.robot task [episodes=100] [policies=[clone,diffusion,one_step]]

Policies are trained by imitation, on demonstrations of a scripted expert. Each policy is exported
with `offline-rl export`, passes `robot check`, and runs with `robot run` on the servos'
pseudo-terminal. Commands are typed into the terminal of the run. The same bundle is evaluated in
the environment without servos, from the same starting poses to the same targets. Files in `out` are
reused. Policies that are not selected keep their earlier results.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import envs
import policies
from benchmarks.robot import RESULTS
from benchmarks.robot.simulated_bus.hardware import SimulatedHardware
from benchmarks.robot.terminal import Run, RunEnded, command
from envs.suites.arm import CLOSE_M, STILL_RAD_S
from offline_rl.evaluation.evaluate import play
from offline_rl.reporting.statistics import wilson
from offline_rl.utils.errors import UserError
from offline_rl.utils.hardware import describe_machine
from offline_rl.utils.seeds import EVALUATION_SEED
from real_robot.recording.files import Recording, read
from real_robot.rows import Mode
from real_robot.safety.states import Reason, State

TASK, RATE_HZ, SEED = "arm/reach", 25.0, "seed_0"
CHUNKED = ("algorithm.horizon=8", "algorithm.n_action_steps=4")
POLICIES = {  # name -> options of `offline-rl train`, without task and data
    "clone": ("algorithm=bc", "algorithm.lr=1e-3"),
    "chunks": ("algorithm=bc", "algorithm.lr=1e-3", *CHUNKED),
    "diffusion": (
        *(
            "algorithm=diffusion_policy",
            "algorithm.process=edm",
            "algorithm.num_inference_steps=10",
        ),
        *("algorithm.network=mlp", "algorithm.widths=[256,256,256]", "algorithm.lr=1e-3"),
        *("algorithm.n_obs_steps=1", *CHUNKED),
    ),
}
DISTILLED = {"one_step": "diffusion"}  # student -> teacher, for `offline-rl distill`
DISTILL_OPTIONS = ("algorithm.lr=3e-4", "algorithm.dropout=0.0", "batch_size=256")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `task`."""

    episodes: int = 100
    rows: int = 20_000  # number of demonstration steps
    num_updates: int = 15_000  # updates per policy; a distilled policy gets twice as many
    policies: list = field(default_factory=lambda: [*POLICIES, *DISTILLED])
    out: str = "runs/robot"


def offline_rl(*words: str) -> str:
    """Run `offline-rl` and return the last line of its output. Raises UserError if it fails."""
    done = subprocess.run(command(*words), capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"offline-rl {' '.join(words)}: {(done.stderr or done.stdout)[-800:]}")
    return done.stdout.strip().splitlines()[-1]


def demonstrations(options: Options) -> Path:
    """Generate the scripted expert's demonstrations, if needed. Return the data's path."""
    folder = Path(options.out) / f"data-{options.rows}"
    if not (folder / "reach.hdf5").exists():
        recipe = folder / "reach.yaml"
        recipe.parent.mkdir(parents=True, exist_ok=True)
        recipe.write_text(
            f"controller: arm\nsuite: arm\nsets: {{reach: 1.0}}\nrows: {options.rows}\n"
        )
        offline_rl("generate", f"recipe={recipe}", f"out={folder}", f"runs={options.out}")
    return folder / "reach.hdf5"


def bundle(name: str, options: Options) -> Path:
    """Train a policy and export it for ONNX. Return the path of the bundle."""
    updates = options.num_updates * (2 if name in DISTILLED else 1)
    options_of_run = [f"num_updates={updates}", f"eval_every={updates}"]
    options_of_run += ["eval_episodes=50", "tracker=none", f"out={options.out}"]
    if name in DISTILLED:
        teacher = bundle(DISTILLED[name], options).parents[1]
        run = Path(
            offline_rl(
                "distill", f"run={teacher}", f"name={name}", *DISTILL_OPTIONS, *options_of_run
            )
        )
    else:
        data = [f"task={TASK}", f"dataset={demonstrations(options)}", f"name={name}"]
        run = Path(offline_rl("train", *POLICIES[name], *data, *options_of_run))
    offline_rl("export", f"run={run}")
    return run / SEED / "policy.bundle"


def in_the_task(path: Path, episodes: int) -> dict[str, Any]:
    """Evaluate the bundle in the environment. Return success and duration of each episode."""
    env = envs.make_vector(TASK, episodes)
    played = play(policies.load(path), env)
    env.close()
    assert played.success is not None
    return {"success": played.success.astype(bool), "seconds": played.lengths / RATE_HZ}


def starts(episodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the starting poses, [N, 5] rad, and the targets, [N, 3] m, of an evaluation."""
    env: Any = envs.make_vector(TASK, episodes)
    env.reset((EVALUATION_SEED + np.arange(episodes)).tolist())
    poses = np.stack([data.qpos[:5] for data in env._data])
    places = env._places.copy()
    env.close()
    return poses, places


def on_the_robot(path: Path, episodes: int, folder: Path) -> dict[str, Any]:
    """Evaluate the bundle in the same episodes with `robot run`, in a single run if possible.

    If the watchdog kills a control process that has stalled, the episode counts as failed. A new
    run then continues with the next episode.
    """
    poses, targets = starts(episodes)
    success, seconds, stops = np.zeros(episodes, bool), np.full(episodes, np.nan), Counter[str]()
    limit_s = (envs.task(TASK).max_episode_steps or 0) / RATE_HZ
    recordings = list[Recording]()
    with SimulatedHardware("desk") as hardware:
        _place_arm(hardware, poses[0], targets[0])
        offline_rl(
            *("robot", "check", "robot=desk", f"bundle={path}", "runtime=onnx"),
            *(f"{k}={v}" for k, v in hardware.robot_options.items()),
        )
        k = 0
        while k < episodes:
            file = folder / f"{path.parents[1].name}-{k}.rec"
            file.unlink(missing_ok=True)
            with Run(hardware, bundle=path, runtime="onnx", record=file) as run:
                while k < episodes:
                    try:
                        _begin(run, stops, hardware, poses[k], targets[k])
                        success[k], seconds[k] = _measure_success(
                            run, hardware, targets[k], limit_s
                        )
                        _bring_to_hold(run, stops)
                    except RunEnded:
                        stops["control ended by the watchdog"] += 1
                        success[k] = False
                        break
                    finally:
                        k += 1
            recordings.append(read(file))
    return {
        "success": success,
        "seconds": seconds,
        "stops": dict(stops),
        "ticks": sum(int(each.rows["tick"][-1]) for each in recordings),
        "missed": sum(int(each.rows["missed"][-1]) for each in recordings),
        "rows_lost": sum(each.lost for each in recordings),
        "behind_rad": plan_lag(np.concatenate([each.rows for each in recordings])),
    }


def _begin(
    run: Run,
    stops: Counter[str],
    hardware: SimulatedHardware,
    pose: np.ndarray,
    target: np.ndarray,
) -> None:
    run.command("limp", State.CONNECTED)
    _place_arm(hardware, pose, target)
    run.command("arm", State.HOLD)
    _re_arm(run, stops)  # on a shared machine, missed deadlines may have stopped the robot
    run.type("start\n")
    run.wait(lambda: run.state is not State.HOLD, 5.0)


def plan_lag(rows: np.ndarray) -> list[float]:
    """Return p50 and p99 of the lag behind the plan while the policy moves the robot, rad.

    The lag is the distance between the goal that was sent and the target, for the joint with the
    largest distance. It is caused by the limits: goals must keep the limit of jerk, targets need
    not.
    """
    moved = rows[(rows["mode"] == Mode.POLICY) & np.isfinite(rows["sent"]).all(1)]
    lag = np.abs(moved["sent"] - moved["target"]).max(1)
    return [round(float(x), 4) for x in np.quantile(lag[np.isfinite(lag)], (0.5, 0.99))]


def _place_arm(hardware: SimulatedHardware, pose: np.ndarray, target: np.ndarray) -> None:
    """Place the arm, whose torque is off, and the target."""
    hardware.event("pose", q=pose.tolist())
    hardware.event("place", body="target", at_m=target.tolist())
    end = time.monotonic() + 5
    while np.abs(hardware.truth()["q"] - pose).max() > 0.01:
        if time.monotonic() > end:
            raise RuntimeError("the simulated arm was not set up")
        time.sleep(0.005)
    time.sleep(0.05)  # time for the tracker to measure the target


def _measure_success(
    run: Run, hardware: SimulatedHardware, target: np.ndarray, limit_s: float
) -> tuple[bool, float]:
    """Return success and duration of an episode, checked at the rate of the task."""
    start_s = due = time.monotonic()
    while due - start_s < limit_s:
        due += 1 / RATE_HZ
        time.sleep(max(0.0, due - time.monotonic()))
        truth = hardware.truth()
        near = np.linalg.norm(truth["tip"] - target) < CLOSE_M
        if near and np.abs(truth["dq"]).max() < STILL_RAD_S:
            return True, due - start_s
        if run.state is not State.RUNNING:
            break
    return False, due - start_s


def _re_arm(run: Run, stops: Counter[str]) -> None:
    """Re-arm the robot if a reason is latched."""
    latched = int(run.row["latched"])
    if latched >= 0:
        stops[Reason(latched).name] += 1
        for _ in range(10):  # re-arm is refused as long as the cause persists
            run.type("re-arm\n")
            time.sleep(0.5)
            if int(run.row["latched"]) < 0:
                break


def _bring_to_hold(run: Run, stops: Counter[str]) -> None:
    """Bring the robot back to HOLD, whatever stopped it."""
    if run.state is State.RUNNING:
        run.type("finish\n")
    run.wait(lambda: run.state in (State.HOLD, State.FAULT), 5.0)
    _re_arm(run, stops)
    if run.state is State.CONNECTED:
        run.command("arm", State.HOLD)


def measure(options: Options) -> dict[str, Any]:
    folder, file = Path(options.out), RESULTS / "task.json"
    previous = json.loads(file.read_text()) if file.exists() else {}
    results: dict[str, Any] = (
        previous["policies"] if previous.get("episodes") == options.episodes else {}
    )
    for name in options.policies:
        if name not in (*POLICIES, *DISTILLED):
            raise UserError(
                f"there is no policy {name!r}. Choose from {', '.join((*POLICIES, *DISTILLED))}"
            )
        path = bundle(name, options)
        plain, robot = (
            in_the_task(path, options.episodes),
            on_the_robot(path, options.episodes, folder),
        )
        both = plain["success"], robot["success"]
        results[name] = {
            **{key: robot[key] for key in robot if key not in ("success", "seconds")},
            **{where: _summarize(side) for where, side in (("task", plain), ("robot", robot))},
            "both": int((both[0] & both[1]).sum()),
            "load": round(os.getloadavg()[0], 1),
        }
        print(name, results[name], file=sys.stderr, flush=True)
    ordered = {name: results[name] for name in (*POLICIES, *DISTILLED) if name in results}
    return {"episodes": options.episodes, "policies": ordered, "machine": describe_machine()}


def _summarize(side: dict[str, Any]) -> dict[str, Any]:
    success = side["success"]
    low, high = wilson(int(success.sum()), len(success))
    median = float(np.median(side["seconds"][success])) if success.any() else None
    return {"succeeded": int(success.sum()), "interval": [low, high], "median_s": median}
