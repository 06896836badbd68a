"""Policy bundles: contents survive a round trip, and changed or damaged bundles are refused."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import policies
from policies import Bundle, BundleError, Channel, Normalizer, Spec, bundle
from policies.golden import seal

ARGUMENTS: dict[str, Any] = {"observations": 3, "actions": 2, "hidden": []}
WEIGHTS = {
    "trunk.weights.0": np.ones((3, 2), np.float32),
    "trunk.biases.0": np.zeros(2, np.float32),
}
PROVENANCE: dict[str, Any] = {"task": "none", "seeds": (1, 2)}
UNSEALED = Bundle(
    Spec((3,), 2), "DeterministicActor", ARGUMENTS, WEIGHTS, Normalizer.identity((3,))
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "policy.bundle"
    bundle.write(path, seal(replace(UNSEALED, provenance=PROVENANCE)))
    return path


def change_manifest(path: Path, *, fix_sum: bool = False, **parts: Any) -> None:
    """Replace parts of the manifest in a bundle.

    fix_sum: correct the manifest's checksum.
    """
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(contents["manifest.json"])
    manifest |= parts
    if fix_sum:
        manifest["sha256"]["manifest.json"] = bundle.manifest_sha256(manifest)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (contents | {"manifest.json": json.dumps(manifest)}).items():
            archive.writestr(name, content)


def test_changed_spaces_are_accepted_and_a_changed_value_is_refused(path: Path) -> None:
    change_manifest(path)
    assert policies.load(path).bundle.provenance["seeds"] == [1, 2]
    change_manifest(path, provenance={"task": "none", "seeds": [1, 3]})
    with pytest.raises(BundleError, match=r"manifest\.json does not match its SHA-256"):
        bundle.read(path)


def test_a_bundle_without_a_golden_output_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "policy.bundle"
    with pytest.raises(BundleError, match="no golden output"):
        bundle.write(path, UNSEALED)
    assert not path.exists()


def test_a_loaded_policy_computes_its_formula(tmp_path: Path) -> None:
    """Expected, in float64: tanh(relu(x W + b) V + c), where x is the normalized observation."""
    draw, path = np.random.default_rng(0), tmp_path / "policy.bundle"
    shapes = {"weights.0": (3, 4), "biases.0": (4,), "weights.1": (4, 2), "biases.1": (2,)}
    weights = {f"trunk.{k}": draw.normal(size=s).astype(np.float32) for k, s in shapes.items()}
    mean, scale = np.array([[0.1, -0.2, 3.0], [1.0, 2.0, 0.5]], np.float32)
    arguments = ARGUMENTS | {"hidden": [4]}
    normalizer = Normalizer(mean, scale)
    sealed = seal(Bundle(Spec((3,), 2), "DeterministicActor", arguments, weights, normalizer))
    bundle.write(path, sealed)
    observation = np.array([0.6, 1.8, 3.25])
    w, b, v, c = (weights[f"trunk.{name}"].astype(np.float64) for name in shapes)
    x = (observation - [0.1, -0.2, 3.0]) / [1.0, 2.0, 0.5]
    expected = np.tanh(np.maximum(x @ w + b, 0) @ v + c)
    np.testing.assert_allclose(policies.load(path).act(observation)[0], expected[None], rtol=1e-5)


SPEC = UNSEALED.spec.to_json()
CHANNEL = SPEC["channels"][0]


def channel(**parts: Any) -> dict[str, Any]:
    return {"spec": SPEC | {"channels": [CHANNEL | parts]}}


@pytest.mark.parametrize(
    ("parts", "fault"),
    [
        ({"spec": SPEC | {"action_dim": "2"}}, "action_dim is '2'"),
        ({"spec": SPEC | {"action_dim": True}}, "action_dim is True"),
        ({"spec": SPEC | {"channels": [3]}}, r"channels is \[3\]"),
        ({"spec": SPEC | {"channels": []}}, "need at least one channel"),
        ({"spec": SPEC | {"channels": [CHANNEL, CHANNEL]}}, "unique names"),
        (channel(shape=3), "shape is 3"),
        (channel(shape=[3.0]), r"shape is \[3.0\]"),
        (channel(shape=[4]), "the normalizers are for"),
        (channel(kind="sound"), "kind is 'sound'"),
        (channel(kind="image"), "not a valid shape for the image"),
        (channel(names=["a", "b"]), "3 numbers, but 2 names"),
        (channel(units=["m", "m"]), "2 units"),
        (channel(color="red"), "color"),
        ({"spec": SPEC | {"action_low": [-1, "x"]}}, "action_low is"),
        ({"spec": SPEC | {"action_low": [2.0, 0.0]}}, "must be below"),
        ({"spec": SPEC | {"action_mode": "relative"}}, "action_mode is 'relative'"),
        ({"spec": SPEC | {"rate_hz": -5}}, "must be positive"),
        ({"spec": SPEC | {"chunk_size": 0}}, "must be positive"),
        ({"spec": SPEC | {"n_action_steps": 2}}, "n_action_steps=2 is more than chunk_size=1"),
        (
            {"spec": SPEC | {"chunk_size": 2}},
            r"shape \[1, 2\], but the specification requires \[2, 2\]",
        ),
        ({"spec": {**SPEC, "action_dim": 3}}, "action normalizer is"),
        ({"spec": SPEC | {"names": []}}, "names"),
        ({"spec": [1]}, "spec is"),
        ({"policy": {"kind": 3, "arguments": {}}}, "policy.kind is 3"),
        ({"policy": {"kind": "DeterministicActor"}}, "policy has"),
        ({"policy": {"kind": "Actor", "arguments": {}}}, "unknown policy 'Actor'"),
        ({"policy": {"kind": "DeterministicActor", "arguments": {"hidden": 3}}}, "do not fit"),
        (
            {"policy": {"kind": "GaussianActor", "arguments": ARGUMENTS}},
            "the weights or arguments do not fit this policy: .*log_std",
        ),
        (
            {"normalizers": {"observations": {"observation": "identity"}, "actions": "z-score"}},
            "action normalizer is z-score of .* Use min-max or identity",
        ),
        ({"normalizers": {"observations": {}, "actions": "identity"}}, "the normalizers are for"),
        ({"normalizers": {"observations": {"observation": 3}, "actions": "identity"}}, "kind 3"),
        ({"provenance": []}, "provenance is"),
        ({"provenances": {}}, "provenances"),
        ({"sha256": {"manifest.json": ""}}, "SHA-256"),
        ({"format": True}, "format True"),
        ({"format": 2}, "format 2, but this version reads format 5. Create the bundle again"),
        ({"format": 6}, "format 6, but this version reads format 5"),
        ({"composition": {"how": "sum"}}, "is not a valid composition"),
        ({"composition": {"how": "noise", "noise_scale": 0}}, "is not a valid composition"),
    ],
)
def test_an_invalid_manifest_is_refused(path: Path, parts: dict[str, Any], fault: str) -> None:
    change_manifest(path, fix_sum=True, **parts)
    with pytest.raises(BundleError, match=fault) as error:
        policies.load(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"trunk.biases.0": np.array([0, 1e-3], np.float32)}, "does not reproduce its golden"),
        ({"trunk.biases.0": np.array([0, np.nan], np.float32)}, "NaN"),
    ],
)
def test_the_golden_output_detects_weights_of_another_policy(
    path: Path, changes: dict[str, np.ndarray], fault: str
) -> None:
    """Every checksum is correct, but other weights have computed the recorded output."""
    original = bundle.read(path)
    bundle.write(path, replace(original, weights={**original.weights, **changes}))
    with pytest.raises(BundleError, match=fault):
        policies.load(path)


def test_a_path_that_the_system_refuses_is_named() -> None:
    with pytest.raises(BundleError, match="too long"):
        policies.load("x" * 300)


def test_a_member_without_a_checksum_is_refused(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("graphs/other.onnx", b"1")
    with pytest.raises(BundleError, match=r"graphs/other\.onnx does not match"):
        bundle.read(path)


def test_all_contents_survive_a_round_trip(path: Path) -> None:
    """The bundle has several channels, graphs and a base. Equal bundles give equal bytes."""
    spec = Spec(
        (
            Channel("joints", (2,), units=("rad",), names=("a", "b")),
            Channel("camera", (4, 5, 3), "image"),
            Channel("tip", (3,), units=("m", "m", "rad")),
        ),
        2,
        action_low=(-1.0, 0.0),
        action_high=(2.0, 0.5),
        n_obs_steps=2,
        chunk_size=8,
        n_action_steps=4,
        rate_hz=12.5,
        action_names=("a", "b"),
        action_units=("rad",),
        action_mode="delta",
    )
    ranges = Normalizer.fit_range(np.array([[0, 1, 5], [2, 1, 9]], np.float32))
    normalizers = {"joints": Normalizer.identity((2,)), "tip": ranges}
    recorded = {"joints": np.ones((4, 2, 2), np.float32), "tip": np.ones((4, 2, 3), np.float32)}
    recorded["camera"] = np.full((4, 2, 4, 5, 3), 7, np.uint8)
    noise, chunk = np.ones((4, 8, 2), np.float32), np.zeros((4, 8, 2), np.float32)
    original = replace(
        UNSEALED,
        spec=spec,
        normalizers=normalizers,
        actions=Normalizer.fit_range(np.array([[-1, -1], [1, 0]], np.float32)),
        graphs={"policy": b"onnx"},
        composition=bundle.Composition("noise", 1.5),
        base=seal(replace(UNSEALED, provenance={"name": "base"})),
        golden=bundle.Golden(recorded, noise, chunk, composed=chunk[:, :1]),
    )
    bundle.write(path, original)
    copy, content = bundle.read(path), path.read_bytes()
    assert copy.spec == spec
    assert copy.spec.channels[1].dtype == np.uint8
    assert copy.spec.action_bounds[1].tolist() == [2.0, 0.5]
    assert copy.graphs == {"policy": b"onnx"}
    assert copy.base is not None
    assert copy.base.provenance == {"name": "base"}
    assert copy.composition == bundle.Composition("noise", 1.5)
    assert copy.golden is not None
    assert copy.golden.observations["camera"].dtype == np.uint8
    np.testing.assert_array_equal(copy.golden.observations["camera"], recorded["camera"])
    assert copy.actions is not None
    assert (copy.actions.kind, copy.normalizers["tip"].kind) == ("min-max", "min-max")
    np.testing.assert_array_equal(copy.normalizers["tip"].mean, [1, 1, 7])
    bundle.write(path, copy)
    assert path.read_bytes() == content


def test_fit_range_maps_the_range_to_minus_one_and_one_and_back() -> None:
    values = np.array([[0.0, 5.0, 3.0], [4.0, -5.0, 3.0], [1.0, 0.0, 3.0]], np.float32)
    ranges = Normalizer.fit_range(values)
    np.testing.assert_allclose(ranges(values), [[-1, 1, 0], [1, -1, 0], [-0.5, 0, 0]], atol=1e-6)
    np.testing.assert_allclose(ranges.inverse(ranges(values)), values, atol=1e-6)


def test_the_networks_output_is_scaled_to_the_range_of_the_actions_in_the_data(path: Path) -> None:
    """The ranges [-1, 0] and [0.5, 1] become [-1, 1]. The output 0 is the center of each range."""
    ranges = Normalizer.fit_range(np.array([[-1, 0.5], [0, 1]], np.float32))
    bundle.write(path, seal(replace(UNSEALED, actions=ranges)))
    policy = policies.load(path)
    np.testing.assert_allclose(policy.act(np.zeros(3))[0], [[-0.5, 0.75]], atol=1e-6)
    np.testing.assert_allclose(policy.act(np.full(3, 9.0))[0], [[0, 1]], atol=1e-6)


def test_actions_in_units_are_within_the_limits(path: Path) -> None:
    """The lower limit is -1, the upper limit 1, their mean 0. Rounding never exceeds a limit."""
    limits = {"action_low": (-0.1, 1.0), "action_high": (0.3, 7.0)}
    bundle.write(path, seal(replace(UNSEALED, spec=Spec((3,), 2, **limits))))
    plain, scaled = policies.load(path), policies.load(path, units=True)
    for x in (-50.0, 0.0, 0.1, 50.0):
        action = plain.act(np.full(3, x))[0]
        expected = [0.1 + 0.2 * action[0, 0], 4 + 3 * action[0, 1]]
        actual = scaled.act(np.full(3, x))[0]
        assert actual.dtype == np.float32
        np.testing.assert_allclose(actual[0], expected, rtol=1e-6, atol=1e-7)
        assert (actual[0] >= np.float32(limits["action_low"])).all()
        assert (actual[0] <= np.float32(limits["action_high"])).all()


def test_invalid_observations_are_refused(path: Path) -> None:
    policy = policies.load(path)
    for invalid in (np.ones(4), np.ones((2, 2, 3)), np.array([1, np.nan, 0])):
        with pytest.raises(ValueError, match="observation"):
            policy.act(invalid)
    with pytest.raises(ValueError, match="needs the channels observation"):
        policy.act({"joints": np.ones(3)})


@pytest.mark.parametrize(
    ("mean", "weight", "fault"),
    [
        ([0, 0], 1, r"normalizers are for .*\(2,\).*, but the vector channels are .*\(3,\)"),
        ([0, np.inf, 0], 1, "normalizer contains NaN or infinite numbers"),
        ([0, 0, 0], np.nan, r"weights\.0 contains NaN or infinite numbers"),
    ],
)
def test_invalid_numbers_are_refused_when_a_bundle_is_created_or_read(
    path: Path, mean: list[float], weight: float, fault: str
) -> None:
    valid = bundle.read(path)
    weights = {**valid.weights, "trunk.weights.0": np.full((3, 2), weight, np.float32)}

    def create_and_read() -> None:
        normalizer = Normalizer(np.array(mean, np.float32), np.ones(len(mean), np.float32))
        bundle.write(path, replace(valid, weights=weights, normalizers={"observation": normalizer}))
        bundle.read(path)

    with pytest.raises(ValueError, match=fault):
        create_and_read()
