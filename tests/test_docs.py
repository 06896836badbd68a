"""Pages that are made are as their makers make them today, of runs that their suites describe."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from benchmarks import d3rlpy_scores, neorl2_simulators, pages, parity
from docs.generate import algorithms, datasets
from offline_rl.cli.completion import keys
from offline_rl.cli.compose import compose
from offline_rl.cli.launch import folder as folder_of
from offline_rl.cli.main import main, verbs
from offline_rl.reporting import compact
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


def test_pages_of_kept_numbers_are_those_of_their_scripts():
    """Without their runs: bf16 beside float32, d3rlpy beside ours, simulators beside data."""
    assert (parity.FOLDER / "README.md").read_text() == parity.page()
    found = json.loads(d3rlpy_scores.FILE.read_text())
    assert d3rlpy_scores.FILE.with_suffix(".md").read_text() == d3rlpy_scores.page(found)
    file = neorl2_simulators.RESULTS / "neorl2-simulators.json"
    kept = json.loads(file.read_text())
    made = neorl2_simulators.markdown(kept["results"], kept["versions"], kept["command"])
    assert file.with_suffix(".md").read_text() == made


def test_values_of_the_runs_beside_d3rlpy_had_not_formed():
    """1 - (1 - 0.005 * 0.01)^20000, of TD3+BC's delayed targets half as many."""
    page = d3rlpy_scores.page(json.loads(d3rlpy_scores.FILE.read_text()))
    assert page.count("| 63 %, unfinished |") == 2
    assert page.count("| 39 %, unfinished |") == 1


def commands() -> list[str]:
    """README's lines that begin with the command, as a shell would take them."""
    lines = re.findall(r"^offline-rl (.*)$", Path("README.md").read_text(), re.MULTILINE)
    return [line for line in lines if not set("|…<") & set(line)]


@pytest.mark.parametrize("line", commands())
def test_a_command_of_the_readme_is_one(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its keys are the verb's; of `train` the whole job is composed."""
    verb, *words = shlex.split(line, comments=True)
    assert len(words) >= 1
    if verb == "train":
        assert main([verb, *words, "--cfg", "job"]) == 0
    else:
        known = keys(verbs()[verb].load().options, words, "algorithm.")
        assert {word.partition("=")[0] for word in words if "=" in word} <= known.keys()


def test_the_demos_folder_is_the_one_that_the_readme_names() -> None:
    (job,) = compose(["experiment=demo"]).jobs
    assert f"`{folder_of(job)}`" in Path("README.md").read_text()


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
