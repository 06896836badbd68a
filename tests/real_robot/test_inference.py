"""Inference: times of observations, their contents, and calls of the policy."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from desk_bundle import write_desk_bundle
from robots_in_memory import spec as robot_spec

from offline_rl.utils.errors import UserError
from policies import Bundle, Channel, Normalizer, Spec, load
from policies.bundle import Composition, write
from policies.episodes import RunningEpisodes
from policies.golden import seal
from policies.heads.head import Head
from policies.heads.vision import VisionHead
from real_robot.control.inference import Inference
from real_robot.control.observing import goals, observer
from real_robot.control.rings import Reader, Ring, SharedValues
from real_robot.control.session import chunk_of, chunk_type
from real_robot.robot import Channel as RobotChannel
from real_robot.robot import Code
from real_robot.robots.config import describe
from real_robot.rows import row_type
from real_robot.safety.states import State

PERIOD_NS = 50_000_000  # period of a policy at 20 Hz


class ChunkPolicy:
    """Policy with two observation steps. Its six actions are the number of calls."""

    def __init__(self, n_action_steps: int) -> None:
        seen = Channel("observation", (2,), names=("shoulder.q", "elbow.q"), units=("rad", "rad"))
        own: dict[str, Any] = {
            "n_obs_steps": 2,
            "chunk_size": 6,
            "n_action_steps": n_action_steps,
            "rate_hz": 20.0,
        }
        own |= {"action_names": ("shoulder", "elbow"), "action_units": ("rad", "rad")}
        self.spec = Spec((seen,), 2, action_low=(-1.0, -1.0), action_high=(1.0, 1.0), **own)
        self.asked = list[list[list[float]]]()

    def new_episodes(self) -> RunningEpisodes:
        return new_episodes(self.spec, self.decide)

    def decide(self, seen: np.ndarray, memory: Any, noise: np.ndarray, rows: np.ndarray) -> Any:
        self.asked.append(seen[0].round(6).tolist())
        return np.full((1, 6, 2), 0.1 * len(self.asked), np.float32), memory


def new_episodes(spec: Spec, decide: Any) -> RunningEpisodes:
    return RunningEpisodes(
        decide,
        n_obs_steps=spec.n_obs_steps,
        n_action_steps=spec.n_action_steps,
        temporal_ensemble_coeff=spec.temporal_ensemble_coeff,
    )


@pytest.mark.parametrize(("n_action_steps", "steps"), [(2, 2), (3, 3), (6, 3)])
def test_a_policy_with_a_history_observes_every_period_and_is_called_when_due(
    tmp_path, n_action_steps: int, steps: int
) -> None:
    """It is called after n_action_steps, or half a chunk, so that the next chunk is in time."""
    robot, policy = robot_spec(), ChunkPolicy(n_action_steps)
    ticks = Ring.create(tmp_path / "ticks", row_type(robot), 64)
    chunks = Ring.create(tmp_path / "chunks", chunk_type(6, 2), 16)
    shared = SharedValues(tmp_path / "shared_values", create=True)
    inference = Inference(policy, robot, ticks, chunks, shared)
    for tick in range(28):  # four periods of the robot per period of the policy
        row = ticks.record
        row["state"], row["episode"], row["measured_ns"] = State.RUNNING, 1, tick
        row["q"] = [tick / 4, 0.5]
        ticks.push()
        inference.step(10**9 + tick * PERIOD_NS // 4)
    at = range(0, 7, steps)
    expected = [[[float(max(k - 1, 0)), 0.5], [float(k), 0.5]] for k in at]
    assert policy.asked == expected
    reader = Reader(chunks, from_start=True)
    for count, k in enumerate(at):
        assert reader.following()
        chunk = chunk_of(reader.record)
        assert (chunk.seq, chunk.observed_ns) == (count, 4 * k)
        np.testing.assert_allclose(chunk.actions, 0.1 * (count + 1), rtol=1e-6)


def test_inference_reports_missing_measurements_and_its_time_limit(tmp_path) -> None:
    """A plan lasts 6 steps of 50 ms from its observation; the next call is 2 steps later."""
    robot, policy = robot_spec(), ChunkPolicy(2)
    ticks = Ring.create(tmp_path / "ticks", row_type(robot), 64)
    chunks = Ring.create(tmp_path / "chunks", chunk_type(6, 2), 16)
    shared, clock = (
        SharedValues(tmp_path / "shared_values", create=True),
        iter(range(10**9, 10**10, 7)),
    )
    inference = Inference(policy, robot, ticks, chunks, shared, lambda: next(clock))
    assert inference.time_limit_ns(0.0) == 4 * PERIOD_NS
    assert inference.time_limit_ns(1.0) == 5 * PERIOD_NS

    def look(q: list[float], at_ns: int) -> bool:
        row = ticks.record
        row["state"], row["episode"], row["measured_ns"], row["q"] = State.RUNNING, 1, 0, q
        ticks.push()
        return inference.step(at_ns)

    assert not look([0.0, np.nan], 10**9)
    assert inference.lacks == "elbow.q"
    assert look([0.0, 0.0], 2 * 10**9)
    assert inference.lacks == ""
    assert shared["call_took_ns"] == 7
    assert shared["call_started_ns"] == 0


def test_a_history_of_several_channels_is_kept_by_channel(tmp_path) -> None:
    """Each channel has its own array, with the present observation last."""
    asked, robot = list[dict[str, list[list[float]]]](), robot_spec()

    def decide(seen: dict[str, np.ndarray], *_: Any) -> Any:
        asked.append({name: x[0].round(6).tolist() for name, x in seen.items()})
        return np.zeros((1, 2, 2), np.float32), {}

    parts = [
        Channel(name, (1,), names=(f"{name}.q",), units=("rad",)) for name in ("shoulder", "elbow")
    ]
    limits = {"action_low": (-1.0, -1.0), "action_high": (1.0, 1.0)}
    sizes: dict[str, Any] = {
        "n_obs_steps": 2,
        "chunk_size": 2,
        "n_action_steps": 1,
        "rate_hz": 20.0,
    }
    moved = {"action_names": ("shoulder", "elbow"), "action_units": ("rad", "rad")}
    spec = Spec(tuple(parts), 2, **limits, **sizes, **moved)
    policy: Any = SimpleNamespace(spec=spec, new_episodes=lambda: new_episodes(spec, decide))
    ticks = Ring.create(tmp_path / "ticks", row_type(robot), 4)
    chunks = Ring.create(tmp_path / "chunks", chunk_type(2, 2), 4)
    inference = Inference(
        policy, robot, ticks, chunks, SharedValues(tmp_path / "shared_values", create=True)
    )
    for k in range(2):
        row = ticks.record
        row["state"], row["episode"], row["measured_ns"] = State.RUNNING, 1, k
        row["q"] = [k, 0.5]
        ticks.push()
        inference.step(10**9 + k * PERIOD_NS)
    assert asked == [
        {"shoulder": [[0.0], [0.0]], "elbow": [[0.5], [0.5]]},
        {"shoulder": [[0.0], [1.0]], "elbow": [[0.5], [0.5]]},
    ]


def test_temporal_ensembling_averages_step_by_step_and_restarts_with_an_episode(tmp_path) -> None:
    """Chunks of two steps, equal weights: step 2 of one chunk is step 1 of the next."""
    robot, policy = robot_spec(), ChunkPolicy(1)
    policy.spec = replace(policy.spec, n_obs_steps=1, temporal_ensemble_coeff=0.0)
    ticks = Ring.create(tmp_path / "ticks", row_type(robot), 4)
    chunks = Ring.create(tmp_path / "chunks", chunk_type(6, 2), 8)
    inference = Inference(
        policy, robot, ticks, chunks, SharedValues(tmp_path / "shared_values", create=True)
    )
    for k, episode in enumerate((1, 1, 1, 2)):
        row = ticks.record
        row["state"], row["episode"], row["measured_ns"] = State.RUNNING, episode, k
        ticks.push()
        inference.step(10**9 + k * PERIOD_NS)
    reader, found = Reader(chunks, from_start=True), list[list[float]]()
    while reader.following():
        found.append(chunk_of(reader.record).actions[:, 0].round(6).tolist())
    assert found == [
        [0.1] * 6,
        [0.15] * 5 + [0.2],
        [0.2] * 4 + [0.25, 0.3],
        [0.4] * 6,
    ]


class Counter(Head):
    """Head with memory: each action is a tenth of the number of observations."""

    reads: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.arguments: dict[str, Any] = {}

    def initial_memory(self, batch: int) -> dict[str, torch.Tensor]:
        return {name: torch.zeros(batch) for name in ("seen", *self.reads)}

    def decide(self, observations: Any, memory: Any, noise: Any) -> Any:
        seen = memory["seen"] + 1
        return 0.1 * seen[:, None, None].expand(-1, 1, 2), memory | {"seen": seen}


@pytest.mark.parametrize("reads", [(), ("rewards",), ("costs",)])
def test_a_policy_with_memory_works_and_is_refused_if_it_needs_rewards_or_costs(
    tmp_path, monkeypatch: pytest.MonkeyPatch, reads: tuple[str, ...]
) -> None:
    monkeypatch.setattr("policies.heads.head.load_kinds", lambda: {"Counter": Counter})
    monkeypatch.setattr(Counter, "reads", reads)
    robot, spec = (
        robot_spec(),
        replace(ChunkPolicy(1).spec, n_obs_steps=1, chunk_size=1, n_action_steps=1),
    )
    write(tmp_path / "b", seal(Bundle(spec, "Counter", {}, {}, Normalizer.identity((2,)))))
    policy = load(tmp_path / "b")
    ticks = Ring.create(tmp_path / "ticks", row_type(robot), 64)
    chunks = Ring.create(tmp_path / "chunks", chunk_type(1, 2), 16)
    shared = SharedValues(tmp_path / "shared_values", create=True)
    if reads:
        with pytest.raises(UserError, match=f"reads the {reads[0]} of its episode, but a robot"):
            Inference(policy, robot, ticks, chunks, shared)
        return
    inference = Inference(policy, robot, ticks, chunks, shared)
    reader = Reader(chunks, from_start=True)
    for episode, count in ((1, 1), (1, 2), (1, 3), (2, 1)):
        row = ticks.record
        row["state"], row["episode"] = State.RUNNING, episode
        ticks.push()
        assert inference.step(10**9 + inference.seq * PERIOD_NS)
        assert reader.following()
        np.testing.assert_allclose(chunk_of(reader.record).actions, 0.1 * count, rtol=1e-6)


def test_an_observation_has_the_time_of_its_oldest_part_and_failed_readings_are_skipped(
    tmp_path,
) -> None:
    """The tracker measured the target 40 ms before the joints; one reading failed."""
    robot = replace(robot_spec(), channels={"target": RobotChannel((3,), "m")})
    names = ("shoulder.q", "elbow.q", "target.x")
    asked, chosen = list[list[float]](), replace(ChunkPolicy(1).spec, n_obs_steps=1)
    seen = Channel("observation", (3,), names=names, units=("rad", "rad", "m"))

    def decide(observations: np.ndarray, *_: Any) -> Any:
        asked.append(observations[0, 0].tolist())
        return np.zeros((1, 6, 2), np.float32), {}

    spec = replace(chosen, channels=(seen,))
    policy: Any = SimpleNamespace(spec=spec, new_episodes=lambda: new_episodes(spec, decide))
    ticks = Ring.create(tmp_path / "ticks", row_type(robot), 64)
    chunks = Ring.create(tmp_path / "chunks", chunk_type(6, 2), 16)
    inference = Inference(
        policy, robot, ticks, chunks, SharedValues(tmp_path / "shared_values", create=True)
    )
    begun = 10**9
    for k, code in enumerate([Code.TIMEOUT, Code.OK]):
        row = ticks.record
        row["state"], row["episode"], row["code"] = State.RUNNING, 1, code
        row["measured_ns"], row["channels_ns"] = begun + k, begun + k - 40_000_000
        row["q"] = [k, 0.5]
        ticks.push()
        assert inference.step(begun + k) == (code is Code.OK)
    assert asked == [[1.0, 0.5, 0.0]]
    reader = Reader(chunks, from_start=True)
    assert reader.following()
    assert int(reader.record["observed_ns"]) == begun + 1 - 40_000_000


@pytest.mark.parametrize("starting", [False, True])
def test_a_policy_is_called_only_in_states_that_use_a_plan(tmp_path, starting) -> None:
    used = {State.RUNNING, State.SOFT_STOP} | ({State.HOLD} if starting else set())
    for state in State:
        ticks = Ring.create(tmp_path / "ticks", row_type(robot_spec()), 4)
        chunks = Ring.create(tmp_path / "chunks", chunk_type(6, 2), 4)
        shared = SharedValues(tmp_path / "shared_values", create=True)
        shared["starting"] = starting
        policy: Any = ChunkPolicy(2)
        inference = Inference(policy, robot_spec(), ticks, chunks, shared)
        ticks.record["state"] = state
        ticks.push()
        assert inference.step(10**9) == (state in used), state


def test_a_residual_bundle_adds_to_every_action_of_its_base(tmp_path) -> None:
    """A last layer of 0.5 and a scale of 0.2 add 0.2 tanh(0.5) to the base action."""
    base = load(write_desk_bundle(tmp_path / "base.bundle"))
    joints, here = base.spec.action_dim, describe("desk").spec
    seen = (*base.spec.channels, Channel("base_action", (joints,)))
    actor = VisionHead(
        {channel.name: channel.shape for channel in seen},
        "ResidualActor",
        {"actions": joints, "hidden": [8], "scale": 0.2},
        {},
    )
    weights = {name: value.numpy() for name, value in actor.state_dict().items()}
    weights |= {name: np.full_like(x, 0.5) for name, x in weights.items() if "biases.1" in name}
    same = {channel.name: Normalizer.identity(channel.shape) for channel in seen}
    spec = replace(base.spec, channels=seen)
    parts: Any = {"composition": Composition("residual"), "base": base.bundle}
    whole = Bundle(spec, "VisionHead", actor.arguments, weights, same, **parts)
    write(tmp_path / "whole.bundle", seal(whole))
    policy = load(tmp_path / "whole.bundle")
    ticks = Ring.create(tmp_path / "ticks", row_type(here), 8)
    chunks = Ring.create(tmp_path / "chunks", chunk_type(1, joints), 8)
    inference = Inference(
        policy, here, ticks, chunks, SharedValues(tmp_path / "shared_values", create=True)
    )
    inference.warm_up()
    to_goals, to_seen = goals(base.spec, here), observer(base.spec, here)
    reader = Reader(chunks, from_start=True)
    for k in range(3):
        row = ticks.record
        row["state"], row["episode"] = State.RUNNING, 1
        row["q"] = 0.1 * k
        expected = base.act(to_seen(row))[0] + 0.2 * np.tanh(0.5)
        ticks.push()
        assert inference.step(10**9 + k * PERIOD_NS)
        assert reader.following()
        found = chunk_of(reader.record).actions
        np.testing.assert_allclose(found, to_goals(np.clip(expected, -1, 1)), atol=1e-5)
