"""The policy bundle: the one file that leaves training. Nothing in it is ever executed.

A ZIP archive (stored, not compressed), format 1:

    manifest.json        {format, spec, policy: {kind, arguments}, provenance, sha256}
    weights.safetensors  the policy's parameters, float32
    normaliser.safetensors  mean and scale of the observations, float32

`sha256` has an entry for each member, the manifest's own being of what it holds besides; earlier
files lack that one.
Reading needs numpy and safetensors only; torch is loaded when the torch policy is asked for.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from policies.normaliser import Normaliser
from policies.spec import Spec

FORMAT = 1
DAMAGED = (zipfile.BadZipFile, zlib.error, KeyError, ValueError, OSError, EOFError, RuntimeError)
MEMBERS = ("weights.safetensors", "normaliser.safetensors")
MANIFEST: dict[str, Any] = {
    "format": int,
    "spec": dict,
    "policy": {"kind": str, "arguments": dict},
    "provenance": dict,
    "sha256": dict,
}


class BundleError(ValueError):
    """A bundle that is damaged, of another format, or of other sizes than it says."""


@dataclass(frozen=True)
class Bundle:
    """What a bundle holds, verified."""

    spec: Spec
    kind: str  # the class in policies.heads
    arguments: dict[str, Any]  # and what it is built with
    weights: dict[str, np.ndarray]
    normaliser: Normaliser
    provenance: dict[str, Any] = field(default_factory=dict)  # run, data, versions, scores


def write(path: str | Path, bundle: Bundle) -> None:
    """Writes `bundle` to `path`; the same bundle gives the same bytes. Not atomic."""
    normaliser = {"mean": bundle.normaliser.mean, "scale": bundle.normaliser.scale}
    contents = {
        "weights.safetensors": save_tensors(bundle.weights),
        "normaliser.safetensors": save_tensors(normaliser),
    }
    manifest = {
        "format": FORMAT,
        "spec": bundle.spec.to_json(),
        "policy": {"kind": bundle.kind, "arguments": bundle.arguments},
        "provenance": bundle.provenance,
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()},
    }
    manifest = json.loads(json.dumps(manifest, allow_nan=False))  # as it will be read
    manifest["sha256"]["manifest.json"] = own_sha256(manifest)
    text = json.dumps(manifest, indent=2).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in {"manifest.json": text, **contents}.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)


def read(path: str | Path) -> Bundle:
    """Reads and verifies a bundle. Raises BundleError naming the file and what is wrong with it."""
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = json.loads(archive.read("manifest.json"))
            contents = {name: archive.read(name) for name in MEMBERS}
    except FileNotFoundError:
        raise BundleError(f"{path}: no such policy bundle") from None
    except DAMAGED as error:
        raise BundleError(f"{path} is not a whole policy bundle: {error}") from None
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        raise BundleError(f"{path}: bundle format {found!r}, this version reads format {FORMAT}")
    if (wrong := misfit(manifest, MANIFEST)) is not None:
        raise BundleError(f"{path}: manifest.json: {wrong}")
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    if "manifest.json" in manifest["sha256"]:
        sums["manifest.json"] = own_sha256(manifest)
    for name in sums | manifest["sha256"]:
        if sums.get(name) != manifest["sha256"].get(name):
            raise BundleError(f"{path}: {name} does not match its SHA-256; the file is damaged")
    try:
        weights = load_tensors(contents["weights.safetensors"])
        statistics = load_tensors(contents["normaliser.safetensors"])
        spec = Spec.from_json(manifest["spec"])
        normaliser = Normaliser(statistics["mean"], statistics["scale"])
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise BundleError(f"{path}: the manifest or a member is incomplete: {error}") from None
    if normaliser.mean.shape != spec.observation_shape:
        shape, expected = normaliser.mean.shape, spec.observation_shape
        raise BundleError(f"{path}: the normaliser is for {shape}, the observations are {expected}")
    for name, value in (weights | statistics).items():
        if not np.isfinite(value).all():
            raise BundleError(f"{path}: {name} holds NaN or infinite numbers")
    return Bundle(
        spec,
        **manifest["policy"],
        weights=weights,
        normaliser=normaliser,
        provenance=manifest["provenance"],
    )


def own_sha256(manifest: dict[str, Any]) -> str:
    """Of the manifest without its own entry, whatever its spaces and order."""
    others = {k: v for k, v in manifest["sha256"].items() if k != "manifest.json"}
    text = json.dumps(manifest | {"sha256": others}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def misfit(value: Any, form: Any, where: str = "") -> str | None:
    """How `value` differs from `form`, a type or a dict of forms; None where it does not."""
    if not isinstance(form, dict):
        return (
            None if type(value) is form else f"{where} is {value!r}, a {form.__name__} is expected"
        )
    if not isinstance(value, dict) or value.keys() != form.keys():
        found = sorted(value) if isinstance(value, dict) else value
        return f"{where or 'it'} has {found}, {sorted(form)} is expected"
    parts = (misfit(value[k], f, f"{where}.{k}".lstrip(".")) for k, f in form.items())
    return next((wrong for wrong in parts if wrong is not None), None)
