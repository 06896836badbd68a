"""Pages that are made are as their makers make them today."""

from pathlib import Path

from benchmarks import algorithms, datasets


def test_the_algorithms_page_is_that_of_this_code_and_these_results():
    made = algorithms.page()
    assert Path("docs/algorithms.md").read_text() == made, "run python -m benchmarks.algorithms"


def test_the_datasets_page_is_that_of_these_cards():
    assert Path("docs/datasets.md").read_text() == datasets.page(), (
        "run python -m benchmarks.datasets"
    )
