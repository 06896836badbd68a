"""Tests of the output of `data list` and `data info`."""

from pathlib import Path

from d4rl_files import save, two_episodes, with_next

from offline_rl.data.info import info, list_cards
from offline_rl.utils.files import checksum


def rows(text: str) -> dict[str, str]:
    return {line.split("  ")[0]: line.split("  ", 1)[1].strip() for line in text.splitlines()}


def test_info_describes_a_file(tmp_path: Path):
    path = save(tmp_path / "mine.hdf5", two_episodes())
    lines = rows(info(path))
    assert lines["rows"] == "1,003, 1 without a next observation"
    assert lines["episodes"] == "2: 1 terminated, 1 truncated"
    assert lines["lengths"] == "3 to 1,000, mean 501.5"
    assert lines["SHA-256"] == checksum(path)
    assert "score" not in lines
    assert [*lines][:3] == ["file", "actions", "rows"]
    limits = rows(info(path, action_range=[-2, 2]))
    assert [*limits][:3] == ["file", "actions", "limits"]
    assert limits["limits"] == "-1 and 1 stand for -2 and 2"


def test_info_prints_the_score_of_a_cards_file(tmp_path: Path):
    """D4RL's hopper: 0 is a return of -20.272305, 100 one of 3234.3."""
    arrays = with_next(two_episodes())
    arrays["rewards"][:] = 0
    arrays["rewards"][[0, 3]] = 1607.0138475
    lines = rows(info(save(tmp_path / "hopper_medium-v1.hdf5", arrays)))
    assert lines["score"].startswith("50.00 ")
    assert lines["card"].startswith("hopper-medium-v1")
    assert lines["returns"].startswith("1607.014 ± 0.000")


def test_a_file_with_a_cards_name_and_another_checksum_gets_no_score(tmp_path: Path):
    path = save(tmp_path / "DMSD-high-100000-train.hdf5", two_episodes())
    path = path.rename(tmp_path / "DMSD-high-100000-train.npz")
    assert "score" not in rows(info(path))


def test_the_list_says_where_each_data_set_is(tmp_path: Path):
    (tmp_path / "d4rl").mkdir()
    (tmp_path / "d4rl" / "hopper_medium-v2.hdf5").touch()
    lines = {line.split()[0]: line for line in list_cards(tmp_path).splitlines()}
    assert lines["hopper-medium-v2"].endswith("here")
    assert lines["hopper-expert-v2"].endswith("to download")
    assert "3234.3" in lines["hopper-expert-v2"]
    assert "neorl2/DMSD" in lines
    assert "data only" in lines["neorl2/Fusion"]
