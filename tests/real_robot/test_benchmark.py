"""Checks of the robot benchmarks: limits at the servos, and the page of results."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.robot import RESULTS, alarms, page
from benchmarks.robot.first import page_words
from benchmarks.robot.logic import summary
from benchmarks.robot.stepped import commands, count_violations

ROOT = Path(__file__).resolve().parents[2]
TICK = 2 * np.pi / 4096
LIMITS = SimpleNamespace(
    position_low=np.array([-1.0]),
    position_high=np.array([1.0]),
    velocity=np.array([2.0]),
    stop_acceleration=np.array([20.0]),
    stop_jerk=np.array([1000.0]),
)
PERIOD_S = 0.01


def events_of(angles: np.ndarray) -> list[dict[str, int]]:
    return [{"1": 2048 + round(angle / TICK)} for angle in angles]


def test_a_smooth_path_inside_its_limits_is_not_counted():
    times = PERIOD_S * np.arange(300)
    assert count_violations(events_of(0.9 * np.sin(2 * times)), LIMITS, PERIOD_S) == 0


def test_each_command_beyond_a_limit_is_counted():
    still = np.zeros(5)
    assert count_violations(events_of(np.full(7, 1.1)), LIMITS, PERIOD_S) == 7  # position
    leap = np.append(still, 0.5)
    assert count_violations(events_of(leap), LIMITS, PERIOD_S) == 1  # velocity, among others
    fast = np.append(still, 0.019 * np.arange(1, 20))  # 1.9 rad/s from rest: 190 rad/s²
    assert 1 <= count_violations(events_of(fast), LIMITS, PERIOD_S) <= 2


def test_rounding_to_ticks_is_not_a_violation():
    jitter = np.zeros(40)
    jitter[::2] = TICK  # 2 ticks in the second difference, 4 in the third
    assert count_violations(events_of(jitter), LIMITS, PERIOD_S) == 0


def test_arming_begins_a_new_stretch_of_commands():
    events = [{"1": 0, "2": 0}, {"1": 0, "2": 1}, {"1": 900}, {"2": 900}, {"1": 900, "2": 900}]
    assert [len(stretch) for stretch in commands(events, 2)] == [2, 1]


def test_a_missing_reaction_is_late():
    row = summary("1", "f", "r", [0.004, np.inf, 0.02], 0.01, 0, ["RUNNING"])
    assert (row["repeats"], row["late"], row["other"]) == (3, 2, 1)
    assert (row["median_ms"], row["max_ms"]) == (12.0, 20.0)
    json.dumps(row, allow_nan=False)


def test_the_first_run_is_made_of_the_commands_at_the_top_of_the_page():
    assert page_words("generate") == ["generate", "recipe=arm", "qualities=[reach]"]
    words = page_words("train")
    assert words[:3] == ["train", "algorithm=bc", "task=arm/reach"]
    assert any(word.startswith("dataset=") for word in words)


def test_the_page_matches_the_results_in_its_folder():
    folder = ROOT / RESULTS
    if not (folder / "README.md").is_file():
        pytest.skip("not all of it has been measured yet")
    result = (folder / "README.md").read_text()
    assert result == page.page(folder), "run python -m benchmarks.robot page"
    for file in folder.glob("*.json"):
        assert f"`python -m benchmarks.robot {file.stem}`" in result


def test_free_motion_small_motion_and_contact_are_not_stuck_sensors():
    """This is a small part of the hour in benchmarks/results/robot."""
    result = alarms.measure(alarms.Options(stretches=3, stretch_s=3))
    assert result["running_s"] >= 6
    assert result["contact_s"] > 0
    assert "SENSOR_STUCK" not in result["stops"]
