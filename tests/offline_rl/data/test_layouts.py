"""Tests of recognizing layouts by content; files of no layout are refused with reasons."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from d4rl_files import in_neorl2_words, save, steps, two_episodes, with_next
from foreign_layouts import episodes, minari, robomimic, zarr, zipped
from test_ogbench_layout import trajectories
from test_robomimic_layout import demos
from test_zarr_layout import pusht

from offline_rl.data.containers.raw import open_raw
from offline_rl.data.formats.common import ReadOptions
from offline_rl.data.formats.recognize import FORMATS, format_names, parse, recognize
from offline_rl.data.read import read
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import FileFormat


def kitchen() -> dict[str, np.ndarray]:
    arrays = steps(5, obs=60, act=9) | {"rewards": np.arange(5, dtype=np.float32)}
    del arrays["timeouts"]
    return arrays


def maze() -> dict[str, np.ndarray]:
    return steps(5) | {"infos/goal": np.zeros((5, 2))}


def plain() -> dict[str, np.ndarray]:
    arrays = two_episodes()
    arrays["terminated"], arrays["truncated"] = arrays.pop("terminals"), arrays.pop("timeouts")
    return arrays


MADE = {
    "Minari": lambda at: minari(at, episodes([3])) / "data" / "main_data.hdf5",
    "robomimic": lambda at: robomimic(at, demos([3])),
    "diffusion_policy": lambda at: zipped(zarr(at.with_name("store"), pusht()), at),
    "OGBench": lambda at: save(at.with_suffix(".npz"), trajectories()),
    "D4RL": lambda at: save(at, with_next(two_episodes())),
    "DSRL": lambda at: save(at, with_next(two_episodes()) | {"costs": np.zeros(1003)}),
    "NeoRL-2": lambda at: save(at.with_suffix(".npz"), in_neorl2_words(with_next(two_episodes()))),
    "maze": lambda at: save(at, maze()),
    "kitchen": lambda at: save(at, kitchen()),
    "plain": lambda at: save(at, plain()),
}


@pytest.mark.parametrize("layout", MADE)
def test_a_file_is_recognized_under_a_misleading_name(tmp_path: Path, layout: str):
    path = MADE[layout](tmp_path / "made").rename(tmp_path / "hopper_medium-v2.zarr")
    with open_raw(path) as raw:
        fitting = [module for module in FORMATS if module.mismatch(raw) is None]
        assert recognize(raw) is fitting[0]
        complaints: list[str] = []
        assert parse(raw, ReadOptions(), complaints.append).layout == layout
    assert not complaints


def test_widths_alone_do_not_make_a_file_kitchens(tmp_path: Path):
    arrays = kitchen() | {"rewards": np.linspace(0, 1, 5), "terminals": np.arange(5) % 2 == 1}
    data = read(save(tmp_path / "a.hdf5", arrays))
    assert data.terminated.tolist() == [False, True, False, True, False]


def test_reading_as_kitchen_is_noted_and_can_be_overridden(tmp_path: Path):
    path = save(tmp_path / "a.hdf5", kitchen() | {"terminals": np.arange(5) % 2 == 1})
    data, plain = read(path), read(path, format="plain")
    assert any(note.startswith("read as D4RL's kitchen") for note in data.notes)
    assert not data.terminated.any()
    assert plain.terminated.tolist() == [False, True, False, True, False]


def test_done_alone_may_be_a_time_limit_unless_the_layout_is_named(tmp_path: Path):
    arrays = in_neorl2_words(with_next(two_episodes()))
    del arrays["truncated"]
    path = save(tmp_path / "buffer.npz", arrays)
    with pytest.raises(UserError, match=r"'done', which may mark .* format=neorl2"):
        read(path)
    assert np.flatnonzero(read(path, format="neorl2").terminated).tolist() == [2]


def test_done_beside_episode_starts_is_neorls_end(tmp_path: Path):
    arrays = in_neorl2_words(with_next(two_episodes()))
    del arrays["truncated"]
    data = read(save(tmp_path / "a.npz", arrays | {"index": np.array([0, 3])}))
    assert np.flatnonzero(data.terminated).tolist() == [2]


@pytest.mark.parametrize("observed", ["observations", "obs", "observations/arm"])
def test_demonstrations_without_rewards_get_a_hint_to_the_right_format(
    tmp_path: Path, observed: str
):
    arrays = plain()
    del arrays["rewards"]
    path = save(tmp_path / "a.hdf5", arrays | {observed: arrays.pop("observations")})
    with pytest.raises(UserError, match=r"no array 'rewards' .* Add format=plain"):
        read(path)
    assert read(path, format="plain").num_rows == len(arrays["actions"])


def test_a_format_that_does_not_fit_or_exist_is_refused(tmp_path: Path):
    path = save(tmp_path / "a.npz", two_episodes())
    with pytest.raises(UserError, match="format=minari does not fit: NPZ, not HDF5"):
        read(path, format="minari")
    with pytest.raises(UserError, match="unknown format 'ogbensh'; did you mean ogbench"):
        read(path, format="ogbensh")


@pytest.mark.parametrize("format", get_args(FileFormat))
def test_every_format_selects_one_layout(format: str):
    assert sum(format in format_names(layout) for layout in FORMATS) == 1


def one_of_acts(path: Path) -> Path:
    """Return an episode in the format of ACT's record_sim_episodes.py."""
    qpos = np.zeros((5, 3), np.float32)
    images = np.zeros((5, 8, 8, 3), np.uint8)
    arrays = {"action": qpos, "observations/qpos": qpos, "observations/images/top": images}
    return save(path, arrays)


