"""Bundles of arm/reach on the servos.

A bundle from `train` passes `robot check`. A policy with known weights moves the tip to its target
on the simulated line, with the numpy runtime.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import envs
import policies
from envs.experts.arm import ArmExpert, inverse_kinematics
from envs.suites.arm import CLOSE_M, STILL_RAD_S, Reach
from offline_rl import Dataset, train
from offline_rl.data.specs import spec_of
from policies import Bundle, Normalizer, bundle
from policies.golden import seal
from real_robot.check import check
from real_robot.control.inference import Inference
from real_robot.control.kinematics import forward
from real_robot.control.loop import Loop, Request
from real_robot.control.rings import Reader, Ring, SharedValues
from real_robot.control.schedule import Chunk, Schedule, Timing
from real_robot.control.session import chunk_of, chunk_type
from real_robot.robot import Reading
from real_robot.rows import row_type
from real_robot.safety.guard import Guard
from real_robot.safety.limits import envelope
from real_robot.safety.states import State

RATE_HZ, SECONDS = 100.0, 5.0


def demonstrations(task: str, episodes: int, steps: int) -> Dataset:
    """Return truncated demonstrations of the expert."""
    env = envs.make_vector(task, episodes)
    expert: Any = ArmExpert(env)
    seen, alive, rows = env.reset(range(episodes)), np.arange(episodes), []
    for k in range(steps):
        actions = expert(seen[alive], alive)
        step = env.step(actions, alive)
        ended = step.terminated
        rows.append((alive, seen[alive], actions, ended, ~ended & (k == steps - 1)))
        seen[alive] = step.observations
        alive = alive[~ended]
    episode, *columns = (np.concatenate(column) for column in zip(*rows, strict=True))
    order = np.argsort(episode, kind="stable")
    observations, actions, ended, cut = (column[order] for column in columns)
    return Dataset.from_arrays(observations, actions, np.zeros(len(order)), ended, cut)


def cloned(task: str, folder: Any, updates: int, **data: int) -> Any:
    """Train a behavior-cloned policy and return its bundle."""
    result = train(
        algorithm="bc",
        task=task,
        dataset=demonstrations(task, **data),
        out=str(folder),
        num_updates=updates,
        eval_episodes=1,
        eval_every=updates,
        compile="never",
        tracker="none",
        show=False,
        batch_size=8,
        **{"algorithm.hidden": [8], "algorithm.normalize_observations": True},
    )
    return result.path / "seed_0" / "policy.bundle"


@pytest.mark.parametrize("task", ["arm/reach", "arm/push"])
def test_bundles_from_train_pass_robot_check(tmp_path, rig: Any, task: str) -> None:
    path = cloned(task, tmp_path, 2, episodes=2, steps=3)
    lines = check(rig.robot, path, connect=False, runtime="numpy")
    assert [line.name for line in lines][2:] == ["names", "units", "rates", "output"]
    assert "golden output reproduced" in lines[-1].text
    spec = policies.load(path).spec
    assert (spec.rate_hz, spec.action_names[0]) == (25.0, "waist")
    assert (spec.expanded_action_units[0], spec.action_low[0], spec.action_high[0]) == (
        "rad",
        -2.4,
        2.4,
    )
    assert spec.observation_units[:1] + spec.observation_units[5:6] == ("rad", "rad/s")


class Tracked:
    """Arm with a tracker of the target."""

    def __init__(self, robot: Any, target: np.ndarray) -> None:
        self.robot, self.target = robot, target

    def __getattr__(self, name: str) -> Any:
        return getattr(self.robot, name)

    def arm(self) -> Reading:
        return self.with_target(self.robot.arm())

    def read(self) -> Reading:
        return self.with_target(self.robot.read())

    def with_target(self, reading: Reading) -> Reading:
        return replace(reading, channels={"target": self.target})


class Inputs:
    """Inputs of the control loop: a start, and the chunks of inference."""

    def __init__(self, clock: Any, chunks: Ring) -> None:
        self.clock, self.chunks = clock, Reader(chunks)

    def chunk(self) -> Chunk | None:
        return chunk_of(self.chunks.record) if self.chunks.newest() else None

    def request(self) -> Request:
        return Request(start=True)

    def watchdog_ns(self) -> int:
        now: int = self.clock.now_ns()
        return now

    def recorder_lost(self) -> bool:
        return False

    def console_lost(self) -> bool:
        return False


def toward(target: np.ndarray, path: Path) -> Path:
    """Return a one-layer policy that moves a quarter of the way to the target in each step."""
    env = Reach(1)
    half, goal = (
        (env.action_high - env.action_low) / 2,
        inverse_kinematics(target[None])[0],
    )  # about 0
    weight = np.zeros((13, 5), np.float32)
    weight[range(5), range(5)] = 0.75 / half
    bias = (0.25 * goal / half).astype(np.float32)
    weights = {"trunk.weights.0": weight, "trunk.biases.0": bias, "log_std": np.zeros(5, "f4")}
    arguments = {"observations": 13, "actions": 5, "hidden": [], "tanh_mean": False}
    same = Normalizer.identity((13,))
    bundle.write(path, seal(Bundle(spec_of(env), "GaussianActor", arguments, weights, same)))
    return path


def test_a_bundle_drives_the_servos_to_the_target(tmp_path, rig: Any) -> None:
    """The tip must come within 2 cm and stand still, as in the task."""
    target = np.array([0.25, 0.1, 0.1])
    path = toward(target, tmp_path / "policy.bundle")
    policy = policies.load(path, runtime="numpy")
    assert check(rig.robot, path, connect=False, runtime="numpy")
    robot, port = Tracked(rig.robot, target), rig.port
    clock: Any = SimpleNamespace(
        suspended_ns=lambda: 0,
        now_ns=port.now_ns,
        sleep_until=port.sleep_until,
        wall_ns=port.now_ns,
    )
    spec = robot.spec
    guard = Guard(robot, envelope(spec, spec.limits, RATE_HZ, None, forward(spec)))
    ticks = Ring.create(tmp_path / "ticks", row_type(spec), 64)
    chunks = Ring.create(tmp_path / "chunks", chunk_type(policy.spec.chunk_size, 5), 16)
    shared = SharedValues(tmp_path / "shared_values", create=True)
    schedule = Schedule(Timing(policy.spec.rate_hz or 0, policy.spec.chunk_size), 5)
    loop = Loop(guard, clock, schedule, Inputs(clock, chunks), ticks)
    inference = Inference(policy, spec, ticks, chunks, shared, clock.now_ns)
    guard.connect(clock.now_ns())
    guard.read()
    guard.run_check(clock.now_ns())
    guard.arm(clock.now_ns())
    loop.begin()
    apart = []
    for _ in range(round(SECONDS * RATE_HZ)):
        loop.step()
        shared["starting"] = loop.starting
        inference.step(clock.now_ns())
        apart.append(float(np.linalg.norm(rig.line.physics.position_of("tip") - target)))
    assert (guard.state, guard.machine.latched) == (State.RUNNING, None)
    assert abs(inference.seq - SECONDS * 25) <= 3  # one decision per period of the policy
    assert apart[0] > 0.1
    assert apart[-1] < CLOSE_M
    assert np.abs(ticks.record["dq"]).max() < STILL_RAD_S
