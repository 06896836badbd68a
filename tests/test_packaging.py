"""Metadata, container files, the workflow, and imports on systems without Linux's modules."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from offline_rl.version import __version__

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MASKED = ("fcntl", "resource", "termios", "tty", "pwd")  # modules of some systems only
MISSING = ("sched_getaffinity", "sched_setaffinity", "sched_setscheduler", "SCHED_FIFO")
CODE = f"""
import os, sys
for name in {MASKED}: sys.modules[name] = None
for name in {MISSING}:
    if hasattr(os, name): delattr(os, name)
import offline_rl, policies, envs, real_robot
from offline_rl.cli.main import main
raise SystemExit(main(["--help"]))
"""


def test_packages_import_and_print_help_without_modules_of_linux() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "usage: offline-rl <verb>" in done.stdout


def test_the_citation_has_the_version_and_license_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    assert citation["license"] == PROJECT["license"]
    assert {"cff-version", "message", "title", "authors"} <= {*citation}


def test_classifiers_name_the_versions_of_python_that_the_workflow_tests() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    tested = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert tested == named
    assert PROJECT["requires-python"] == f">={tested[0]}"
    commands = [step.get("run", "") for step in workflow["jobs"]["test"]["steps"]]
    assert ".ci/run" in commands


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_a_container_copies_what_the_wheel_needs_and_installs_what_the_project_names(
    name: str,
) -> None:
    text = (ROOT / name).read_text()
    copied = {w for line in re.findall(r"^COPY (.+)", text, re.M) for w in line.split()[:-1]}
    assert all((ROOT / path).exists() for path in copied)
    hatch = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]
    wheel = hatch["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"], "pyproject.toml", "README.md", "LICENSE"}
    covered = {path for path in needed if any(Path(path).is_relative_to(c) for c in copied)}
    assert needed == covered
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"}
    assert copied == allowed
    for extra in re.findall(r"\[(\w+)\]", text):
        assert extra in PROJECT["optional-dependencies"]
    (pinned,) = re.findall(r"torch==\S+", text)
    assert pinned in (ROOT / "requirements.lock").read_text().split()
