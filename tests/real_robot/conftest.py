"""Fixture of all robot tests: denormal numbers are not flushed to 0."""

import sys

import pytest


@pytest.fixture(autouse=True)
def no_flush_to_zero() -> None:
    """Undo the flush-to-zero mode that an engine of an earlier test has set."""
    if torch := sys.modules.get("torch"):
        torch.set_flush_denormal(False)
