"""Paths of the config files: package data in a wheel, next to the packages in a clone."""

from pathlib import Path

from offline_rl.utils.errors import UserError
from offline_rl.utils.options import unknown

PACKAGE = Path(__file__).parents[1]  # offline_rl


def share(name: str) -> Path:
    """Return the path of a folder of data files: in the installed wheel, or else in the clone."""
    packed = PACKAGE / "_share" / name
    return packed if packed.is_dir() else PACKAGE.parent / name


def config_files(name: str) -> dict[str, Path]:
    """Return the YAML files in configs/<name>, {name without extension: path}."""
    return {path.stem: path for path in sorted((share("configs") / name).glob("*.yaml"))}


def config_file(of: str, name: str) -> Path:
    """Return the path of a config: a name in configs/<of>, or a YAML file. Raises UserError."""
    path = Path(name).expanduser()
    if path.suffix not in (".yaml", ".yml"):
        files = config_files(of)
        if name not in files:
            raise UserError(unknown(of, name, files))
        return files[name]
    if not path.is_file():
        raise UserError(f"{of}={name}: no such file")
    return path
