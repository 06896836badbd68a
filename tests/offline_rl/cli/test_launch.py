"""Merging of jobs into as few calls of `train` as possible, with one folder for each run."""

from pathlib import Path
from typing import Any

import pytest
from small_data import save_small

from offline_rl.cli.launch import launch, merge
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_json

IQL = {"algorithm": "iql", "task": "none"}


def swept(**values: list[Any]) -> list[dict[str, Any]]:
    """Return the product of values in Hydra's order."""
    product: list[dict[str, Any]] = [dict(IQL)]
    for key, choices in values.items():
        product = [{**job, key.replace("__", "."): choice} for job in product for choice in choices]
    return product


def test_one_job_stays_as_it_is() -> None:
    assert merge([{**IQL, "seeds": 3}]) == [{**IQL, "seeds": 3}]


def test_seeds_and_numbers_become_one_job() -> None:
    merged = merge(swept(algorithm__beta=[1, 3, 10], seeds=[[0], [1], [2]]))
    assert merged == [{**IQL, "name": "default", "algorithm.beta": [1, 3, 10], "seeds": [0, 1, 2]}]


def test_options_that_cannot_be_stacked_make_separate_runs_named_after_them() -> None:
    merged = merge(swept(algorithm__hidden=[[8], [16, 16]], seeds=[[0], [1]], batch_size=[32, 64]))
    assert [(job["name"], job["seeds"], job["batch_size"]) for job in merged] == [
        ("default-hidden_8-batch_size_32", [0, 1], 32),
        ("default-hidden_8-batch_size_64", [0, 1], 64),
        ("default-hidden_16-16-batch_size_32", [0, 1], 32),
        ("default-hidden_16-16-batch_size_64", [0, 1], 64),
    ]


def test_runs_with_different_folders_keep_their_name() -> None:
    jobs = [{**IQL, "algorithm": name, "seeds": [s]} for name in ("iql", "cql") for s in (0, 1)]
    assert merge(jobs) == [
        {**IQL, "algorithm": name, "name": "default", "seeds": [0, 1]} for name in ("iql", "cql")
    ]


def test_only_a_complete_product_is_stacked() -> None:
    """Beta 3 has seed 0 only. Stacked with beta 1, it would also train with seed 1."""
    jobs = [*swept(algorithm__beta=[1], seeds=[[0], [1]]), {**IQL, "algorithm.beta": 3}]
    assert [(job["algorithm.beta"], job["seeds"]) for job in merge(jobs)] == [
        ([1], [0, 1]),
        ([3], [0]),
    ]


def test_numbers_that_define_data_or_networks_are_not_stacked() -> None:
    assert [j["name"] for j in merge(swept(algorithm__dropout=[0.0, 0.1]))] == [
        "default-dropout_0.0",
        "default-dropout_0.1",
    ]
    assert len(merge(swept(algorithm__reward_scale=[1.0, 2.0]))) == 2


def test_duplicate_jobs_run_once() -> None:
    assert merge([IQL, IQL, {**IQL, "seeds": 2}]) == [{**IQL, "name": "default", "seeds": [0, 1]}]


def test_two_jobs_for_one_folder_are_refused() -> None:
    """The name of the first job's stacked value equals the name of the second job."""
    first = {**IQL, "algorithm.beta": [1.0, 3.0]}
    with pytest.raises(UserError, match=r"two jobs would write .*default-beta_3\.0"):
        merge([first, {**IQL, "name": "default-beta_3.0"}])


def test_jobs_are_trained_and_named_as_the_lists_are(tmp_path: Path) -> None:
    data = save_small(tmp_path / "small.npz")
    common = {"task": "none", "dataset": str(data), "num_updates": 4, "tracker": "none"}
    common |= {"compile": "never", "algorithm.hidden": [8], "out": str(tmp_path / "runs")}
    jobs = [
        {**common, "algorithm": "td3_bc", "algorithm.alpha": alpha, "seeds": [seed]}
        for alpha in (1, 2.5)
        for seed in (0, 1)
    ]
    jobs.append({**common, "algorithm": "bc"})
    paths = launch(jobs, show=False)
    runs = tmp_path / "runs" / "none_small"
    assert paths == [runs / "td3_bc", runs / "bc" / "default"]
    for alpha in (1.0, 2.5):
        for seed in (0, 1):
            here = runs / "td3_bc" / f"default-alpha_{alpha}" / f"seed_{seed}"
            assert read_json(here / "config.json")["hyper"]["alpha"] == alpha
            assert read_json(here / "result.json")["seeds_stacked"] == 4


def test_a_mistake_in_the_last_job_is_found_before_the_first_begins(tmp_path: Path) -> None:
    data = save_small(tmp_path / "small.npz")
    good = {"algorithm": "bc", "task": "none", "dataset": str(data), "out": str(tmp_path / "runs")}
    good |= {"num_updates": 4, "compile": "never"}
    with pytest.raises(UserError, match=r"none_small td3_bc default: unknown option '\w+\.alhpa'"):
        launch([good, {**good, "algorithm": "td3_bc", "algorithm.alhpa": 1}], show=False)
    assert not (tmp_path / "runs").exists()
