"""Reports of runs whose folders are written by hand, in the layout of `train`."""

import json
from pathlib import Path
from typing import Any

import pytest
from made_runs import seed_folder
from printed import report

from offline_rl.utils.errors import UserError
from offline_rl.utils.text import format_duration, format_mean_std, format_range, table


def cells(text: str, start: str) -> list[str]:
    """Return the cells of the row that begins with `start`."""
    line = next(line for line in text.splitlines() if line.startswith(start))
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_the_mean_and_standard_deviation_over_seeds_match_a_calculation_by_hand(
    tmp_path: Path,
) -> None:
    """Scores 40, 50, 60: mean 50, std sqrt(200 / 3) = 8.165. A return is 100 + 2 * score."""
    for seed, score in enumerate((40.0, 50.0, 60.0)):
        seed_folder(tmp_path, seed, {0: 1.0, 4000: score}, seeds_stacked=3)
    text = report([tmp_path])
    row = cells(text, "bc")
    assert row[:3] == ["bc", "50.0 ± 8.2", "200.0 ± 16.3"]
    assert row[3:5] == ["0.5", "50.0 ± 8.2"]  # returns 2 apart: sqrt(2) / sqrt(2) = 1, score 0.5
    assert row[5:] == ["2 × 3 seeds", "4,000", "60 s", "150 × 3"]
    assert cells(text, "behavior policy") == ["behavior policy", "15.0", "130.0"]
    assert "Score 0 is a return of 100, and score 100 is a return of 300 (a paper)." in text
    assert "Environment: a stand-in." in text
    assert "line.npz" in text
    assert "cpu (2 cores), fp32, compiled" in text


def test_preliminary_updates_are_not_counted_and_online_updates_are(tmp_path: Path) -> None:
    seed_folder(tmp_path, 0, {0: 1.0}, num_updates=4000, pretrain_updates=1000)
    assert "4,000" in cells(report([tmp_path]), "bc")
    online = {"config": {"num_updates": 0}, "num_updates": 0, "online_updates": 700}
    online["num_env_steps"] = 800
    seed_folder(tmp_path / "sac", 0, {0: 1.0}, name="online", **online)
    assert cells(report([tmp_path / "sac"]), "bc (online)")[5:7] == ["700", "800"]


def test_the_last_evaluation_counts_and_not_the_best(tmp_path: Path) -> None:
    seed_folder(tmp_path, 0, {0: 1.0, 2000: 99.0, 4000: 30.0})
    assert cells(report([tmp_path]), "bc")[1] == "30.0"


def test_wall_time_is_that_of_all_seeds_and_a_stacked_group_counts_once(tmp_path: Path) -> None:
    """Two seeds train together for 60 s, then a third one for 30 s."""
    seed_folder(tmp_path, 0, {0: 1.0}), seed_folder(tmp_path, 1, {0: 1.0})
    seed_folder(tmp_path, 2, {0: 1.0}, seeds_stacked=1, seconds=30.0, updates_per_second=300.0)
    assert cells(report([tmp_path]), "bc")[-2:] == ["90 s", "200 × 1–2"]


def test_a_report_writes_its_figure_and_page_and_prints_their_paths_last(tmp_path: Path) -> None:
    folder = seed_folder(tmp_path, 0, {0: 1.0, 4000: 50.0}).path.parent
    text = report(folder)
    assert text.splitlines()[-2:] == [str(folder / "curves.png"), str(folder / "report.md")]
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "report.md").read_text()
    assert "| bc              |  50.0 |  200.0 |   0.5 |      50.0 | 2 × 1 seed |" in page
    assert "![Learning curves](curves.png)" in page
    assert sorted(f.name for f in folder.iterdir()) == ["curves.png", "report.md", "seed_0"]
    before = (folder / "curves.png").read_bytes()
    assert report(folder) == text
    assert (folder / "curves.png").read_bytes() == before


def test_every_task_has_a_table_with_the_best_algorithm_first(tmp_path: Path) -> None:
    for task, best in (("toy/line", "iql"), ("another", "bc")):
        for algorithm in ("bc", "iql"):
            score = 60.0 if algorithm == best else 50.0
            seed_folder(tmp_path / "a" / "b", 0, {0: score}, task=task, algorithm=algorithm)
    seed_folder(tmp_path / "c", 0, {0: 70.0}, task="another", algorithm="bc", name="wide")
    starts = ("another:", "toy/line:", "bc", "iql", "behavior policy")
    lines = [line.split("  ")[0] for line in report([tmp_path]).splitlines()]
    assert [line for line in lines if line.strip().startswith(starts)] == [
        *("another: normalized score", "bc (wide)", "bc", "iql", "behavior policy"),
        *("toy/line: normalized score", "iql", "bc", "behavior policy"),
    ]


