"""Policies: network blocks, action heads, normalizers and the policy bundle.

`import policies` needs numpy and safetensors only. torch is loaded when a policy runs in torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from policies.bundle import Bundle, BundleError, read
from policies.golden import open_bundle
from policies.normalizer import Normalizer
from policies.player import Player
from policies.policy import BundlePolicy, Policy
from policies.runtimes.hub import local_path
from policies.spec import Channel, Spec

__all__ = ["Bundle", "BundleError", "Channel", "Normalizer", "Player", "Policy", "Spec", "load"]


def load(
    path: str | Path, *, runtime: str = "auto", units: bool = False, **arguments: Any
) -> BundlePolicy:
    """Load the policy in a bundle and verify it.

    path: a bundle, the folder of a training seed, hub:<owner>/<name>[@<revision>], a repository of
    a model hub, or zoo:<name>, a bundle in this repository's folder examples/zoo.
    runtime: `torch` runs every policy. `onnx` runs exported policies without torch. `numpy` runs
    MLP policies with numpy and safetensors only. `auto` selects the first of these that is
    installed and can run this policy. Every runtime must reproduce the bundle's golden output,
    which is a stored output for a stored input.
    units: return actions in the environment's units instead of [-1, 1].
    arguments: new values for arguments of the policy's constructor, such as `target_return`.

    Raises BundleError, which states what is wrong with the file.
    """
    bundle = read(local_path(path))
    try:
        return open_bundle(bundle, runtime, arguments, units=units)
    except BundleError as error:
        raise BundleError(f"{path}: {error}") from None
