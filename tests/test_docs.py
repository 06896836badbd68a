"""Pages that are made are as their makers make them today, of runs that their suites describe."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import pages
from docs.generate import algorithms, datasets
from offline_rl.report import compact
from offline_rl.suite.plan import cells, read_suite
from offline_rl.training.options import TrainOptions

STUDIES = [folder.name for folder in pages.studies()]


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


@pytest.mark.parametrize("study", STUDIES)
def test_a_studys_page_is_that_of_its_kept_runs(study: str):
    folder = pages.RESULTS / study
    found = (folder / "README.md").read_text()
    assert found == pages.page(folder), f"run python -m benchmarks.pages {study}"


@pytest.mark.parametrize("study", STUDIES)
def test_kept_runs_are_those_of_the_suite_of_their_name(study: str):
    """Algorithm, task, name and lengths, so that the page's command makes these runs again."""
    wanted: dict[str, dict[str, Any]] = {}
    for cell in cells(read_suite(study), "runs"):
        own = {k: v for k, v in cell.keys.items() if "." not in k and k != "run"}
        options = TrainOptions(**own)
        wanted[f"{options.task}/{options.algorithm}/{options.name}"] = vars(options)
    for record in compact.read(pages.RESULTS / study):
        asked, given = wanted[record.run], record.config
        for key in ("num_updates", "pretrain_updates", "eval_every", "eval_episodes"):
            assert given[key] == asked[key], (record.run, key)
        seeds = asked["seeds"] if isinstance(asked["seeds"], list) else range(asked["seeds"])
        assert record.key[1] in seeds


@pytest.mark.parametrize("study", STUDIES)
def test_nothing_kept_names_a_place_on_one_machine(study: str):
    for record in compact.read(pages.RESULTS / study):
        named = [record.result["dataset"], *map(record.config.get, ("dataset", "expert_dataset"))]
        assert not any(Path(name).is_absolute() for name in named if name), record.run
