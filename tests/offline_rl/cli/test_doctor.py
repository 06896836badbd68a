"""`offline-rl doctor`: what it finds, what it names as missing, and its exit code."""

import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from offline_rl.cli import doctor as page
from offline_rl.cli import verbs
from offline_rl.data.load import card_file, known_cards
from offline_rl.utils import hardware
from offline_rl.utils.errors import UserError

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]


@pytest.fixture(autouse=True)
def few_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two mandatory packages, since importing all of them takes seconds."""
    requirements = page.requirements

    def mandatory(extra: str | None = None) -> dict[str, str]:
        return requirements(extra) if extra else {"numpy": ">=1.26", "torch": ">=2.8"}

    monkeypatch.setattr(page, "requirements", mandatory)


def row(text: str, part: str) -> str:
    """Return the line of a part, without its name and with single spaces."""
    (line,) = (line for line in text.splitlines() if line.startswith(f"{part}  "))
    return " ".join(line.removeprefix(part).split())


def test_every_extra_has_a_purpose() -> None:
    assert {*page.PURPOSES} == {*PROJECT["optional-dependencies"]} - {"dev"}


def test_requirements_are_those_of_the_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    lines = ["numpy>=1.26", "pytest<9.2,>=8; extra == 'dev'", 'av>=14 ; extra == "video"']
    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    assert page.requirements() == {"numpy": ">=1.26"}
    assert page.requirements("video") == {"av": ">=14"}


@pytest.mark.parametrize(
    ("installed", "fits"), [("2.10.0", True), ("2.9", True), ("2.9.0+cpu", True), ("2.8.9", False)]
)
def test_versions_are_compared_as_numbers(
    installed: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: installed)
    assert (page.problem("any", ">=2.9.0") == "") == fits


def test_a_complete_machine_has_a_table_and_no_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A data file that appears is counted. A GPU that torch cannot use is named."""
    monkeypatch.setattr(hardware, "num_cores", lambda: 7)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho NVIDIA Z9\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    verbs.doctor([f"data_dir={tmp_path}"])
    text = capsys.readouterr().out
    assert row(text, "packages") == "2 of 2"
    assert row(text, "cores") == "7"
    assert row(text, "compiler").startswith("no no C++ compiler (g++) is installed")
    import torch

    if torch.version.cuda is None:
        assert row(text, "GPU").startswith("NVIDIA Z9 this build of torch has no CUDA")
    cards = [c for c in known_cards().values() if c.suite == "neorl2" and c.variant_of is None]
    assert row(text, "data neorl2").startswith(f"0 of {len(cards)} {len(cards)} sets missing")
    file = tmp_path / card_file(cards[0], "train").path
    file.parent.mkdir(parents=True)
    file.touch()
    verbs.doctor([f"data_dir={tmp_path}"])
    assert row(capsys.readouterr().out, "data neorl2").startswith(f"1 of {len(cards)}")


def test_a_missing_extra_is_named_with_its_purpose_and_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def version(name: str) -> str:
        if name == "zarr":
            raise metadata.PackageNotFoundError(name)
        return "999"

    monkeypatch.setattr(metadata, "version", version)
    found = {finding.part: finding for finding in page.extras()}
    assert found["extra zarr"].found == "no"
    assert found["extra zarr"].note == "for Zarr stores: pip install 'zarr>=3'"
    assert found["extra video"].found == "yes"
    assert not any(finding.broken for finding in found.values())


def test_a_broken_mandatory_package_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match="a mandatory part is broken: torch: it cannot be imported"):
        verbs.doctor([])
    text = capsys.readouterr().out
    assert row(text, "packages") == "1 of 2"
    assert "pip install 'torch>=2.8'" in row(text, "torch")


@pytest.mark.parametrize("has", [True, False])
def test_memory_bf16_and_slurm_are_those_of_the_machine(
    has: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "free_memory", lambda device: 3e9)
    monkeypatch.setattr(hardware, "total_memory", lambda device: 8e9)
    monkeypatch.setattr(hardware, "has_bf16", lambda device: has)
    monkeypatch.setenv("PATH", str(tmp_path))
    if has:
        (tmp_path / "sbatch").write_text("#!/bin/sh\n")
        (tmp_path / "sbatch").chmod(0o755)
    found = {finding.part: finding for finding in page.machine(has_torch=True)}
    assert found["memory"].found == "3 of 8 GB free"
    assert found["bf16"].found == ("yes" if has else "no")
    assert ("trains in fp32" in found["bf16"].note) != has
    assert ("Slurm" in found) == has


def test_an_old_python_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page.sys, "version_info", (3, 10, 4, "final", 0))
    first = next(page.packages())
    assert (first.part, first.found, first.broken) == ("Python", "3.10.4", True)
    monkeypatch.setattr(page.sys, "version_info", (3, 11, 0, "final", 0))
    assert not next(page.packages()).broken
