"""Tests of finding and loading files: their folders and their checksums."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from d4rl_files import in_neorl2_words, save, steps, two_episodes, with_next
from foreign_layouts import episodes, minari

from envs.cards import Card, File, cards
from envs.tasks import Task
from offline_rl.data.load import data_folder, find_file, lerobot_folder, load
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import checksum


def a_card(file: File, **fields: object) -> Card:
    return Card("suite/name", "suite", "d4rl", {"train": file}, "here", "none", **fields)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    (tmp_path / "suite").mkdir()
    return save(tmp_path / "suite" / "a.hdf5", with_next(two_episodes()))


def test_minaris_folder_is_found_by_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    minari(tmp_path / "D4RL" / "door" / "human-v2", episodes([3, 2]))
    assert load("minari:D4RL/door/human-v2").num_rows == 5
    with pytest.raises(UserError, match="data download minari:D4RL/door/cloned-v2"):
        load("minari:D4RL/door/cloned-v2")


def test_lerobots_folders_are_found_by_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path))
    with pytest.raises(UserError, match="data download lerobot:lab/pick"):
        load("lerobot:lab/pick")
    hub = tmp_path / "hub" / "datasets--lab--pick"
    (hub / "snapshots" / "0a1b").mkdir(parents=True)
    (hub / "refs").mkdir()
    (hub / "refs" / "main").write_text("0a1b")
    assert lerobot_folder("lab/pick") == hub / "snapshots" / "0a1b"
    (tmp_path / "lab" / "pick").mkdir(parents=True)
    assert lerobot_folder("lab/pick") == tmp_path / "lab" / "pick"


def test_a_file_in_the_data_folder_is_found_with_its_checksum(stored: Path, tmp_path: Path):
    for sums in ({}, {"sha256": checksum(stored)}, {"md5": checksum(stored, "md5")}):
        card = a_card(File("a.hdf5", "suite/a.hdf5", **sums))
        assert find_file(card, tmp_path) == stored


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_file_with_another_checksum_does_not_count(stored: Path, tmp_path: Path, kind: str):
    card = a_card(File("a.hdf5", "suite/a.hdf5", **{kind: "0123"}))
    with pytest.raises(UserError, match="not the published file of suite/name") as caught:
        find_file(card, tmp_path)
    assert checksum(stored, kind) in str(caught.value)
    assert "0123" in str(caught.value)


def test_the_embedded_set_comes_second(stored: Path, tmp_path: Path, monkeypatch):
    shipped = tmp_path / "share" / "embedded"
    shipped.mkdir(parents=True)
    (shipped / "a.hdf5").write_bytes(stored.read_bytes())
    module = sys.modules["offline_rl.data.load"]  # the package has a function of this name
    monkeypatch.setattr(module, "share", lambda name: tmp_path / "share")
    card = a_card(File("a.hdf5", "suite/a.hdf5"))
    assert find_file(card, tmp_path) == stored
    stored.unlink()
    assert find_file(card, tmp_path) == shipped / "a.hdf5"


def test_a_missing_file_names_the_folders_and_the_remedy(tmp_path: Path, monkeypatch):
    card = a_card(File("a.hdf5", "suite/a.hdf5", ("http://x/a.hdf5",)))
    with pytest.raises(UserError) as caught:
        find_file(card, tmp_path)
    command = f"offline-rl data download suite/name data_dir={tmp_path}, or"
    for part in (tmp_path / "suite", "embedded", command, "dataset="):
        assert str(part) in str(caught.value)
    monkeypatch.setenv("OFFLINE_RL_DATA", str(tmp_path))
    with pytest.raises(UserError, match="offline-rl data download suite/name, or"):
        find_file(card)
    with pytest.raises(UserError, match=r"Remedy: name another folder"):
        find_file(a_card(File("a.hdf5", "suite/a.hdf5")))
    for name, recipe in (
        ("gym/pen-binary-medium-replay", "recipe=pen 'qualities=[medium-replay]'"),
        ("gym/antmaze-umaze", "recipe=antmaze 'qualities=[antmaze-umaze]'"),
        ("push/standard-pixels-expert", "recipe=push 'qualities=[standard-pixels-expert]'"),
        ("ogbench/cube-single-expert", "recipe=cube 'qualities=[cube-single-expert]'"),
    ):
        remedy = f"Remedy: make it with offline-rl generate {recipe} out={tmp_path}/"
        with pytest.raises(UserError, match=re.escape(remedy)):
            find_file(cards()[name], tmp_path)
    with pytest.raises(UserError, match="Remedy: offline-rl data download hopper-medium-v2"):
        find_file(cards()["hopper-medium-v2"], tmp_path)


def test_an_unknown_split_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="has no 'test' file; it has train"):
        find_file(a_card(File("a.hdf5", "suite/a.hdf5")), tmp_path, split="test")


def test_the_data_folder_is_the_argument_else_the_variable_else_the_cache(monkeypatch):
    monkeypatch.setenv("OFFLINE_RL_DATA", "/variable")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert data_folder("/argument") == Path("/argument")
    assert data_folder() == Path("/variable")
    monkeypatch.delenv("OFFLINE_RL_DATA")
    assert data_folder() == Path("/cache/offline_rl")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_folder() == Path.home() / ".cache" / "offline_rl"


def test_load_takes_a_card_a_task_and_a_path(stored: Path, tmp_path: Path):
    card = a_card(File("a.hdf5", "suite/a.hdf5"))
    task = Task("mine", card=card)
    assert load(card, tmp_path).name == load(task, tmp_path).name == "suite/name"
    assert load(stored).num_rows == load(f"file:{stored}").num_rows == 1003
    assert load(str(stored), d4rl_compatible=True).num_rows == 1002


def test_load_selects_the_episodes_that_the_benchmark_uses(stored: Path, tmp_path: Path):
    card = a_card(File("a.hdf5", "suite/a.hdf5", first_episodes=1))
    assert load(card, tmp_path).num_rows == 3
    card = a_card(File("a.hdf5", "suite/a.hdf5", first_episodes=9))
    with pytest.raises(UserError, match="holds 2 episodes, but suite/name needs the first 9"):
        load(card, tmp_path)
    card = a_card(File("a.hdf5", "suite/a.hdf5", skip_episodes=1))
    assert load(card, tmp_path).num_rows == load(stored).num_rows - 3
    card = a_card(File("a.hdf5", "suite/a.hdf5", skip_episodes=2))
    with pytest.raises(UserError, match="needs the first 3"):
        load(card, tmp_path)


def test_load_counts_steps_by_the_cards_limit_where_a_file_has_no_time_outs(tmp_path: Path):
    (tmp_path / "suite").mkdir()
    arrays = steps(10)
    del arrays["timeouts"]
    save(tmp_path / "suite" / "a.hdf5", arrays)
    card = a_card(File("a.hdf5", "suite/a.hdf5"), max_episode_steps=4)
    assert load(card, tmp_path).episode_lengths().tolist() == [4, 4, 2]


def test_load_by_name_finds_the_benchmarks_folder(tmp_path: Path):
    folder = tmp_path / "d4rl"
    folder.mkdir()
    save(folder / "hopper_medium-v1.hdf5", with_next(steps(20, obs=11, act=3)))
    assert load("hopper-medium-v1", tmp_path).num_rows == 20


def test_other_data_is_refused_as_the_cards_file_but_can_be_read_as_a_path(tmp_path: Path):
    folder = tmp_path / "neorl2" / "DMSD"
    folder.mkdir(parents=True)
    path = save(folder / "DMSD-high-100000-train.npz", in_neorl2_words(with_next(two_episodes())))
    with pytest.raises(UserError, match="not the published file of neorl2/DMSD"):
        load("neorl2/DMSD", tmp_path)
    assert load(path).num_rows == 1003


def test_a_name_that_is_neither_a_file_nor_a_task_lists_near_matches():
    with pytest.raises(UserError, match=r"no such file.*hopper-medium-v2"):
        load("hopper-medum-v2")


def test_a_task_without_data_asks_for_a_file():
    with pytest.raises(UserError, match="task none has no data set"):
        load("none")


def test_the_published_dmsd_is_accepted_by_its_checksum(data_dir: Path):
    data = load("neorl2/DMSD", data_dir)
    assert data.name == "neorl2/DMSD"
    assert data.num_rows == 100_000
    assert np.isclose(data.episode_returns().mean(), 494.4527, atol=1e-4)


def test_costs_of_runners_follow_from_rewards_and_actions(tmp_path: Path):
    """Each runner's speed is reward - alive bonus + control cost, with Gymnasium's coefficients."""
    runners = {"HalfCheetah": (0, 0.1, 3.2096), "Hopper": (1, 1e-3, 0.7402)}
    runners["Walker2d"] = (1, 1e-3, 2.3415)
    arrays = with_next(two_episodes())
    arrays["rewards"] *= 4
    path = save(tmp_path / "a.hdf5", arrays)
    assert "costs" not in load(path).extras
    for runner, (bonus, weight, limit) in runners.items():
        squares = (arrays["actions"].astype(np.float64) ** 2).sum(1)
        speed = arrays["rewards"].astype(np.float64) - bonus + weight * squares
        costs = load(path, costs_from=f"safe/{runner}Velocity").extras["costs"]
        assert 0.1 < costs.mean() < 0.9
        np.testing.assert_array_equal(costs, speed > limit)
    with pytest.raises(UserError, match="unknown environment in costs_from 'safe/Hopper'"):
        load(path, costs_from="safe/Hopper")


def test_a_card_adds_costs_to_the_data_of_another_card():
    card, of = cards()["safe/HopperVelocity-medium-replay"], cards()["gym/hopper-medium-replay"]
    assert (card.files, card.layout, card.source) == (of.files, of.layout, of.source)
    data, plain = load(card.name), load(of.name)
    np.testing.assert_array_equal(data.rewards, plain.rewards)
    speed = plain.rewards - 1 + 1e-3 * (plain.actions**2).sum(1)
    assert data.extras["costs"].mean() == pytest.approx((speed > 0.7402).mean(), abs=1e-4)
    assert plain.extras == {}


def test_a_card_observes_the_first_columns_of_the_data_of_another_card():
    data, full = load("gym/pointmaze-umaze-200k-no-velocity"), load("gym/pointmaze-umaze-200k")
    np.testing.assert_array_equal(data.observations, full.observations[:, :2])
    np.testing.assert_array_equal(data.next_index, full.next_index)
    assert data.spec.observation_shape == (2,)


def test_a_time_out_row_without_next_observation_has_the_cost_of_its_own_observation(
    tmp_path: Path,
):
    """Test data whose final positions are unknown, so the row's position counts."""
    arrays = steps(6, obs=22)
    arrays["observations"][:, -16:] = 0.5
    arrays["observations"][[2, 5], -1] = 1.1  # inside a hazard
    arrays["timeouts"][[2, 5]] = True
    path = save(tmp_path / "a.hdf5", arrays)
    costs = load(path, costs_from="safe/PointHazards").extras["costs"]
    assert costs.tolist() == [0, 1, 1, 0, 1, 1]
