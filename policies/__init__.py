"""Observation -> action: network blocks, action heads, normaliser and the policy bundle.

`policies` itself needs numpy only; torch is loaded when a torch policy is asked for.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from policies.bundle import Bundle, BundleError
from policies.normaliser import Normaliser
from policies.policy import Policy
from policies.spec import Spec

__all__ = ["Bundle", "BundleError", "Normaliser", "Policy", "Spec", "load"]


def load(path: str | Path, **arguments: Any) -> Policy:
    """The policy of a bundle, verified. Raises BundleError naming what is wrong with the file.

    arguments: used instead of those the policy was built with, such as `target_return`.
    """
    from policies.bundle import read
    from policies.policy import TorchPolicy

    bundle = read(path)
    for name in arguments.keys() - bundle.arguments.keys():
        raise BundleError(f"{path}: a {bundle.kind} has no {name}")
    return TorchPolicy(replace(bundle, arguments=bundle.arguments | arguments))
