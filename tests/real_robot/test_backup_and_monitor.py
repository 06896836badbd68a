"""Formulas on recordings, and a backup policy on a robot."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from desk_bundle import write_desk_bundle
from robots_in_memory import spec as robot_spec

from offline_rl.utils.errors import UserError
from policies import Channel, Spec, bundle
from policies.episodes import RunningEpisodes
from policies.golden import seal
from real_robot.control.inference import Inference
from real_robot.control.rings import Reader, Ring, SharedValues
from real_robot.control.session import chunk_of, chunk_type
from real_robot.monitoring import monitor
from real_robot.recording.files import RecordingWriter, read
from real_robot.recording.writer import metadata_of
from real_robot.robot import Code
from real_robot.rows import Mode, row_type
from real_robot.running import run
from real_robot.safety.states import State
from real_robot.verbs import robot

PERIOD_NS = 50_000_000  # period of a policy at 20 Hz


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A recording of two episodes of 4 and 3 ticks. The elbow is at a tenth of the tick's number.

    Before the episodes, the robot rests at elbow 9. In tick 3, the reading failed.
    """
    rows = np.zeros(10, row_type(robot_spec()))
    rows["q"][:, 1], rows["sent"], rows["code"] = 0.1 * np.arange(10), 0.5, Code.OK
    rows["current_a"] = np.nan
    rows["mode"], rows["episode"] = Mode.POLICY, [0, 0, 1, 1, 1, 1, 1, 2, 2, 2]
    rows["mode"][:2], rows["q"][:2] = Mode.NOBODY, 9.0
    rows["code"][3], rows["q"][3] = Code.TIMEOUT, np.nan
    with RecordingWriter(tmp_path / "a.rec", rows.dtype, metadata_of(robot_spec(), 50.0)) as file:
        file.append(rows.tobytes(), len(rows), 0, 0)
    return tmp_path / "a.rec"


def test_the_robustness_of_a_recording_is_computed_per_episode(recording: Path) -> None:
    found = monitor(recording, "always(elbow.q <= 0.6) and eventually(elbow.q - elbow.sent > 0)")
    assert found.lengths.tolist() == [4, 3]
    np.testing.assert_allclose(found.verdict.robustness, [0.0, 0.6 - 0.9], atol=1e-12)
    text = str(found)
    assert "episode 2: violated, robustness -0.3, 3 ticks" in text


