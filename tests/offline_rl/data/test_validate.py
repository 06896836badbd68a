"""Tests of validation: all errors and warnings of a file, one sentence each."""

from pathlib import Path

import numpy as np
import pytest
from d4rl_files import Arrays, save, steps, two_episodes, with_next

from offline_rl.data import Dataset
from offline_rl.data.formats.common import ReadOptions
from offline_rl.data.read import read
from offline_rl.data.validation import validate


def short() -> Arrays:
    """Return three episodes of 4 steps: terminal, time-out, time-out."""
    arrays = steps(12)
    arrays["terminals"][3] = True
    arrays["timeouts"][[7, 11]] = True
    return arrays


def find_problems(tmp_path: Path, arrays: Arrays, **options: int) -> list[tuple[str, str]]:
    return [tuple(problem) for problem in validate(save(tmp_path / "a.hdf5", arrays), **options)]


@pytest.mark.parametrize("arrays", [short(), with_next(short()), two_episodes()])
def test_valid_data_have_no_problems(tmp_path: Path, arrays: Arrays):
    assert find_problems(tmp_path, arrays, max_episode_steps=1000) == []


def test_all_errors_are_found_in_one_pass(tmp_path: Path):
    arrays = short()
    arrays["observations"][5] = np.nan
    arrays["actions"][2] = 3
    arrays["timeouts"][3] = True
    arrays["rewards"] = arrays["rewards"][:-1]
    problems = find_problems(tmp_path, arrays)
    assert {severity for severity, _ in problems} == {"error"}
    for part in ("row counts differ", "nan first in row 5", "reach", "both set in row 3"):
        assert sum(part in sentence for _, sentence in problems) == 1, part
    assert len(problems) == 4


def test_a_missing_array_does_not_hide_other_errors(tmp_path: Path):
    arrays = short()
    del arrays["rewards"], arrays["terminals"]
    arrays["actions"][2] = np.inf
    sentences = " ".join(sentence for _, sentence in find_problems(tmp_path, arrays))
    assert "no array 'rewards'" in sentences
    assert "no array 'terminals'" in sentences
    assert "actions has inf first in row 2" in sentences


def test_a_damaged_array_does_not_hide_other_errors(tmp_path: Path):
    arrays = short()
    arrays["actions"] = np.array([{}] * 12, dtype=object)
    arrays["rewards"][1] = np.nan
    problems = validate(save(tmp_path / "a.npz", arrays))
    assert [problem.severity for problem in problems] == ["error", "error"]
    assert "actions holds pickled" in problems[0].sentence
    assert "rewards has nan" in problems[1].sentence


def test_any_damaged_byte_of_an_array_header_is_reported_or_harmless(tmp_path: Path):
    path = save(tmp_path / "a.npz", steps(1000))  # read in parts: the checksum comes too late
    whole, errors = path.read_bytes(), 0
    for k in range(30, 180):
        path.write_bytes(whole[:k] + bytes([whole[k] ^ 0x55]) + whole[k + 1 :])
        errors += any(problem.severity == "error" for problem in validate(path))
    assert errors > 75


def test_a_truncated_file_and_a_missing_one_are_one_error(tmp_path: Path):
    path = save(tmp_path / "a.hdf5", short())
    path.write_bytes(path.read_bytes()[:3000])
    for broken in (path, tmp_path / "missing.hdf5"):
        (problem,) = validate(broken)
        assert problem.severity == "error"
        assert str(broken) in problem.sentence


def without_flags() -> Arrays:
    arrays = short()
    arrays["terminals"][:] = arrays["timeouts"][:] = False
    return arrays


def unflagged_end() -> Arrays:
    arrays = with_next(short())
    arrays["timeouts"][7] = False
    return arrays


def end_that_is_none() -> Arrays:
    arrays = with_next(short())
    arrays["timeouts"][5] = True
    return arrays


def constant() -> Arrays:
    arrays = short()
    arrays["observations"][:, 1] = 4
    return arrays


def overshooting() -> Arrays:
    arrays = short()
    arrays["actions"][3, 0] = 1 + 2**-10  # as float16 arithmetic may make of 1
    return arrays


def without(arrays: Arrays, key: str) -> Arrays:
    return {name: array for name, array in arrays.items() if name != key}