def test_episodes_of_act_are_named(tmp_path: Path):
    path = one_of_acts(tmp_path / "episode_0.hdf5")
    with pytest.raises(
        UserError, match=r"an episode in ACT's layout.* To read it, join the episodes"
    ):
        read(path)
    one_of_acts(tmp_path / "episode_1.hdf5")
    with pytest.raises(UserError, match=r"a folder of 2 files .*one episode, join the episodes"):
        read(tmp_path)


@pytest.mark.parametrize("held", [("obs", "action"), ("observations", "actions", "terminals")])
def test_episodes_in_groups_of_an_unknown_layout_are_named(tmp_path: Path, held: tuple):
    arrays = {f"episode_{n}/{key}": np.zeros((5, 2)) for n in range(2) for key in held}
    with pytest.raises(UserError) as caught:
        read(save(tmp_path / "a.hdf5", arrays))
    assert "the file has groups episode_0, … with" in str(caught.value)
    assert "saved completely" not in str(caught.value)


def test_an_unknown_file_gets_the_reason_of_every_layout(tmp_path: Path):
    strange = {"weights": np.zeros(3), "biases": np.zeros(3)}
    for name in ("a.npz", "a.hdf5"):
        with pytest.raises(UserError) as caught:
            read(save(tmp_path / name, strange))
        for part in (
            str(tmp_path / name),
            "weights",
            "LeRobot (no folder with meta/info.json)",
            "diffusion_policy (",
            "Minari (",
            "robomimic (",
            "OGBench (",
            "no array like observations, actions, rewards or terminals",
        ):
            assert part in str(caught.value)
        assert "\n" not in str(caught.value)


def test_an_unrelated_zarr_store_is_refused(tmp_path: Path):
    store = zarr(tmp_path / "a", {"data/x": np.zeros((3, 2))})
    with pytest.raises(UserError, match="no array meta/episode_ends nor data/action"):
        read(store)


def test_an_unrelated_folder_is_refused_with_the_expected_files(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(UserError, match=r"meta/info\.json.*main_data\.hdf5.*\.zgroup"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("layout", "option"),
    [
        ("Minari", {"d4rl_compatible": True}),
        ("Minari", {"subset": "train"}),
        ("robomimic", {"infos": True}),
        ("OGBench", {"observation_keys": ["qpos"]}),
        ("D4RL", {"observation_keys": ["observations"]}),
        ("D4RL", {"subset": "train"}),
    ],
)
def test_an_option_that_means_nothing_in_a_layout_is_refused(
    tmp_path: Path, layout: str, option: dict
):
    (name,) = option
    with pytest.raises(UserError, match=f"{name} has no meaning in the layout of {layout}"):
        read(MADE[layout](tmp_path / "made"), **option)


@pytest.mark.parametrize(
    "bounds", [[0], [1, 0], [0, 0], ["a", "b"], [[0, 0], [1, -1]], [[[0]], [[1]]]]
)
def test_an_invalid_action_range_is_refused(tmp_path: Path, bounds: list):
    with pytest.raises(UserError, match=r"action_range=.* is not \[low, high\]"):
        read(save(tmp_path / "a.hdf5", two_episodes()), action_range=bounds)


def test_an_action_range_of_another_width_is_refused(tmp_path: Path):
    path = save(tmp_path / "a.hdf5", two_episodes())
    with pytest.raises(UserError, match="limits are given for 3 actions, but the data has 2"):
        read(path, action_range=[[0, 0, 0], [1, 1, 1]])
    with pytest.raises(UserError, match="action_scale and action_range are both given"):
        read(path, action_range=[-2, 2], action_scale=2)
