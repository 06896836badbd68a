"""Evaluations that are saved next to their bundles."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_evaluate import constant_policy

import offline_rl
from offline_rl.evaluation import evaluate as verb
from offline_rl.evaluation.saved import name_of, saved_evaluations
from offline_rl.utils.errors import UserError
from offline_rl.utils.seeds import EVALUATION_SEED
from policies import bundle


def test_an_evaluation_is_saved_next_to_its_bundle_with_keys_episodes_and_version(
    tmp_path: Path,
) -> None:
    path = constant_policy(tmp_path / "policy.bundle", task="neorl2/DMSD")
    evaluation = offline_rl.evaluate(run=str(path), episodes=2)
    (file,) = evaluation.saved
    assert file == tmp_path / "policy.evaluation.neorl2_DMSD-2.json"
    content = json.loads(file.read_text())
    assert content["keys"] == {"task": "neorl2/DMSD", "episodes": 2}
    assert content["returns"] == evaluation.returns[path].tolist()
    assert content["seeds"] == [EVALUATION_SEED, EVALUATION_SEED + 1]
    assert content["version"] == offline_rl.__version__
    (saved,) = saved_evaluations(path)
    assert saved.is_current
    assert saved.score == pytest.approx(evaluation.scores[path].mean())
    constant_policy(path, (0.1, 0.1), task="neorl2/DMSD")  # as if training had continued
    assert not saved_evaluations(path)[0].is_current


def test_results_are_shown_even_if_they_cannot_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = constant_policy(tmp_path / "policy.bundle", task="neorl2/DMSD")

    def refuse(*_: object) -> Path:
        raise UserError("a full disk")

    monkeypatch.setattr(verb, "save", refuse)
    evaluation = offline_rl.evaluate(run=str(path), episodes=1)
    assert len(evaluation.returns[path]) == 1
    assert "Not saved: a full disk" in str(evaluation)
    assert [*tmp_path.iterdir()] == [path]


def test_an_evaluation_of_a_changed_or_damaged_bundle_is_not_current(
    tmp_path: Path,
) -> None:
    path = constant_policy(tmp_path / "policy.bundle", task="neorl2/DMSD")
    offline_rl.evaluate(run=str(path), episodes=1)
    (saved,) = saved_evaluations(path)
    policy = bundle.read(path)
    (key, normalizer), *_ = policy.normalizers.items()
    other = replace(normalizer, mean=normalizer.mean + 1)
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


def test_formulas_that_differ_in_a_sign_have_files_of_their_own() -> None:
    keys = {"task": "dmsd", "episodes": 2}
    names = {name_of({**keys, "stl": f"always(x {sign} 1)"}) for sign in ("<", ">")}
    assert len(names) == 2
    assert name_of({**keys, "base": "mine:policy"}) == "dmsd-2-base_mine_policy"
