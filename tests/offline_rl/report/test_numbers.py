"""Reports in numbers: rows, CSV and LaTeX, and published scores."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from made_runs import seed_folder

import offline_rl
from offline_rl.evaluation.saved import digest
from offline_rl.reporting.numbers import escaped
from offline_rl.reporting.published import rows_of
from offline_rl.utils.text import format_fitting_table
from policies import Normalizer, Spec, bundle
from policies.golden import seal


def test_the_least_needed_columns_of_a_table_are_hidden_until_it_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed_folder(tmp_path, 0, {0: 1.0, 4000: 50.0}, success=[True, True], costs=[1.0, 2.0])
    text = str(offline_rl.report(tmp_path))
    assert max(map(len, text.splitlines())) > 80
    monkeypatch.setenv("COLUMNS", "80")
    report = str(offline_rl.report(tmp_path))
    lines = report[: report.index("report.md explains")].splitlines()
    assert max(map(len, lines)) <= 80
    assert "Hidden to fit the terminal: updates/s, wall time" in report
    assert "success %" in report
    assert "updates/s" in (tmp_path / "report.md").read_text()


def test_no_more_columns_are_hidden_than_necessary() -> None:
    header, body = ["name", "a", "bb", "ccc"], [["x", "1", "", "333"]]
    order = ["bb", "a", "ccc"]
    assert (
        format_fitting_table(header, body, 13, order) == "name  a  ccc\n────  ─  ───\nx     1  333"
    )
    text = format_fitting_table(header, body, 11, order)
    assert text.startswith("name  ccc\n────  ───\nx     333\n")
    assert "Hidden to fit the terminal: a (see report.md)." in " ".join(text.split())


def test_long_names_are_shortened_if_hidden_columns_do_not_suffice() -> None:
    body = [["bc (a-long-name)", "1.0"], ["iql", "2.0"]]
    table = format_fitting_table(["algorithm", "score"], body, 17, [])
    assert table.splitlines()[2:] == ["bc (a…ame)    1.0", "iql           2.0"]


def test_the_page_and_not_the_terminal_defines_the_columns_that_are_shown(tmp_path: Path) -> None:
    seed_folder(tmp_path, 0, {0: 1.0, 4000: 50.0})
    assert "standard error" not in str(offline_rl.report(tmp_path))
    page = (tmp_path / "report.md").read_text()
    assert "- **error**: standard error" in page
    assert "success %" not in page
    assert "convergence" not in page


def test_rows_csv_and_latex_hold_the_same_numbers(tmp_path: Path) -> None:
    """Scores 40 and 60: mean 50, std 10. Returns 180 and 220."""
    for seed, score in enumerate((40.0, 60.0)):
        seed_folder(tmp_path, seed, {0: 1.0, 4000: score}, name="a_b")
    seed_folder(tmp_path, 0, {0: 1.0, 4000: 30.0}, algorithm="iql")
    report = offline_rl.report(tmp_path, format="csv")
    first, second, data = report.rows
    assert (first["algorithm"], first["score"], first["score_std"]) == ("bc (a_b)", 50.0, 10.0)
    assert (first["return"], first["return_std"], first["seeds"]) == (200.0, 20.0, 2)
    assert (second["algorithm"], data["algorithm"]) == ("iql", "behavior policy")
    assert (data["score"], data["data"]) == (15.0, "line.npz")
    rows = list(csv.DictReader(str(report).splitlines()))
    assert [row["score"] for row in rows] == ["50.0", "30.0", "15.0"]
    assert rows[0]["success"] == ""
    assert (tmp_path / "report.csv").read_text() == f"{report}\n"
    latex = str(offline_rl.report(tmp_path, format="latex"))
    assert r"task & behavior policy & bc (a\_b) & iql \\" in latex
    assert r"toy/line & $15.0$ & $\mathbf{50.0} \pm 10.0$ & $30.0$ \\" in latex


def test_the_best_of_a_latex_row_may_be_the_data(tmp_path: Path) -> None:
    seed_folder(tmp_path, 0, {0: 1.0, 4000: 10.0})
    seed_folder(tmp_path, 0, {0: 1.0, 4000: 10.0}, algorithm="iql")
    latex = str(offline_rl.report(tmp_path, format="latex"))
    assert r"toy/line & $\mathbf{15.0}$ & $10.0$ & $10.0$ \\" in latex


def test_latex_commands_in_a_name_are_escaped() -> None:
    assert escaped(r"a_b\c{50%}") == r"a\_b\textbackslash{}c\{50\%\}"


def test_published_scores_are_shown_for_runs_on_the_tasks_own_data(tmp_path: Path) -> None:
    (published,) = (
        row
        for row in rows_of("neorl2.csv")
        if (row["task"], row["algorithm"], row["metric"]) == ("DMSD", "bc", "normalized_score")
    )
    seed_folder(tmp_path / "own", 0, {0: 1.0, 4000: 50.0}, task="neorl2/DMSD")
    report = offline_rl.report(tmp_path / "own")
    assert report.rows[0]["published"] == float(published["value"])
    assert f"{float(published['value']):.1f} ± {float(published['std']):.1f}" in str(report)
    assert published["source"] in " ".join(str(report).split())
    other = {"config": {"dataset": "mine.hdf5"}}
    seed_folder(tmp_path / "other", 0, {0: 1.0, 4000: 50.0}, task="neorl2/DMSD", **other)
    assert "Published" not in str(offline_rl.report(tmp_path / "other"))


def test_published_scores_on_other_data_of_that_name_are_marked(tmp_path: Path) -> None:
    seed_folder(tmp_path, 0, {0: 1.0, 4000: 50.0}, task="gym/hopper-medium", algorithm="iql")
    text = " ".join(str(offline_rl.report(tmp_path)).split())
    assert "other data: D4RL's hopper-medium-v2" in text


def test_a_saved_evaluation_is_shown_only_while_the_bundle_holds_its_policy(tmp_path: Path) -> None:
    """Returns 120 and 160: mean 140, which is score 20 between 100 and 300."""
    folder = seed_folder(tmp_path, 0, {0: 1.0, 4000: 50.0})
    arguments = {"observations": 1, "actions": 1, "hidden": []}

    def write(bias: float) -> str:
        weights = {
            "trunk.weights.0": np.zeros((1, 1), np.float32),
            "trunk.biases.0": np.array([bias], np.float32),
        }
        normalizer = Normalizer.identity((1,))
        policy = bundle.Bundle(Spec((1,), 1), "DeterministicActor", arguments, weights, normalizer)
        bundle.write(folder.bundle, seal(policy))
        return digest(policy)

    reference = {"min": 100.0, "max": 300.0, "source": "a paper", "environment": "a stand-in"}
    saved = {"keys": {"task": "toy/line", "episodes": 2}, "score_reference": reference}
    saved |= {"policy_sha256": write(0.5), "version": "0", "commit": None, "success": None}
    saved |= {"returns": [120.0, 160.0], "lengths": [5, 5], "costs": None, "seeds": [1, 2]}
    (folder.path / "policy.evaluation.toy_line-2.json").write_text(json.dumps(saved))
    text = str(offline_rl.report(tmp_path))
    rows = text[text.index("Evaluated after training") :].splitlines()
    assert rows[4].split() == ["bc", "toy/line", "20.0", "140.0", "2", "×", "1", "seed"]
    write(0.25)
    assert "Evaluated after training" not in str(offline_rl.report(tmp_path))