def test_running_and_diverged_seeds_are_named(tmp_path: Path) -> None:
    seed_folder(tmp_path, 0, {0: 1.0, 4000: 50.0})
    seed_folder(tmp_path, 1, {0: 1.0, 2000: 20.0}, finished=False)
    seed_folder(tmp_path, 2, {0: 1.0, 4000: 10.0}, diverged_at=3000)
    seed_folder(tmp_path, 0, {}, finished=False, algorithm="iql")
    text = report([tmp_path])
    assert cells(text, "bc")[1] == "30.0 ± 20.0"  # of 50 and 10
    assert "Interrupted: bc seed 1, score 20.0 after 2,000 updates." in text
    assert "Diverged: bc seed 2, before update 3,000. It is included in the mean." in text
    assert cells(text, "iql") == ["iql", "interrupted"]
    assert "Interrupted: iql seed 0, not evaluated yet." in text


def test_a_task_without_references_reports_returns_and_success_and_says_so(tmp_path: Path) -> None:
    """One seed succeeds in every episode, the other in half of them: 3 of 4, Wilson's 30-95 %."""
    seed_folder(tmp_path, 0, {4000: 50.0}, scored=False, success=[True, True])
    seed_folder(tmp_path, 1, {4000: 60.0}, scored=False, success=[True, False])
    text = report([tmp_path])
    assert text.startswith("toy/line: raw return (the task has no score references)\n")
    header = ["return", "error", "last five", "success %", "episodes"]
    assert cells(text, "algorithm")[1:6] == header
    assert cells(text, "bc")[1] == "210.0 ± 10.0"
    assert cells(text, "bc")[4] == "75 [30, 95]"
    assert "Score 0" not in text


def test_a_critic_that_has_not_converged_marks_its_run_unfinished(tmp_path: Path) -> None:
    """Each target update covers 0.25 of the distance: 1 - 0.75^5 = 76 %, 1 - 0.75^10 = 94 %."""
    for name, delay, updates in (("slow", 2, 10), ("quick", 1, 10)):
        hyper = {"tau": 0.5, "discount": 0.5, "policy_delay": delay}
        config = {"num_updates": updates, "hyper": hyper}
        seed_folder(tmp_path, 0, {updates: 50.0}, name=name, config=config, num_updates=updates)
    text = report([tmp_path])
    assert cells(text, "bc (slow)")[7] == "76 %, unfinished"
    assert cells(text, "bc (quick)")[7] == "94 %"
    assert "A run below 90 % is marked unfinished" in (tmp_path / "report.md").read_text()


def test_training_without_an_environment_has_a_table_and_no_figure(tmp_path: Path) -> None:
    seed_folder(tmp_path, 0, {}, task="none", scored=False)
    assert report([tmp_path]).startswith("none: not evaluated\n")
    assert not (tmp_path / "curves.png").exists()


def test_an_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    folder = seed_folder(tmp_path, 0, {0: 1.0, 2000: 20.0}, finished=False)
    with (folder.path / "evaluations.jsonl").open("a") as file:
        file.write('{"updates": 4000, "eval/sc')
    assert "score 20.0 after 2,000 updates" in report([tmp_path])


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", "{"),
        ("config.json", "[]"),
        ("config.json", '{"task": "toy/line"}'),
        ("result.json", ""),
        ("result.json", '{"score": 1.0}'),
        ("environment.json", "{]"),
        ("evaluations.jsonl", '{"updates": 0}\n{"upda\n{"updates": 2}\n'),
        ("evaluations.jsonl", '{"eval/score": 1.0}\n'),
        ("evaluations.jsonl", "[1, 2]\n"),
        ("evaluations.jsonl", "\udcff"),
    ],
)
def test_a_damaged_file_is_one_sentence_that_names_it(
    tmp_path: Path, file: str, content: str
) -> None:
    folder = seed_folder(tmp_path, 0, {0: 1.0})
    (folder.path / file).write_text(content, errors="surrogateescape")
    with pytest.raises(UserError, match=file) as error:
        report([tmp_path])
    assert "\n" not in str(error.value)
    assert not (tmp_path / "report.md").exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("score", "high"),
        ("returns", 3),
        ("seeds_stacked", None),
        ("score_reference", {"min": 1.0}),
        ("score_reference", [1.0]),
    ],
)
def test_a_result_of_the_wrong_type_is_named(tmp_path: Path, key: str, value: Any) -> None:
    seed_folder(tmp_path, 0, {0: 1.0}, **{key: value})
    with pytest.raises(UserError, match=r"seed_0/result\.json"):
        report([tmp_path])