def test_the_command_prints_the_robustness_of_a_recording(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    robot(["monitor", f"recording={recording}", "stl=eventually[2,2](elbow.q > 0.55)"])
    printed = capsys.readouterr().out
    assert "episode 1: violated, robustness -0.05" in printed
    assert "1 of 2 episodes satisfy the formula" in printed


@pytest.mark.parametrize(
    ("stl", "message"),
    [
        ("always(elbow.x > 0)", "position 8: there is no signal elbow.x. The signals are shoulder"),
        ("elbow.current > 0", "elbow.current was not measured in 7 of 7 ticks"),
        ("always(", "position 8: expected a signal"),
    ],
)
def test_a_formula_that_does_not_fit_a_recording_is_refused(
    recording: Path, stl: str, message: str
) -> None:
    with pytest.raises(UserError, match=r"stl, position|ticks") as error:
        monitor(recording, stl)
    assert message in str(error.value)


class Interrupting(RunningEpisodes):
    """Episodes that need a new chunk when the shoulder is beyond 0.4 rad."""

    def observe(self, observations: Any, rows: np.ndarray | None = None) -> None:
        super().observe(observations, rows)
        self.interrupted = bool(observations[0, 0] > 0.4)


def test_a_policy_that_hands_over_sends_a_new_chunk_in_the_same_step(tmp_path: Path) -> None:
    """Chunks are due at the steps 0 and 3. The interruption is at step 1."""
    measured = Channel("observation", (2,), names=("shoulder.q", "elbow.q"), units=("rad", "rad"))
    names = {"action_names": ("shoulder", "elbow"), "action_units": ("rad", "rad")}
    limits = {"action_low": (-1.0, -1.0), "action_high": (1.0, 1.0)}
    sizes: dict[str, Any] = {"chunk_size": 6, "n_action_steps": 3, "rate_hz": 20.0}

    class Policy:
        spec = Spec((measured,), 2, **limits, **names, **sizes)

        def new_episodes(self) -> RunningEpisodes:
            chunk = np.zeros((1, 6, 2), np.float32)
            return Interrupting(lambda *_: (chunk, {}), n_action_steps=3)

    ticks = Ring.create(tmp_path / "ticks", row_type(robot_spec()), 64)
    chunks = Ring.create(tmp_path / "chunks", chunk_type(6, 2), 16)
    shared = SharedValues(tmp_path / "shared_values", create=True)
    inference = Inference(Policy(), robot_spec(), ticks, chunks, shared)
    for step, position in enumerate([0.0, 0.5, 0.0, 0.0]):
        row = ticks.record
        row["state"], row["episode"], row["measured_ns"] = State.RUNNING, 1, step
        row["q"] = [position, 0.0]
        ticks.push()
        inference.step(10**9 + step * PERIOD_NS)
    reader, found = Reader(chunks, from_start=True), list[int]()
    while reader.following():
        found.append(chunk_of(reader.record).observed_ns)
    assert found == [0, 1, 3]


def test_a_backup_that_does_not_fit_is_refused_before_the_robot_moves(tmp_path: Path) -> None:
    right = write_desk_bundle(tmp_path / "right.bundle")
    content = bundle.read(right)
    slower = seal(replace(content, spec=replace(content.spec, rate_hz=20.0), golden=None))
    bundle.write(tmp_path / "slower.bundle", slower)
    options: dict[str, Any] = {"adapter": "simulated", "keyboard": False, "runtime": "numpy"}

    def refused(message: str, **changes: Any) -> None:
        with pytest.raises(UserError, match=message):
            run(right, "desk", **options, **changes)

    backup, other, stl = str(right), str(tmp_path / "slower.bundle"), "always(waist.q < 1)"
    refused("backup= and stl= belong together", backup=backup)
    refused("the backup does not fit the deployed policy: rate_hz", backup=other, stl=stl)
    refused("position 8: there is no signal gripper.q", backup=backup, stl="always(gripper.q < 1)")
    refused("release=0 is below margin=0.5", backup=backup, stl=stl, margin=0.5, release=0.0)


@pytest.mark.slow
def test_on_a_simulated_robot_the_backup_moves_the_arm_while_the_formula_is_violated(
    tmp_path: Path,
) -> None:
    """The policy keeps the waist at 0 rad, and the backup brings it to 0.47 rad."""
    deployed = write_desk_bundle(tmp_path / "deployed.bundle")
    content = bundle.read(deployed)
    turned = {name: value.copy() for name, value in content.weights.items()}
    turned["trunk.biases.1"][0] += 0.2
    bundle.write(tmp_path / "backup.bundle", seal(replace(content, weights=turned, golden=None)))
    options: dict[str, Any] = {"adapter": "simulated", "keyboard": False, "runtime": "numpy"}
    options |= {"start": True, "seconds": 2.5, "backup": str(tmp_path / "backup.bundle")}
    for stl, waist_rad in (("waist.q < 2", 0.0), ("waist.q > 2", 0.47)):
        file = tmp_path / f"{waist_rad}.rec"
        run(deployed, "desk", **options, stl=stl, window=3, record=str(file))
        rows = read(file).rows
        assert rows["q"][-1, 0] == pytest.approx(waist_rad, abs=0.02)
        planned = rows[rows["chunk_seq"] >= 0]
        assert set(planned["is_backup"].tolist()) == {int(stl == "waist.q > 2")}
        sign = 1 if stl == "waist.q < 2" else -1
        assert planned["margin"][-1] == pytest.approx(sign * (2 - waist_rad), abs=0.02)
