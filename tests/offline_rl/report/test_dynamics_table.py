"""Table of dynamics models, from run folders that are written by hand."""

from pathlib import Path
from typing import Any

import pytest
from made_runs import seed_folder
from printed import report

from offline_rl.reporting import compact
from offline_rl.reporting.runs import collect
from offline_rl.utils.errors import UserError


def fit(error: float, **other: Any) -> dict[str, Any]:
    """Return an entry `dynamics`: an output of variance 4, and a reward of variance 0.5."""
    values: dict[str, Any] = {"holdout_error": {"speed": error, "reward": 0.5}}
    values |= {"variance": {"speed": 4.0, "reward": 0.5}, "elites": [2, 0], "epochs": 7}
    return values | {"training_rows": 900, "holdout_rows": 100, "seconds": 30.0} | other


def rows(text: str, label: str) -> list[list[str]]:
    """Return the cells of the rows of the table of dynamics models that begin with `label`."""
    below = text.partition("Dynamics models")[2].splitlines()
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in below]
    return [row for row in cells if row and row[0] == label]


def test_each_output_has_its_error_its_variance_and_their_ratio(tmp_path: Path) -> None:
    seed_folder(tmp_path, 0, {4000: 1.0}, algorithm="mopo", dynamics=fit(1.0))
    seed_folder(tmp_path, 0, {4000: 1.0}, algorithm="bc")
    text = report([tmp_path])
    assert rows(text, "mopo") == [
        ["mopo", "speed", "1", "4", "0.25"],
        ["mopo", "reward", "0.5", "0.5", "1"],
    ]
    assert rows(text, "bc") == []
    note = "mopo: epochs 7, training rows 900, holdout rows 100, elites [2, 0], fitted in 30 s."
    assert note in text
    page = (tmp_path / "report.md").read_text()
    assert "### Dynamics models" in page
    assert "no better than a constant" in page


def test_several_seeds_show_the_mean_and_the_range(tmp_path: Path) -> None:
    for seed, error in enumerate((1.0, 2.0, 6.0)):
        seed_folder(tmp_path, seed, {4000: 1.0}, algorithm="mopo", dynamics=fit(error))
    speed, reward = rows(report([tmp_path]), "mopo")
    assert speed == ["mopo", "speed", "3 (1–6)", "4", "0.75 (0.25–1.5)"]
    assert reward == ["mopo", "reward", "0.5", "0.5", "1"]


def test_the_terminal_shows_the_outputs_with_the_highest_ratios_and_the_page_all(
    tmp_path: Path,
) -> None:
    names = [f"s{k}" for k in range(14)]
    errors = {name: float(k) for k, name in enumerate(names)}
    entry = fit(1.0, holdout_error=errors, variance=dict.fromkeys(names, 1.0))
    seed_folder(tmp_path, 0, {4000: 1.0}, algorithm="mopo", dynamics=entry)
    text = report([tmp_path])
    assert [row[1] for row in rows(text, "mopo")] == names[2:]
    assert "2 outputs with lower ratios: see report.md." in text
    assert (tmp_path / "report.md").read_text().count("| mopo      | s") == 14


def test_equations_of_a_model_are_listed(tmp_path: Path) -> None:
    entry = fit(1.0, equations=["speed' = speed + 0.1 a", "reward = -speed^2"])
    seed_folder(tmp_path, 0, {4000: 1.0}, algorithm="mopo", dynamics=entry)
    assert "mopo seed 0: speed' = speed + 0.1 a\nmopo seed 0: reward = " in report([tmp_path])
    assert "```\nmopo seed 0: speed' =" in (tmp_path / "report.md").read_text()


def test_a_run_that_only_fits_a_model_is_not_called_unfinished(tmp_path: Path) -> None:
    hyper = {"tau": 0.005, "discount": 0.99}
    keys: dict[str, Any] = {"config": {"num_updates": 0, "hyper": hyper}, "num_updates": 0}
    seed_folder(tmp_path, 0, {}, algorithm="mopo", dynamics=fit(1.0), **keys)
    assert "unfinished" not in report([tmp_path])


def test_compact_files_keep_the_fit_and_the_checksum_of_each_seeds_model(tmp_path: Path) -> None:
    for seed in (0, 1):
        config = {"dynamics_sha256": {str(seed): f"m{seed}"}, "dynamics": "/far/away/model"}
        entry = fit(1.0 + seed, equations=["x, y"])
        seed_folder(
            tmp_path / "runs", seed, {4000: 1.0}, algorithm="mopo", config=config, dynamics=entry
        )
    assert compact.pack([tmp_path / "runs"], tmp_path / "study") == 2
    (before,), (after,) = (collect([tmp_path / name]).values() for name in ("runs", "study"))
    assert [seed.dynamics for seed in after] == [seed.dynamics for seed in before]
    assert [seed.config[f"dynamics_sha256.{k}"] for k, seed in enumerate(after)] == ["m0", "m1"]
    assert [seed.config["dynamics"] for seed in after] == ["model", "model"]


@pytest.mark.parametrize("wrong", [{"variance": {}}, {"epochs": "many"}, {"holdout_error": 3}])
def test_a_damaged_fit_is_named(tmp_path: Path, wrong: dict[str, Any]) -> None:
    seed_folder(tmp_path, 0, {4000: 1.0}, algorithm="mopo", dynamics=fit(1.0, **wrong))
    with pytest.raises(UserError, match=r"result\.json"):
        report([tmp_path])