def test_folders_without_runs_and_unknown_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="contains no run"):
        report([tmp_path])
    with pytest.raises(UserError, match="contains no run"):
        report([tmp_path / "nowhere"])
    with pytest.raises(UserError, match="Give a run's folder"):
        report([])
    with pytest.raises(UserError, match="did you mean out"):
        report([tmp_path], ouut="x")


def test_a_seed_that_is_given_twice_is_read_once_and_two_seeds_of_one_name_are_refused(
    tmp_path: Path,
) -> None:
    folder = seed_folder(tmp_path / "here", 0, {0: 50.0})
    assert "2 × 1 seed " in report([tmp_path / "here", folder.path], out=str(tmp_path / "r"))
    seed_folder(tmp_path / "there", 0, {0: 60.0})
    with pytest.raises(UserError, match="both seed 0 of bc on toy/line"):
        report([tmp_path])


def test_seeds_with_different_settings_are_not_averaged(tmp_path: Path) -> None:
    seed_folder(tmp_path / "here", 0, {0: 50.0})
    seed_folder(tmp_path / "there", 1, {0: 60.0}, config={"dataset": "elsewhere/line.npz"})
    report([tmp_path])  # the same data at another place
    seed_folder(tmp_path / "there", 2, {0: 60.0}, config={"hyper": {"beta": 10.0}})
    with pytest.raises(UserError, match=r"differ in hyper\.beta "):
        report([tmp_path])


def test_other_json_files_in_a_run_folder_are_not_read(tmp_path: Path) -> None:
    folder = seed_folder(tmp_path, 0, {0: 50.0})
    (folder.path / "metrics.jsonl").write_text("damaged")
    (folder.path / "checkpoints").mkdir()
    (folder.path / "checkpoints" / "config.json").write_text(json.dumps({"other": 1}))
    assert cells(report([tmp_path]), "bc")[1] == "50.0"


def test_numbers_have_sensible_digits() -> None:
    assert format_mean_std([]) == ""
    assert format_mean_std([None, 2.0]) == "2.0"
    assert format_mean_std([1.0, 3.0]) == "2.0 ± 1.0"
    assert format_mean_std([0.25]) == "0.250"
    assert format_mean_std([-2999.6, -3000.4]) == "-3,000 ± 0"
    assert format_range([3, 1, 2]) == "1–3"
    assert format_range([1000, 1000]) == "1,000"
    assert [format_duration(s) for s in (61.2, 600, 9000)] == ["61 s", "10 min", "2.5 h"]


def test_a_table_is_aligned_and_leaves_out_empty_columns() -> None:
    rows = [["long name", "1.0", ""], ["b", "10.0", ""]]
    assert table(["a", "score", "none"], rows) == (
        "a          score\n─────────  ─────\nlong name    1.0\nb           10.0"
    )
    assert table(["a", "b"], [["x", "y"]], markdown=True) == "| a | b |\n| - | : |\n| x | y |"


@pytest.mark.parametrize(
    ("multiplier", "penalty", "noted"),
    [(2300.0, 12.0, True), (2300.0, 4.0, False), (5.0, 12.0, False)],
)
def test_a_gap_that_cannot_be_reached_is_noted(
    multiplier: float, penalty: float, noted: bool, tmp_path: Path
) -> None:
    hyper = {"gap": 5.0, "weight": 10.0, "gap_after_weight": False}
    folder = seed_folder(tmp_path, 0, {4000: 50.0}, algorithm="cql", config={"hyper": hyper})
    last = {"updates": 4000, "env_steps": 0, "train/multiplier": multiplier}
    folder.append("metrics", last | {"train/penalty": penalty})
    text = " ".join(report([tmp_path]).split())
    assert ("Infeasible: cql seed 0. The multiplier has grown to 2,300" in text) == noted
