"""A bundle holds what it says and tells of any change; those of format 1 are still read."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load as load_tensors

import policies
from policies import Bundle, BundleError, Channel, Normalizer, Spec, bundle

ARGUMENTS: dict[str, Any] = {"observations": 3, "actions": 2, "hidden": []}
WEIGHTS = {
    "trunk.weights.0": np.ones((3, 2), np.float32),
    "trunk.biases.0": np.zeros(2, np.float32),
}
MADE: dict[str, Any] = {"task": "none", "seeds": (1, 2)}
PLAIN = Bundle(Spec((3,), 2), "DeterministicActor", ARGUMENTS, WEIGHTS, Normalizer.identity((3,)))
FORMAT_1 = Path(__file__).parent / "format_1.bundle"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "policy.bundle"
    bundle.write(path, replace(PLAIN, provenance=MADE))
    return path


def change(path: Path, *, summed: bool = True, **parts: Any) -> None:
    """Writes the bundle with parts of its manifest changed, all its members' checksums right.

    summed: the manifest's own is left as it was, or made right too.
    """
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(contents["manifest.json"])
    manifest |= parts
    if not summed:
        manifest["sha256"]["manifest.json"] = bundle.own_sha256(manifest)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (contents | {"manifest.json": json.dumps(manifest)}).items():
            archive.writestr(name, content)


def test_other_spaces_are_no_change_and_another_score_is_one(path: Path) -> None:
    change(path)
    assert policies.load(path).bundle.provenance["seeds"] == [1, 2]
    change(path, provenance={"task": "none", "seeds": [1, 3]})
    with pytest.raises(BundleError, match=r"manifest\.json does not match its SHA-256"):
        bundle.read(path)


@pytest.mark.parametrize("summed", [True, False])
def test_a_bundle_of_format_1_acts_as_it_did(tmp_path: Path, summed: bool) -> None:
    """Its numbers, read by hand and in float64: relu(x W + b) V + c, then tanh. The first bundles'
    manifests had no checksum of their own."""
    path = tmp_path / "old.bundle"
    with zipfile.ZipFile(FORMAT_1) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(contents["manifest.json"])
    if not summed:
        del manifest["sha256"]["manifest.json"]
    contents["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    policy, seen = policies.load(path), np.array([0.6, 1.8, 3.25])
    weights = load_tensors(contents["weights.safetensors"])
    w, b, v, c = (
        weights[f"trunk.{name}.{k}"].astype(np.float64)
        for k in (0, 1)
        for name in ("weights", "biases")
    )
    x = (seen - [0.1, -0.2, 3.0]) / [1.0, 2.0, 0.5]
    expected = np.tanh(np.maximum(x @ w + b, 0) @ v + c)
    np.testing.assert_allclose(policy.act(seen)[0], expected[None], rtol=1e-5)
    spec = policy.spec
    assert (spec.observation_shape, spec.observation_names) == ((3,), ("a.q", "b.q", "force"))
    assert (spec.action_low, spec.action_high) == ((-2.0, -1.0), (2.0, 3.0))
    assert (spec.rate_hz, spec.action_names, spec.n_action_steps) == (25.0, ("a", "b"), 1)


SPEC = PLAIN.spec.to_json()
CHANNEL = SPEC["channels"][0]


def channel(**parts: Any) -> dict[str, Any]:
    return {"spec": SPEC | {"channels": [CHANNEL | parts]}}


@pytest.mark.parametrize(
    ("parts", "fault"),
    [
        ({"spec": SPEC | {"action_dim": "2"}}, "action_dim is '2'"),
        ({"spec": SPEC | {"action_dim": True}}, "action_dim is True"),
        ({"spec": SPEC | {"channels": [3]}}, r"channels is \[3\]"),
        ({"spec": SPEC | {"channels": []}}, "channels of different names"),
        ({"spec": SPEC | {"channels": [CHANNEL, CHANNEL]}}, "channels of different names"),
        (channel(shape=3), "shape is 3"),
        (channel(shape=[3.0]), r"shape is \[3.0\]"),
        (channel(shape=[4]), "the normalizers are for"),
        (channel(kind="sound"), "kind is 'sound'"),
        (channel(kind="picture"), "no shape for the picture"),
        (channel(names=["a", "b"]), "3 numbers has 2 names"),
        (channel(units=["m", "m"]), "2 units"),
        (channel(color="red"), "color"),
        ({"spec": SPEC | {"action_low": [-1, "x"]}}, "action_low is"),
        ({"spec": SPEC | {"action_low": [2.0, 0.0]}}, "is not below"),
        ({"spec": SPEC | {"action_mode": "relative"}}, "action_mode is 'relative'"),
        ({"spec": SPEC | {"rate_hz": -5}}, "must be positive"),
        ({"spec": SPEC | {"chunk_size": 0}}, "must be positive"),
        ({"spec": SPEC | {"n_action_steps": 2}}, "of 1 actions 2 cannot be executed"),
        ({"spec": SPEC | {"chunk_size": 2}}, r"answers \[1, 2\], the specification says \[2, 2\]"),
        ({"spec": {**SPEC, "action_dim": 3}}, "actions are normalized"),
        ({"spec": SPEC | {"names": []}}, "names"),
        ({"spec": [1]}, "spec is"),
        ({"policy": {"kind": 3, "arguments": {}}}, "policy.kind is 3"),
        ({"policy": {"kind": "DeterministicActor"}}, "policy has"),
        ({"policy": {"kind": "Actor", "arguments": {}}}, "unknown policy 'Actor'"),
        ({"policy": {"kind": "DeterministicActor", "arguments": {"hidden": 3}}}, "do not fit"),
        (
            {"policy": {"kind": "GaussianActor", "arguments": ARGUMENTS}},
            "the weights do not fit: .*log_std",
        ),
        (
            {"normalizers": {"observations": {"observation": "identity"}, "actions": "z-score"}},
            "actions are normalized by their range or not at all",
        ),
        ({"normalizers": {"observations": {}, "actions": "identity"}}, "the normalizers are for"),
        ({"normalizers": {"observations": {"observation": 3}, "actions": "identity"}}, "3 of"),
        ({"provenance": []}, "provenance is"),
        ({"provenances": {}}, "provenances"),
        ({"sha256": {"manifest.json": ""}}, "SHA-256"),
        ({"format": True}, "format True"),
        ({"format": 3}, "format 3, this version reads formats 1 to 2"),
    ],
)
def test_what_is_of_another_type_is_named(path: Path, parts: dict[str, Any], fault: str) -> None:
    change(path, summed=False, **parts)
    with pytest.raises(BundleError, match=fault) as error:
        policies.load(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"trunk.biases.0": np.array([0, 1e-3], np.float32)}, "golden answer does not come out"),
        ({"trunk.biases.0": np.array([0, np.nan], np.float32)}, "NaN"),
    ],
)
def test_weights_of_another_policy_are_told_by_the_golden_answer(
    path: Path, changes: dict[str, np.ndarray], fault: str
) -> None:
    """Every checksum is right, and still it is not the policy whose answer it holds."""
    whole = bundle.read(path)
    bundle.write(path, replace(whole, weights={**whole.weights, **changes}))
    with pytest.raises(BundleError, match=fault):
        policies.load(path)


def test_a_path_that_the_system_refuses_is_named() -> None:
    with pytest.raises(BundleError, match="too long"):
        policies.load("x" * 300)


def test_a_member_that_no_checksum_speaks_of_is_refused(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("graphs/other.onnx", b"1")
    with pytest.raises(BundleError, match=r"graphs/other\.onnx does not match"):
        bundle.read(path)


def test_all_that_a_bundle_says_comes_back(path: Path) -> None:
    """Also what no head of today needs: several channels, graphs, a base; its bytes are the same
    each time."""
    spec = Spec(
        (
            Channel("joints", (2,), units=("rad",), names=("a", "b")),
            Channel("eye", (4, 5, 3), "picture"),
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
    asked = {"joints": np.ones((4, 2, 2), np.float32), "tip": np.ones((4, 2, 3), np.float32)}
    asked["eye"] = np.full((4, 2, 4, 5, 3), 7, np.uint8)
    noise, chunk = np.ones((4, 8, 2), np.float32), np.zeros((4, 8, 2), np.float32)
    whole = replace(
        PLAIN,
        spec=spec,
        normalizers=normalizers,
        actions=Normalizer.fit_range(np.array([[-1, -1], [1, 0]], np.float32)),
        graphs={"policy": b"onnx"},
        base=replace(PLAIN, provenance={"name": "base"}),
        golden=bundle.Golden(asked, noise, chunk),
    )
    bundle.write(path, whole)
    found, first = bundle.read(path), path.read_bytes()
    assert found.spec == spec
    assert found.spec.channels[1].dtype == np.uint8
    assert found.spec.action_bounds[1].tolist() == [2.0, 0.5]
    assert found.graphs == {"policy": b"onnx"}
    assert found.base is not None
    assert found.base.provenance == {"name": "base"}
    assert found.golden is not None
    assert found.golden.observations["eye"].dtype == np.uint8
    np.testing.assert_array_equal(found.golden.observations["eye"], asked["eye"])
    assert found.actions is not None
    assert (found.actions.kind, found.normalizers["tip"].kind) == ("min-max", "min-max")
    np.testing.assert_array_equal(found.normalizers["tip"].mean, [1, 1, 7])
    bundle.write(path, found)
    assert path.read_bytes() == first


def test_a_range_becomes_minus_one_to_one_and_back() -> None:
    values = np.array([[0.0, 5.0, 3.0], [4.0, -5.0, 3.0], [1.0, 0.0, 3.0]], np.float32)
    ranges = Normalizer.fit_range(values)
    np.testing.assert_allclose(ranges(values), [[-1, 1, 0], [1, -1, 0], [-0.5, 0, 0]], atol=1e-6)
    np.testing.assert_allclose(ranges.inverse(ranges(values)), values, atol=1e-6)


def test_what_the_network_answers_is_taken_back_from_the_datas_range(path: Path) -> None:
    """It sees the actions of [-1, 0] and [0.5, 1] as [-1, 1]: its 0 stands for their middles."""
    ranges = Normalizer.fit_range(np.array([[-1, 0.5], [0, 1]], np.float32))
    bundle.write(path, replace(PLAIN, actions=ranges))
    policy = policies.load(path)
    np.testing.assert_allclose(policy.act(np.zeros(3))[0], [[-0.5, 0.75]], atol=1e-6)
    np.testing.assert_allclose(policy.act(np.full(3, 9.0))[0], [[0, 1]], atol=1e-6)


def test_actions_in_units_lie_between_the_limits(path: Path) -> None:
    """-1 is the low one, 1 the high one, the middle their mean; rounding never leads beyond."""
    limits = {"action_low": (-0.1, 1.0), "action_high": (0.3, 7.0)}
    bundle.write(path, replace(PLAIN, spec=Spec((3,), 2, **limits)))
    plain, scaled = policies.load(path), policies.load(path, units=True)
    for x in (-50.0, 0.0, 0.1, 50.0):
        action = plain.act(np.full(3, x))[0]
        expected = [0.1 + 0.2 * action[0, 0], 4 + 3 * action[0, 1]]
        found = scaled.act(np.full(3, x))[0]
        assert found.dtype == np.float32
        np.testing.assert_allclose(found[0], expected, rtol=1e-6, atol=1e-7)
        assert (found[0] >= np.float32(limits["action_low"])).all()
        assert (found[0] <= np.float32(limits["action_high"])).all()


def test_what_is_observed_is_checked_before_anything_acts(path: Path) -> None:
    policy = policies.load(path)
    for wrong in (np.ones(4), np.ones((2, 2, 3)), np.array([1, np.nan, 0])):
        with pytest.raises(ValueError, match="observation"):
            policy.act(wrong)
    with pytest.raises(ValueError, match="observes observation"):
        policy.act({"joints": np.ones(3)})


@pytest.mark.parametrize(
    ("mean", "weight", "fault"),
    [
        ([0, 0], 1, r"normalizers are for .*\(2,\).*, the observations are .*\(3,\)"),
        ([0, np.inf, 0], 1, "normalizer holds NaN or infinite numbers"),
        ([0, 0, 0], np.nan, r"weights\.0 holds NaN or infinite numbers"),
    ],
)
def test_numbers_that_no_policy_acts_by_are_refused(
    path: Path, mean: list[float], weight: float, fault: str
) -> None:
    """Where they are made, or, as every checksum is right, where they are read."""
    good = bundle.read(path)
    weights = {**good.weights, "trunk.weights.0": np.full((3, 2), weight, np.float32)}

    def made_and_read() -> None:
        normalizer = Normalizer(np.array(mean, np.float32), np.ones(len(mean), np.float32))
        bundle.write(path, replace(good, weights=weights, normalizers={"observation": normalizer}))
        bundle.read(path)

    with pytest.raises(ValueError, match=fault):
        made_and_read()
