"""Where the configs lie: package data in a wheel, beside the packages in a clone."""

from pathlib import Path

PACKAGE = Path(__file__).parent


def share(name: str) -> Path:
    """The folder `configs` or `benchmarks/results`."""
    packed = PACKAGE / "_share" / name
    return packed if packed.is_dir() else PACKAGE.parent / name
