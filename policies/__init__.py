"""Observation -> action: network blocks, action heads, normalizer and the policy bundle.

`policies` itself needs numpy only; torch is loaded when a torch policy is asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from policies.bundle import Bundle, BundleError
from policies.normalizer import Normalizer
from policies.player import Player
from policies.policy import BundlePolicy, Policy
from policies.spec import Channel, Spec

__all__ = ["Bundle", "BundleError", "Channel", "Normalizer", "Player", "Policy", "Spec", "load"]


def load(
    path: str | Path, *, runtime: str = "auto", units: bool = False, **arguments: Any
) -> BundlePolicy:
    """Return the policy in a bundle, verified. path: a bundle, or the folder of a training seed.

    Raises BundleError naming what is wrong with the file.

    runtime: torch runs every policy; onnx, those that were exported, without torch; numpy,
    perceptrons, with numpy and safetensors alone. auto is the first of these that is installed and
    can run this one. Whichever it is has to give the bundle's golden answer.
    units: act in the environment's units instead of [-1, 1].
    arguments: used instead of those the policy was built with, such as `target_return`.
    """
    from policies.bundle import read
    from policies.golden import opened

    bundle = read(path)
    try:
        return opened(bundle, runtime, arguments, units=units)
    except BundleError as error:
        raise BundleError(f"{path}: {error}") from None
