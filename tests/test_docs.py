"""Generated pages are up to date; links, options and file names on the other pages are right."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from benchmarks import d3rlpy_scores, neorl2_simulators, pages, parity
from docs.generate import algorithms, datasets
from offline_rl.cli.completion import option_types
from offline_rl.cli.compose import compose
from offline_rl.cli.main import main, verbs
from offline_rl.reporting import compact
from offline_rl.runs.options import TrainOptions
from offline_rl.runs.run import runs_of
from offline_rl.suite.plan import cells, read_suite

STUDIES = [folder.name for folder in pages.studies()]


PAGES = [Path(name) for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted(Path("docs").rglob("*.md"))
GENERATED = {Path("docs/algorithms.md"), Path("docs/datasets.md")}
OTHER_CODE = {Path("docs/algorithms.md"), Path("docs/explanation/differences.md")}  # name its files
WRITTEN = [page for page in PAGES if page.parts[0] == "docs" and page not in GENERATED]
MAX_README_LINES = 160
FIRST_LINES = 10  # of a page, which show a command or code


def without_code(text: str) -> str:
    """Return the text of a page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MkDocs build them."""
    headings = re.findall(r"^#+ (.*)$", without_code(text), re.MULTILINE)
    texts = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    plain = (re.sub(r"[^\w\- ]", "", text.lower()).strip() for text in texts)
    return {re.sub(r" +", "-", text) for text in plain}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    links = re.findall(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)", without_code(page.read_text()))
    for link in links:
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{page}: {link}"
        if anchor:
            assert anchor in anchors(target.read_text()), f"{page}: {link}"


@pytest.mark.parametrize("page", [page for page in PAGES if page not in OTHER_CODE], ids=str)
def test_source_files_that_a_page_names_exist(page: Path) -> None:
    """Paths in backticks are relative to the repository or to offline_rl."""
    names = re.findall(r"`([a-z_]+(?:/[a-z_]+)+\.(?:py|yaml|md))`", page.read_text())
    for root in (Path(), Path("offline_rl")):
        for name in names:
            if (root / name.partition("/")[0]).is_dir():
                assert (root / name).exists(), f"{page}: {name}"


@pytest.mark.parametrize("page", WRITTEN, ids=str)
def test_a_page_shows_a_command_or_code_within_its_first_lines(page: Path) -> None:
    lines = page.read_text().splitlines()[:FIRST_LINES]
    assert any(line.startswith("```") for line in lines), page


def test_the_readme_is_two_screens() -> None:
    assert len(Path("README.md").read_text().splitlines()) <= MAX_README_LINES


def test_the_options_page_names_every_option() -> None:
    text = Path("docs/reference/config.md").read_text()
    loaded = [verb.load() for name, verb in verbs().items() if name != "robot"]
    options = {name for verb in loaded for name in option_types(verb.options, [], "algorithm.")}
    assert len(options) > 50
    assert [name for name in sorted(options) if f"`{name}`" not in text] == []


def test_the_algorithms_page_is_generated_from_this_code_and_these_results():
    text = algorithms.page()
    assert Path("docs/algorithms.md").read_text() == text, "run python -m docs.generate.algorithms"


def test_the_readmes_table_lists_these_algorithms():
    text = Path("README.md").read_text()
    assert algorithms.readme(text) == text, "run python -m docs.generate.algorithms"


def test_the_datasets_page_is_generated_from_these_cards():
    assert Path("docs/datasets.md").read_text() == datasets.page(), (
        "run python -m docs.generate.datasets"
    )


def test_pages_of_kept_numbers_are_generated_by_their_scripts():
    """The runs themselves are not kept: bf16 and float32, d3rlpy, simulators and their data."""
    assert (parity.FOLDER / "README.md").read_text() == parity.page()
    scores = json.loads(d3rlpy_scores.FILE.read_text())
    assert d3rlpy_scores.FILE.with_suffix(".md").read_text() == d3rlpy_scores.page(scores)
    file = neorl2_simulators.RESULTS / "neorl2-simulators.json"
    kept = json.loads(file.read_text())
    text = neorl2_simulators.markdown(kept["results"], kept["versions"], kept["command"])
    assert file.with_suffix(".md").read_text() == text


def test_critics_of_the_comparison_with_d3rlpy_had_not_converged():
    """1 - (1 - 0.005 * 0.01)^20000; TD3+BC has half as many target updates (policy delay)."""
    page = d3rlpy_scores.page(json.loads(d3rlpy_scores.FILE.read_text()))
    assert page.count("| 63 %, unfinished |") == 2
    assert page.count("| 39 %, unfinished |") == 1


def commands() -> list[str]:
    """Return the command lines of README and docs that are complete, without `offline-rl`."""
    text = "\n".join(page.read_text() for page in PAGES).replace("\\\n", " ")
    lines = dict.fromkeys(re.findall(r"^offline-rl (.*)$", text, re.MULTILINE))
    unusual = r"[|…<]|^(data|report|robot|play) |--help|^train -m|\.py(:| )"
    return [line for line in lines if not re.search(unusual, line)]


@pytest.mark.parametrize("line", commands())
def test_a_command_has_options_that_exist(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The complete job of `train` is composed."""
    verb, *words = shlex.split(line, comments=True)
    assert len(words) >= 1
    if verb == "train":
        assert main([verb, *words, "--cfg", "job"]) == 0
    else:
        known = option_types(verbs()[verb].load().options, words, "algorithm.")
        if verb in ("finetune", "distill"):  # they also have the options of `train`
            known |= option_types(verbs()["train"].load().options, words, "algorithm.")
        assert {word.partition("=")[0] for word in words if "=" in word} <= known.keys()


def test_the_readme_names_the_demos_folder() -> None:
    (job,) = compose(["experiment=demo"]).jobs
    assert f"`{runs_of(job)[0].path}`" in Path("README.md").read_text()


@pytest.mark.parametrize("study", STUDIES)
def test_the_page_of_a_study_is_generated_from_its_kept_runs(study: str):
    folder = pages.RESULTS / study
    text = (folder / "README.md").read_text()
    assert text == pages.page(folder), f"run python -m benchmarks.pages {study}"


@pytest.mark.parametrize("study", STUDIES)
def test_kept_runs_match_the_suite_of_the_same_name(study: str):
    """Algorithm, task, name and lengths are equal, so the page's command makes these runs again."""
    wanted: dict[str, dict[str, Any]] = {}
    for cell in cells(read_suite(study), "runs"):
        given = {k: v for k, v in cell.keys.items() if "." not in k and k != "run"}
        if given.get("num_env_steps"):  # an online algorithm without updates before
            given.setdefault("num_updates", 0)
        options = TrainOptions(**given)
        wanted[f"{options.task}/{options.algorithm}/{options.name}"] = vars(options)
    for record in compact.read(pages.RESULTS / study):
        expected = wanted[record.run]
        for key in ("num_updates", "pretrain_updates", "eval_every", "eval_episodes"):
            assert record.config[key] == expected[key], (record.run, key)
        numbers = expected["seeds"]
        seeds = numbers if isinstance(numbers, list) else range(numbers)
        assert record.key[1] in seeds


@pytest.mark.parametrize("study", STUDIES)
def test_kept_runs_contain_no_absolute_path(study: str):
    for record in compact.read(pages.RESULTS / study):
        names = [record.result["dataset"], *map(record.config.get, ("dataset", "expert_dataset"))]
        assert not any(Path(name).is_absolute() for name in names if name), record.run
