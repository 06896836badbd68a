"""Pages that are made are as their makers make them today."""

from pathlib import Path

from benchmarks import algorithms


def test_the_algorithms_page_is_that_of_this_code_and_these_results():
    made = algorithms.page()
    assert Path("docs/algorithms.md").read_text() == made, "run python -m benchmarks.algorithms"
