"""Sets of scripted experts: reproducible, made by recipe and loaded by task."""

import json
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from envs.experts.walkers import Waypoints
from envs.suites.mazes import ENVS
from offline_rl.data import load
from offline_rl.generation import recipes, store
from offline_rl.generation.recipes import generate
from offline_rl.generation.scripted import make_scripted_sets
from offline_rl.utils.errors import UserError


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let recipes make sets of 3,000 rows."""
    load_recipe = recipes.load_recipe

    def load_short(name: str):
        return replace(load_recipe(name), rows=3000)

    monkeypatch.setattr(recipes, "load_recipe", load_short)


def test_waypoints_take_shortest_paths():
    controller = Waypoints(ENVS["PointMaze-umaze-v1"](1))
    assert controller.path((1, 1), (3, 1)) == [
        (1, 1),
        (1, 2),
        (1, 3),
        (2, 3),
        (3, 3),
        (3, 2),
        (3, 1),
    ]
    assert controller.path((1, 1), (1, 1)) == [(1, 1)]


def test_without_noise_every_goal_is_reached():
    env = ENVS["PointMaze-medium-v1"](4)
    controller, observations = Waypoints(env, noise=0.0, seed=1), env.reset(range(4))
    visited = [set() for _ in range(4)]  # cells of each environment
    for _ in range(600):
        observations = env.step(controller(observations, np.arange(4))).observations
        for cells, position in zip(visited, observations, strict=True):
            cells.add((round(position[0]), round(position[1])))
    assert min(map(len, visited)) >= 12


def test_a_set_may_have_images_and_fewer_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    load_recipe, name = recipes.load_recipe, "standard-pixels-expert"
    assert load_recipe("push").rows_of == {name: 10_000}
    few = {"rows_of": {name: 60}}
    monkeypatch.setattr(recipes, "load_recipe", lambda n: replace(load_recipe(n), **few))
    monkeypatch.setattr(store, "BATCH", 2)
    generate(recipe="push", out=str(tmp_path / "push"), qualities=[name], show=False)
    data = load(f"push/{name}", tmp_path)
    assert data.num_rows == 60
    assert data.observations["picture"].dtype == np.uint8
    assert data.observations["picture"].shape[1:] == (96, 96, 3)
    assert data.observations["state"].shape[1:] == (8,)
    ink = (data.observations["picture"] < 200).any(-1).mean((1, 2))  # arm, puck and goal
    assert ((ink > 0.01) & (ink < 0.3)).all()


@pytest.mark.parametrize(
    ("recipe", "name"), [("push", "standard-pixels-expert"), ("fetch", "reach-expert")]
)
def test_demonstrations_in_lerobots_layout_are_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, name: str
):
    pytest.importorskip("pyarrow", reason="LeRobot's tables need the extra lerobot")
    load_recipe = recipes.load_recipe
    few = {"rows": 60, "rows_of": {}}
    monkeypatch.setattr(recipes, "load_recipe", lambda n: replace(load_recipe(n), **few))
    monkeypatch.setattr(store, "BATCH", 2)
    keys = {"recipe": recipe, "out": str(tmp_path), "qualities": [name], "show": False}
    generate(**keys, format="lerobot")
    data = load(tmp_path / name)
    rows = data.num_rows
    assert rows >= 60
    assert rows - data.episode_lengths()[-1] < 60  # it ends with the episode that reaches 60
    assert data.spec.rate_hz == {"push": 20, "fetch": 25}[recipe]
    if recipe == "push":
        keys = ["observation.images.picture", "observation.state"]
        observations = load(tmp_path / name, observation_keys=keys).observations
        assert observations["picture"].shape == (rows, 96, 96, 3)
        np.testing.assert_array_equal(observations["state"], data.observations)


def test_a_script_completes_the_episode_that_reaches_the_requested_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(store, "BATCH", 2)
    names = ["standard-expert", "standard-pixels-expert"]
    out = tmp_path / "push"
    generate(recipe="push", out=str(out), qualities=names, rows=40)
    printed = capsys.readouterr().out
    for data in (load(f"push/{name}", tmp_path) for name in names):
        before, last = data.num_rows - data.episode_lengths()[-1], data.episode_lengths()[-1]
        assert before < 40 <= data.num_rows
        assert data.terminated[-1] or last == 150  # the task ended; not cut
        assert f"{data.num_rows} rows in {data.num_episodes} episodes" in printed
    first = int(load("push/standard-expert", tmp_path).episode_lengths()[0])
    again = {"recipe": "push", "out": str(tmp_path / "again"), "qualities": names[:1]}
    generate(**again, rows=first, show=False)
    assert load(tmp_path / "again" / "standard-expert.hdf5").num_rows == first
    with pytest.raises(UserError, match="rows= is only for demonstrations, but hopper trains"):
        generate(recipe="hopper", out=str(tmp_path), rows=40)


def test_lerobots_layout_is_only_for_demonstrations(tmp_path: Path):
    with pytest.raises(UserError, match="format=lerobot is only for demonstrations"):
        generate(recipe="hopper", out=str(tmp_path), format="lerobot")
    with pytest.raises(UserError, match="video=true needs format=lerobot"):
        generate(recipe="push", out=str(tmp_path), video=True)


def test_a_video_without_images_is_refused_and_the_sets_with_images_are_named(tmp_path: Path):
    keys = {"recipe": "push", "out": str(tmp_path / "sets"), "format": "lerobot", "video": True}
    remedy = r"in standard-expert. Use qualities=\[standard-pixels-expert\]"
    with pytest.raises(UserError, match=remedy):
        generate(**keys, qualities=["standard-expert"])
    assert not (tmp_path / "sets").exists()


def test_a_script_makes_sets_that_are_loaded_by_task(short, tmp_path: Path):
    folder = tmp_path / "push"
    wanted = ["standard-expert", "standard-medium"]
    assert generate(recipe="push", out=str(folder), qualities=wanted, show=False) == str(folder)
    assert sorted(p.name for p in folder.iterdir()) == [
        f"{name}.{kind}" for name in wanted for kind in ("hdf5", "json")
    ]
    expert, medium = (load(f"push/{name}", str(tmp_path)) for name in wanted)
    assert expert.num_rows == medium.num_rows == 3000
    assert expert.observations.shape[1] == 14
    means = [data.episode_returns().mean() for data in (expert, medium)]
    assert means[0] > means[1] + 0.2
    card = json.loads((folder / "standard-expert.json").read_text())
    first = (folder / "standard-expert.hdf5").read_bytes()
    assert card["return_mean"] == pytest.approx(means[0])
    generate(recipe="push", out=str(tmp_path / "again"), qualities=wanted[:1], show=False)
    assert (tmp_path / "again" / "standard-expert.hdf5").read_bytes() == first


def test_an_existing_set_is_kept_and_never_overwritten(
    short, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    keys = {"recipe": "push", "out": str(tmp_path), "qualities": ["standard-expert"]}
    generate(**keys, rows=40)
    path = tmp_path / "standard-expert.hdf5"
    first = path.stat()
    capsys.readouterr()
    generate(**keys, rows=40)
    assert capsys.readouterr().out.splitlines()[0] == f"{path} already exists"
    assert path.stat() == first
    with pytest.raises(UserError, match="exists and was generated with rows=40, now it is 60"):
        generate(**keys, rows=60)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match="exists and is damaged"):
        generate(**keys, rows=40)


def test_an_ant_learns_to_walk_and_its_cards_hold_the_learning_curve(tmp_path: Path, monkeypatch):
    load_recipe = recipes.load_recipe
    agent = {"task": "Ant-goal", "num_env_steps": 400, "utd": 0.05, "precision": "fp32"}
    agent |= {"compile": False, "eval_every": 400, "eval_episodes": 1}
    monkeypatch.setattr(
        recipes, "load_recipe", lambda name: replace(load_recipe(name), rows=1200, agent=agent)
    )
    monkeypatch.setattr(store, "BATCH", 2)  # parallel episodes
    name, folder = "antmaze-umaze-diverse", tmp_path / "gym"
    keys = {"out": str(folder), "runs": str(tmp_path / "runs"), "show": False}
    generate(recipe="antmaze", qualities=[name], **keys)
    files = {"antmaze.png", f"{name}.hdf5", f"{name}.json"}
    assert {p.name for p in folder.iterdir()} == files
    card = json.loads((folder / f"{name}.json").read_text())
    assert [point["env_steps"] for point in card["learning_curve"]] == [0, 400]
    data = load(f"gym/{name}", str(tmp_path))
    starts = data.observations[:1201:700, :2]
    assert abs(starts).max() > 2  # not all at the task's default start
    assert data.num_rows == 1200
    alone = replace(load_recipe("antmaze"), agent=None)
    with pytest.raises(UserError, match="uses a learned policy"):
        make_scripted_sets(alone, "antmaze", folder, [name], False)


def test_an_unknown_set_lists_similar_names():
    with pytest.raises(UserError, match="standard-expert"):
        generate(recipe="push", qualities=["standard-expart"])


def test_a_users_recipe_is_a_file(tmp_path: Path):
    recipe, folder = tmp_path / "mine.yaml", tmp_path / "sets"
    recipe.write_text("controller: waypoints\nsets: {pointmaze-umaze: 0.5}\nrows: 1000\nsuite: gym")
    generate(recipe=str(recipe), out=str(folder), show=False)
    data = load(str(folder / "pointmaze-umaze.hdf5"))
    assert 700 <= len(data.rewards) <= 1300  # complete episodes
    with pytest.raises(UserError, match=r"no\.yaml is not readable"):
        generate(recipe=str(tmp_path / "no.yaml"), show=False)


def test_task_selects_the_set_of_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store, "BATCH", 2)
    keys = {"recipe": "push", "rows": 20, "show": False}
    generate(**keys, task="push/short-medium", out=str(tmp_path / "sets"))
    assert {path.stem for path in (tmp_path / "sets").iterdir()} == {"short-medium"}
    refused = {
        "unknown task 'push/short'; did you mean push/short-": keys | {"task": "push/short"},
        "task= does not apply to recipe=hopper": {"recipe": "hopper", "task": "gym/hopper-medium"},
        "both select sets": keys | {"task": "push/short-medium", "qualities": ["short-medium"]},
    }
    for sentence, wrong in refused.items():
        with pytest.raises(UserError, match=sentence):
            generate(**wrong, out=str(tmp_path / "refused"))
    assert not (tmp_path / "refused").exists()


def test_hazards_make_a_set_in_dsrls_layout_with_costs_above_and_below_the_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(store, "BATCH", 5)
    keys = {"recipe": "hazards", "task": "safe/PointHazards", "rows": 2000, "show": False}
    generate(**keys, out=str(tmp_path / "safe"))
    with h5py.File(tmp_path / "safe" / "PointHazards.hdf5") as file:
        words = "observations next_observations actions rewards costs terminals timeouts"
        assert {*words.split()} == {*file} - {"metadata"}
        costs = file["costs"][:]
    data = load("safe/PointHazards", str(tmp_path))
    np.testing.assert_array_equal(data.extras["costs"], costs)
    inside = data.next_observations[:, -16:].max(1) > 1
    np.testing.assert_array_equal(costs, inside)
    totals = costs.reshape(5, 400).sum(1)
    assert totals[-1] == 0  # the last limit of a batch is 0
    assert totals.max() > 20  # the task's middle limit
    card = json.loads((tmp_path / "safe" / "PointHazards.json").read_text())
    assert card["cost_mean"] == pytest.approx(totals.mean())
    assert card["share_within"] == {f"{k}": np.mean(totals <= k) for k in (10, 20, 40)}