DOUBTFUL = {
    "no flags": (without_flags(), "no row is flagged as an end: all 12 rows"),
    "no time-outs": (without(short(), "timeouts"), "no time-outs are stored"),
    "open end": (short() | {"timeouts": np.arange(12) == 7}, "no flag after its 4 rows"),
    "jump": (unflagged_end(), "next_observations in row 7 is not the observation of the next row"),
    "no jump": (
        end_that_is_none(),
        "row 5 is flagged as an end, but its next_observations is the observation",
    ),
    "too long": (
        short() | {"timeouts": np.arange(12) == 11},
        "1 episodes are longer than the limi",
    ),
    "overshoot": (overshooting(), "actions exceed their limits by up to 0.1% (rounding) and"),
    "constant": (constant(), "observations: 1 of 3 columns never change (1)"),
}


def test_constant_rewards_get_a_warning_only_if_they_are_stored(tmp_path: Path):
    arrays = with_next(short()) | {"rewards": np.ones(12)}
    (problem,) = find_problems(tmp_path, arrays)
    sentence = "rewards: 1 in every row. Check for a dead sensor or a field that was never set."
    assert problem[1].endswith(sentence)
    path = save(tmp_path / "without.hdf5", without(arrays, "rewards"))
    (only,) = validate(path, options=ReadOptions(format="plain"))
    assert only.sentence.endswith("no rewards are stored: all are 0")
    data = read(path, format="plain")
    assert data.notes == ("no rewards are stored: all are 0",)
    assert [p.sentence for p in validate(data)] == [f"{path}: {data.notes[0]}"]


@pytest.mark.parametrize("case", DOUBTFUL)
def test_suspicious_data_get_one_warning(tmp_path: Path, case: str):
    arrays, part = DOUBTFUL[case]
    problems = find_problems(
        tmp_path, arrays, **({"max_episode_steps": 4} if case == "too long" else {})
    )
    warnings = [sentence for severity, sentence in problems if severity == "warning"]
    assert sum(part in sentence for sentence in warnings) == 1, problems
    assert len(warnings) == len(problems)
    assert len(problems) == (2 if case == "no time-outs" else 1), problems


def test_a_data_set_in_memory_is_checked_too():
    a = constant()
    data = Dataset.from_arrays(
        a["observations"], a["actions"], a["rewards"], a["terminals"], a["timeouts"], name="mine"
    )
    (problem,) = validate(data)
    assert problem.sentence.startswith("mine: observations: 1 of 3 columns")


def test_published_files_have_no_errors(data_dir: Path):
    path = data_dir / "neorl2" / "DMSD" / "DMSD-high-20000-val.npz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    assert validate(path, max_episode_steps=100) == []


def discrete(actions: np.ndarray) -> Arrays:
    return short() | {"actions": actions}


FAULTY = {
    "discrete": (
        discrete(np.arange(12) % 4),
        "actions are whole numbers from 0 to 3, one per step. These are discrete",
    ),
    "discrete, two": (discrete(np.arange(12)[:, None] % 2), "whole numbers from 0 to 1"),
    "discrete, as floats": (discrete(np.arange(12.0) % 3), "whole numbers from 0 to 2"),
}


@pytest.mark.parametrize("case", FAULTY)
def test_discrete_actions_are_reported_as_such(tmp_path: Path, case: str) -> None:
    arrays, part = FAULTY[case]
    sentences = [s for severity, s in find_problems(tmp_path, arrays) if severity == "error"]
    assert sum(part in sentence for sentence in sentences) == 1, sentences
    continuous = short() | {"actions": (np.arange(12.0) % 2)[:, None]}  # might be a gripper's
    assert "whole numbers" not in str(find_problems(tmp_path, continuous))


@pytest.mark.parametrize(("word", "row"), [("rewards", 5), ("observations", 2)])
def test_warnings_of_a_check_are_notes_of_the_reader(tmp_path: Path, word: str, row: int) -> None:
    arrays = short()
    arrays[word] = arrays[word].astype(np.float64)
    arrays[word][row] = -1e30
    path = save(tmp_path / "a.hdf5", arrays)
    (problem,) = validate(path)
    assert f"{word} reach -1e+30 in row {row}" in problem.sentence
    assert problem.sentence.endswith(read(path).notes[0])
    jumped = save(tmp_path / "b.hdf5", unflagged_end())
    assert "is not the observation of the next row" in read(jumped).notes[0]


def test_a_given_time_limit_is_not_requested_again(tmp_path: Path) -> None:
    path = save(tmp_path / "a.hdf5", without(short(), "timeouts"))
    assert "give max_episode_steps=" in str(read(path).notes)
    assert "max_episode_steps" not in str(read(path, max_episode_steps=4).notes)
