"""Pages that are made are as their makers make them today, and so are the benchmarks' settings."""

from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import dual, locomotion, neorl2
from benchmarks.evidence import budget, kept
from docs.generate import algorithms, datasets
from offline_rl.algorithms.common.registry import algorithm_config


def test_the_algorithms_page_is_that_of_this_code_and_these_results():
    made = algorithms.page()
    assert Path("docs/algorithms.md").read_text() == made, "run python -m docs.generate.algorithms"


def test_the_readmes_table_is_that_of_these_algorithms():
    text = Path("README.md").read_text()
    assert algorithms.readme(text) == text, "run python -m docs.generate.algorithms"


def test_the_datasets_page_is_that_of_these_cards():
    assert Path("docs/datasets.md").read_text() == datasets.page(), (
        "run python -m docs.generate.datasets"
    )


@pytest.mark.parametrize("benchmark", [neorl2, locomotion, dual])
def test_a_results_page_is_that_of_the_runs_that_are_kept(benchmark: ModuleType):
    made = benchmark.page()
    found = (benchmark.RESULTS / "README.md").read_text()
    assert found == made, f"run python -m {benchmark.__name__} table"
    sets = {row["dataset"] for rows in kept(benchmark.RESULTS) for row in rows}
    assert [name for name in sets if Path(name).is_absolute()] == [], "a place on one machine"


@pytest.mark.parametrize("loss", dual.LOSSES)
def test_every_value_loss_of_the_dual_benchmark_is_one_that_its_algorithm_takes(loss: str):
    keys = {k.removeprefix("algorithm."): v for k, v in dual.LOSSES[loss].items() if "." in k}
    config, _ = algorithm_config(dual.LOSSES[loss]["algorithm"], dual.TASK, keys)
    assert all(getattr(config, key) == value for key, value in keys.items())


def test_the_neorl2_runs_are_as_long_as_its_command_makes_them():
    for rows in kept(neorl2.RESULTS):
        name, task = rows[0]["algorithm"], rows[0]["task"].removeprefix("neorl2/")
        keys = budget(name, neorl2.updates(name, task), f"neorl2/{task}")
        lengths = {keys["num_updates"], keys["num_updates"] + keys.get("pretrain_updates", 0)}
        assert {row["num_updates"] for row in rows} <= lengths, (name, task)
