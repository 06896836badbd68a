"""Working folder of the tests of suites."""

from pathlib import Path

import pytest
from small_data import save_small

from offline_rl.suite import queue


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a new working folder that contains a small data set."""
    monkeypatch.chdir(tmp_path)
    save_small(tmp_path / "small.npz")
    monkeypatch.setattr(queue, "NICENESS", 0)  # tests do not wait for other processes
    return tmp_path
