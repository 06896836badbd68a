"""What every test of the robot's part shares: numbers near 0 are what they are."""

import sys

import pytest


@pytest.fixture(autouse=True)
def no_flush_to_zero() -> None:
    """An engine that an earlier test made has the processor take them for 0 from then on."""
    if torch := sys.modules.get("torch"):
        torch.set_flush_denormal(False)
