"""A bundle tells of any change to its manifest, and reads those that could not yet."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import policies
from policies import Bundle, BundleError, Normaliser, Spec, bundle


@pytest.fixture
def path(tmp_path: Path) -> Path:
    weights = {"trunk.weights.0": np.ones((3, 2), np.float32)}
    weights["trunk.biases.0"] = np.zeros(2, np.float32)
    arguments = {"observations": 3, "actions": 2, "hidden": []}
    made: dict[str, Any] = {"task": "none", "seeds": (1, 2)}
    spec, normaliser = Spec((3,), 2), Normaliser.identity((3,))
    path = tmp_path / "policy.bundle"
    bundle.write(path, Bundle(spec, "DeterministicActor", arguments, weights, normaliser, made))
    return path


def change(path: Path, *, summed: bool, **parts: Any) -> None:
    """Writes the bundle with parts of its manifest changed, all its members' checksums right."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(contents["manifest.json"])
    manifest |= parts
    if not summed:
        del manifest["sha256"]["manifest.json"]
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (contents | {"manifest.json": json.dumps(manifest)}).items():
            archive.writestr(name, content)


def test_other_spaces_are_no_change_and_another_score_is_one(path: Path) -> None:
    change(path, summed=True)
    assert policies.load(path).bundle.provenance["seeds"] == [1, 2]
    change(path, summed=True, provenance={"task": "none", "seeds": [1, 3]})
    with pytest.raises(BundleError, match=r"manifest\.json does not match its SHA-256"):
        bundle.read(path)


def test_a_bundle_whose_manifest_has_no_checksum_is_still_read(path: Path) -> None:
    change(path, summed=False)
    assert policies.load(path).act(np.ones(3))[0].shape == (1, 2)


SPEC = Spec((3,), 2).to_json()


@pytest.mark.parametrize(
    ("parts", "fault"),
    [
        ({"spec": SPEC | {"action_dim": "2"}}, "action_dim is '2'"),
        ({"spec": SPEC | {"action_dim": True}}, "action_dim is True"),
        ({"spec": SPEC | {"observation_shape": 3}}, "observation_shape is 3"),
        ({"spec": SPEC | {"observation_shape": [3.0]}}, r"observation_shape is \[3.0\]"),
        ({"spec": SPEC | {"action_low": [-1, "x"]}}, "action_low is"),
        ({"spec": SPEC | {"rate_hz": -5}}, "must be positive"),
        ({"spec": SPEC | {"horizon": 0}}, "must be positive"),
        ({"spec": SPEC | {"horizon": 2}}, r"answers \[1, 2\], the specification says \[2, 2\]"),
        ({"spec": {**SPEC, "action_dim": 3}}, "the specification says"),
        ({"spec": SPEC | {"names": []}}, "names"),
        ({"spec": [1]}, "spec is"),
        ({"policy": {"kind": 3, "arguments": {}}}, "policy.kind is 3"),
        ({"policy": {"kind": "DeterministicActor"}}, "policy has"),
        ({"policy": {"kind": "DeterministicActor", "arguments": {"hidden": 3}}}, "do not fit"),
        ({"provenance": []}, "provenance is"),
        ({"provenances": {}}, "provenances"),
        ({"sha256": {"manifest.json": ""}}, "SHA-256"),
        ({"format": True}, "format is True"),
    ],
)
def test_what_is_of_another_type_is_named(path: Path, parts: dict[str, Any], fault: str) -> None:
    change(path, summed=False, **parts)
    with pytest.raises(BundleError, match=fault) as error:
        policies.load(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("mean", "weight", "fault"),
    [
        ([0, 0], 1, r"the normaliser is for \(2,\), the observations are \(3,\)"),
        ([0, np.inf, 0], 1, "mean holds NaN or infinite numbers"),
        ([0, 0, 0], np.nan, r"weights\.0 holds NaN or infinite numbers"),
    ],
)
def test_numbers_that_no_policy_acts_by_are_refused(
    path: Path, mean: list[float], weight: float, fault: str
) -> None:
    """They were written so: every checksum is right."""
    good = bundle.read(path)
    weights = good.weights | {"trunk.weights.0": np.full((3, 2), weight, np.float32)}
    normaliser = Normaliser(np.array(mean, np.float32), np.ones(len(mean), np.float32))
    bundle.write(path, replace(good, weights=weights, normaliser=normaliser))
    with pytest.raises(BundleError, match=fault):
        bundle.read(path)
