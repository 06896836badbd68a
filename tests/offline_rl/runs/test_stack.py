"""Runs of several jobs: one folder for each, stacked in as few programs as possible."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_data import save_small

from offline_rl.data import Dataset
from offline_rl.runs.folder import Done
from offline_rl.runs.run import runs_of, stack
from offline_rl.runs.start import Start
from offline_rl.training.train import launch, runs_of_jobs
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_json

IQL = {"algorithm": "iql", "task": "none"}


def swept(**values: list[Any]) -> list[dict[str, Any]]:
    """Return the product of values in Hydra's order."""
    product: list[dict[str, Any]] = [dict(IQL)]
    for key, choices in values.items():
        product = [{**job, key.replace("__", "."): choice} for job in product for choice in choices]
    return product


def stacks(jobs: list[dict[str, Any]]) -> list[list[tuple[str, int]]]:
    """Return the names and seeds of the runs in each program."""
    return [[(run.name, run.seed) for run in group] for group in stack(runs_of_jobs(jobs))]


def test_the_seeds_of_one_job_are_one_program() -> None:
    assert stacks([{**IQL, "seeds": 3}]) == [[("default", 0), ("default", 1), ("default", 2)]]


def test_seeds_and_numbers_become_one_program() -> None:
    names = [f"default-beta_{beta}" for beta in (1.0, 3.0, 10.0)]
    expected = [[(name, seed) for name in names for seed in range(3)]]
    assert stacks(swept(algorithm__beta=[1, 3, 10], seeds=[[0], [1], [2]])) == expected
    assert stacks([{**IQL, "algorithm.beta": [1, 3, 10], "seeds": 3}]) == expected


def test_options_that_cannot_be_stacked_make_separate_runs_named_after_them() -> None:
    jobs = swept(algorithm__hidden=[[8], [16, 16]], seeds=[[0], [1]], batch_size=[32, 64])
    assert {tuple(group) for group in stacks(jobs)} == {
        tuple((f"default-batch_size_{size}-hidden_{hidden}", seed) for seed in (0, 1))
        for size in (32, 64)
        for hidden in ("8", "16-16")
    }


def test_runs_with_different_folders_keep_their_name() -> None:
    jobs = [{**IQL, "algorithm": name, "seeds": [s]} for name in ("iql", "cql") for s in (0, 1)]
    assert stacks(jobs) == [[("default", 0), ("default", 1)]] * 2


def test_runs_that_are_no_complete_product_are_stacked_too() -> None:
    jobs = [*swept(algorithm__beta=[1], seeds=[[0], [1]]), {**IQL, "algorithm.beta": 3}]
    names = [("default-beta_1.0", 0), ("default-beta_1.0", 1), ("default-beta_3.0", 0)]
    assert stacks(jobs) == [names]


def test_numbers_that_define_data_or_networks_are_not_stacked() -> None:
    assert stacks(swept(algorithm__dropout=[0.0, 0.1])) == [
        [("default-dropout_0.0", 0)],
        [("default-dropout_0.1", 0)],
    ]
    assert len(stacks(swept(algorithm__reward_scale=[1.0, 2.0]))) == 2
    returns = {"algorithm": "cal_ql"}  # its data contain returns with this discount
    jobs = [{**IQL, **returns, "algorithm.discount": value} for value in (0.9, 0.99)]
    assert len(stacks(jobs)) == 2


def test_values_of_online_training_alone_are_not_stacked() -> None:
    online = {"algorithm": "iql", "task": "gym/pointmaze-umaze-200k", "num_env_steps": 1000}
    jobs = [{**online, "online.actor_lr": rate} for rate in (1e-4, 1e-3)]
    names = [f"default-online.actor_lr_{rate}" for rate in (1e-4, 1e-3)]
    assert stacks([*jobs, online]) == [[(names[0], 0)], [(names[1], 0)], [("default", 0)]]
    assert stacks([online, *jobs]) == [[("default", 0)], [(names[0], 0)], [(names[1], 0)]]
    assert len(stacks([{**jobs[0], "algorithm.actor_lr": rate} for rate in (0.1, 0.2)])) == 1
    inherited = [{**online, "algorithm.actor_lr": 1e-3}, {**jobs[1], "algorithm.actor_lr": 1e-2}]
    assert len(stacks(inherited)) == 2


def test_datasets_in_memory_are_not_mixed_up() -> None:
    zeros, flags = np.zeros((4, 1), np.float32), np.zeros(4, bool)
    data = [Dataset.from_arrays(zeros, zeros, flags + k, flags) for k in (0.0, 1.0)]
    one, two = ({**IQL, "dataset": each} for each in data)
    assert len(stacks([{**one, "name": "one"}, {**two, "name": "two"}])) == 2
    assert len(stacks([one, one])) == 1
    with pytest.raises(UserError, match="two jobs would write"):
        runs_of_jobs([one, two])


@pytest.mark.parametrize(
    ("key", "one", "two"),
    [
        ("dataset", "a.npz", "b.npz"),
        ("episodes", 1, 2),
        ("num_updates", 4, 8),
        ("num_env_steps", 400, 800),
        ("eval_every", 5, 6),
        ("checkpoint_every", 5, 6),
        ("device", "cpu", "auto"),
        ("compile", "never", "auto"),
        ("out", "runs", "others"),
        ("tracker", "none", "tensorboard"),
        ("utd", 1, 2),
        ("online.warmup_steps", 0, 10),
        ("online.policy_delay", 1, 2),
    ],
)
def test_runs_with_another_value_of_an_option_do_not_share_a_program(
    key: str, one: Any, two: Any
) -> None:
    """A program has one data set, budget, device, and so on: those of its first run."""
    common = {"algorithm": "td3", "task": "env:Pendulum-v1", "dataset": "a.npz"}
    common |= {"num_updates": 4, "num_env_steps": 400}
    jobs = [{**common, key: value, "seeds": [seed]} for value in (one, two) for seed in (0, 1)]
    runs = [run for job in jobs for run in runs_of(job)]
    assert [[run.seed for run in group] for group in stack(runs)] == [[0, 1], [0, 1]]


def test_runs_that_start_from_different_runs_do_not_share_a_program() -> None:
    """A program loads the transform of one earlier run."""
    run = runs_of(IQL)[0]
    starts = [
        Start(Path(name), "none", "iql", 4, {}, {0: (Done(updates=4), name)}) for name in "ab"
    ]
    assert len(stack([replace(run, start=start) for start in starts])) == 2


def test_duplicate_jobs_run_once() -> None:
    assert stacks([IQL, IQL, {**IQL, "seeds": 2}]) == [[("default", 0), ("default", 1)]]


def test_two_jobs_for_one_folder_are_refused() -> None:
    """The name of the first job's stacked value equals the name of the second job."""
    first = {**IQL, "algorithm.beta": [1.0, 3.0]}
    with pytest.raises(UserError, match=r"two jobs would write .*default-beta_3\.0"):
        runs_of_jobs([first, {**IQL, "name": "default-beta_3.0"}])


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


def test_the_data_of_a_sweep_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from offline_rl.training import prepare

    data, reads = save_small(tmp_path / "small.npz"), []
    load = prepare.load
    monkeypatch.setattr(prepare, "load", lambda *a, **k: reads.append(a[0]) or load(*a, **k))
    common = {"task": "none", "dataset": str(data), "num_updates": 2, "tracker": "none"}
    common |= {"compile": "never", "algorithm": "bc", "out": str(tmp_path / "runs")}
    launch([common | {"algorithm.hidden": [size]} for size in (8, 12)], show=False)
    assert reads == [str(data)]
