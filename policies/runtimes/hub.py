"""Bundles in a repository of a model hub."""

from __future__ import annotations

import os
from pathlib import Path

from policies.bundle import BUNDLE, BundleError

PREFIX = "hub:"


def local_path(path: str | Path) -> str | Path:
    """Return the path of a bundle; download it first if `path` is hub:<owner>/<name>[@<revision>].

    The package huggingface_hub downloads the file to its cache, and reads its settings, such as
    HF_ENDPOINT and HF_TOKEN. Raises BundleError.
    """
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
