"""A policy's way from demonstrations to servos: arm/reach, cloned, and played on both sides.

    python -m benchmarks.robot task [episodes=100] [policies=[clone,diffusion,one_step]]

Demonstrations by the scripted expert, a clone, `offline-rl export`, `robot check`, then `robot run`
through the simulated servos' pseudo-terminal, a person's words typed into its terminal; beside it
the same bundle in the plain environment, from the same starts to the same targets. What it makes
lies in `out` and is not made again; policies that are not asked for keep their older results.
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
from benchmarks.robot.person import Run, RunEnded, command
from benchmarks.robot.simulated_bus.hardware import SimulatedHardware
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
POLICIES = {  # what `offline-rl train` is told, but for task and data
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
TAUGHT = {"one_step": "diffusion"}  # by `offline-rl distill`: student -> teacher
LESSONS = ("algorithm.lr=3e-4", "algorithm.dropout=0.0", "batch_size=256")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `task` takes."""

    episodes: int = 100
    rows: int = 20_000  # of demonstrations
    num_updates: int = 15_000  # of each policy; twice as many where it is distilled
    policies: list = field(default_factory=lambda: [*POLICIES, *TAUGHT])
    out: str = "runs/robot"


def offline_rl(*words: str) -> str:
    """Runs the command; its last line. Raises UserError with what it said where it fails."""
    done = subprocess.run(command(*words), capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"offline-rl {' '.join(words)}: {(done.stderr or done.stdout)[-800:]}")
    return done.stdout.strip().splitlines()[-1]


def demonstrations(options: Options) -> Path:
    """The scripted expert's, as many rows as are asked for."""
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
    """Trained, and exported for ONNX."""
    updates = options.num_updates * (2 if name in TAUGHT else 1)
    often = [f"num_updates={updates}", f"eval_every={updates}"]
    often += ["eval_episodes=50", "tracker=none", f"out={options.out}"]
    if name in TAUGHT:
        teacher = bundle(TAUGHT[name], options).parents[1]
        run = Path(offline_rl("distill", f"run={teacher}", f"name={name}", *LESSONS, *often))
    else:
        data = [f"task={TASK}", f"dataset={demonstrations(options)}", f"name={name}"]
        run = Path(offline_rl("train", *POLICIES[name], *data, *often))
    offline_rl("export", f"run={run}")
    return run / SEED / "policy.bundle"


def in_the_task(path: Path, episodes: int) -> dict[str, Any]:
    """How the bundle does in the plain environment; which episodes succeed and in which time."""
    env = envs.make_vector(TASK, episodes)
    played = play(policies.load(path), env)
    env.close()
    assert played.success is not None
    return {"success": played.success.astype(bool), "seconds": played.lengths / RATE_HZ}


