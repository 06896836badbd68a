"""Where the configs lie: package data in a wheel, beside the packages in a clone."""

from pathlib import Path

PACKAGE = Path(__file__).parents[1]  # offline_rl


def share(name: str) -> Path:
    """The folder `configs`."""
    packed = PACKAGE / "_share" / name
    return packed if packed.is_dir() else PACKAGE.parent / name
