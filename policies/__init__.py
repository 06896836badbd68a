"""Observation -> action: network blocks, action heads, normaliser and the policy bundle.

`policies` itself needs numpy only; torch is loaded when a torch policy is asked for.
"""

from __future__ import annotations

from pathlib import Path

from policies.bundle import Bundle, BundleError
from policies.normaliser import Normaliser
from policies.policy import Policy
from policies.spec import Spec

__all__ = ["Bundle", "BundleError", "Normaliser", "Policy", "Spec", "load"]


def load(path: str | Path) -> Policy:
    """The policy of a bundle, verified. Raises BundleError naming what is wrong with the file."""
    from policies.bundle import read
    from policies.policy import TorchPolicy

    return TorchPolicy(read(path))
