"""Where the files that belong to the package lie, the same from a clone and from an install."""

from pathlib import Path


def share(name: str) -> Path:
    """The folder `name` of data files: inside an installed wheel, else beside the package."""
    package = Path(__file__).resolve().parent
    folders = [package / "_share" / name, package.parent / name]
    for folder in folders:
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"the data folder '{name}' is in neither of {list(map(str, folders))}.")
