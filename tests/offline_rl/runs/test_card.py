"""The folder for a model hub, and policies loaded from a server in the hub's layout."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from model_hub import serve

import policies
from offline_rl.evaluation.evaluate import evaluate
from offline_rl.runs.card import card, evaluation, facts_of
from offline_rl.runs.export import export
from offline_rl.utils.errors import UserError
from policies import BundleError, Normalizer, Spec, bundle
from policies.golden import seal

RESULT = {
    "algorithm": "td3_bc",
    "task": "neorl2/DMSD",
    "dataset": "/somewhere/private/DMSD.npz",
    "dataset_sha256": "ab" * 32,
    "last_checkpoint": "/somewhere/private/checkpoint",
    "num_updates": 20,
    "seed": 3,
    "returns": [1.0, 3.0],
    "success": [True, False],
    "mean_return": 2.0,
    "score": 41.23456,
    "version": "0.1.0",
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Folder of a seed with a bundle, a result and settings."""
    folder = tmp_path / "seed_3"
    folder.mkdir()
    arguments = {"observations": 1, "actions": 1, "hidden": []}
    weights = {
        "trunk.weights.0": np.zeros((1, 1), np.float32),
        "trunk.biases.0": np.arctanh(np.float32([0.5])),
    }
    spec = Spec((1,), 1, (-2.0,), (2.0,))
    normalizer = Normalizer.identity((1,))
    facts = {"dataset": "/private/DMSD.npz", "seed": 3}
    made = seal(bundle.Bundle(spec, "DeterministicActor", arguments, weights, normalizer, facts))
    bundle.write(folder / "policy.bundle", made)
    (folder / "result.json").write_text(json.dumps(RESULT))
    (folder / "config.json").write_text(json.dumps({"hyper": {"alpha": 2.5}, "out": "/private"}))
    return folder


def test_the_folder_has_a_card_the_bundle_the_settings_and_the_evaluation(run: Path) -> None:
    (line,) = export(run=str(run), format="hub", license="mit")
    folder = Path(line)
    assert folder == run / "hub"
    assert {p.name for p in folder.iterdir()} == {
        "README.md",
        "policy.bundle",
        "config.json",
        "evaluation.json",
    }
    ours, theirs = (bundle.read(each / "policy.bundle") for each in (folder, run))
    assert ours.provenance == {"dataset": "DMSD.npz", "seed": 3}
    bundle.write(folder.parent / "same.bundle", replace(ours, provenance=theirs.provenance))
    assert (run / "same.bundle").read_bytes() == (run / "policy.bundle").read_bytes()
    _, front, body = (folder / "README.md").read_text().split("---\n", 2)
    header = yaml.safe_load(front)
    assert header["license"] == "mit"
    assert "td3_bc" in header["tags"]
    (result,) = header["model-index"][0]["results"]
    values = {m["name"]: m["value"] for m in result["metrics"]}
    assert values["mean return"] == 2
    assert values["standard deviation of the return"] == 1
    assert values["success rate"] == 0.5
    assert values["normalized score"] == 41.235
    assert "DMSD.npz" in body
    for file in folder.iterdir():
        assert b"private" not in file.read_bytes(), file.name
    assert json.loads((folder / "config.json").read_text())["hyper"] == {"alpha": 2.5}
    policies.load(folder / "policy.bundle")


def test_a_card_needs_a_license_and_a_new_folder(run: Path) -> None:
    with pytest.raises(UserError, match=r"names a license\. Add license=…"):
        export(run=str(run), format="hub")
    assert not (run / "hub").exists()
    (run / "hub").mkdir()
    with pytest.raises(UserError, match="hub exists already"):
        export(run=str(run), format="hub", license="mit")
    with pytest.raises(UserError, match="license=mit needs format=hub"):
        export(run=str(run), license="mit")
    second = run.with_name("seed_4")
    second.mkdir()
    (second / "policy.bundle").write_bytes((run / "policy.bundle").read_bytes())
    with pytest.raises(UserError, match=r"has 2 bundles\. Give the folder of one seed"):
        export(run=str(run.parent), format="hub", license="mit")


def test_the_card_names_chunks_costs_and_the_facts_of_the_run(tmp_path: Path) -> None:
    """The bundle of another program has only its provenance."""
    spec = Spec((4,), 2, n_obs_steps=2, chunk_size=8, n_action_steps=3)
    normalizer = Normalizer.identity((4,))
    policy = bundle.Bundle(spec, "ChunkActor", {}, {}, normalizer, {"task": "push", "seed": 6})
    facts = facts_of(tmp_path / "policy.bundle", policy)
    assert (facts["task"], facts["seed"]) == ("push", 6)
    text = card(policy, facts | {"returns": [1.0], "costs": [2.0, 5.0], "target_cost": 4}, "mit")
    assert "2 per decision" in text
    assert "predicts 8 and executes 3" in text
    assert evaluation({"costs": [2.0, 5.0], "target_cost": 4})["mean cost"] == 3.5
    assert "| mean cost" in text


@pytest.fixture
def hub(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Local server with the bundle as me/reach, at revisions main and v1. Yields the requests."""
    constants = pytest.importorskip("huggingface_hub.constants", reason="needs the extra hub")
    content = (run / "policy.bundle").read_bytes()
    paths = {f"/me/reach/resolve/{revision}/policy.bundle" for revision in ("main", "v1")}
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with serve(lambda path: content if path in paths else None, monkeypatch) as requests:
        yield requests


def test_a_policy_is_loaded_from_a_hub(run: Path, hub: list[str]) -> None:
    observation = np.zeros((1, 1))
    expected = policies.load(run / "policy.bundle").act(observation)[0]
    for name in ("hub:me/reach", "hub:me/reach@v1"):
        np.testing.assert_array_equal(policies.load(name).act(observation)[0], expected)
    assert any("/resolve/v1/" in request for request in hub)
    with pytest.raises(BundleError, match=r"hub:me/other: policy\.bundle could not be downloaded"):
        policies.load("hub:me/other")
    with pytest.raises(BundleError, match="could not be downloaded"):
        policies.load("hub:not a name")
    with pytest.raises(UserError, match=r"hub:me/other: policy\.bundle could not be downloaded"):
        evaluate(run="hub:me/other")


def test_without_the_package_one_sentence_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(BundleError, match=r"needs the package huggingface_hub\. Run: pip install"):
        policies.load("hub:me/reach")
