"""Settings of all tests: one torch thread, and the folder of real data."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tiny networks on many threads can be several times slower."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def no_terminal() -> None:
    """Give tables their full width, as in a pipe; pytest-xdist sets COLUMNS."""
    os.environ.pop("COLUMNS", None)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder that contains `neorl2/<Task>/*.npz`. Without it the test is skipped."""
    for folder in (os.environ.get("OFFLINE_RL_DATA"), ROOT.parent / "shared" / "data"):
        if folder and (Path(folder) / "neorl2").is_dir():
            return Path(folder)
    pytest.skip("no NeoRL-2 data: set OFFLINE_RL_DATA to a folder that holds neorl2/")


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Make Ctrl-C interrupt, even if the tests run in the background and ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
