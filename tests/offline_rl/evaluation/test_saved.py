"""Evaluations that are saved beside their bundles."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_evaluate import constant_policy

import offline_rl
from offline_rl.evaluation import evaluate as verb
from offline_rl.evaluation.saved import saved_evaluations
from offline_rl.utils.errors import UserError
from offline_rl.utils.seeds import EVALUATION_SEED
from policies import bundle


def test_an_evaluation_is_saved_beside_its_bundle_with_keys_episodes_and_code(
    tmp_path: Path,
) -> None:
    path = constant_policy(tmp_path / "policy.bundle", task="neorl2/DMSD")
    found = offline_rl.evaluate(run=str(path), episodes=2)
    (file,) = found.saved
    assert file == tmp_path / "policy.evaluation.neorl2_DMSD-2.json"
    told = json.loads(file.read_text())
    assert told["keys"] == {"task": "neorl2/DMSD", "episodes": 2}
    assert told["returns"] == found.returns[path].tolist()
    assert told["seeds"] == [EVALUATION_SEED, EVALUATION_SEED + 1]
    assert told["version"] == offline_rl.__version__
    (saved,) = saved_evaluations(path)
    assert saved.is_current
    assert saved.score == pytest.approx(found.scores[path].mean())
    constant_policy(path, (0.1, 0.1), task="neorl2/DMSD")  # the run went on
    assert not saved_evaluations(path)[0].is_current


def test_a_folder_that_cannot_be_written_costs_the_file_and_not_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = constant_policy(tmp_path / "policy.bundle", task="neorl2/DMSD")

    def refuse(*_: object) -> Path:
        raise UserError("a full disk")

    monkeypatch.setattr(verb, "save", refuse)
    found = offline_rl.evaluate(run=str(path), episodes=1)
    assert len(found.returns[path]) == 1
    assert "Not saved: a full disk" in str(found)
    assert [*tmp_path.iterdir()] == [path]


def test_an_evaluation_of_other_statistics_or_of_a_damaged_bundle_is_not_current(
    tmp_path: Path,
) -> None:
    path = constant_policy(tmp_path / "policy.bundle", task="neorl2/DMSD")
    offline_rl.evaluate(run=str(path), episodes=1)
    (saved,) = saved_evaluations(path)
    policy = bundle.read(path)
    (key, known), *_ = policy.normalizers.items()
    other = replace(known, mean=known.mean + 1)
    bundle.write(path, replace(policy, normalizers={**policy.normalizers, key: other}))
    assert not saved.is_current
    bundle.write(path, policy)
    assert saved.is_current
    path.write_bytes(path.read_bytes()[:100])
    assert not saved.is_current


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = constant_policy(tmp_path / "policy.bundle", task="neorl2/DMSD")
    (file,) = offline_rl.evaluate(run=str(path), episodes=1).saved
    file.write_text(json.dumps({"keys": {}}))
    with pytest.raises(UserError, match=f"{file} is not a saved evaluation"):
        saved_evaluations(path)
