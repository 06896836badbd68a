"""Comparison of two runs: roles of options, and the difference of configs."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from offline_rl.runs.folder import Done
from offline_rl.runs.options import TrainOptions, aliases, roles
from offline_rl.runs.run import difference, role_of, runs_of
from offline_rl.runs.start import Start
from offline_rl.utils.errors import UserError

KEYS: dict[str, Any] = {"algorithm": "iql", "task": "none", "dataset": "a.npz"}


def test_every_option_has_a_role_or_is_an_alias() -> None:
    names = {f.name for f in fields(TrainOptions)}
    assert roles().keys() | aliases().keys() == names
    assert not roles().keys() & aliases().keys()


def test_roles_state_which_options_make_another_run() -> None:
    """All other options make another run if their value changes."""
    by_role = {
        role: {k for k, v in roles().items() if v == role} for role in ("changeable", "local")
    }
    files = {"dataset", "expert_dataset", "base", "dynamics"}
    intervals = {"eval_every", "checkpoint_every"}
    assert by_role["changeable"] == files | intervals | {"eval_episodes", "eval_stl"}
    speed = {"device", "precision", "compile", "stream", "eval_envs"}
    speed |= {"actors", "env_timeout_s", "actor_address", "token_file"}
    assert by_role["local"] == speed | {
        "seeds",
        "data_dir",
        "out",
        "keep_data",
        "tracker",
        "stretch",
    }


def test_runs_from_different_runs_differ_but_their_location_does_not_matter() -> None:
    (run,) = runs_of(KEYS)
    starts = [
        Start(Path(name), "none", "iql", updates, {}, {0: (Done(updates=updates), checksum)})
        for name, updates, checksum in (("a", 4, "x"), ("b", 4, "x"), ("a", 8, "y"))
    ]
    one, moved, other = (replace(run, start=start).config() for start in starts)
    assert difference(one, moved) == {"start.run": ("a", "b")}
    assert role_of("start.run") == "changeable"
    for config in (other, run.config()):
        assert "identity" in {role_of(key) for key in difference(one, config)}


def test_local_options_are_not_stored_and_all_others_are() -> None:
    (run,) = runs_of(KEYS)
    stored = run.config().keys()
    assert {name for name, role in roles().items() if role != "local"} <= stored
    assert not {name for name, role in roles().items() if role == "local"} & stored


@pytest.mark.parametrize("key", ["data_dir", "device", "out", "tracker", "compile"])
def test_a_local_option_makes_no_other_run(key: str) -> None:
    (one,), (other,) = (
        runs_of(KEYS),
        runs_of(
            {**KEYS, key: {"tracker": "none", "compile": "never", "device": "cpu"}.get(key, "x")}
        ),
    )
    assert difference(one.config(), other.config()) == {}


def test_a_changeable_option_differs_but_not_in_identity() -> None:
    (one,), (other,) = runs_of(KEYS), runs_of({**KEYS, "eval_every": 7})
    assert difference(one.config(), other.config()) == {"eval_every": (10_000, 7)}
    assert one.identity() == other.identity()


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"algorithm.tau": 0.1}, "hyper.tau"),
        ({"batch_size": 32}, "hyper.batch_size"),
        ({"num_updates": 5}, "num_updates"),
        ({"subset": "train"}, "subset"),
    ],
)
def test_a_setting_of_another_value_is_another_run(change: dict[str, Any], key: str) -> None:
    (one,), (other,) = runs_of(KEYS), runs_of({**KEYS, **change})
    assert difference(one.config(), other.config()).keys() == {key}
    assert one.identity() != other.identity()


def test_the_checksum_of_the_data_counts_and_its_path_does_not() -> None:
    (run,) = runs_of(KEYS)
    moved = replace(run, data=replace(run.data, dataset="b.npz"), checksums={"data": "1"})
    run = replace(run, checksums={"data": "1"})
    assert run.identity() == moved.identity()
    assert run.identity() != replace(run, checksums={"data": "2"}).identity()


def test_missing_equals_null_and_false() -> None:
    assert difference({"a": None, "b": False}, {}) == {}
    assert difference({"a": 0}, {}) == {"a": (0, None)}


def test_an_online_value_equals_the_value_of_all_training_that_it_repeats() -> None:
    one, two = {"hyper": {"tau": 0.1}}, {"hyper": {"tau": 0.1}, "online": {"tau": 0.1}}
    assert difference(one, two) == {}
    assert difference(one, {**two, "online": {"tau": 0.2}}) == {"online.tau": (0.1, 0.2)}


def test_two_algorithm_files_are_compared_by_their_content() -> None:
    one, two = {"algorithm": "a.py", "code_sha256": "1"}, {"algorithm": "b.py", "code_sha256": "1"}
    assert difference(one, two) == {}
    assert difference(one, {**two, "code_sha256": "2"}).keys() == {"code_sha256"}


def test_keys_of_only_one_config_can_be_left_out() -> None:
    assert difference({"a": 1, "b": 2}, {"a": 1, "c": 3}, common=True) == {}
    filled = {"hyper": {"target": None}}
    assert difference({"hyper": {"target": 7.0}}, filled, common=True) == {}


def test_the_success_timing_is_stored_even_if_it_is_the_default() -> None:
    task = "ogbench/scene-play-singletask-task2-v0"
    keys: dict[str, Any] = {"algorithm": "iql", "task": task}
    (default,), (post,), (pre,) = (
        runs_of({**keys, **more})
        for more in ({}, {"success_timing": "post"}, {"success_timing": "pre"})
    )
    assert default.config()["success_timing"] == "post"
    assert default.identity() == post.identity()
    assert difference(post.config(), pre.config()) == {"success_timing": ("post", "pre")}
    (other,) = runs_of(KEYS)
    assert other.config()["success_timing"] is None


@pytest.mark.parametrize(
    ("task", "timing", "sentence"),
    [
        ("hopper-medium-v2", "pre", "success_timing=pre: hopper-medium-v2 is not a single task"),
        (
            "ogbench/scene-play-singletask-v0",
            "at",
            "success_timing='at': expected one of post, pre",
        ),
    ],
)
def test_a_success_timing_that_does_not_fit_is_refused(
    task: str, timing: str, sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        runs_of({"algorithm": "iql", "task": task, "success_timing": timing})
