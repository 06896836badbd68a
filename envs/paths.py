"""Location of the package's data files, in a checkout and in an installed package."""

from pathlib import Path


def share(name: str) -> Path:
    """Return the data folder `name`: inside an installed wheel, or next to the package."""
    package = Path(__file__).resolve().parent
    folders = [package / "_share" / name, package.parent / name]
    for folder in folders:
        if folder.is_dir():
            return folder
    places = " or ".join(map(str, folders))
    raise FileNotFoundError(f"The data folder '{name}' does not exist: looked for {places}.")
