"""Bundles in a repository of a model hub, and in the zoo of this repository."""

from __future__ import annotations

import os
from pathlib import Path

from policies.bundle import BUNDLE, BundleError

PREFIX, ZOO_PREFIX = "hub:", "zoo:"
ZOO = Path(__file__).resolve().parents[2] / "examples" / "zoo"  # absent from an installed package


def local_path(path: str | Path) -> str | Path:
    """Return the path of a bundle; download it first if `path` is hub:<owner>/<name>[@<revision>].

    zoo:<name> is the bundle examples/zoo/<name>.bundle. The package huggingface_hub downloads files
    of a hub to its cache, and reads its settings, such as HF_ENDPOINT and HF_TOKEN. Raises
    BundleError.
    """
    if str(path).startswith(ZOO_PREFIX):
        return zoo_path(str(path).removeprefix(ZOO_PREFIX))
    if not str(path).startswith(PREFIX):
        return path
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ImportError:
        raise BundleError(
            f"{path} needs the package huggingface_hub. Run: pip install huggingface_hub"
        ) from None
    name, _, revision = str(path).removeprefix(PREFIX).partition("@")
    try:
        address = os.environ.get("HF_ENDPOINT")
        return Path(hf_hub_download(name, BUNDLE, revision=revision or None, endpoint=address))
    except (HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise BundleError(f"{path}: {BUNDLE} could not be downloaded: {reason:.300}") from None


def zoo_path(name: str) -> Path:
    """Return the path of a bundle in the zoo. Raises BundleError if there is none of this name."""
    names = sorted(file.stem for file in ZOO.glob("*.bundle"))
    if name in names:
        return ZOO / f"{name}.bundle"
    if names:
        raise BundleError(f"zoo:{name} does not exist. The zoo has {', '.join(names)}")
    raise BundleError(
        f"zoo:{name}: the zoo is in the folder examples/zoo of the repository, and an installed "
        "package does not have it. Clone the repository, or pass the path of a bundle"
    )