def starts(episodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the arm and the target of `play`'s episodes are: [N, 5] rad, [N, 3] m."""
    env: Any = envs.make_vector(TASK, episodes)
    env.reset((EVALUATION_SEED + np.arange(episodes)).tolist())
    poses = np.stack([data.qpos[:5] for data in env._data])
    places = env._places.copy()
    env.close()
    return poses, places


def on_the_robot(path: Path, episodes: int, folder: Path) -> dict[str, Any]:
    """The same episodes through `robot run`, one process group for all of them.

    Where the watchdog ends the control process, for it stood still, the episode is lost and another
    run goes on.
    """
    poses, targets = starts(episodes)
    success, seconds, stops = np.zeros(episodes, bool), np.full(episodes, np.nan), Counter[str]()
    most_s = (envs.task(TASK).max_episode_steps or 0) / RATE_HZ
    kept = list[Recording]()
    with SimulatedHardware("desk") as hardware:
        _set_up(hardware, poses[0], targets[0])
        offline_rl(
            *("robot", "check", "robot=desk", f"bundle={path}", "runtime=onnx"),
            *(f"{k}={v}" for k, v in hardware.line.items()),
        )
        k = 0
        while k < episodes:
            file = folder / f"{path.parents[1].name}-{k}.rec"
            file.unlink(missing_ok=True)
            with Run(hardware, bundle=path, runtime="onnx", record=file) as run:
                while k < episodes:
                    try:
                        _begin(run, stops, hardware, poses[k], targets[k])
                        success[k], seconds[k] = _judge(run, hardware, targets[k], most_s)
                        _rest(run, stops)
                    except RunEnded:
                        stops["control ended by the watchdog"] += 1
                        success[k] = False
                        break
                    finally:
                        k += 1
            kept.append(read(file))
    return {
        "success": success,
        "seconds": seconds,
        "stops": dict(stops),
        "ticks": sum(int(each.rows["tick"][-1]) for each in kept),
        "missed": sum(int(each.rows["missed"][-1]) for each in kept),
        "rows_lost": sum(each.lost for each in kept),
        "behind_rad": behind(np.concatenate([each.rows for each in kept])),
    }


def _begin(
    run: Run,
    stops: Counter[str],
    hardware: SimulatedHardware,
    pose: np.ndarray,
    target: np.ndarray,
) -> None:
    run.word("limp", State.CONNECTED)
    _set_up(hardware, pose, target)
    run.word("arm", State.HOLD)
    _re_arm(run, stops)  # a shared machine may have missed deadlines by now
    run.type("start\n")
    run.wait(lambda: run.state is not State.HOLD, 5.0)


def behind(rows: np.ndarray) -> list[float]:
    """How far the joint furthest off is behind the plan, while a policy moves it: p50, p99.

    Limits hold it back: a plan's steps leave a jerk out of account, a goal has to obey it.
    """
    moved = rows[(rows["mode"] == Mode.POLICY) & np.isfinite(rows["sent"]).all(1)]
    off = np.abs(moved["sent"] - moved["target"]).max(1)
    return [round(float(x), 4) for x in np.quantile(off[np.isfinite(off)], (0.5, 0.99))]


def _set_up(hardware: SimulatedHardware, pose: np.ndarray, target: np.ndarray) -> None:
    """As somebody would who brings the arm to its start, torque off, and puts the target down."""
    hardware.event("pose", q=pose.tolist())
    hardware.event("place", body="target", at_m=target.tolist())
    end = time.monotonic() + 5
    while np.abs(hardware.truth()["q"] - pose).max() > 0.01:
        if time.monotonic() > end:
            raise RuntimeError("the simulated arm was not set up")
        time.sleep(0.005)
    time.sleep(0.05)  # for the tracker's next measurement of the target


def _judge(
    run: Run, hardware: SimulatedHardware, target: np.ndarray, most_s: float
) -> tuple[bool, float]:
    """Success as the task has it, looked at as often; and after how long."""
    begun = due = time.monotonic()
    while due - begun < most_s:
        due += 1 / RATE_HZ
        time.sleep(max(0.0, due - time.monotonic()))
        truth = hardware.truth()
        near = np.linalg.norm(truth["tip"] - target) < CLOSE_M
        if near and np.abs(truth["dq"]).max() < STILL_RAD_S:
            return True, due - begun
        if run.state is not State.RUNNING:
            break
    return False, due - begun


def _re_arm(run: Run, stops: Counter[str]) -> None:
    """As a person does, where something is latched."""
    latched = int(run.row["latched"])
    if latched >= 0:
        stops[Reason(latched).name] += 1
        for _ in range(10):  # refused while its cause is there
            run.type("re-arm\n")
            time.sleep(0.5)
            if int(run.row["latched"]) < 0:
                break


def _rest(run: Run, stops: Counter[str]) -> None:
    """Brings the robot back to holding, whatever stopped it."""
    if run.state is State.RUNNING:
        run.type("finish\n")
    run.wait(lambda: run.state in (State.HOLD, State.FAULT), 5.0)
    _re_arm(run, stops)
    if run.state is State.CONNECTED:
        run.word("arm", State.HOLD)


def measure(options: Options) -> dict[str, Any]:
    folder, file = Path(options.out), RESULTS / "task.json"
    old = json.loads(file.read_text()) if file.exists() else {}
    found: dict[str, Any] = old["policies"] if old.get("episodes") == options.episodes else {}
    for name in options.policies:
        if name not in (*POLICIES, *TAUGHT):
            raise UserError(f"there is no policy {name!r}, but {', '.join((*POLICIES, *TAUGHT))}")
        path = bundle(name, options)
        plain, robot = (
            in_the_task(path, options.episodes),
            on_the_robot(path, options.episodes, folder),
        )
        both = plain["success"], robot["success"]
        found[name] = {
            **{key: robot[key] for key in robot if key not in ("success", "seconds")},
            **{where: _told(side) for where, side in (("task", plain), ("robot", robot))},
            "both": int((both[0] & both[1]).sum()),
            "load": round(os.getloadavg()[0], 1),
        }
        print(name, found[name], file=sys.stderr, flush=True)
    known = {name: found[name] for name in (*POLICIES, *TAUGHT) if name in found}
    return {"episodes": options.episodes, "policies": known, "machine": describe_machine()}


def _told(side: dict[str, Any]) -> dict[str, Any]:
    success = side["success"]
    low, high = wilson(int(success.sum()), len(success))
    median = float(np.median(side["seconds"][success])) if success.any() else None
    return {"succeeded": int(success.sum()), "interval": [low, high], "median_s": median}
