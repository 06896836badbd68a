"""Formulas and backup policies in evaluations, on a constant force in DMSD."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from printed import evaluate

import envs
import offline_rl
from offline_rl.evaluation.rollout import Episodes
from offline_rl.evaluation.saved import saved_evaluations
from offline_rl.utils.errors import UserError
from offline_rl.utils.seeds import EVALUATION_SEED
from policies import Normalizer, Spec, bundle
from policies.golden import seal

TASK, PUSH, HOLD = "neorl2/DMSD", (0.9, 0.9), (0.0, 0.0)


def constant_policy(path: Path, action: tuple[float, ...], observations: int = 6) -> Path:
    """Write a bundle whose policy always takes `action`."""
    weights = {
        "trunk.weights.0": np.zeros((observations, len(action)), np.float32),
        "trunk.biases.0": np.arctanh(action).astype(np.float32),
    }
    arguments = {"observations": observations, "actions": len(action), "hidden": []}
    identity, spec = Normalizer.identity((observations,)), Spec((observations,), len(action))
    policy = bundle.Bundle(spec, "DeterministicActor", arguments, weights, identity, {"task": TASK})
    bundle.write(path, seal(policy))
    return path


def loop(episodes: int, limit: float | None = None) -> tuple[list[float], list[int]]:
    """Return the largest position of mass 1 in each episode, and the number of held steps.

    limit: the action is HOLD in steps whose observed position is above the limit.
    """
    env, largest, held = envs.make(TASK), [], []
    for k in range(episodes):
        observation, _ = env.reset(seed=EVALUATION_SEED + k)
        positions, over, count = [float(observation[0])], False, 0
        while not over:
            is_held = limit is not None and positions[-1] > limit
            count += is_held
            observation, _, terminated, truncated, _ = env.step(
                np.float32(HOLD if is_held else PUSH)
            )
            positions.append(float(observation[0]))
            over = terminated or truncated
        largest.append(max(positions))
        held.append(count)
    return largest, held


@pytest.fixture
def push(tmp_path: Path) -> Path:
    return constant_policy(tmp_path / "push" / "policy.bundle", PUSH)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> None:
    (tmp_path / "push").mkdir()


def test_the_robustness_of_every_episode_is_reported_and_saved(push: Path) -> None:
    largest, _ = loop(3)
    limit = float(np.median(largest)) + 1e-4
    keys: dict[str, Any] = {
        "run": str(push),
        "episodes": 3,
        "stl": f"always(observation[0] < {limit})",
    }
    (row,) = json.loads(evaluate(**keys, json=True))["bundles"]
    np.testing.assert_allclose(row["robustness"], limit - np.array(largest), atol=1e-6)
    assert row["satisfied"] == pytest.approx(2 / 3)
    assert row["backup"] is None
    (saved,) = saved_evaluations(push)
    np.testing.assert_allclose(saved.episodes.robustness, row["robustness"])
    text = evaluate(**keys)
    assert f"stl: always(observation[0] < {limit})" in text
    assert "66.7" in text


def test_the_backup_acts_in_the_steps_in_which_the_formula_is_violated(
    push: Path, tmp_path: Path
) -> None:
    backup = constant_policy(tmp_path / "hold.bundle", HOLD)
    largest, held = loop(2, limit=1.0)
    assert 0 < min(held) < 100
    keys: dict[str, Any] = {"run": str(push), "backup": str(backup), "episodes": 2, "window": 1}
    (row,) = json.loads(evaluate(**keys, stl="always(observation[0] <= 1)", json=True))["bundles"]
    np.testing.assert_allclose(row["robustness"], 1 - np.array(largest), atol=1e-6)
    assert row["backup"] == pytest.approx(sum(held) / 200)


@pytest.mark.slow
def test_a_patient_without_hypoglycemia_has_no_cost_and_satisfies_the_formula(
    tmp_path: Path,
) -> None:
    """The cost counts the steps after which the observed glucose is below 70 mg/dL."""
    policy = constant_policy(tmp_path / "dose.bundle", (-0.99,), observations=31)
    keys: dict[str, Any] = {"run": str(policy), "task": "neorl2/Simglucose", "episodes": 6}
    (row,) = json.loads(evaluate(**keys, stl="always(glucose >= 70)", json=True))["bundles"]
    no_cost = np.array(row["costs"]) == 0
    assert 0 < no_cost.sum() < 6
    assert ((np.array(row["robustness"]) >= 0) == no_cost).all()


def test_episodes_are_stored_and_read_with_their_robustness() -> None:
    one = np.ones(2)
    played = Episodes(one, one, None, None, one, one, one > 0, one.astype(int))
    row = json.loads(
        json.dumps({k: None if v is None else v.tolist() for k, v in played._asdict().items()})
    )
    back = Episodes.joined([Episodes.from_row(row)] * 2).part(1, 3)
    assert [x is None for x in back] == [x is None for x in played]
    assert back.satisfied is not None
    assert back.satisfied.tolist() == [True, True]


@pytest.mark.slow
def test_training_evaluations_report_the_robustness(tmp_path: Path) -> None:
    rng, rows = np.random.default_rng(0), 40
    last = np.arange(rows) % 20 == 19
    data = offline_rl.Dataset.from_arrays(
        observations=rng.normal(size=(rows, 6)),
        actions=rng.uniform(-1, 1, (rows, 2)),
        rewards=rng.normal(size=rows),
        terminated=np.zeros(rows, bool),
        truncated=last,
    )
    keys: dict[str, Any] = {
        "algorithm": "bc",
        "algorithm.hidden": [8],
        "num_updates": 4,
        "show": False,
    }
    keys |= {
        "eval_every": 4,
        "eval_episodes": 2,
        "task": TASK,
        "tracker": "none",
        "compile": "never",
    }
    run = offline_rl.train(
        **keys,
        dataset=data,
        eval_stl="always(observation[0] < 100)",
        out=str(tmp_path),
        batch_size=8,
    )
    (line, *_) = (run.path / "seed_0" / "evaluations.jsonl").read_text().splitlines()
    values = json.loads(line)
    assert values["eval/satisfied"] == 1
    assert values["eval/robustness"] == pytest.approx(np.median(values["robustness"]))
    assert 90 < values["eval/robustness"] < 101


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stl": "always(glucose > 70)"}, "stl, position 8: there is no signal glucose"),
        ({"stl": "always(cost <= 0)"}, "stl, position 8: the environment reports no cost"),
        ({"stl": "always("}, "stl, position 8: expected a signal"),
        ({"margin": 0.1}, "margin= is for a backup policy"),
        ({"backup": "none.bundle"}, "backup= needs the formula"),
        (
            {"backup": "none.bundle", "stl": "reward > 0"},
            "backup=none.bundle: none.bundle: no such",
        ),
        ({"backup": "none.bundle", "stl": "always("}, "stl, position 8: expected a signal"),
    ],
)
def test_a_formula_or_backup_that_does_not_fit_is_refused_in_one_sentence(
    push: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as error:
        evaluate(run=str(push), episodes=1, **changes)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_backup_with_other_observations_is_refused(push: Path, tmp_path: Path) -> None:
    backup = constant_policy(tmp_path / "other.bundle", HOLD, observations=5)
    with pytest.raises(UserError, match="observation_shape: the policy has"):
        evaluate(run=str(push), episodes=1, stl="observation[0] > 0", backup=str(backup))


def test_a_wrong_signal_is_not_blamed_on_the_backup(push: Path) -> None:
    with pytest.raises(UserError, match="about observations only") as error:
        evaluate(run=str(push), episodes=1, stl="always(reward > 0)", backup=str(push))
    assert str(error.value).startswith("stl, position 8: there is no signal reward")
