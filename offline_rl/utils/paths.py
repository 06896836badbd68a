"""Where the configs lie: package data in a wheel, beside the packages in a clone."""

from pathlib import Path

from offline_rl.utils.errors import UserError
from offline_rl.utils.options import unknown

PACKAGE = Path(__file__).parents[1]  # offline_rl


def share(name: str) -> Path:
    """Return a folder of data files: inside an installed wheel, else in the clone."""
    packed = PACKAGE / "_share" / name
    return packed if packed.is_dir() else PACKAGE.parent / name


def group(name: str) -> dict[str, Path]:
    """The files of configs/<name>, by what they are called there."""
    return {path.stem: path for path in sorted((share("configs") / name).glob("*.yaml"))}


def config(of: str, name: str) -> Path:
    """The file of configs/<of> that is called so, or one of the user's. Raises UserError."""
    path = Path(name).expanduser()
    if path.suffix not in (".yaml", ".yml"):
        files = group(of)
        if name not in files:
            raise UserError(unknown(of, name, files))
        return files[name]
    if not path.is_file():
        raise UserError(f"{of}={name}: there is no such file")
    return path
